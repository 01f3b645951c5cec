"""Checks of devices: a faster single device, idle devices, uneven load, parameter servers, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from ...graph.core.device import DeviceSpec
from ...graph.core.graph import Node
from ..cost.static import state_bytes
from ..partition.partitioned_graph import task_of
from ..plan_data import PlanData
from ..render.text import count_text, listed, number_text, short, size_text, time_text
from ..rules.placement import Rule
from ..simulate import state_behind
from .facts import Facts, job_of, overriding, setter_block
from .lint_traffic import SHARE, SMALL_BYTES, tensor_of
from .plan_warning import LISTED, Change, PlanWarning, moved, quoted, verb

UNEVEN = 2.0
"""Twice the mean of its kind is uneven; less is common and seldom worth a change."""
UNEVEN_PAIR = 1.5  # of two devices, one cannot have more than twice the mean: here three quarters are uneven
BALANCED = 1.25  # a device that holds no more than this times what the best balance gives it is balanced
CERTAIN = 0.99  # a part of a step time that needs a decimal, so that it is not told as all of it
SMALL_FLOPS = 1e6  # done in less time than a message takes
LARGE_VARIABLE = 1 << 20  # worth being cut: its parts still take longer to send than a message takes


def slower_than_one(facts: Facts) -> Iterator[PlanWarning]:
    """A plan that is predicted to be slower than one of its devices would be alone."""
    if facts.slower_than is None:
        return
    device, seconds = facts.slower_than
    used = Counter(facts.device_of.values())
    away = next((n for n, d in facts.device_of.items() if d != device and n.device), None)
    away = away or next(n for n, d in facts.device_of.items() if d != device)
    cure = f"Remove the device blocks that distribute the nodes, or place all nodes on {short(device)}, until a step has more work"
    if len(used) == 1:
        cure = f'Place the nodes there, with dt.device("{short(device)}")'
    yield PlanWarning(
        "slower-than-one",
        f"The predicted step time is {time_text(facts.seconds)} on {count_text(len(used), 'device')}, and {time_text(seconds)} with all "
        f"nodes on {short(device)}",
        away.blocks.source if away.blocks is not None else away.source,
        cure,
        (device,),
        (away.name,),
        facts.bytes_between_tasks,
        Change(requests=tuple((n.name, device) for n in facts.plan.decisions)),
    )


def idle(facts: Facts) -> Iterator[PlanWarning]:
    """An accelerator without work, or a whole task without any, where the step could be faster with them."""
    plan = facts.plan
    busy = {r.device for r in plan.loads}
    tasks = {task_of(d) for d in busy}
    unused = [str(d.name) for d in plan.cluster.devices if str(d.name) not in busy]
    idle = facts.idle_tasks
    cards = tuple(d for d in unused if "/device:CPU:" not in d and task_of(d) in tasks)
    if not (idle or cards) or not plan.partitions or not _can_gain(facts):
        return
    most = max(plan.partitions, key=lambda d: plan.cost[d].flops)
    heavy, cure, change = _spread(facts, most)
    gain = _most_gain(facts)
    spread, away = (cure, change), "in this step (other clients may use it)"
    servers = tuple(t for t in idle if job_of(t) == "/job:ps") if facts.state else ()
    for names, rest, (cure, change) in (
        (servers, away, _served(facts, servers, most)),
        (tuple(t for t in idle if t not in servers), away, spread),
        (cards, "while other devices of the task work", spread),
    ):
        if names:
            yield PlanWarning(
                "idle",
                f"{listed(map(short, names), LISTED)} {verb(names, 'is', 'are')} idle {rest}; most of the work, such as "
                f"'{heavy.name}', is on {short(most)}{gain}",
                heavy.source,
                cure,
                tuple(d for d in unused if task_of(d) in names) if names is not cards else names,
                (heavy.name,),
                change=change,
            )


def _served(facts: Facts, servers: Sequence[str], worker: str) -> tuple[str, Change]:
    """How variables, those of layers among them, come to parameter servers that hold none: in words and as a change."""
    devices = [
        str(d.name)
        for d in facts.plan.cluster.devices
        if task_of(str(d.name)) in servers and d.name.device_type == "CPU"
    ]
    setter = f'replica_device_setter(ps_tasks={len(servers)}, worker_device="{short(task_of(worker))}")'
    sizes = {n: state_bytes(n)[0] for n in facts.state}
    change = moved(facts.plan, _balanced(sizes, devices)) if devices else Change()
    return (
        f"Place the variables there, also those of layers: build the model inside dt.device(dt.train.{setter})",
        change,
    )


def uneven_work(facts: Facts) -> Iterator[PlanWarning]:
    """A device that has far more work than others of its kind that are used in this step."""
    if not _can_gain(facts):
        return
    cost = facts.plan.cost
    for devices in _of_a_kind(facts.plan).values():
        work = {d: cost[d].flops for d in devices if d in cost}
        uneven = _uneven(work)
        if uneven is not None and work[uneven[0]] >= SMALL_FLOPS:
            most, times = uneven
            heavy, cure, change = _spread(facts, most)
            part = facts.plan.partitions[most]
            known = facts.plan.sizes.is_exact(part.nodes) and not part.has_loop
            yield PlanWarning(
                "uneven-work",
                f"{short(most)} does {number_text(work[most], known)}flop per step, {times:.1f} times the mean of the {len(work)} used "
                f"devices of its kind; the others wait for it, mainly for '{heavy.name}'{_most_gain(facts)}",
                heavy.source,
                cure,
                (most,),
                (heavy.name,),
                change=change,
            )


def _can_gain(facts: Facts) -> bool:
    """Whether more devices could make the step faster: no search has weighed them, one that works would not be faster alone, the step is
    not over before a message has come, and the bound leaves room."""
    if (
        facts.is_searched
        or facts.problem is None
        or (facts.slower_than is not None and facts.slower_than[0] in facts.plan.partitions)
    ):
        return False
    if not facts.is_exact:
        return True
    problem, here = facts.problem[0], np.unique(facts.problem[1])
    away = np.unique(np.delete(problem.places, here))
    message = problem.link_latency[np.ix_(np.unique(problem.places[here]), away)].min(initial=np.inf)
    if len(here) == 1 and facts.seconds <= message:
        return False
    return facts.lower_bound < (1 - SHARE) * facts.seconds


def _most_gain(facts: Facts) -> str:
    """What a better balance can gain at most, as a sentence; where sizes or iterations are unknown, that they count as 1."""
    if not facts.is_exact or facts.problem is None:
        return f". This counts {'unknown sizes' if facts.plan.unknown_sizes else 'the iterations of loops'} as 1"
    most_saved = 1 - facts.lower_bound / facts.seconds
    text = f"{most_saved:.0%}" if most_saved < CERTAIN else f"{most_saved:.1%}"
    return f". The step time of {time_text(facts.seconds)} could fall by at most {text}"


def _spread(facts: Facts, device: str) -> tuple[Node, str, Change]:
    """The node of a device that takes most work, and how the device's nodes could run elsewhere, too: in words and as a change."""
    nodes = facts.plan.partitions[device].nodes
    heavy = max(nodes, key=lambda n: facts.plan.sizes.cost(n).flops)
    if len(facts.plan.decisions.decision(heavy).candidates) > 1:
        return heavy, 'Distribute its nodes with strategy="auto", or with device blocks', Change(strategy="auto")
    where = f" at {heavy.blocks.source}" if heavy.blocks is not None else ""
    free = tuple((n.name, "") for n in nodes if n.device and not n.colocation and n not in facts.state)
    return heavy, f'Remove the device block{where}, and place with strategy="auto"', Change(free, strategy="auto")


