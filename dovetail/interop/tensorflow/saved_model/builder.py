"""Writes saved models."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....graph.core.constant_value import static_value
from ....graph.core.default_graph import GraphKeys, get_default_graph
from ....graph.core.dtypes import string
from ....graph.core.errors import InvalidArgumentError, NotFoundError
from ....graph.core.graph import Graph, Node, Tensor
from ....graph.formats.atomic_files import path_of, write_bytes_durably, write_durably
from ....graph.formats.protos import message
from ....graph.formats.tensor_bundle import write_bundle
from ....graph.tensorflow.export_graph_def import OWN, needed_by, node_of, without
from ....graph.variables.partitioned import PartitionedVariable
from ....graph.variables.variable import Variable
from ..meta_graph_def import add_saving_nodes, write_collections
from . import constants, signature_constants, tag_constants
from .signature_def_utils import predict_signature_def

_LOG = logging.getLogger("dovetail")


class Builder:
    """Writes a saved model: one or more graphs, and the values of one set of variables.

    Args:
        export_dir: a folder that does not exist, or is empty. It is created.

    Raises:
        AssertionError: the folder is not empty. TensorFlow raises the same error.

    >>> builder = saved_model.Builder("/tmp/model")
    >>> builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
    >>> builder.save()
    """

    def __init__(self, export_dir: str | os.PathLike[str]) -> None:
        self._folder = path_of(export_dir)
        if self._folder.exists() and any(self._folder.iterdir()):
            raise AssertionError(f"Export directory {export_dir} already exists, and isn't empty")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._model = message("SavedModel")(saved_model_schema_version=constants.SAVED_MODEL_SCHEMA_VERSION)
        self._has_variables = False
        self._digests: dict[str, bytes] = {}  # of the assets, by name in the folder

    def add_meta_graph_and_variables(
        self,
        sess: Any,
        tags: Iterable[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_collection: Any = None,
        legacy_init_op: Any = None,
        clear_devices: bool = False,
        main_op: Any = None,
        strip_default_attrs: bool = False,
        saver: Any = None,
    ) -> None:
        """Add the graph of a session, and write the current values of its variables.

        Args:
            sess: the session with the values of variables.
            tags: the tags of this graph, such as `[tag_constants.SERVING]`.
            signature_def_map: name -> `SignatureDef`.
            assets_collection: tensors that name files, usually `get_collection(GraphKeys.ASSET_FILEPATHS)`. The files are copied to
                `assets/`, and the loaded graph names the copies. A different file with the same name is renamed, as in `words.txt_1`.
            main_op: a node to run after the model is loaded.
            legacy_init_op: an older name of `main_op`.
            clear_devices: remove device requests.
            strip_default_attrs: accepted without effect.
            saver: selects the variables to write; None: all that can be saved.

        Raises:
            RuntimeError: the variables were written before. Use `add_meta_graph`.
            UnimplementedError: protobuf is not installed.
            InvalidArgumentError: a signature names a tensor that is not in the graph.
            NotFoundError: an asset does not exist.
            TypeError: an asset is not a constant name of a file.
        """
        if self._has_variables:
            raise RuntimeError(
                "Graph state including variables and assets has already been saved. Please invoke `add_meta_graph()` instead."
            )
        variables = _variables(sess.graph, saver)
        assets = self._assets(sess.graph, assets_collection)
        meta = self._meta_graph(
            sess.graph, tags, signature_def_map, assets, legacy_init_op, clear_devices, main_op, variables
        )
        values = sess.run(dict(variables)) if variables else {}
        if values:
            folder = self._folder / constants.VARIABLES_DIRECTORY
            folder.mkdir(exist_ok=True)
            write_bundle(str(folder / constants.VARIABLES_FILENAME), [(n, np.asarray(v)) for n, v in values.items()])
        self._copy(assets)
        self._model.meta_graphs.append(meta)
        self._has_variables = True

    def add_meta_graph(
        self,
        tags: Iterable[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_collection: Any = None,
        legacy_init_op: Any = None,
        clear_devices: bool = False,
        main_op: Any = None,
        strip_default_attrs: bool = False,
        saver: Any = None,
    ) -> None:
        """Add the default graph, which uses the same variables. The arguments are those of `add_meta_graph_and_variables`.

        Raises:
            AssertionError: the variables were not written before.
        """
        if not self._has_variables:
            raise AssertionError(
                "Graph state including variables and assets has not been saved yet. Please invoke `add_meta_graph_and_variables()` first."
            )
        graph = get_default_graph()
        variables = _variables(graph, saver)
        assets = self._assets(graph, assets_collection)
        meta = self._meta_graph(
            graph, tags, signature_def_map, assets, legacy_init_op, clear_devices, main_op, variables
        )
        self._copy(assets)
        self._model.meta_graphs.append(meta)

    def _assets(self, graph: Graph, tensors: Iterable[Any] | None) -> dict[str, tuple[str, Path]]:
        """Returns for each tensor's name the name of its file in `assets/`, and the original file.

        Files with the same name in `assets/` have the same contents.
        """
        found = {}
        for tensor in tensors or ():
            if not isinstance(tensor, Tensor) or tensor.graph is not graph:
                raise TypeError(f"An asset must be a tensor of the graph that is saved, not {tensor!r}")
            made = f"asset '{tensor.name}', created at {tensor.op.source},"
            value = static_value(tensor) if tensor.dtype.base is string else None
            if value is None or value.ndim:
                raise TypeError(f"The {made} must be a constant, the name of one file")
            path = path_of(os.fsdecode(value.item()))
            try:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").digest()
            except OSError as e:
                kind = NotFoundError if isinstance(e, FileNotFoundError) else InvalidArgumentError
                raise kind(None, None, f"The {made} cannot be copied: {path}: {e.strerror or e}") from None
            names = itertools.chain([path.name], (f"{path.name}_{i}" for i in itertools.count(1)))
            name = next(n for n in names if self._digests.setdefault(n, digest) == digest)
            found[tensor.name] = name, path
        return found

    def _copy(self, assets: Mapping[str, tuple[str, Path]]) -> None:
        folder = self._folder / constants.ASSETS_DIRECTORY
        for name, path in assets.values():
            folder.mkdir(exist_ok=True)
            if not (folder / name).exists():
                write_durably(folder / name, partial(_copy_file, path))

    def _meta_graph(
        self, graph: Any, tags: Iterable[str], signatures: Mapping[str, Any] | None, assets: Mapping[str, tuple[str, Path]],
        legacy_init_op: Any, clear_devices: bool, main_op: Any, variables: Mapping[str, Variable],
    ) -> Any:  # fmt: skip
        if isinstance(tags, str):
            raise TypeError(f"tags must be a list, not {tags!r}")
        meta = message("MetaGraphDef")()
        meta.meta_info_def.tags.extend(tags)
        last = [main_op, legacy_init_op]
        ends = [_named(n) for n in last if n is not None] + [
            node_of(t.name) for s in (signatures or {}).values() for t in _tensors(s)
        ]
        ends += map(node_of, assets)
        meta.graph_def.CopyFrom(_servable(graph.as_graph_def(add_shapes=True), ends))
        if clear_devices:
            for node in meta.graph_def.node:
                node.device = ""
        for name, signature in (signatures or {}).items():
            meta.signature_def[name].CopyFrom(type(meta.signature_def[name]).FromString(signature.SerializeToString()))
        if variables:
            meta.saver_def.CopyFrom(add_saving_nodes(meta.graph_def, variables))
        for key, node in ((constants.MAIN_OP_KEY, main_op), (constants.LEGACY_INIT_OP_KEY, legacy_init_op)):
            if node is not None:
                meta.collection_def[key].node_list.value.append(_named(node))
        write_collections(graph, meta)
        for tensor, (filename, _) in assets.items():
            asset = message("AssetFileDef")(filename=filename)
            asset.tensor_info.name = tensor
            meta.collection_def[constants.ASSETS_KEY].any_list.value.add().Pack(asset)
        return meta

    def save(self, as_text: bool = False) -> str:
        """Write the graphs, and return the path of the file. `as_text`: write protobuf's text format."""
        if as_text:
            from google.protobuf.text_format import MessageToString

            path, content = self._folder / constants.SAVED_MODEL_FILENAME_PBTXT, MessageToString(self._model).encode()
        else:
            path, content = self._folder / constants.SAVED_MODEL_FILENAME_PB, self._model.SerializeToString()
        write_bytes_durably(path, content)
        return str(path)


