"""Writing saved models."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ....graph.core.default_graph import GraphKeys, get_default_graph
from ....graph.core.errors import InvalidArgumentError, UnimplementedError
from ....graph.core.graph import Node
from ....graph.formats.atomic_files import path_of, write_bytes_durably
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
        AssertionError: the folder is not empty, as in TensorFlow.

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
            assets_collection: not supported: must be empty.
            main_op: a node to run after the model is loaded.
            legacy_init_op: an older name of `main_op`.
            clear_devices: remove device requests.
            strip_default_attrs: accepted without effect.
            saver: selects the variables to write; None: all that can be saved.

        Raises:
            RuntimeError: variables have already been written: use `add_meta_graph`. UnimplementedError: protobuf is not installed.
            InvalidArgumentError: a signature names a tensor that is not in the graph.
        """
        if self._has_variables:
            raise RuntimeError(
                "Graph state including variables and assets has already been saved. Please invoke `add_meta_graph()` instead."
            )
        variables = _variables(sess.graph, saver)
        meta = self._meta_graph(
            sess.graph, tags, signature_def_map, assets_collection, legacy_init_op, clear_devices, main_op, variables
        )
        values = sess.run(dict(variables)) if variables else {}
        if values:
            folder = self._folder / constants.VARIABLES_DIRECTORY
            folder.mkdir(exist_ok=True)
            write_bundle(str(folder / constants.VARIABLES_FILENAME), [(n, np.asarray(v)) for n, v in values.items()])
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
        """Add the default graph, which uses the same variables. Arguments as in `add_meta_graph_and_variables`.

        Raises:
            AssertionError: the variables have not been written.
        """
        if not self._has_variables:
            raise AssertionError(
                "Graph state including variables and assets has not been saved yet. Please invoke `add_meta_graph_and_variables()` first."
            )
        graph = get_default_graph()
        variables = _variables(graph, saver)
        self._model.meta_graphs.append(
            self._meta_graph(
                graph, tags, signature_def_map, assets_collection, legacy_init_op, clear_devices, main_op, variables
            )
        )

    def _meta_graph(
        self, graph: Any, tags: Iterable[str], signatures: Mapping[str, Any] | None, assets: Any, legacy_init_op: Any, clear_devices: bool,
        main_op: Any, variables: Mapping[str, Variable],
    ) -> Any:  # fmt: skip
        if assets:
            raise UnimplementedError(
                None, None, "Saved models with assets are not supported: give tables their values instead of a file"
            )
        if isinstance(tags, str):
            raise TypeError(f"tags must be a list, not {tags!r}")
        meta = message("MetaGraphDef")()
        meta.meta_info_def.tags.extend(tags)
        last = [main_op, legacy_init_op]
        ends = [_named(n) for n in last if n is not None] + [
            node_of(t.name) for s in (signatures or {}).values() for t in _tensors(s)
        ]
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
        return meta

    def save(self, as_text: bool = False) -> str:
        """Write the graphs, and return the path of the file."""
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
    """Write a session's graph and variables as a saved model for serving.

    Args:
        session: the session with the values of variables.
        export_dir: a new folder.
        inputs: name -> tensor.
        outputs: name -> tensor.
        legacy_init_op: a node to run after the model is loaded.

    Errors as in `Builder`.

    >>> saved_model.simple_save(session, "/tmp/model", {"x": x}, {"y": y})
    """
    builder = Builder(export_dir)
    signature = predict_signature_def(inputs, outputs)
    builder.add_meta_graph_and_variables(
        session,
        [tag_constants.SERVING],
        {signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature},
        legacy_init_op=legacy_init_op,
        clear_devices=True,
    )
    builder.save()


def _variables(graph: Any, saver: Any) -> dict[str, Variable]:
    """The variables that are written, by their names in the checkpoint; a variable in parts is one for each part, by the part's name."""
    if saver is not None:
        found = list(saver.variables)
    else:
        found = [*graph.get_collection(GraphKeys.GLOBAL_VARIABLES), *graph.get_collection(GraphKeys.SAVEABLE_OBJECTS)]
    out = {}
    for variable in found:
        if not isinstance(variable, (Variable, PartitionedVariable)):
            _LOG.warning("The contents of %r are not written: TensorFlow's format has variables alone here", variable)
            continue
        for part in variable if isinstance(variable, PartitionedVariable) else (variable,):
            single = part._single()
            out[single.op.name] = single
    return out


def _servable(graph_def: Any, ends: Sequence[str]) -> Any:
    """A graph without what TensorFlow has no op for, as what saves in Dovetail's way; it would not load any of it.

    What `ends`, names of nodes, need stays, and the log says that TensorFlow will not know it.
    """
    there = {node.name: node for node in graph_def.node}
    needed = needed_by(graph_def, ends)
    absent = sorted(needed - there.keys())
    if absent:
        raise InvalidArgumentError(None, None, f"A signature names '{absent[0]}', which is not in the graph")
    own = sorted({there[name].op.removeprefix(OWN) for name in needed if there[name].op.startswith(OWN)})
    if own:
        _LOG.warning(
            "TensorFlow does not have what this model needs, and cannot load it; Dovetail can: %s", ", ".join(own)
        )
    return without(graph_def, lambda node: node.op.startswith(OWN), needed)


def _tensors(signature: Any) -> list[Any]:
    return [*signature.inputs.values(), *signature.outputs.values()]


def _named(node: Any) -> str:
    name: str = (node if isinstance(node, Node) else node.op).name
    return name


SavedModelBuilder = Builder


__all__ = ["Builder", "SavedModelBuilder", "simple_save"]
