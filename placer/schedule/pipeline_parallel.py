"""Pipeline parallelism: micro-batches pass through the stages of a model, one behind the other.

Each stage runs, on its device, a forward and a backward pass for every micro-batch. In which order it does so is the schedule:

- `gpipe`: all forward passes, then all backward passes, the last micro-batch first (Huang et al., GPipe, NeurIPS 2019);
- `1f1b`: a stage runs ahead by as many forward passes as there are stages behind it, then a forward and a backward pass in turn
  (Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021: PipeDream-Flush).

Both end at the same time, and leave the same part of the devices' time unused, the bubble: (S - 1) / (M + S - 1) for S stages of equal
work and M micro-batches. They differ in memory: a micro-batch's activations are kept between its two passes, and a stage keeps those of
all micro-batches under `gpipe`, but of at most S under `1f1b`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple

from ...graph.core.graph import Node

SCHEDULES = ("gpipe", "1f1b")
PIPELINES = "pipeline_schedules"
"""The collection of a graph that has its `Pipeline`s."""


class Pass(NamedTuple):
    """One pass of one micro-batch through one stage: `F`, forward, or `B`, backward."""

    kind: Literal["F", "B"]
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}"


Schedule = tuple[tuple[Pass, ...], ...]
"""For each stage its passes, in order."""


def schedule(name: str, stages: int, micro_batches: int) -> Schedule:
    """In which order each stage runs its passes.

    Args:
        name: one of `SCHEDULES`.

    Raises:
        ValueError: no such schedule, or a number below 1.

    >>> [str(p) for p in schedule("1f1b", 2, 3)[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    if name not in SCHEDULES:
        raise ValueError(f"There is no schedule {name!r} of pipelines; schedules: {', '.join(SCHEDULES)}")
    if stages < 1 or micro_batches < 1:
        raise ValueError(f"A pipeline needs at least one stage and one micro-batch, not {stages} and {micro_batches}")
    forward = [Pass("F", m) for m in range(micro_batches)]
    backward = [Pass("B", m) for m in range(micro_batches)]
    if name == "gpipe":
        return ((*forward, *reversed(backward)),) * stages
    out = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)
        steady = [p for m in range(micro_batches - ahead) for p in (forward[ahead + m], backward[m])]
        out.append((*forward[:ahead], *steady, *backward[micro_batches - ahead :]))
    return tuple(out)


class Placed(NamedTuple):
    """A pass of a stage, with its start and end."""

    stage: int
    what: Pass
    start: float
    finish: float


def on_a_clock(passes: Schedule, forward: float = 1.0, backward: float = 2.0) -> list[Placed]:
    """All passes by start time, where each pass takes so long and transfers take no time.

    A forward pass waits for that of the stage before, a backward pass for that of the stage behind.
    """
    finish: dict[tuple[int, Pass], float] = {}
    at, free = [0] * len(passes), [0.0] * len(passes)
    out: list[Placed] = []
    while True:
        ready = []
        for stage, todo in enumerate(passes):
            if at[stage] < len(todo):
                p = todo[at[stage]]
                source = stage - 1 if p.kind == "F" else stage + 1
                needs = finish.get((source, p)) if 0 <= source < len(passes) else 0.0
                if needs is not None:
                    ready.append((max(free[stage], needs), stage, p))
        if not ready:
            return sorted(out, key=lambda placed: (placed.start, placed.stage))
        start, stage, p = min(ready)
        finish[stage, p] = free[stage] = start + (forward if p.kind == "F" else backward)
        at[stage] += 1
        out.append(Placed(stage, p, start, free[stage]))


def held(passes: Schedule) -> tuple[int, ...]:
    """For each stage of how many micro-batches it keeps activations at most."""
    out = []
    for todo in passes:
        now = most = 0
        for p in todo:
            now += 1 if p.kind == "F" else -1
            most = max(most, now)
        out.append(most)
    return tuple(out)


def ideal_bubble(stages: int, micro_batches: int) -> float:
    """The part of the devices' time that is not used when all stages take equally long, and nothing travels."""
    return (stages - 1) / (micro_batches + stages - 1)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline that was built into a graph. `print` draws its schedule.

    Attributes:
        name: scope of its nodes: those of a pass are in `<name>/F_<stage>_<micro-batch>/`, or `B_...`.
        schedule: its schedule's name. micro_batches: how many there are.
        stages: the device that each stage asks for.
    """

    name: str
    schedule: str
    micro_batches: int
    stages: tuple[str, ...]

    @property
    def passes(self) -> Schedule:
        """In which order each stage runs its passes."""
        return schedule(self.schedule, len(self.stages), self.micro_batches)

    @property
    def ideal_bubble(self) -> float:
        """The bubble of stages that take equally long."""
        return ideal_bubble(len(self.stages), self.micro_batches)

    @property
    def held(self) -> tuple[int, ...]:
        """For each stage of how many micro-batches it keeps activations at most."""
        return held(self.passes)

    def __str__(self) -> str:
        cell = len(str(Pass("B", self.micro_batches - 1))) + 1
        lines = [
            f"{self.schedule}: {len(self.stages)} stages, {self.micro_batches} micro-batches; "
            f"bubble {self.ideal_bubble:.0%} where stages take equally long"
        ]
        width = max(len(device or "anywhere") for device in self.stages)
        placed = on_a_clock(self.passes)
        end = max(round(p.finish) for p in placed) * cell
        for stage, device in enumerate(self.stages):
            row = ""
            for p in placed:
                if p.stage == stage:
                    row = (
                        row.ljust(round(p.start) * cell)
                        + str(p.what).ljust(round(p.finish - p.start) * cell - 1, ".")
                        + " "
                    )
            lines.append(f"  {device or 'anywhere':<{width}}  {row:<{end}} keeps {self.held[stage]}")
        return "\n".join(lines)


def stages_of(nodes: Sequence[Node], device_of: Callable[[Node], str]) -> list[tuple[str, list[Node]]]:
    """The stages of a model: what each device runs, in the order in which values pass the devices.

    Args:
        nodes: the forward pass, inputs first. device_of: the device that each asks for.

    Raises:
        ValueError: values go back to a device that they have left; the text names where.
    """
    parts: dict[str, list[Node]] = {}
    crossing: dict[tuple[str, str], tuple[Node, Node]] = {}
    inside = set(nodes)
    for node in nodes:
        here = device_of(node)
        parts.setdefault(here, []).append(node)
        for b in node.before:
            if b in inside and device_of(b) != here:
                crossing.setdefault((device_of(b), here), (b, node))
    try:
        order = list(TopologicalSorter({d: [a for a, b in crossing if b == d] for d in parts}).static_order())
    except CycleError as e:
        circle = e.args[1]  # each needs the one before it
        edges = [crossing[a, b] for a, b in zip(circle, circle[1:], strict=False)]
        listed = "\n".join(
            f"  '{b.name}' on {device_of(b) or 'any device'} takes from '{a.name}' on {device_of(a) or 'any device'}, "
            f"created at {b.source}"
            for a, b in edges
        )
        raise ValueError(
            f"The model does not fall into stages: values go round in a circle of {len(edges)} devices\n{listed}\n"
            "Put it on devices so that values pass them in one direction."
        ) from None
    return [(d, parts[d]) for d in order]
