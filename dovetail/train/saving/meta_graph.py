"""`train.export_meta_graph` and `train.write_graph` write graphs to files, for other programs."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

from ...graph.core.default_graph import get_default_graph
from ...graph.core.errors import InvalidArgumentError, UnimplementedError
from ...graph.core.graph import Graph
from ...graph.core.printing import format_graph
from ...graph.formats.atomic_files import path_of, write_bytes_durably, write_durably
from ...graph.io.meta_graph import MetaGraph, write_meta_graph
from ...interop.tensorflow.meta_graph_def import meta_graph_def

logger = logging.getLogger(__name__)


def export_meta_graph(
    filename: Any = None,
    graph: Graph | None = None,
    collection_list: Any = None,
    as_text: bool = False,
    saver: Any = None,
    clear_devices: bool = False,
) -> MetaGraph:
    """Write a graph with its collections and variables, for `import_meta_graph`.

    Args:
        filename: the file to write; None: only return the graph.
        graph: the graph; None: the default graph.
        collection_list: names of the collections to write; None: all. Only nodes, tensors, variables, numbers and strings in them are
            written.
        as_text: write readable text, which cannot be imported.
        saver: the `Saver` that `import_meta_graph` returns.
        clear_devices: accepted without effect; pass it to `import_meta_graph`.

    Returns:
        The graph as an argument for `import_meta_graph`.

    Raises:
        InvalidArgumentError: a node cannot be serialized, such as a `py_func`.

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
        write_durably(path_of(filename), write)
        return MetaGraph(path_of(filename))
    memory = io.BytesIO()
    write_meta_graph(graph, memory, collection_list, form, saved)
    return MetaGraph(memory.getvalue())


def write_graph(graph_or_graph_def: Any, logdir: Any, name: str, as_text: bool = True) -> str:
    """Write a graph to `logdir/name` as TensorFlow's `GraphDef`, as text or as bytes. Returns the path.

    Args:
        graph_or_graph_def: a `GraphDef`, a graph, or a session.
        logdir: the folder; created if needed.
        name: name of the file.
        as_text: whether to write protobuf's text format instead of its binary format.

    Raises:
        TypeError: the first argument has another type.
        UnimplementedError: the package `protobuf` is not installed.
        InvalidArgumentError: a node cannot be serialized.

    >>> train.write_graph(session.graph_def, "/tmp/model", "graph.pbtxt")
    """
    source = getattr(graph_or_graph_def, "graph", graph_or_graph_def)
    if isinstance(source, Graph):
        found = source.as_graph_def()
    elif hasattr(source, "SerializeToString"):
        found = source
    else:
        raise TypeError(f"write_graph needs a GraphDef, a graph or a session, not {graph_or_graph_def!r}")
    path = path_of(logdir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if as_text:
        from google.protobuf.text_format import MessageToString

        content = MessageToString(found).encode()
    else:
        content = found.SerializeToString()
    write_bytes_durably(path, content)
    return str(path)


def write_training_graph(graph: Graph, folder: Any, writer: Any = None) -> None:
    """Writes `graph.pbtxt` into a training program's folder, and the graph into its event file. A failure is only logged.

    Args:
        graph: the graph.
        folder: the folder.
        writer: the `FileWriter` of the event file; None: write no event file.
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
