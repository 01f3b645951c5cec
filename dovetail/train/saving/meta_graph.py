"""`train.export_meta_graph`, `train.import_meta_graph`, `train.write_graph`: graphs that outlive the program which built them."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.core.errors import InvalidArgumentError, UnimplementedError
from ...graph.core.graph import Graph
from ...graph.core.printing import format_graph
from ...graph.io.atomic_files import write_bytes_durably, write_durably
from ...graph.io.meta_graph import FORMAT, MetaGraph, read_meta_graph, write_meta_graph
from ...interop.tensorflow.meta_graph_def import import_tensorflow_meta_graph, is_meta_graph, meta_graph_def
from .saver import Saver, arguments_of

logger = logging.getLogger(__name__)


def export_meta_graph(
    filename: Any = None,
    graph: Graph | None = None,
    collection_list: Any = None,
    as_text: bool = False,
    saver: Saver | None = None,
    clear_devices: bool = False,
) -> MetaGraph:
    """Keep a graph with its collections and variables.

    Args:
        filename: a file to write; None: keep it in memory. graph: None: the default graph.
        collection_list: names of the collections that are kept; None: all. Values that are no nodes, tensors, variables, numbers or
            texts are left out.
        as_text: write the graph's text for people, which cannot be imported.
        saver: a `Saver` that `import_meta_graph` shall give again. clear_devices: accepted; say it when you import.

    Returns:
        what `import_meta_graph` takes, as it takes the file's name.

    Raises:
        InvalidArgumentError: a node cannot be written, such as a `py_func`.

    >>> train.export_meta_graph("/tmp/model.meta")
    """
    graph = get_default_graph() if graph is None else graph
    form = None if saver is None else saver.to_plain()
    saved = () if saver is None else saver.variables

    def write(path: Path) -> None:
        if as_text:
            _write_text(path, graph)
        else:
            with path.open("wb") as file:
                write_meta_graph(graph, file, collection_list, form, saved)

    if filename is not None:
        write_durably(Path(filename), write)
        return MetaGraph(Path(filename))
    memory = io.BytesIO()
    write_meta_graph(graph, memory, collection_list, form, saved)
    return MetaGraph(memory.getvalue())


def import_meta_graph(
    meta_graph_or_file: Any, clear_devices: bool = False, import_scope: str | None = None
) -> Saver | None:
    """Add a graph that `export_meta_graph` or `Saver.save` wrote to the default graph, with its collections and variables.

    Args:
        meta_graph_or_file: the file (`Saver.save` writes `<checkpoint>.meta`; TensorFlow's are read, too), what `export_meta_graph` gave,
            or a `MetaGraphDef`.
        clear_devices: let its nodes ask for no device. import_scope: a scope to put before all names.

    Returns:
        a `Saver` of its variables: as the one that wrote it, or of all global variables; None where there are none.

    Raises:
        InvalidArgumentError: it is no meta graph, is damaged, or a name is taken (give an `import_scope`). The default graph has not
            changed then. UnimplementedError: one of TensorFlow's has ops that Dovetail does not have. OSError: it cannot be read.

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
    meta = meta_graph_or_file if isinstance(meta_graph_or_file, MetaGraph) else MetaGraph(Path(meta_graph_or_file))
    prefix = f"{import_scope.strip('/')}/" if import_scope else ""
    imported = read_meta_graph(meta, get_default_graph(), prefix, clear_devices, _saver_arguments)
    arguments = _saver_arguments(imported.saver, imported.variables)
    if arguments is not None:
        return Saver(**arguments)
    return Saver(list(imported.variables)) if imported.variables else None


def _of_tensorflow(given: Any) -> Any:
    """The `MetaGraphDef` that is given, or that is in a file; None: it is one of Dovetail's."""
    if hasattr(given, "SerializeToString"):
        return is_meta_graph(given.SerializeToString())
    if isinstance(given, MetaGraph) or not Path(given).is_file():
        return None
    data = Path(given).read_bytes()
    return None if FORMAT.encode() in data[:64] else is_meta_graph(data)


def _saver_arguments(saver: Any, variables: Any) -> dict[str, Any] | None:
    return None if saver is None else arguments_of(saver, variables)


def write_graph(graph_or_graph_def: Any, logdir: Any, name: str, as_text: bool = True) -> str:
    """Write a graph to `logdir/name` as TensorFlow's `GraphDef`, as text or as bytes. Gives the path.

    Args:
        graph_or_graph_def: a `GraphDef`, a graph, or a session.

    Raises:
        UnimplementedError: the package `protobuf` is not installed. InvalidArgumentError: a node cannot be written.

    >>> train.write_graph(session.graph_def, "/tmp/model", "graph.pbtxt")
    """
    source = getattr(graph_or_graph_def, "graph", graph_or_graph_def)
    if isinstance(source, Graph):
        found = source.as_graph_def()
    elif hasattr(source, "SerializeToString"):
        found = source
    else:
        raise TypeError(f"write_graph needs a GraphDef, a graph or a session, not {graph_or_graph_def!r}")
    path = Path(logdir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if as_text:
        from google.protobuf.text_format import MessageToString

        content = MessageToString(found).encode()
    else:
        content = found.SerializeToString()
    write_bytes_durably(path, content)
    return str(path)


def write_training_graph(graph: Graph, folder: Any, writer: Any = None) -> None:
    """Write `graph.pbtxt` into a training program's folder, and the graph into its event file; a word in the log where that cannot be.

    Args:
        writer: a `FileWriter`, or None.
    """
    if writer is not None:
        writer.add_graph(graph)
    try:
        found = graph.as_graph_def(add_shapes=True)
        write_graph(found, folder, "graph.pbtxt")
        if writer is not None:
            writer.add_meta_graph(meta_graph_def(found, graph))
    except (UnimplementedError, InvalidArgumentError) as e:
        logger.info("The graph is not written to %s: %s", folder, e)


def _write_text(path: Path, graph: Graph) -> None:
    path.write_text(format_graph(graph) + "\n", encoding="utf-8")


__all__ = ["export_meta_graph", "import_meta_graph", "write_graph", "write_training_graph"]
