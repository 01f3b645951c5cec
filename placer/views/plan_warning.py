"""A warning about a plan: what was found, where, and the change that mends it; and the plan with such a change.

A change is applied to a copy of the graph: the user's graph, and the plan that was checked, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...graph.core.dtypes import bfloat16, float32
from ...graph.core.graph import Graph, Node
from ...graph.core.source_location import SourceLine
from ...graph.io.serialization import extend_from_bytes, graph_to_bytes
from ..cost.shapes import batch_shapes
from ..plan_data import PlanData
from ..render.text import listed

Place: TypeAlias = Callable[..., Any]
"""`placer.pipeline.place`, which knows plans, so that they are given it."""


LISTED = 4  # names in one warning


@dataclass(frozen=True, slots=True)
class Change:
    """What is different in the program.

    Attributes:
        requests: (node, device that it asks for), '' for none. beside: (node, node with which it is colocated).
        strategy: the strategy that places; None: as before.
        batch: the rows of a batch, now and with the change; None: no other batch.
    """

    requests: tuple[tuple[str, str], ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    strategy: str | None = None
    batch: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """One thing that costs more than it must.

    Attributes:
        kind: the check that found it, a key of `CHECKS`.
        what: what was found, in figures.
        where: the line of the program; None where it is not known.
        cure: the change that mends it.
        devices: complete names of the devices that it is about.
        nodes: names of the nodes that it is about.
        bytes: bytes per step, or held, that could be saved or moved; 0 where it is not about bytes.
        change: the change as `with_change` applies it to the plan, or in words why it cannot be applied.
        fixed: after `check(fix=True)` the plan with the change; None where it cannot be applied.
        result: after `check(fix=True)` what that plan gains, or why there is none.
    """

    kind: str
    what: str
    where: SourceLine | None
    cure: str
    devices: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    bytes: int = 0
    change: Change | str = ""
    fixed: Any = field(default=None, compare=False, repr=False)
    result: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """What was found, where, and what mends it; after `fix`, what that gains."""
        code = f": {self.where.text}" if self.where is not None and self.where.text else ""
        lines = [f"{self.what}."]
        lines += [f"  at {self.where}{code}"] if self.where is not None else []
        lines += [f"  cure: {self.cure}"]
        return "\n".join(lines + ([f"  {self.result}"] if self.result else []))

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def moved(plan: PlanData, nodes: Mapping[Node, str]) -> Change:
    """The change by which nodes are requested elsewhere, with all that shares their devices."""
    graph, found = plan.graph, {}
    for node, device in nodes.items():
        for name in plan.decisions.decision(node).group:
            if graph.get_operation_by_name(name).device or name == node.name:
                found[name] = device
    return Change(tuple(sorted(found.items())))


def with_change(plan: PlanData, change: Change, place: Place) -> Any:
    """The plan of the same step with a change of the program. Errors as of `place`."""
    graph = Graph()
    extend_from_bytes(graph, graph_to_bytes(plan.graph))
    for name, device in change.requests:
        graph.set_device(graph.get_operation_by_name(name), device)
    for name, other in change.beside:
        node, peer = graph.get_operation_by_name(name), graph.get_operation_by_name(other)
        node.device, node.colocation = peer.device, peer.colocation or (peer.name,)
    narrow = any(
        c.dtype is bfloat16 and plan.graph.get_tensor_by_name(c.name).dtype.base is float32 for c in plan.channels
    )
    given = dict(plan.sizes.given)
    if change.batch is not None:
        nodes = [n for p in plan.partitions.values() for n in p.nodes]
        fed = [plan.graph.get_tensor_by_name(name) for name in plan.feeds]
        given.update(batch_shapes(nodes, fed, given, change.batch[1]))
    strategy = change.strategy or ("rules" if plan.solution is None else "auto")
    return place(
        graph, plan.cluster, fetches=list(plan.fetches), targets=list(plan.targets), feeds=list(plan.feeds),
        allow_soft_placement=plan.decisions.soft, strategy=strategy, enable_bfloat16_sendrecv=narrow, shapes=given,
        shared_memory=False if plan.access.refused and not plan.access.reached else None,
    )  # fmt: skip


def verb(names: Sequence[object], one: str, many: str) -> str:
    return one if len(names) == 1 else many


def quoted(nodes: Iterable[Node]) -> str:
    return listed((f"'{n.name}'" for n in nodes), LISTED)
