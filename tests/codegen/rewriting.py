"""Partitions of plain nodes, for tests of rewriting: how they are made, and their values by the references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from reference_interpreter import execution_order

from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.options import KernelOptions

EVERYTHING = KernelOptions()


def partition_of(fetches: Sequence[Any], feeds: Sequence[Any]) -> PartitionGraph:
    order = execution_order([t.op for t in fetches], dict.fromkeys(feeds))
    nodes = [n for n in order if n.type != "Placeholder"]
    return PartitionGraph(
        "/device:CPU:0", tuple(nodes), tuple((t.name, t) for t in feeds), tuple((t.name, t) for t in fetches)
    )


def evaluate(partition: PartitionGraph, values: Sequence[Any]) -> list[Any]:
    """A partition of plain nodes, by the references."""
    at = {t: v for (_, t), v in zip(partition.feeds, values, strict=True)}
    with np.errstate(all="ignore"):
        for node in partition.steps:
            assert node.opdef.reference is not None
            attrs = node.opdef.kernel_attrs(node.attrs)
            result = node.opdef.reference(*[at[t] for t in node.inputs], **attrs)
            at.update(zip(node.outputs, (result,) if len(node.outputs) == 1 else result, strict=True))
    return [at[t] for _, t in partition.fetches]