def uneven_bytes(facts: Facts) -> Iterator[PlanWarning]:
    """A parameter server that stores most of the state of its job."""
    stored: dict[str, list[tuple[int, Node]]] = {}
    for node, device in facts.state.items():
        stored.setdefault(device, []).append((state_bytes(node)[0], node))
    serving = {
        c.source
        for c in facts.plan.channels
        if c.crosses_tasks and not c.control and state_behind(tensor_of(facts, c).op) is not None
    }
    for devices in _of_a_kind(facts.plan).values():
        sizes = {d: sum(size for size, _ in stored.get(d, ())) for d in devices}
        total, uneven = sum(sizes.values()), _uneven(sizes)
        if uneven is None or total < SMALL_BYTES or uneven[0] not in serving:
            continue
        most = uneven[0]
        state = {n: size for d in devices for size, n in stored.get(d, ())}
        balanced = _balanced(state, devices)
        least = max(sum(size for n, size in state.items() if balanced[n] == d) for d in devices)
        size, largest = max(stored[most], key=lambda entry: entry[0])
        if facts.plan.decisions.decision(largest).rule is Rule.SEARCHED:
            continue
        names = [n.name for _, n in sorted(stored[most], key=lambda entry: (-entry[0], entry[1].name))[:LISTED]]
        what = (
            f"{short(most)} stores {sizes[most] / total:.0%} of the {size_text(total)} of state that {len(sizes)} devices of its job could "
            f"share; the largest {verb(names, 'is', 'are')} {listed(names, LISTED)}"
        )
        change: Change | str = "a variable is partitioned where the program creates it"
        if sizes[most] > BALANCED * least:
            setter = "replica_device_setter(ps_strategy=dt.train.BalancedStrategy(...))"
            is_set = setter_block(largest) is not None
            cure = f"Balance by size: {setter}" if is_set else f"Balance by size, with device blocks or with {setter}"
            change = moved(facts.plan, {n: d for n, d in balanced.items() if facts.state[n] != d})
        elif size >= LARGE_VARIABLE:
            cure = f"Partition '{largest.name}' ({size_text(size)}), with a partitioner: no other assignment of whole variables is better"
        else:
            continue
        yield PlanWarning(
            "uneven-bytes", what, largest.source, cure, (most,), tuple(names),
            sizes[most] - total // len(sizes), change,
        )  # fmt: skip


