"""A plan against a trace: predicted and measured times of each kernel, transfer and device.

Predictions are per node and measurements per kernel, so the prediction of a kernel is the sum over its nodes. Nodes that no kernel ran
(folded, merged with others, or without work) are counted separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...graph.core.shape import Dims, text
from ..plan_data import PlanData
from ..render.text import count_text, short, table, time_text
from ..simulate import Timeline, simulate
from .facts import UNCALIBRATED, is_measured

if TYPE_CHECKING:
    from ..cost.profile import Profile

LISTED = 10


@dataclass(frozen=True, slots=True)
class Compared:
    """The predicted and measured time of a kernel, a transfer, or a device.

    Attributes:
        name: the last node of the kernel, the value, or the device.
        where: the device, or `A -> B`.
        predicted: seconds, in all iterations of a loop together.
        measured: seconds, likewise.
        count: number of executions.
    """

    name: str
    where: str
    predicted: float
    measured: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `plan.compare(trace)`. It prints the largest differences.

    Attributes:
        step: the whole step.
        devices: the time for which each device computes.
        kernels: the kernels, largest difference first.
        transfers: the transfers, largest difference first.
        not_run: nodes with a predicted time that no kernel ran.
        unplanned: kernels that belong to no node of the step.
        exact: whether all sizes are known; if not, predictions are lower bounds.
        client: seconds that the client waited, including feeds and fetches; 0: not known.
        batches: tensors and their shapes: data sets' batches in the step with fewer rows than full ones; the prediction is for these.
        measured: whether the prediction uses measurements (a profile, `costs`) or described speeds, instead of those of a typical machine.
    """

    step: Compared
    devices: tuple[Compared, ...]
    kernels: tuple[Compared, ...]
    transfers: tuple[Compared, ...]
    not_run: tuple[str, ...]
    unplanned: tuple[str, ...]
    exact: bool = True
    client: float = 0.0
    measured: bool = True
    batches: tuple[tuple[str, Dims], ...] = ()

    def __str__(self) -> str:
        typical = UNCALIBRATED * (not self.measured)
        lines = [
            f"step: predicted {time_text(self.step.predicted, self.exact)}{typical}, measured {time_text(self.step.measured)}"
        ]
        if self.client:
            lines[0] += f" to the end of the last kernel; the client waited {time_text(self.client)}"
        if self.batches:
            smaller = ", ".join(f"'{name}' {text(dims)}" for name, dims in self.batches)
            lines.append(f"the step had less than a full batch, and is predicted for that: {smaller}")
        parts = (("device", self.devices), ("kernel", self.kernels), ("transfer", self.transfers))
        lines += [_table(what, rows, self.exact) for what, rows in parts if rows]
        if self.not_run:
            count = count_text(len(self.not_run), "node")
            lines.append(
                f"{count} ran in no kernel: folded, merged, or in a branch not taken ({', '.join(self.not_run[:4])})"
            )
        return "\n".join(lines)


def compare(plan: PlanData, measured: Any, costs: Profile | None = None) -> Comparison:
    """Compare a plan with a measured step: a `Timeline`, or an object that has one (a trace, run metadata). TypeError: it has none."""
    traced = getattr(measured, "trace", measured)
    found = getattr(traced, "timeline", traced)
    if not isinstance(found, Timeline):
        raise TypeError(f"trace must be that of a step (run_metadata.trace) or a Timeline, not {measured!r}")
    ran = getattr(traced, "plan", plan)
    elements = [t for n in plan.partitioned.nodes if n.type == "IteratorGetNext" for t in n.outputs]
    batches = {t: ran.sizes.of(t).dims for t in elements if ran.sizes.of(t).dims != plan.sizes.of(t).dims}
    smaller = [(t.name, dims) for t, dims in batches.items() if plan.sizes.is_known(t)]
    plan = plan.resized({**plan.sizes.given, **{t.name: dims for t, dims in batches.items()}})
    predicted = simulate(plan, costs=costs)
    of_node = {(s.name, predicted.devices[s.device]): s.finish - s.start for s in predicted.spans}
    kernels: dict[tuple[str, str], list[float]] = {}  # -> predicted, measured, count
    run: set[tuple[str, str]] = set()
    unplanned: dict[str, None] = {}
    for s in found.spans:
        device = found.devices[s.device]
        nodes = [(n, device) for n in s.nodes or (s.name,)]
        if not any(n in of_node for n in nodes):
            unplanned[s.name] = None
        row = kernels.setdefault((s.name, device), [sum(of_node.get(n, 0.0) for n in set(nodes) - run), 0.0, 0])
        run.update(nodes)
        row[1] += s.finish - s.start
        row[2] += 1
    transfers: dict[tuple[str, str], list[float]] = {}
    for line, at in ((predicted, 0), (found, 1)):
        for t in line.transfers:
            link = f"{short(line.devices[t.source])} -> {short(line.devices[t.destination])}"
            row = transfers.setdefault((t.name, link), [0.0, 0.0, 0])
            row[at] += t.finish - t.start
            row[2] += at
    busy = [dict(zip(line.devices, line.busy, strict=True)) for line in (predicted, found)]
    return Comparison(
        Compared("step", "", predicted.makespan, found.makespan),
        tuple(
            Compared(d, d, busy[0].get(d, 0.0), busy[1].get(d, 0.0))
            for d in dict.fromkeys((*predicted.devices, *found.devices))
            if busy[0].get(d) or busy[1].get(d)
        ),
        _sorted(Compared(name, short(d), p, m, int(n)) for (name, d), (p, m, n) in kernels.items()),
        _sorted(Compared(name, link, p, m, int(n)) for (name, link), (p, m, n) in transfers.items()),
        tuple(name for (name, device), seconds in of_node.items() if seconds > 0 and (name, device) not in run),
        tuple(unplanned),
        predicted.exact,
        getattr(measured, "seconds", 0.0),
        costs is not None or is_measured(plan),
        tuple(smaller),
    )


def _sorted(rows: Iterable[Compared]) -> tuple[Compared, ...]:
    return tuple(sorted(rows, key=lambda r: (-abs(r.measured - r.predicted), r.name, r.where)))


def _table(what: str, rows: Sequence[Compared], exact: bool) -> str:
    cells = [
        (
            short(r.name) + (f" ×{r.count}" if r.count > 1 else ""), time_text(r.predicted, exact), time_text(r.measured),
            f"{r.measured / r.predicted:.2g}" if r.predicted > 0 else "-", "" if r.name == r.where else r.where,
        )
        for r in rows
    ]  # fmt: skip
    return table((what, "predicted", "measured", "ratio", "where"), cells, limit=LISTED, whole=4, indent="  ")
