"""Which checkpoints a folder holds: the `checkpoint` file, in TensorFlow's own format, and its readers."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...graph.formats.atomic_files import is_remote, path_of, write_durably
from ...graph.formats.checkpoints import CheckpointReader, checkpoint_exists, remove_checkpoint_files

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CheckpointState:
    """What the `checkpoint` file says.

    Attributes:
        model_checkpoint_path: the latest checkpoint.
        all_model_checkpoint_paths: all that are kept, the oldest first.
        all_model_checkpoint_timestamps: when each was made, in seconds since 1970.
        last_preserved_timestamp: when the last one that is kept for good was made.
    """

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: list[str] = field(default_factory=list)
    all_model_checkpoint_timestamps: list[float] = field(default_factory=list)
    last_preserved_timestamp: float = 0.0


def _state_file(folder: str, latest_filename: str | None) -> Path:
    return path_of(folder) / (latest_filename or "checkpoint")


def update_checkpoint_state(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
    *,
    save_relative_paths: bool = False,
) -> None:
    """Write the `checkpoint` file: the new one or the old one is there at any moment.

    Raises:
        RuntimeError: the model's path is that of the `checkpoint` file itself. ValueError: not one time per path.
    """
    paths = list(all_model_checkpoint_paths or [])
    if not paths or paths[-1] != model_checkpoint_path:
        paths.append(model_checkpoint_path)
    times = list(all_model_checkpoint_timestamps or [])
    if times and len(times) != len(paths):
        raise ValueError(f"There must be one timestamp per path: {len(paths)}, not {len(times)}")
    target = _state_file(save_dir, latest_filename)
    if target == path_of(model_checkpoint_path):
        raise RuntimeError(f"Save path '{model_checkpoint_path}' conflicts with path used for checkpoint state.")

    def shown(path: str) -> str:
        relative = save_relative_paths or not path_of(path).is_absolute()
        return json.dumps(_beside(path, save_dir) if relative else path)

    lines = [f"model_checkpoint_path: {shown(model_checkpoint_path)}"]
    lines += [f"all_model_checkpoint_paths: {shown(p)}" for p in paths]
    lines += [f"all_model_checkpoint_timestamps: {t!r}" for t in times]
    if last_preserved_timestamp is not None:
        lines.append(f"last_preserved_timestamp: {last_preserved_timestamp!r}")
    text = "\n".join(lines) + "\n"
    write_durably(target, lambda partial: _write(partial, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def generate_checkpoint_state_proto(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> CheckpointState:
    """What the `checkpoint` file of a folder would say; where the folder's path is relative, so are those of checkpoints to it.

    Raises:
        ValueError: not one time per path.
    """
    paths = list(all_model_checkpoint_paths or [])
    if not paths or paths[-1] != model_checkpoint_path:
        paths.append(model_checkpoint_path)
    times = list(all_model_checkpoint_timestamps or [])
    if times and len(times) != len(paths):
        raise ValueError(f"There must be one timestamp per path: {len(paths)}, not {len(times)}")
    if not path_of(save_dir).is_absolute():
        paths = [p if path_of(p).is_absolute() else os.path.relpath(p, save_dir) for p in paths]
    return CheckpointState(paths[-1], paths, times, last_preserved_timestamp or 0.0)


def _beside(path: str, folder: str) -> str:
    """The path as seen from a folder, when it lies in it."""
    found = path_of(path)
    above = path_of(folder)
    return str(found.relative_to(above)) if found.is_relative_to(above) else path


def get_checkpoint_state(checkpoint_dir: str, latest_filename: str | None = None) -> CheckpointState | None:
    """What the `checkpoint` file of a folder says, with paths that can be opened; None when there is none, or it is damaged.

    Raises:
        ValueError: the file names no checkpoint.
    """
    file = _state_file(checkpoint_dir, latest_filename)
    try:
        found = re.findall(r"^\s*(\w+)\s*:\s*(.*?)\s*$", file.read_text(encoding="utf-8"), re.MULTILINE)
        named = [(k, json.loads(v)) for k, v in found if k.endswith(("_path", "_paths"))]
        paths = [(k, p if is_remote(p) else os.path.join(checkpoint_dir, p)) for k, p in named]  # noqa: PTH118  (as it stands there)
        times = [(k, float(v)) for k, v in found if k.endswith(("_timestamps", "_timestamp"))]
        latest = [p for k, p in paths if k == "model_checkpoint_path"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as e:
        logger.warning("%s: %s: its checkpoint state is ignored", file, e)
        return None
    if not latest:
        raise ValueError(
            f"Invalid checkpoint state loaded from {checkpoint_dir}: {file} names no checkpoint; delete it"
        )
    return CheckpointState(
        latest[-1],
        [p for k, p in paths if k == "all_model_checkpoint_paths"],
        [t for k, t in times if k == "all_model_checkpoint_timestamps"],
        next((t for k, t in times if k == "last_preserved_timestamp"), 0.0),
    )


def latest_checkpoint(checkpoint_dir: str, latest_filename: str | None = None) -> str | None:
    """The newest checkpoint of a folder that is there; None when there is none."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None:
        return None
    for path in [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]:
        if checkpoint_exists(path):
            return path
        logger.error("Couldn't match files for checkpoint %s", path)
    return None


def get_checkpoint_mtimes(checkpoint_prefixes: Sequence[str]) -> list[float]:
    """When each checkpoint was made, in seconds since 1970; those that are not there are left out."""
    return [path_of(f"{p}.index").stat().st_mtime for p in checkpoint_prefixes if checkpoint_exists(p)]


def remove_checkpoint(
    checkpoint_prefix: str, checkpoint_format_version: int = 2, meta_graph_suffix: str = "meta"
) -> None:
    """Remove a checkpoint and its graph."""
    remove_checkpoint_files(checkpoint_prefix)
    path_of(f"{checkpoint_prefix}.{meta_graph_suffix}").unlink(missing_ok=True)


# --- reading ----------------------------------------------------------------------------------------------------------


def load_checkpoint(ckpt_dir_or_file: str) -> CheckpointReader:
    """A reader for a checkpoint, or for the latest one of a folder.

    Raises:
        ValueError: the folder has none. NotFoundError: there is no checkpoint of that name.
    """
    path = str(ckpt_dir_or_file)
    if path_of(path).is_dir():
        latest = latest_checkpoint(path)
        if latest is None:
            raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}")
        path = latest
    return CheckpointReader(path)


def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, list[int]]]:
    """(name, shape) of each tensor, by name."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: str, name: str) -> object:
    """The value of a tensor; a `:0` at the end of its name is understood."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))


__all__ = [
    "CheckpointReader", "CheckpointState", "checkpoint_exists", "generate_checkpoint_state_proto", "get_checkpoint_mtimes",
    "get_checkpoint_state", "latest_checkpoint", "list_variables", "load_checkpoint", "load_variable", "remove_checkpoint",
    "update_checkpoint_state",
]  # fmt: skip
