"""`train.export_meta_graph`, `train.import_meta_graph`, `train.write_graph`: graphs that outlive the program which built them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ..graph.default_graph import get_default_graph
from ..graph.durable_files import write_durably
from ..graph.graph import Graph
from ..graph.meta_graph import MetaGraph, read_meta_graph, write_meta_graph
from ..graph.serialize import save
from ..graph.text import format_graph
from .saver import Saver, arguments_of


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
        meta_graph_or_file: the file (`Saver.save` writes `<checkpoint>.meta`), or what `export_meta_graph` gave.
        clear_devices: let its nodes ask for no device. import_scope: a scope to put before all names.

    Returns:
        a `Saver` of its variables: as the one that wrote it, or of all global variables; None where there are none.

    Raises:
        InvalidArgumentError: it is no meta graph, is damaged, or a name is taken (give an `import_scope`). The default graph has not
            changed then. OSError: it cannot be read.

    >>> saver = train.import_meta_graph("/tmp/model.ckpt-1000.meta")
    >>> with Session() as session:
    ...     saver.restore(session, "/tmp/model.ckpt-1000")
    ...     session.run("prediction:0", {"x:0": images})
    """
    meta = meta_graph_or_file if isinstance(meta_graph_or_file, MetaGraph) else MetaGraph(Path(meta_graph_or_file))
    prefix = f"{import_scope.strip('/')}/" if import_scope else ""
    imported = read_meta_graph(meta, get_default_graph(), prefix, clear_devices, _saver_arguments)
    arguments = _saver_arguments(imported.saver, imported.variables)
    if arguments is not None:
        return Saver(**arguments)
    return Saver(list(imported.variables)) if imported.variables else None


def _saver_arguments(saver: Any, variables: Any) -> dict[str, Any] | None:
    return None if saver is None else arguments_of(saver, variables)


def write_graph(graph_or_graph_def: Any, logdir: Any, name: str, as_text: bool = True) -> str:
    """Write a graph's nodes to `logdir/name`: as text for people, or (`as_text=False`) for `load_graph`. Gives the path."""
    graph = getattr(graph_or_graph_def, "graph", graph_or_graph_def)
    if not isinstance(graph, Graph):
        raise TypeError(f"write_graph needs a graph or a session, not {graph_or_graph_def!r}")
    path = Path(logdir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if as_text:
        write_durably(path, lambda partial: _write_text(partial, graph))
    else:
        save(graph, path)
    return str(path)


def _write_text(path: Path, graph: Graph) -> None:
    path.write_text(format_graph(graph) + "\n", encoding="utf-8")


__all__ = ["export_meta_graph", "import_meta_graph", "write_graph"]
