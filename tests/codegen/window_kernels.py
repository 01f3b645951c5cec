"""Ops over windows as tests run them: the fused kernels of a program, and its attributes from a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference_interpreter import execution_order

import dovetail as dt
from dovetail.codegen.fusion.fuse import Fusion, fuse
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.passes.decompose import split_max_pool_gradients
from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.core.graph import Node, Tensor
from dovetail.graph.ops.nn.conv_geometry import Window


def attrs_of(window: Window, data_format: str, *, pooling: bool = False) -> dict[str, Any]:
    """The attributes of a node with this window."""

    def laid(pair: tuple[int, int]) -> tuple[int, ...]:
        return (1, 1, *pair) if data_format == "NCHW" else (1, *pair, 1)

    high, wide = window.explicit
    pads = (0, 0, 0, 0, *high, *wide) if data_format == "NCHW" else (0, 0, *high, *wide, 0, 0)
    own = {"ksize": laid(window.taps)} if pooling else {"dilations": laid(window.dilations)}
    explicit = pads if window.padding == "EXPLICIT" else ()
    return {
        **own,
        "strides": laid(window.strides),
        "padding": window.padding,
        "explicit_paddings": explicit,
        "data_format": data_format,
    }


def given(*arrays: Any) -> dict[Tensor, Any]:
    """Placeholders for arrays."""
    return {dt.placeholder(as_dtype(x.dtype), x.shape): x for x in arrays}


def fused_kernels(
    tensor: Tensor, feeds: Sequence[Tensor] | None = None, operations_per_byte: float = 0.0
) -> list[FusedKernel]:
    """The fused kernels of a program, of which nothing is left to references. `feeds`: None: all placeholders."""
    nodes = execution_order([tensor.op], dict.fromkeys(feeds or (), 0))
    fed = [n.outputs[0] for n in nodes if n.type == "Placeholder"]
    fusion = _fusion([n for n in nodes if n.type != "Placeholder"], fed, tensor, operations_per_byte)
    assert not any(getattr(s, "type", "Const") not in ("Const", "Shape") for s in fusion.steps), str(fusion)
    return fusion.kernels


def kernels_with_producers(
    tensor: Tensor, *, operations_per_byte: float = 1.6, has_epilogues: bool = False
) -> list[list[str]]:
    """The ops of each fused kernel of a program, where windows may compute what they read."""
    nodes = [n for n in execution_order([tensor.op]) if n.type not in ("Placeholder", "Const")]
    fed = [t for n in nodes for t in n.inputs if t.op.type == "Placeholder"]
    return [[n.type for n in k.nodes] for k in _fusion(nodes, fed, tensor, operations_per_byte, has_epilogues).kernels]


def kernels_of_node(tensor: Tensor) -> list[FusedKernel]:
    """The kernels of the node that makes a tensor alone; none if it is left to its reference."""
    return _fusion([tensor.op], tensor.op.inputs, tensor).kernels


def _fusion(
    nodes: Sequence[Node],
    fed: Sequence[Tensor],
    fetch: Tensor,
    operations_per_byte: float = 0.0,
    has_epilogues: bool = False,
) -> Fusion:
    feeds, fetches = tuple((t.name, t) for t in dict.fromkeys(fed)), ((fetch.name, fetch),)
    partition = split_max_pool_gradients(PartitionGraph("/device:CPU:0", tuple(nodes), feeds, fetches))
    return fuse(partition, small=True, lone=True, operations_per_byte=operations_per_byte, has_epilogues=has_epilogues)
