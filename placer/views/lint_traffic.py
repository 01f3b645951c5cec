"""Checks of traffic between tasks: gradients, variables, constants, loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait
from ..cost.shapes import batch_shapes, how_to_give, listed_tensors, shape_options
from ..cost.static import state_bytes
from ..partition.partitioned_graph import Channel, task_of
from ..render.text import count_text, listed, number_text, short, size_text, time_text
from ..simulate import state_behind
from .facts import Facts
from .plan_warning import LISTED, Change, PlanWarning, moved, quoted, verb

SMALL_BYTES = 64 << 10  # about what a link of 10 Gbit/s sends in the 50 us that any message takes
READING = 0.5  # the part of a step that a link carries variables, from which on that is worth a warning
LARGER = 10_000  # times: the largest batch, compared with the given one, that is a useful advice
PROBES = 4  # batch sizes that are predicted to find one that is large enough
SHARE = 0.2  # the part of a step, or of the gradients' work, from which on something is worth a warning


def gradients(facts: Facts) -> Iterator[PlanWarning]:
    """Gradients that all run on one device, though the ops that they differentiate run on several."""
    calls: dict[str, dict[Node, Node]] = {}  # scope of the call -> gradient node -> the node that it differentiates
    for node in facts.device_of:
        found = _differentiated(node)
        if found is not None:
            calls.setdefault(found[0], {})[node] = found[1]
    for pairs in calls.values():
        device_of, traits = facts.device_of, Trait.METADATA | Trait.STATE_HANDLE
        cost = {g: facts.plan.sizes.cost(g).flops for g in pairs if g.inputs and not g.opdef.traits & traits}
        homes = {g: device_of[f] for g, f in pairs.items() if f in device_of and g in cost}
        if len(set(homes.values())) < 2:
            continue
        (most, count), *more = Counter(device_of[g] for g in cost).most_common()
        away = [g for g, home in homes.items() if home != device_of[g]]
        apart = sum(cost[g] for g in away)
        if more or apart < SHARE * sum(cost.values()) or any(g.colocation for g in pairs):
            continue
        taken = {t.name for g in away for t in g.inputs}
        others = dict.fromkeys(short(homes[g]) for g in away)
        crossing = [c for c in facts.plan.channels if c.name in taken and c.destination == most]
        size, known = sum(c.bytes for c in crossing), facts.plan.sizes.is_exact(away)
        apart_text, size_told = number_text(apart, known), size_text(size, all(c.is_exact for c in crossing))
        yield PlanWarning(
            "gradients",
            f"All {count_text(count, 'node')} of the gradients run on {short(most)}, but {len(away)} of them differentiate nodes of "
            f"{listed(others, LISTED)}: {apart_text}flop wait for {size_told} of transfers in each step",
            away[0].source,
            "Pass `colocate_gradients_with_ops=True` to that call",
            (most, *dict.fromkeys(homes[g] for g in away)),
            tuple(g.name for g in away[:LISTED]),
            size,
            Change(beside=_beside(pairs, facts)),
        )


def _differentiated(node: Node) -> tuple[str, Node] | None:
    """The scope of the call of `gradients` that made a node, and the node that it differentiates; None for any other node."""
    scope, mark, _ = node.name.rpartition("_grad/")
    if not mark:
        return None
    parts, by_name = scope.split("/"), node.graph
    for i in range(1, len(parts)):  # the longest name first: it may hold scopes of its own
        name = "/".join(parts[i:])
        if name in by_name:
            return "/".join(parts[:i]), node.graph.get_operation_by_name(name)
    return None


def _beside(pairs: Mapping[Node, Node], facts: Facts) -> tuple[tuple[str, str], ...]:
    """Each node of the gradients -> the node beside which `colocate_gradients_with_ops` puts it.

    A sum goes where it is used by another gradient; a last one, such as that of a variable, is colocated with its first summand.
    """
    found = dict(pairs)
    for g, f in pairs.items():
        for t in g.inputs:
            if t.op.type == "AddN" and t.op not in found and t.op in facts.device_of:
                found[t.op] = f
    by_name = {g.name: f for g, f in found.items()}
    for node in facts.device_of:
        if node.type == "AddN" and node not in found:
            found.update((node, by_name[name]) for name in node.colocation if name in by_name)
    return tuple((g.name, f.name) for g, f in found.items())


def read_again(facts: Facts) -> Iterator[PlanWarning]:
    """A variable whose value is sent to one task several times in a step."""
    for (place, task), channels in _reads(facts).items():
        if len(channels) > 1:
            wasted = sum(c.bytes for c in channels) - max(c.bytes for c in channels)
            yield PlanWarning(
                "read-again",
                f"'{place.name}' is read {len(channels)} times by {short(task)}, as {listed((c.name for c in channels), LISTED)}: "
                f"{size_text(wasted)} per step are redundant",
                tensor_of(facts, channels[-1]).op.source,
                "Read it once (value = variable.read_value()), and use the value everywhere",
                (channels[0].source, *dict.fromkeys(c.destination for c in channels)),
                (place.name,),
                wasted,
                "only the program knows which reads may see the same value",
            )


def slow_reads(facts: Facts) -> Iterator[PlanWarning]:
    """Variables that only one task reads, over a link that takes a large part of the step."""
    if not facts.is_exact or facts.one_worker is not None or facts.is_searched or facts.problem is None:
        return
    reads = _reads(facts)
    readers: dict[Node, list[str]] = {}
    for place, task in reads:
        readers.setdefault(place, []).append(task)
    links: dict[tuple[str, str], list[Channel]] = {}
    for (place, _), channels in reads.items():
        if len(readers[place]) == 1:
            links.setdefault((channels[0].source, channels[0].destination), []).append(channels[0])
    for (source, destination), channels in links.items():
        seconds = sum(_seconds(facts, c) for c in channels)
        size = sum(c.bytes for c in channels)
        if seconds < READING * facts.seconds or size < SMALL_BYTES:
            continue
        places = sorted({_place_of(facts, c) for c in channels}, key=lambda n: (-state_bytes(n)[0], n.name))
        yield PlanWarning(
            "slow-read",
            f"{quoted(places)} {verb(places, 'is', 'are')} sent from {short(source)} to {short(destination)} "
            f"in each step: {size_text(size)}, which takes {time_text(seconds)} of the step time of {time_text(facts.seconds)}",
            places[0].source,
            f"Place {verb(places, 'it', 'them')} where {verb(places, 'it is', 'they are')} read, with "
            f'dt.device("{short(task_of(destination))}")',
            (source, destination),
            tuple(n.name for n in places[:LISTED]),
            size,
            moved(facts.plan, dict.fromkeys(places, destination)),
        )


def small_batches(facts: Facts) -> Iterator[PlanWarning]:
    """A worker that waits for variables and gradients, whose size does not depend on the batch, longer than it computes."""
    if not facts.is_exact or facts.timeline is None:
        return
    taken = {t for n in facts.device_of for t in n.inputs}
    fed = [facts.plan.graph.get_tensor_by_name(name) for name in facts.plan.feeds]
    fed += [t for n in facts.device_of if n.opdef.name.startswith("IteratorGetNext") for t in n.outputs]
    sizes = {t: dims[0] or 0 for t in fed if t in taken and (dims := facts.plan.sizes.of(t).dims)}
    rows = max(sizes.values(), default=0)
    if rows < 2:
        return
    batches = [t for t, size in sizes.items() if size == rows]
    growing = _growing(facts, batches, rows)
    device = max(growing, key=lambda d: growing[d], default=None)  # the one that computes
    if device is None:
        return
    busy = _busy(facts, device)
    ends = [c for c in facts.plan.channels if c.crosses_tasks and not c.direct and device in (c.source, c.destination)]
    crossing = [c for c in ends if _is_state(facts, c)]
    links: dict[tuple[str, str], float] = {}
    for c in crossing:
        links[c.source, c.destination] = links.get((c.source, c.destination), 0.0) + _seconds(facts, c)
    # Links of one direction work at the same time. Gradients leave when the variables have come.
    sent = sum(max((s for ends, s in links.items() if ends[i] == device), default=0.0) for i in (0, 1))
    size = sum(c.bytes for c in crossing)
    if sent < 2 * busy or sent < SHARE * facts.seconds:
        return
    is_open = (batches[0].dims or ())[:1] == (None,)
    needed = _rows_for(facts, sent, device, growing[device], rows, is_open)
    if needed is None:
        return
    ways = [what for i, what in ((1, "variables"), (0, "gradients")) if any(ends[i] == device for ends in links)]
    yield PlanWarning(
        "small-batch",
        f"A batch of {rows} keeps {short(device)} busy for {time_text(busy)}, while sending its {' and '.join(ways)} in each step "
        f"({size_text(size)}) takes {time_text(min(sent, facts.seconds))} for any batch size",
        batches[0].op.source,
        f"Feed larger batches: at {needed} rows{'' if is_open else ' or more'} computation is predicted to take as long as these transfers",
        (device,),
        (batches[0].op.name,),
        size,
        Change(batch=(rows, needed)) if is_open else "the graph says how large a batch is",
    )


def _growing(facts: Facts, batches: Collection[Tensor], rows: int) -> dict[str, float]:
    """Device -> seconds of its kernels whose work grows with the batch; no devices on which most bytes are moved for something else."""
    behind: set[Node] = set()
    for n in sorted(facts.device_of, key=lambda n: n.index):
        if any(t in batches or t.op in behind for t in n.inputs):
            behind.add(n)
    sizes, step = facts.plan.sizes, facts.timeline
    assert step is not None

    def grows(n: Node) -> bool:
        tensors = (*n.inputs, *n.outputs)
        return not n.opdef.changes_state and any(d and d % rows == 0 for t in tensors for d in sizes.of(t).dims or ())

    found = {n for n in behind if grows(n)}
    seconds: dict[str, float] = {}
    for s in step.spans:
        if facts.plan.graph.get_operation_by_name(s.name) in found:
            seconds[step.devices[s.device]] = seconds.get(step.devices[s.device], 0.0) + s.finish - s.start
    moved = {d: {n: sizes.cost(n).bytes for n in facts.plan.partitions[d].nodes} for d in seconds}
    share = {d: sum(b for n, b in of.items() if n in found) / max(sum(of.values()), 1.0) for d, of in moved.items()}
    return {d: s for d, s in seconds.items() if share[d] >= SHARE}


def _rows_for(facts: Facts, seconds: float, device: str, growing: float, rows: int, is_open: bool) -> int | None:
    """The batch size, a multiple of `rows`, for which a device is predicted to be busy for so long; None: no useful one is.

    Where the graph leaves the size open, larger ones are predicted. Else the work that grows is taken to grow in proportion: at least so
    many rows are needed, as kernels take less than twice the time for two times the rows.

    Args:
        growing: the seconds of the device's kernels that grow with the batch, at `rows` rows.
    """
    nodes = facts.plan.partitioned.nodes
    fed, given = [facts.plan.graph.get_tensor_by_name(name) for name in facts.plan.feeds], facts.plan.sizes.given
    at, busy, per_row = rows, _busy(facts, device), growing / rows
    for _ in range(PROBES):
        if per_row * rows * LARGER < seconds - busy:
            return None
        more = at - int((busy - seconds) / per_row // rows) * rows
        if not is_open:
            return more
        large = Facts(facts.plan.resized({**given, **batch_shapes(nodes, fed, given, more)}))
        at, busy, per_row = more, _busy(large, device), (_busy(large, device) - busy) / (more - at)
        if busy >= seconds:
            break
    return at


def _busy(facts: Facts, device: str) -> float:
    """Seconds for which a device computes."""
    step = facts.timeline
    assert step is not None
    return step.busy[step.devices.index(device)]


def unknown_sizes(facts: Facts) -> Iterator[PlanWarning]:
    """A placement that was searched for unknown sizes."""
    tensors, sizes = facts.plan.unknown_sizes if facts.is_searched else (), facts.plan.sizes
    if tensors:
        yield PlanWarning(
            "unknown-sizes",
            f"The search for the placement treated unknown sizes as 1: {listed_tensors(tensors, sizes)}. At the sizes of a run "
            "another placement may be much faster",
            tensors[0].op.source,
            f"Give the sizes: dt.place(..., {how_to_give(tensors, sizes)}), or dovetail plan {shape_options(tensors, sizes)}",
            nodes=tuple(dict.fromkeys(t.op.name for t in tensors[:LISTED])),
            change="only the program knows how large its batches are",
        )


def constants_sent(facts: Facts) -> Iterator[PlanWarning]:
    """A constant that is sent between tasks in every step."""
    for c in facts.plan.channels:
        if c.crosses_tasks and not c.control and c.bytes >= SMALL_BYTES:
            node = tensor_of(facts, c).op
            if node.type == "Const":
                yield PlanWarning(
                    "constant-sent",
                    f"The constant '{node.name}' is sent from {short(c.source)} to {short(c.destination)} in each step "
                    f"({size_text(c.bytes)})",
                    node.source,
                    f"Create it, or a variable, on {short(c.destination)}",
                    (c.source, c.destination),
                    (node.name,),
                    c.bytes,
                    moved(facts.plan, {node: c.destination}),
                )


def loops(facts: Facts) -> Iterator[PlanWarning]:
    """A loop whose iterations wait for messages between tasks."""
    crossing: dict[str, list[Channel]] = {}
    for c in facts.plan.channels:
        if c.loop is not None and c.crosses_tasks:
            crossing.setdefault(c.loop, []).append(c)
    for loop, channels in crossing.items():
        count, size = len(channels), sum(c.bytes for c in channels)
        amount = size_text(size, all(c.is_exact for c in channels))
        largest = sorted(channels, key=lambda c: -c.bytes)
        tasks = dict.fromkeys(short(task_of(d)) for c in channels for d in (c.source, c.destination))
        nodes = dict.fromkeys(c.name.lstrip("^").partition(":")[0] for c in largest[:LISTED])
        yield PlanWarning(
            "loop",
            f"Each iteration of '{loop}' sends {count} message{'s' * (count > 1)} ({amount}) between "
            f"{listed(tasks, LISTED)}: {listed((c.name for c in largest), LISTED)}. An iteration cannot finish before they arrive",
            facts.plan.graph.get_operation_by_name(next(iter(nodes))).source,
            "Place its body and its condition on one task, if possible",
            tuple(dict.fromkeys(d for c in channels for d in (c.source, c.destination))),
            tuple(nodes),
            size,
            "only the program knows on which tasks the parts of the loop must run",
        )


def _reads(facts: Facts) -> dict[tuple[Node, str], list[Channel]]:
    """(place of state, task) -> the channels that carry its value there; those that are read in memory carry nothing."""
    found: dict[tuple[Node, str], list[Channel]] = {}
    for c in facts.plan.channels:
        if c.crosses_tasks and not c.control and not c.direct:
            place = state_behind(tensor_of(facts, c).op)
            if place is not None:
                found.setdefault((place, task_of(c.destination)), []).append(c)
    return found


def _place_of(facts: Facts, channel: Channel) -> Node:
    place = state_behind(tensor_of(facts, channel).op)
    assert place is not None  # only such channels are asked about
    return place


def tensor_of(facts: Facts, channel: Channel) -> Tensor:
    return facts.plan.graph.get_tensor_by_name(channel.name)


def _is_state(facts: Facts, channel: Channel) -> bool:
    """Whether a channel carries a variable's value, or what a variable is updated by."""
    if channel.control:
        return False
    tensor = tensor_of(facts, channel)
    if state_behind(tensor.op) is not None:
        return True
    return any(
        t.op in facts.state and facts.device_of[n] == channel.destination
        for n in tensor.consumers() if n in facts.device_of for t in n.inputs
    )  # fmt: skip


def _seconds(facts: Facts, channel: Channel) -> float:
    """What a channel's value takes on its link, if nothing else is on it."""
    latency, per_byte = facts.link(task_of(channel.source), task_of(channel.destination))
    return latency + channel.bytes * per_byte
