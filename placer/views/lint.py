"""Lint of a plan: warnings about what a better plan would not do, the most expensive first.

Each rule looks at one thing, says what it found in numbers, and what would mend it. None of them is an
error: a plan with warnings runs, and gives the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait
from ..cost.static import DeviceLoad, state_bytes
from ..partition.partitioned_graph import Channel, task_of
from ..plan_data import PlanData
from ..render.text import number_text, short, size_text

UNEVEN = 2.0
"""Twice the mean of its kind is uneven; less is common and seldom worth a change."""
UNEVEN_PAIR = 1.5  # of two devices, one cannot have more than twice the mean: here three quarters are uneven
SMALL_BYTES = 64 << 10  # about what a link of 10 Gbit/s sends in the 50 us that any message takes
SMALL_FLOPS = 1e6  # done in less time than a message takes
LISTED = 4  # names in one warning


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """One thing that costs more than it must.

    Attributes:
        kind: `read-again`, `constant-sent`, `loop`, `uneven-work`, `uneven-bytes`, `idle` or `memory`.
        text: what was found, in numbers, and what would mend it.
        devices: complete names of the devices that it is about.
        nodes: names of the nodes that it is about.
        bytes: bytes per step, or held, that could be saved or moved; 0 where it is not about bytes.
    """

    kind: str
    text: str
    devices: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(plan: PlanData) -> list[PlanWarning]:
    """All warnings about a plan, those that cost the most bytes first."""
    loads = plan.loads
    found = [
        *_read_again(plan),
        *_constants_sent(plan),
        *_loops(plan),
        *_uneven_work(plan),
        *_uneven_bytes(plan, loads),
        *_idle(plan, loads),
        *_memory(plan, loads),
    ]
    return sorted(found, key=lambda w: -w.bytes)


def _read_again(plan: PlanData) -> Iterator[PlanWarning]:
    """A variable whose value crosses to one task several times in a step."""
    crossing: dict[tuple[Node, str], list[Channel]] = {}
    for c in plan.channels:
        if c.crosses_tasks and not c.control:
            place = _place_read(plan.graph.get_tensor_by_name(c.name))
            if place is not None:
                crossing.setdefault((place, task_of(c.destination)), []).append(c)
    for (place, task), channels in crossing.items():
        if len(channels) > 1:
            wasted = sum(c.bytes for c in channels) - max(c.bytes for c in channels)
            yield PlanWarning(
                "read-again",
                f"'{place.name}' is read {len(channels)} times by {short(task)}, as "
                f"{_names(c.name for c in channels)}: {size_text(wasted)} per step more than once. Read it "
                "once (value = variable.read_value()), and use the value everywhere.",
                (channels[0].source, *dict.fromkeys(c.destination for c in channels)),
                (place.name,),
                wasted,
            )


def _place_read(tensor: Tensor) -> Node | None:
    """The place of state whose whole value a tensor is, or None."""
    node = tensor.op
    while node.type in ("Identity", "ReadVariableOp") and node.inputs:
        node = node.inputs[0].op
    return node if Trait.STATE_HANDLE in node.opdef.traits else None


def _constants_sent(plan: PlanData) -> Iterator[PlanWarning]:
    """A constant that crosses between tasks in every step."""
    for c in plan.channels:
        if c.crosses_tasks and not c.control and c.bytes >= SMALL_BYTES:
            node = plan.graph.get_tensor_by_name(c.name).op
            if node.type == "Const":
                yield PlanWarning(
                    "constant-sent",
                    f"The constant '{node.name}' crosses from {short(c.source)} to {short(c.destination)} in "
                    f"each step ({size_text(c.bytes)}). Make it, or a variable, on {short(c.destination)}.",
                    (c.source, c.destination),
                    (node.name,),
                    c.bytes,
                )


def _loops(plan: PlanData) -> Iterator[PlanWarning]:
    """A loop whose iterations wait for messages between tasks."""
    crossing: dict[str, list[Channel]] = {}
    for c in plan.channels:
        if c.loop is not None and c.crosses_tasks:
            crossing.setdefault(c.loop, []).append(c)
    for loop, channels in crossing.items():
        count, size = len(channels), sum(c.bytes for c in channels)
        largest = sorted(channels, key=lambda c: -c.bytes)
        tasks = dict.fromkeys(short(task_of(d)) for c in channels for d in (c.source, c.destination))
        yield PlanWarning(
            "loop",
            f"Each iteration of '{loop}' sends {count} message{'s' * (count > 1)} ({size_text(size)}) between "
            f"{_names(tasks)}: {_names(c.name for c in largest)}. An iteration cannot end before they have "
            "come. Keep its body and its condition on one task, where they need not be on several.",
            tuple(dict.fromkeys(d for c in channels for d in (c.source, c.destination))),
            tuple(dict.fromkeys(c.name.lstrip("^").partition(":")[0] for c in largest[:LISTED])),
            size,
        )


def _uneven_work(plan: PlanData) -> Iterator[PlanWarning]:
    """A device that does far more than the others of its kind that work in this step."""
    for devices in _of_a_kind(plan).values():
        work = {d: plan.cost[d].flops for d in devices if d in plan.cost}
        uneven = _uneven(work)
        if uneven is not None and work[uneven[0]] >= SMALL_FLOPS:
            most, times = uneven
            yield PlanWarning(
                "uneven-work",
                f"{short(most)} does {number_text(work[most])}flop per step, {times:.1f} times the mean of "
                f"the {len(work)} devices like it that work; they wait for it. Spread its nodes over them.",
                (most,),
            )


def _uneven_bytes(plan: PlanData, loads: Sequence[DeviceLoad]) -> Iterator[PlanWarning]:
    """A device that holds most of the state that its job could share."""
    held = {r.device: r.variable_bytes for r in loads}
    for devices in _of_a_kind(plan).values():
        sizes = {d: held.get(d, 0) for d in devices}
        total, uneven = sum(sizes.values()), _uneven(sizes)
        if uneven is not None and total >= SMALL_BYTES:
            most = uneven[0]
            largest = _largest(plan, most)
            yield PlanWarning(
                "uneven-bytes",
                f"{short(most)} holds {sizes[most] / total:.0%} of the {size_text(total)} of state that "
                f"{len(sizes)} devices of its job could share; the largest are {_names(largest)}. Balance by "
                "size (train.BalancedStrategy), or partition the largest variable.",
                (most,),
                tuple(largest),
                sizes[most] - total // len(sizes),
            )


def _uneven(amounts: Mapping[str, float]) -> tuple[str, float] | None:
    """The device with far more than the mean, and how many times the mean it has; None when all are alike."""
    mean = sum(amounts.values()) / len(amounts) if amounts else 0.0
    if len(amounts) < 2 or not mean:
        return None
    most = max(amounts, key=lambda d: amounts[d])
    times = amounts[most] / mean
    return (most, times) if times >= (UNEVEN_PAIR if len(amounts) == 2 else UNEVEN) else None


def _of_a_kind(plan: PlanData) -> dict[tuple[str, str], list[str]]:
    """(job, device type) -> devices."""
    found: dict[tuple[str, str], list[str]] = {}
    for d in plan.cluster.devices:
        found.setdefault((d.name.job, d.name.device_type), []).append(str(d.name))
    return found


def _largest(plan: PlanData, device: str) -> list[str]:
    held = [
        n for n in plan.decisions
        if Trait.STATE_HANDLE in n.opdef.traits and plan.decisions.device_of(n) == device
    ]  # fmt: skip
    return [n.name for n in sorted(held, key=lambda n: (-state_bytes(n)[0], n.name))[:LISTED]]


def _idle(plan: PlanData, loads: Sequence[DeviceLoad]) -> Iterator[PlanWarning]:
    """An accelerator without work, or a whole task without any."""
    busy = {r.device for r in loads}
    tasks = {task_of(d) for d in busy}
    unused = [str(d.name) for d in plan.cluster.devices if str(d.name) not in busy]
    idle_tasks = tuple(t for t in plan.cluster.tasks if t not in tasks)
    if idle_tasks:
        names = _names(short(t) for t in idle_tasks)
        text = f"{names} {_verb(idle_tasks)} nothing in this step, unless other clients use it."
        yield PlanWarning("idle", text, tuple(d for d in unused if task_of(d) in idle_tasks))
    cards = tuple(d for d in unused if "/device:CPU:" not in d and task_of(d) in tasks)
    if cards:
        text = f"{_names(short(d) for d in cards)} {_verb(cards)} nothing, while other devices of the task work."
        yield PlanWarning("idle", text, cards)


def _verb(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"


def _memory(plan: PlanData, loads: Sequence[DeviceLoad]) -> Iterator[PlanWarning]:
    """A device whose state alone does not fit its memory."""
    memory: Mapping[str, int | None] = {str(d.name): d.memory_bytes for d in plan.cluster.devices}
    for r in loads:
        room = memory.get(r.device)
        if room is not None and r.variable_bytes > room:
            yield PlanWarning(
                "memory",
                f"{short(r.device)} holds {size_text(r.variable_bytes, r.exact)} of state, but has "
                f"{size_text(room)} of memory.",
                (r.device,),
                bytes=r.variable_bytes - room,
            )


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return ", ".join(listed[:LISTED]) + more
