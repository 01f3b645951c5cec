"""`train.import_meta_graph`, which reads a graph that `train.export_meta_graph`, a `Saver`, or TensorFlow wrote."""

from __future__ import annotations

from typing import Any

from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.formats.atomic_files import path_of
from ...graph.io.meta_graph import FORMAT, MetaGraph, read_meta_graph
from ...interop.tensorflow.meta_graph_def import import_tensorflow_meta_graph, is_meta_graph
from .saver import Saver, saver_arguments


def import_meta_graph(
    meta_graph_or_file: Any, clear_devices: bool = False, import_scope: str | None = None
) -> Saver | None:
    """Read a meta graph, and add it to the default graph with its collections and variables.

    Args:
        meta_graph_or_file: a file, the result of `export_meta_graph`, or a `MetaGraphDef`. The file is the `<checkpoint>.meta` of
            `Saver.save`, one of `export_meta_graph`, or one of TensorFlow.
        clear_devices: remove the device requests of its nodes.
        import_scope: a prefix of all names.

    Returns:
        A `Saver` like the one that wrote the graph, or of all global variables; None if there are no variables.

    Raises:
        InvalidArgumentError: it is not a meta graph, is damaged, or a name is already used (pass an `import_scope`). The default graph
            is unchanged then.
        UnimplementedError: TensorFlow's graph has ops that Dovetail lacks.
        OSError: the file cannot be read.

    >>> saver = train.import_meta_graph("/tmp/model.ckpt-1000.meta")
    >>> with Session() as session:
    ...     saver.restore(session, "/tmp/model.ckpt-1000")
    ...     session.run("prediction:0", {"x:0": images})
    """
    theirs = _of_tensorflow(meta_graph_or_file)
    if theirs is not None:
        variables = import_tensorflow_meta_graph(theirs, import_scope, clear_devices)
        saved = [v for v in variables if v in get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES)]
        return Saver(saved) if saved else None
    meta = meta_graph_or_file if isinstance(meta_graph_or_file, MetaGraph) else MetaGraph(path_of(meta_graph_or_file))
    prefix = f"{import_scope.strip('/')}/" if import_scope else ""
    imported = read_meta_graph(meta, get_default_graph(), prefix, clear_devices, _arguments_or_none)
    arguments = _arguments_or_none(imported.saver, imported.variables)
    if arguments is not None and imported.saver is not None:
        for name, handle in imported.saver.get("tables", ()):
            arguments["var_list"][name] = get_default_graph().get_tensor_by_name(prefix + handle)
        return Saver(**{**arguments, "allow_empty": not arguments["var_list"]})
    return Saver(list(imported.variables)) if imported.variables else None


def _of_tensorflow(given: Any) -> Any:
    """Returns the argument, or the file's contents, as a `MetaGraphDef`. None: it is a meta graph in Dovetail's format."""
    if hasattr(given, "SerializeToString"):
        return is_meta_graph(given.SerializeToString())
    if isinstance(given, MetaGraph) or not path_of(given).is_file():
        return None
    data = path_of(given).read_bytes()
    return None if FORMAT.encode() in data[:64] else is_meta_graph(data)


def _arguments_or_none(saver: Any, variables: Any) -> dict[str, Any] | None:
    return None if saver is None else saver_arguments(saver, variables)
