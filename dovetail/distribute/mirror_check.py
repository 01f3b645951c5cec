"""A debugging check (DOVETAIL_CHECK) that mirrored copies are bitwise equal, run at intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.core.default_graph import get_default_graph
from ..graph.core.graph import Node
from ..graph.core.settings import setting
from ..graph.ops.array.concat_stack import stack
from ..graph.ops.state.checksums import check_same, checksum
from .context import StrategyProtocol
from .values import DistributedVariable

EVERY = 100  # updates between two comparisons


def compared(strategy: StrategyProtocol, variables: Sequence[Any], update: Node) -> Node:
    """A node after `update` that compares the copies of all replicas at intervals; `update` itself where there is nothing to compare.

    The comparison fails the step with an InternalError that names the variable and the replicas.
    """
    count, everywhere = len(strategy._devices), strategy.num_replicas_in_sync
    mirrored = [v for v in variables if isinstance(v, DistributedVariable) and len(v.values) == count]
    if everywhere < 2 or not mirrored or not setting("DOVETAIL_CHECK"):
        return update
    graph, rows = get_default_graph(), []
    with graph.name_scope("compare_replicas"), graph.control_dependencies([update]):
        for i, device in enumerate(strategy._devices):
            with graph.colocate_with(None, ignore_existing=True), graph.device(device):
                rows.append(checksum([v.values[i].read_value() for v in mirrored], EVERY))
        with graph.colocate_with(None, ignore_existing=True), graph.device(strategy._devices[0]):
            sums = strategy._gather_across(stack(rows), 0)
            with graph.device("/device:CPU:0"):
                return check_same(sums, [v.op.name for v in mirrored], strategy._replica_names())
