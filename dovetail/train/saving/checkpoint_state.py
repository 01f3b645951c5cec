"""The `checkpoint` file, which lists the checkpoints of a folder in TensorFlow's format.

This module reads and writes it, and waits for new checkpoints.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...graph.formats.atomic_files import is_remote, path_of, write_durably
from ...graph.formats.checkpoints import CheckpointReader, checkpoint_exists, remove_checkpoint_files

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CheckpointState:
    """The contents of the `checkpoint` file.

    Attributes:
        model_checkpoint_path: the latest checkpoint.
        all_model_checkpoint_paths: all checkpoints, oldest first.
        all_model_checkpoint_timestamps: the time at which each was written, in seconds since 1970.
        last_preserved_timestamp: the time at which the last permanent checkpoint was written, in seconds since 1970.
    """

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: list[str] = field(default_factory=list)
    all_model_checkpoint_timestamps: list[float] = field(default_factory=list)
    last_preserved_timestamp: float = 0.0


def _state_file(folder: str, latest_filename: str | None) -> Path:
    return path_of(folder) / (latest_filename or "checkpoint")


def _with_latest(
    latest: str, paths: Sequence[str] | None, times: Sequence[float] | None
) -> tuple[list[str], list[float]]:
    """Returns all checkpoints, with the latest one last, and their times. ValueError: the numbers of paths and times differ."""
    found, made = list(paths or []), list(times or [])
    if not found or found[-1] != latest:
        found.append(latest)
    if made and len(made) != len(found):
        raise ValueError(f"There must be one timestamp per path: {len(found)}, not {len(made)}")
    return found, made


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
    """Replace the `checkpoint` file atomically.

    Args:
        save_dir: the folder.
        model_checkpoint_path: the latest checkpoint.
        all_model_checkpoint_paths: all checkpoints, oldest first; None: only the latest one.
        latest_filename: name of the file; None: `checkpoint`.
        all_model_checkpoint_timestamps: times of the checkpoints, in seconds since 1970.
        last_preserved_timestamp: time of the last permanent checkpoint, in seconds since 1970.
        save_relative_paths: write paths relative to the folder.

    Raises:
        RuntimeError: a checkpoint has the path of the `checkpoint` file itself.
        ValueError: the numbers of paths and timestamps differ.
    """
    paths, times = _with_latest(model_checkpoint_path, all_model_checkpoint_paths, all_model_checkpoint_timestamps)
    target = _state_file(save_dir, latest_filename)
    if target == path_of(model_checkpoint_path):
        raise RuntimeError(f"Save path '{model_checkpoint_path}' conflicts with path used for checkpoint state.")

    def shown(path: str) -> str:
        relative = save_relative_paths or not path_of(path).is_absolute()
        return json.dumps(_relative_to(path, save_dir) if relative else path, ensure_ascii=False)

    lines = [f"model_checkpoint_path: {shown(model_checkpoint_path)}"]
    lines += [f"all_model_checkpoint_paths: {shown(p)}" for p in paths]
    lines += [f"all_model_checkpoint_timestamps: {t!r}" for t in times]
    if last_preserved_timestamp is not None:
        lines.append(f"last_preserved_timestamp: {last_preserved_timestamp!r}")
    text = "\n".join(lines) + "\n"
    write_durably(target, lambda partial: _write(partial, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="surrogateescape")


def generate_checkpoint_state_proto(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> CheckpointState:
    """Returns the contents of a folder's `checkpoint` file. If the folder's path is relative, the paths are relative to the folder.

    The arguments are those of `update_checkpoint_state`.

    Raises:
        ValueError: the numbers of paths and timestamps differ.
    """
    paths, times = _with_latest(model_checkpoint_path, all_model_checkpoint_paths, all_model_checkpoint_timestamps)
    if not path_of(save_dir).is_absolute():
        paths = [p if path_of(p).is_absolute() else os.path.relpath(p, save_dir) for p in paths]
    return CheckpointState(paths[-1], paths, times, last_preserved_timestamp or 0.0)


def _relative_to(path: str, folder: str) -> str:
    """Returns the path relative to a folder, if the folder contains it."""
    found = path_of(path)
    above = path_of(folder)
    return str(found.relative_to(above)) if found.is_relative_to(above) else path


def get_checkpoint_state(checkpoint_dir: str, latest_filename: str | None = None) -> CheckpointState | None:
    """Read the `checkpoint` file of a folder. The paths in the result can be opened. None: there is no file, or it is damaged.

    Args:
        checkpoint_dir: the folder.
        latest_filename: name of the file; None: `checkpoint`.

    Raises:
        ValueError: the file names no checkpoint.
    """
    file = _state_file(checkpoint_dir, latest_filename)
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        found = [_field(line) for line in lines if line.strip()]
        named = [(k, _unquoted(v)) for k, v in found if k.endswith(("_path", "_paths"))]
        paths = [(k, p if is_remote(p) else os.path.join(checkpoint_dir, p)) for k, p in named]  # noqa: PTH118  (pathlib would normalize it)
        times = [(k, float(v)) for k, v in found if k.endswith(("_timestamps", "_timestamp"))]
        latest = [p for k, p in paths if k == "model_checkpoint_path"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        logger.warning("The checkpoint state in %s is ignored: %s", file, e)
        return None
    if not latest:
        raise ValueError(
            f"Invalid checkpoint state loaded from {checkpoint_dir}: {file} names no checkpoint. Delete it"
        )
    return CheckpointState(
        latest[-1],
        [p for k, p in paths if k == "all_model_checkpoint_paths"],
        [t for k, t in times if k == "all_model_checkpoint_timestamps"],
        next((t for k, t in times if k == "last_preserved_timestamp"), 0.0),
    )


def _field(line: str) -> tuple[str, str]:
    """Parses `name: value`. ValueError: the line has another form."""
    found = re.fullmatch(r"\s*(\w+)\s*:\s*(.*?)\s*", line)
    if found is None:
        raise ValueError(f"{line[:80]!r} is not a field")
    return found[1], found[2]


def _unquoted(value: str) -> str:
    """Parses a quoted string. ValueError: it is not one."""
    if not re.fullmatch(r'"([^"\\]|\\.)*"', value):
        raise ValueError(f"{value[:80]!r} is not a quoted string")
    try:
        return str(json.loads(value))
    except ValueError:  # TensorFlow 1 writes the bytes of non-ASCII characters as octal escapes
        return value[1:-1].encode().decode("unicode_escape").encode("latin-1").decode()


def latest_checkpoint(checkpoint_dir: str, latest_filename: str | None = None) -> str | None:
    """Returns the path of the newest checkpoint of a folder, for `Saver.restore`; None if there is none.

    Args:
        checkpoint_dir: the folder.
        latest_filename: name of the file that lists the checkpoints; None: `checkpoint`.

    >>> saver.restore(session, latest_checkpoint("/tmp/run"))
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None:
        return None
    for path in [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]:
        if checkpoint_exists(path):
            return path
        logger.error("Couldn't match files for checkpoint %s", path)
    return None


