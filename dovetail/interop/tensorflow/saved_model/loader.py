"""Reads saved models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ....graph.formats.atomic_files import is_remote, path_of
from ....graph.formats.protos import message
from ....graph.formats.values import read_attr, write_attr
from ....graph.tensorflow.export_graph_def import node_of
from ..meta_graph_def import import_tensorflow_meta_graph
from . import constants


def contains_saved_model(export_dir: str | os.PathLike[str]) -> bool:
    """Whether a folder contains a saved model."""
    folder = path_of(export_dir)
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
    """Add the graph of a saved model to a session's graph, and restore its variables. Tables read the files in the model's folder.

    Args:
        sess: the session.
        tags: the tags of the graph to load, which must match exactly.
        export_dir: the folder of the saved model.
        import_scope: prefix of all names.
        saver_kwargs: accepted without effect.

    Returns:
        The `MetaGraphDef`, whose `signature_def` names inputs and outputs.

    Raises:
        OSError: the folder has no saved model, or it is damaged.
        RuntimeError: no graph has these tags. The message lists the tags of all graphs.
        UnimplementedError: the model has ops that Dovetail lacks, as models of TensorFlow 2 do. The message lists them.

    >>> with Session(graph=Graph()) as session:
    ...     meta = saved_model.load(session, ["serve"], "/tmp/model")
    ...     y = meta.signature_def["serving_default"].outputs["y"].name
    """
    folder = path_of(export_dir)
    model = _read(folder)
    wanted = {tags} if isinstance(tags, str) else set(tags)
    found = [m for m in model.meta_graphs if set(m.meta_info_def.tags) == wanted]
    if not found:
        there = "; ".join(", ".join(sorted(m.meta_info_def.tags)) or "(none)" for m in model.meta_graphs)
        raise RuntimeError(
            f"MetaGraphDef associated with tags {sorted(wanted)} could not be found in SavedModel {folder}. Tags of its graphs: {there}"
        )
    meta = found[0]
    with _parsing(folder):
        _find_assets(meta, (folder if is_remote(export_dir) else folder.absolute()) / constants.ASSETS_DIRECTORY)
    scope = f"{import_scope.strip('/')}/" if import_scope else ""
    with sess.graph.as_default():
        import_tensorflow_meta_graph(meta, import_scope)
        prefix = str(folder / constants.VARIABLES_DIRECTORY / constants.VARIABLES_FILENAME)
        if meta.saver_def.restore_op_name and path_of(f"{prefix}.index").is_file():
            sess.run(
                f"{scope}{meta.saver_def.restore_op_name}", {f"{scope}{meta.saver_def.filename_tensor_name}": prefix}
            )
        for key in (constants.MAIN_OP_KEY, constants.LEGACY_INIT_OP_KEY):
            for name in meta.collection_def[key].node_list.value if key in meta.collection_def else ():
                sess.run(f"{scope}{name}")
    return meta


def _find_assets(meta: Any, folder: Path) -> None:
    """Replaces the names of assets in the graph by the names of their copies in `folder`."""
    nodes = {node.name: node for node in meta.graph_def.node}
    assets = list(meta.asset_file_def)
    if not assets and constants.ASSETS_KEY in meta.collection_def:  # TensorFlow 1 stores them here
        kept = meta.collection_def[constants.ASSETS_KEY].any_list.value
        assets = [message("AssetFileDef").FromString(a.value) for a in kept]
    moved = {}
    for asset in assets:
        name = node_of(asset.tensor_info.name)
        if name not in nodes:
            raise OSError(
                f"The saved model of {folder} has an asset for the tensor '{name}', which is not in its graph"
            )
        node, path = nodes[name], str(folder / asset.filename)
        if node.op == "Const":
            moved[read_attr(node.attr["value"], "tensor").item()] = path.encode()
        node.op = "Const"
        del node.input[:]
        node.attr.clear()
        write_attr(node.attr["dtype"], "type", "string")
        write_attr(node.attr["value"], "tensor", np.array(path.encode(), object))
    for (
        node
    ) in nodes.values():  # tables of the same file share their contents under a name that contains the file's name
        for old, new in moved.items():
            if node.op == "HashTableV2" and node.attr["shared_name"].s.startswith(b"hash_table_" + old + b"_"):
                node.attr["shared_name"].s = node.attr["shared_name"].s.replace(old, new, 1)
                break


def _read(folder: Path) -> Any:
    model = message("SavedModel")()
    binary, text = folder / constants.SAVED_MODEL_FILENAME_PB, folder / constants.SAVED_MODEL_FILENAME_PBTXT
    with _parsing(folder):
        if binary.is_file():
            model.ParseFromString(binary.read_bytes())
        elif text.is_file():
            from google.protobuf.text_format import Parse

            Parse(text.read_text(encoding="utf-8"), model, descriptor_pool=model.DESCRIPTOR.file.pool)
        else:
            raise OSError(f"SavedModel file does not exist at: {folder}/{{{binary.name}|{text.name}}}")
    return model


@contextmanager
def _parsing(folder: Path) -> Iterator[None]:
    """A block in which errors mean that the saved model is damaged. They become OSErrors."""
    try:
        yield
    except OSError:
        raise
    except Exception as e:  # protobuf's errors, which have no class without the package
        raise OSError(f"Cannot parse the saved model in {folder}: {e}") from None


__all__ = ["contains_saved_model", "load", "maybe_saved_model_directory"]
