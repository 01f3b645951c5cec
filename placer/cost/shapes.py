"""Shape propagation: sizes that a graph leaves open, from the shapes of what is fed.

The shape rules of the ops are asked once more, with the fed shapes in the place of those that placeholders have. What a rule cannot
tell even then (the number of elements that pass a filter) stays open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import nbytes
from ...graph.core.shape import is_static, merge


def sizes_of(nodes: Iterable[Node], fed: Mapping[Tensor, tuple[int, ...]]) -> dict[str, int]:
    """Tensor name -> bytes, for each tensor whose size the graph leaves open and the fed shapes tell.

    Args:
        nodes: what a step runs, inputs first. fed: the shapes of the tensors that it is given.
    """
    known = {t: Tensor(t.op, t.value_index, t.dtype, shape) for t, shape in fed.items()}
    for node in nodes:
        if all(is_static(t.dims) for t in node.outputs):
            continue
        try:
            made = node.opdef.infer([known.get(t, t) for t in node.inputs], node.attrs)
            dims = [merge(t.dims, d) for t, (_, d) in zip(node.outputs, made, strict=True)]
        except (TypeError, ValueError):  # the feed does not fit: running it raises the error
            continue
        for t, d in zip(node.outputs, dims, strict=True):
            if t not in known and d != t.dims:
                known[t] = Tensor(t.op, t.value_index, t.dtype, d)
    return {t.name: nbytes(k) for t, k in known.items() if is_static(k.dims) and not is_static(t.dims)}
