"""Reading saved models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ....graph.core.errors import InvalidArgumentError
from ....graph.formats.protos import message
from ..meta_graph_def import import_tensorflow_meta_graph
from . import constants


def contains_saved_model(export_dir: str | os.PathLike[str]) -> bool:
    """Whether a folder contains a saved model."""
    folder = Path(export_dir)
    return any(
        (folder / n).is_file() for n in (constants.SAVED_MODEL_FILENAME_PB, constants.SAVED_MODEL_FILENAME_PBTXT)
    )


maybe_saved_model_directory = contains_saved_model


def load(
    sess: Any,
    tags: Iterable[str],
    export_dir: str | os.PathLike[str],
    import_scope: str | None = None,
    **saver_kwargs: Any,
) -> Any:
    """Add the graph of a saved model to a session's graph, and restore its variables.

    Args:
        sess: the session.
        tags: the tags of the graph to load, which must match exactly.
        export_dir: the folder of the saved model.
        import_scope: prefix of all names.
        saver_kwargs: accepted without effect.

    Returns:
        The `MetaGraphDef`, whose `signature_def` names inputs and outputs.

    Raises:
        OSError: the folder has no saved model, or it is damaged. RuntimeError: no graph has these tags; the message lists the tags.
        UnimplementedError: it has ops that Dovetail lacks, as models of TensorFlow 2 do; the message lists them.

    >>> with Session(graph=Graph()) as session:
    ...     meta = saved_model.load(session, ["serve"], "/tmp/model")
    ...     y = meta.signature_def["serving_default"].outputs["y"].name
    """
    folder = Path(export_dir)
    model = _read(folder)
    wanted = {tags} if isinstance(tags, str) else set(tags)
    found = [m for m in model.meta_graphs if set(m.meta_info_def.tags) == wanted]
    if not found:
        there = "; ".join(", ".join(sorted(m.meta_info_def.tags)) or "(none)" for m in model.meta_graphs)
        raise RuntimeError(
            f"MetaGraphDef associated with tags {sorted(wanted)} could not be found in SavedModel {folder}; there are graphs with: {there}"
        )
    meta = found[0]
    if meta.asset_file_def:
        raise InvalidArgumentError(
            None, None, f"SavedModel {folder} has assets (files for tables), which are not supported"
        )
    scope = f"{import_scope.strip('/')}/" if import_scope else ""
    with sess.graph.as_default():
        import_tensorflow_meta_graph(meta, import_scope)
        prefix = str(folder / constants.VARIABLES_DIRECTORY / constants.VARIABLES_FILENAME)
        if meta.saver_def.restore_op_name and Path(f"{prefix}.index").is_file():
            sess.run(
                f"{scope}{meta.saver_def.restore_op_name}", {f"{scope}{meta.saver_def.filename_tensor_name}": prefix}
            )
        for key in (constants.MAIN_OP_KEY, constants.LEGACY_INIT_OP_KEY):
            for name in meta.collection_def[key].node_list.value if key in meta.collection_def else ():
                sess.run(f"{scope}{name}")
    return meta


def _read(folder: Path) -> Any:
    model = message("SavedModel")()
    binary, text = folder / constants.SAVED_MODEL_FILENAME_PB, folder / constants.SAVED_MODEL_FILENAME_PBTXT
    try:
        if binary.is_file():
            model.ParseFromString(binary.read_bytes())
        elif text.is_file():
            from google.protobuf.text_format import Parse

            Parse(text.read_text(encoding="utf-8"), model)
        else:
            raise OSError(f"SavedModel file does not exist at: {folder}/{{{binary.name}|{text.name}}}")
    except OSError:
        raise
    except Exception as e:  # protobuf's errors, which have no class without the package
        raise OSError(f"Cannot parse the saved model in {folder}: {e}") from None
    return model


__all__ = ["contains_saved_model", "load", "maybe_saved_model_directory"]
