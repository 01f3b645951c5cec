"""A warning about a plan: the finding, its location, and the change that it suggests; and the plan with such a change.

A change is applied to a copy of the graph: the user's graph and the checked plan are not modified.
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

PlaceFunction: TypeAlias = Callable[..., Any]
"""`placer.pipeline.place`, which knows plans, so that they are given it."""


LISTED = 4  # names in one warning


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the program.

    Attributes:
        requests: (node, its new requested device), '' for none.
        beside: (node, node with which it is colocated).
        strategy: the placement strategy; None: unchanged.
        batch: the batch size before and after the change; None: unchanged.
    """

    requests: tuple[tuple[str, str], ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    strategy: str | None = None
    batch: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """A warning of `plan.check()` about a cost that can be avoided.

    Attributes:
        kind: the check that found it, a key of `CHECKS`.
        what: the finding, with figures.
        where: the line of the program; None if unknown.
        cure: the suggested change.
        devices: complete names of the devices concerned.
        nodes: names of the nodes concerned.
        bytes: bytes per step, or of memory, that could be saved or moved; 0 if the finding is not about bytes.
        change: the change for `with_change`, or the reason why it cannot be applied automatically.
        fixed: after `check(fix=True)`, the plan with the change; None if it cannot be applied.
        result: after `check(fix=True)`, the predicted gain of that plan, or the reason why there is none.
    """

    kind: str
    what: str
    where: SourceLine | None
    cure: str
    devices: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    bytes: int = 0
    change: Change | str = field(default="", repr=False)
    fixed: Any = field(default=None, compare=False, repr=False)
    result: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The finding, its location and the suggested change; after `fix`, the predicted gain."""
        code = f": {self.where.text}" if self.where is not None and self.where.text else ""
        lines = [f"{self.what}."]
        lines += [f"  at {self.where}{code}"] if self.where is not None else []
        lines += [f"  fix: {self.cure}"]
        return "\n".join(lines + ([f"  {self.result}"] if self.result else []))

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def moved(plan: PlanData, nodes: Mapping[Node, str]) -> Change:
    """The change that requests other devices for nodes and for the nodes colocated with them."""
    graph, found = plan.graph, {}
    for node, device in nodes.items():
        for name in plan.decisions.decision(node).group:
            if graph.get_operation_by_name(name).device or name == node.name:
                found[name] = device
    return Change(tuple(sorted(found.items())))


def with_change(plan: PlanData, change: Change, place: PlaceFunction) -> Any:
    """Plan the same step with a change of the program. Errors as in `place`."""
    graph = Graph()
    extend_from_bytes(graph, graph_to_bytes(plan.graph))
    for name, device in change.requests:
        graph.get_operation_by_name(name)._set_device(device)
    for name, other in change.beside:
        node, peer = graph.get_operation_by_name(name), graph.get_operation_by_name(other)
        node.device, node.colocation = peer.device, peer.colocation or (peer.name,)
    narrow = any(
        c.dtype is bfloat16 and plan.graph.get_tensor_by_name(c.name).dtype.base is float32 for c in plan.channels
    )
    shapes = dict(plan.sizes.given)
    if change.batch is not None:
        nodes = plan.partitioned.nodes
        fed = [plan.graph.get_tensor_by_name(name) for name in plan.feeds]
        shapes.update(batch_shapes(nodes, fed, shapes, change.batch[1]))
    strategy = change.strategy or ("rules" if plan.solution is None else "auto")
    return place(
        graph, plan.cluster, fetches=list(plan.fetches), targets=list(plan.targets), feeds=list(plan.feeds),
        allow_soft_placement=plan.decisions.soft, strategy=strategy, enable_bfloat16_sendrecv=narrow, shapes=shapes,
        shared_memory=False if plan.access.refused and not plan.access.used else None,
        profile="none" if plan.cluster.calibration is None else None,
    )  # fmt: skip


def verb(names: Sequence[object], one: str, many: str) -> str:
    return one if len(names) == 1 else many


def quoted(nodes: Iterable[Node]) -> str:
    return listed((f"'{n.name}'" for n in nodes), LISTED)