def simple_save(
    session: Any, export_dir: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any], legacy_init_op: Any = None
) -> None:
    """Write a session's graph, its variables and the files of its tables as a saved model for serving.

    Args:
        session: the session with the values of variables.
        export_dir: a new folder.
        inputs: name -> tensor.
        outputs: name -> tensor.
        legacy_init_op: a node to run after the model is loaded.

    Raises:
        AssertionError: the folder is not empty. The other errors are those of `Builder.add_meta_graph_and_variables`.

    >>> saved_model.simple_save(session, "/tmp/model", {"x": x}, {"y": y})
    """
    builder = Builder(export_dir)
    signature = predict_signature_def(inputs, outputs)
    builder.add_meta_graph_and_variables(
        session,
        [tag_constants.SERVING],
        {signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature},
        session.graph.get_collection(GraphKeys.ASSET_FILEPATHS),
        legacy_init_op=legacy_init_op,
        clear_devices=True,
    )
    builder.save()


def _variables(graph: Any, saver: Any) -> dict[str, Variable]:
    """Returns the variables to write, by name in the checkpoint. Each part of a partitioned variable has its own name."""
    if saver is not None:
        found = list(saver.variables)
    else:
        found = [*graph.get_collection(GraphKeys.GLOBAL_VARIABLES), *graph.get_collection(GraphKeys.SAVEABLE_OBJECTS)]
    out = {}
    for variable in found:
        if not isinstance(variable, (Variable, PartitionedVariable)):
            _LOG.warning("The contents of %r are not written: TensorFlow's format has only variables", variable)
            continue
        for part in variable if isinstance(variable, PartitionedVariable) else (variable,):
            single = part._single()
            out[single.op.name] = single
    return out


def _servable(graph_def: Any, ends: Sequence[str]) -> Any:
    """Removes nodes that TensorFlow cannot load, such as those that save Dovetail's checkpoints.

    Nodes that `ends`, the names of nodes, depend on are kept. A warning is logged if TensorFlow cannot load them.
    """
    there = {node.name: node for node in graph_def.node}
    needed = needed_by(graph_def, ends)
    absent = sorted(needed - there.keys())
    if absent:
        raise InvalidArgumentError.of(f"A signature names '{absent[0]}', which is not in the graph")
    own = sorted({there[name].op.removeprefix(OWN) for name in needed if there[name].op.startswith(OWN)})
    if own:
        _LOG.warning(
            "Only Dovetail can load this model, because TensorFlow does not have these ops: %s", ", ".join(own)
        )
    return without(graph_def, lambda node: node.op.startswith(OWN), needed)


def _copy_file(path: Path, target: Path) -> None:
    with path.open("rb") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)


def _tensors(signature: Any) -> list[Any]:
    return [*signature.inputs.values(), *signature.outputs.values()]


def _named(node: Any) -> str:
    name: str = (node if isinstance(node, Node) else node.op).name
    return name


SavedModelBuilder = Builder


__all__ = ["Builder", "SavedModelBuilder", "simple_save"]
