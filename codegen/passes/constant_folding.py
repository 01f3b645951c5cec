"""Constant folding: nodes that depend only on constants are computed at compile time, by the ops' NumPy references.

Only small results that are fast to compute are folded: a program with many large constants would be slow to make and to send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...graph.core.constant_value import static_value
from ...graph.core.graph import Node, Tensor
from ...graph.core.shape import element_count
from ..ir.nodes import new_node

_METADATA = frozenset(("Shape", "Size", "Rank"))  # known where the shape is
_MOST_FOLDED = 1 << 16  # bytes of a folded constant, unless its inputs have as many: a large Fill stays a Fill
_MOST_FOLDED_IN_ALL = 1 << 24  # bytes per unit
_MOST_FLOPS = 1e7  # of a node that is folded: some ten milliseconds


class Folding:
    """The constants of one unit. `makers`: the nodes that make tensors, where the pass may use them."""

    def __init__(self, makers: Mapping[Tensor, Node]) -> None:
        self.makers = makers
        self.bytes = 0  # of what has been folded so far

    def may_fold(self, node: Node) -> bool:
        """Whether a node may be foldable. A fast check."""
        if not node.inputs:
            return False
        maker = self.makers.get(node.inputs[0])
        return (maker is not None and maker.opdef.name == "Const") or node.opdef.name in _METADATA

    def constant_of(self, node: Node) -> Node | None:
        """A constant with the node's value, if it can be folded and is small."""
        if len(node.outputs) != 1 or node.opdef.name == "Const":
            return None
        (output,) = node.outputs
        if node.opdef.name in _METADATA:
            value = static_value(output)
            return None if value is None else _const(node, value)
        given = []
        for t in node.inputs:
            maker = self.makers.get(t)
            if maker is None or maker.opdef.name != "Const":
                return None
            given.append(maker.attrs["value"])
        count = element_count(output.dims)
        if not given or count is None or output.dtype.np.hasobject:
            return None
        size = count * output.dtype.size
        if size > max(_MOST_FOLDED, sum(v.nbytes for v in given)) or self.bytes + size > _MOST_FOLDED_IN_ALL:
            return None
        if node.opdef.cost_of(node).flops > _MOST_FLOPS:
            return None
        try:
            with np.errstate(all="ignore"):
                assert node.opdef.reference is not None
                value = np.asarray(node.opdef.reference(*given, **node.opdef.kernel_attrs(node.attrs)))
        except Exception:
            return None  # reported at run time
        self.bytes += size
        return _const(node, value)


def _const(node: Node, value: np.ndarray[Any, Any]) -> Node | None:
    (output,) = node.outputs
    if value.dtype != output.dtype.np:
        return None
    value = np.array(value)
    value.flags.writeable = False
    return new_node("Const", (), {"value": value}, [(output.dtype, value.shape)], node)