def setters_overridden(facts: Facts) -> Iterator[PlanWarning]:
    """Variables inside a `replica_device_setter` that an inner device block places elsewhere."""
    found: dict[tuple[Any, Any], list[Node]] = {}
    for node in facts.state:
        inner, outer = overriding(node), setter_block(node)
        if inner is None or outer is None:
            continue
        job, named = job_of(facts.state[node]), DeviceSpec.from_string(inner.spec or "").job
        if job != getattr(outer.function, "servers", ("",))[0] and named in (None, job.removeprefix("/job:")):
            found.setdefault((inner, outer), []).append(node)
    for (inner, outer), nodes in found.items():
        devices = tuple(dict.fromkeys(facts.state[n] for n in nodes))
        size = sum(state_bytes(n)[0] for n in nodes)
        servers = getattr(outer.function, "servers", None)
        change: Change | str = "the setter of a plan that was read from a file is not known"
        if servers is not None:
            job, tasks = servers
            targets = [f"{job}/task:{i}" for i in range(tasks)]
            change = moved(facts.plan, _balanced({n: state_bytes(n)[0] for n in nodes}, targets))
        yield PlanWarning(
            "setter-overridden",
            f"{quoted(nodes)} ({size_text(size)}) {verb(nodes, 'is', 'are')} on "
            f"{listed(map(short, devices), LISTED)}, not on a parameter server: the device block {inner.describe()} at {inner.source} is "
            f"inside the block {outer.describe()} at {outer.source}, and overrides it",
            inner.source,
            "Open the setter's block inside the other one, or give the setter `worker_device`, without a block inside it",
            devices,
            tuple(n.name for n in nodes[:LISTED]),
            size,
            change,
        )


def _balanced(sizes: Mapping[Node, int], devices: Sequence[str]) -> dict[Node, str]:
    """A device for each variable: the largest first, each to the device that holds least so far. An optimizer's slots are apart."""
    heap, found = [(0, i) for i in range(len(devices))], {}
    heapify(heap)
    for node, size in sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0].index)):
        stored, i = heap[0]
        found[node] = devices[i]
        heapreplace(heap, (stored + size, i))
    return found


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


def memory(facts: Facts) -> Iterator[PlanWarning]:
    """A device whose state and values together do not fit its memory at some moment."""
    if facts.timeline is None or facts.fits:
        return
    room = {str(d.name): d.memory_bytes for d in facts.plan.cluster.devices}
    for device, peak in zip(facts.timeline.devices, facts.timeline.peak, strict=True):
        memory = room[device]
        if memory is not None and peak > memory:
            large = max(facts.plan.partitions[device].nodes, key=lambda n: sum(facts.bytes_of(t) for t in n.outputs))
            yield PlanWarning(
                "memory",
                f"{short(device)} is predicted to need {size_text(peak, facts.is_exact)} at once for values and state, but has "
                f"{size_text(memory)} of memory; the largest value is that of '{large.name}'",
                large.source,
                'Distribute its nodes, with device blocks or with strategy="auto", or make the batch smaller',
                (device,),
                (large.name,),
                round(peak) - memory,
                Change(strategy="auto"),
            )