def get_checkpoint_mtimes(checkpoint_prefixes: Sequence[str]) -> list[float]:
    """Returns the times at which checkpoints were written, in seconds since 1970. Missing checkpoints are skipped."""
    return [path_of(f"{p}.index").stat().st_mtime for p in checkpoint_prefixes if checkpoint_exists(p)]


def remove_checkpoint(
    checkpoint_prefix: str, checkpoint_format_version: int = 2, meta_graph_suffix: str = "meta"
) -> None:
    """Delete the files of a checkpoint and its graph."""
    remove_checkpoint_files(checkpoint_prefix)
    path_of(f"{checkpoint_prefix}.{meta_graph_suffix}").unlink(missing_ok=True)


# --- reading ----------------------------------------------------------------------------------------------------------


def load_checkpoint(ckpt_dir_or_file: str) -> CheckpointReader:
    """Returns a reader of a checkpoint.

    Args:
        ckpt_dir_or_file: path of a checkpoint, or a folder, which stands for its latest checkpoint.

    Raises:
        ValueError: the folder has no checkpoint.
        NotFoundError: the checkpoint does not exist.
    """
    return CheckpointReader(checkpoint_of(ckpt_dir_or_file))


def checkpoint_of(where: str) -> str:
    """Returns the path of a checkpoint: `where`, or the latest one of this folder. ValueError: the folder has none."""
    if not path_of(where).is_dir():
        return str(where)
    found = latest_checkpoint(str(where))
    if found is None:
        raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in given directory {where}")
    return found


def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, list[int]]]:
    """Returns (name, shape) of each tensor of a checkpoint, sorted by name. Argument and errors as in `load_checkpoint`."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: str, name: str) -> object:
    """Returns a tensor of a checkpoint as an array. The name may end with `:0`. Errors as in `load_checkpoint`."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))


# Interval between two polls of a folder, in seconds. A poll reads one small file.
POLL_S = 1.0


def wait_for_new_checkpoint(
    checkpoint_dir: str,
    last_checkpoint: str | None = None,
    seconds_to_sleep: float = POLL_S,
    timeout: float | None = None,
) -> str | None:
    """Waits until a folder has a checkpoint other than `last_checkpoint`. Returns its path, or None after `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    while (found := latest_checkpoint(checkpoint_dir)) in (None, last_checkpoint):
        left = math.inf if end is None else end - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(seconds_to_sleep, left))
    return found


def checkpoints_iterator(
    checkpoint_dir: str,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], Any] | None = None,
) -> Iterator[str]:
    """Iterate over the checkpoints of a folder as they appear. A slow consumer misses some.

    Args:
        checkpoint_dir: the folder.
        min_interval_secs: minimum seconds between two checkpoints.
        timeout: seconds to wait for the next checkpoint; None: without limit.
        timeout_fn: called after a timeout; iteration ends if it returns True. None: it ends.
    """
    seen: str | None = None
    while True:
        found = wait_for_new_checkpoint(checkpoint_dir, seen, timeout=timeout)
        if found is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        seen, given = found, time.monotonic()
        yield found
        time.sleep(max(0.0, min_interval_secs - (time.monotonic() - given)))
