"""Writes graphs as bytes, in the form of `record_format`; `deserialize` reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgpack

from ..core.errors import InvalidArgumentError, invalid
from ..core.graph import Graph
from ..core.scopes import DeviceBlock
from ..core.source_location import locate
from ..formats.record_format import FORMAT, MAX_RECORD, VERSION, extension


def graph_to_bytes(graph: Graph, from_version: int = 0) -> bytes:
    """The nodes of a graph from number `from_version` on, as bytes for `extend_from_bytes`.

    Raises:
        InvalidArgumentError: a node has an attr that cannot travel; the text names both.
    """
    return b"".join(records(graph, from_version))


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a file, piece by piece. The file appears whole or not at all.

    Nodes are kept with their names, devices, shapes, source lines and device blocks, and the graph-level
    seed; Python objects around them (collections, `Variable` objects) are not.
    """
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            for record in records(graph, 0):
                file.write(record)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def records(graph: Graph, start: int) -> Iterator[bytes]:
    """The nodes from number `start` on, as records one after the other. Errors as of `graph_to_bytes`."""
    nodes = graph.nodes
    if graph.has_open_loops:
        raise invalid("The graph cannot be saved or run now: it is in the middle of building a while_loop")
    loops: list[tuple[int, int]] = []
    if not 0 <= start <= len(nodes):
        raise invalid(f"from_version must be in [0, {len(nodes)}], not {start}")
    out: list[bytes] = []  # records that must come before the next node
    pack = msgpack.Packer(default=lambda value: extension(value, out), autoreset=True).pack
    texts: dict[str, int] = {}
    blocks: dict[DeviceBlock | None, int] = {None: -1}
    # One line makes many nodes; a code object hashes slowly, its id does not.
    lines: dict[tuple[int, int], tuple[int, int]] = {}

    def number(text: str) -> int:
        found = texts.get(text)
        if found is None:
            found = texts[text] = len(texts)
            out.append(pack(("s", text)))
        return found

    def block_number(block: DeviceBlock | None) -> int:
        chain = []
        while block not in blocks:
            assert block is not None
            chain.append(block)
            block = block.outer
        for b in reversed(chain):
            line = b.source
            record = ("b", blocks[b.outer], b.spec, b.describe(), number(line.file), line.line)
            blocks[b] = len(blocks) - 1
            out.append(pack(record))
        return blocks[chain[0] if chain else block]

    yield pack((FORMAT, VERSION, start, graph.seed))
    stop = len(nodes)  # another thread may add nodes meanwhile: they are for the next message
    for index in range(start, stop):
        node = nodes[index]
        inputs: list[int] = []
        back = node.back_edge
        if back is not None:
            loops.append((index, back.index))
        for t in node.inputs:
            if t.op is back:
                t = node.inputs[0]
            inputs += (t.op.index, t.value_index)
        code, at = node._origin
        place = lines.get((id(code), at))
        if place is None:
            line = locate(node._origin)
            place = lines[id(code), at] = number(line.file), line.line
        try:
            record = pack(
                (
                    "n", node.name, number(node.opdef.name), inputs, [c.index for c in node.controls],
                    node.attrs, number(node.device), node.colocation, number(node.container), *place,
                    [t.dims for t in node.outputs], block_number(node.blocks),
                )
            )  # fmt: skip
        except (TypeError, ValueError, OverflowError) as e:
            raise InvalidArgumentError(
                node,
                node,
                f"Node '{node.name}' ({node.type}) made at {node.source} cannot be saved or sent: {e}. "
                "An attr is None, a bool, a number, text, bytes, a dtype, an array, or a tuple of those.",
            ) from None
        if len(record) > MAX_RECORD:
            raise InvalidArgumentError(
                node,
                node,
                f"Node '{node.name}' made at {node.source} holds {len(record)} bytes of text or attrs; "
                f"at most {MAX_RECORD} can be saved or sent",
            )
        if out:
            yield from out
            out.clear()
        yield record
    for loop in loops:
        yield pack(("l", *loop))
    yield pack(("end", stop - start))
