"""Plans as text: tables that fit a terminal of 100 columns and one screen, for a graph of any size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nsmallest

from ...graph.core.graph import Node
from ...graph.core.interpreter_state import collector_paused
from ...graph.core.opdef import has_known_bytes
from ...graph.ops.state.accumulators import ACCUMULATOR
from ..cluster.spec import Cluster
from ..cost.static import Traffic, repeated, work
from ..partition.insert_channels import is_copied
from ..partition.one_sided_updates import moved_updates
from ..partition.partitioned_graph import Channel, task_of
from ..plan_data import PlanData
from ..render.text import (
    ROWS,
    count_text,
    filled,
    fitted,
    listed,
    number_text,
    short,
    size_text,
    table,
    time_text,
    where,
)
from ..search.jit import FEW
from ..search.problem import Objective
from .facts import PREDICTED, Facts, without_compiling
from .plan_warning import LISTED
from .scope_tree import Row, fold

TRANSFERS = 3
"""Values that the heading names, those of the most bytes."""
NAME = 48  # columns of their names


def render(plan: PlanData) -> str:
    """The tables of `print(plan)`: devices, links, scopes, and requests that were not satisfied."""
    with collector_paused():
        parts = [
            heading(plan),
            table(*devices_table(plan)),
            table(*links_table(plan)),
            table(*scopes_table(plan), whole=2),
            _relaxations(plan),
        ]
    return "\n\n".join(filter(None, parts))


def heading(plan: PlanData) -> str:
    """The predicted time of the step and its largest transfers, a line each; then nodes, devices and traffic."""
    return "\n".join(map(filled, heading_paragraphs(Facts(plan))))


def heading_paragraphs(facts: Facts) -> list[str]:
    """The paragraphs of `heading`. Plans that take long to be predicted have no time: of `facts.PREDICTED` nodes, on one device of FEW."""
    paragraphs = [p for p in (_time_text(facts), _transfers_text(facts.plan), _contents_text(facts)) if p]
    return [f"Plan: {paragraphs[0]}", *paragraphs[1:]]


def _time_text(facts: Facts) -> str:
    """The predicted time of the step, what it rests on, and the device that would be faster by itself; '' if there is none."""
    plan = facts.plan
    if facts.nodes > (PREDICTED if len(plan.partitions) > 1 else FEW):
        return ""
    with without_compiling(plan):
        if facts.problem is None:
            return ""
        text = f"predicted step time {time_text(facts.seconds, facts.is_exact)}{facts.time_source}"
        if len(plan.partitions) > 1 and facts.slower_than is not None:
            device, seconds = facts.slower_than
            text += f", slower than one device: {time_text(seconds)} with all nodes on {short(device)}"
    return text


def _transfers_text(plan: PlanData) -> str:
    """The values of which the most bytes cross between devices; '' if none does."""
    inside = repeated(plan.partitions.values())
    values: dict[tuple[str, str], list[Channel]] = {}
    for c in plan.channels:
        if not c.control:
            values.setdefault((c.name, c.source), []).append(c)
    found = nsmallest(TRANSFERS, values.items(), lambda item: (-sum(c.bytes for c in item[1]), item[0]))
    texts = []
    for (name, _), channels in found:
        size = size_text(channels[0].bytes, channels[0].is_exact and channels[0].id not in inside)
        each = f" to each of {len(channels)} devices" if len(channels) > 1 else ""
        texts.append(f"{fitted(name, NAME)} ({size}{each})")
    what = "largest transfer" + "s" * (len(texts) > 1)
    return f"{what}: {', '.join(texts)}" if texts else ""


def _contents_text(facts: Facts) -> str:
    """Nodes, devices, traffic, feeds, and what is done in shared memory."""
    plan = facts.plan
    between = [c for c in plan.channels if c.crosses_tasks]
    direct = sum(c.direct for c in between)
    links = [t for t in plan.traffic if task_of(t.source) != task_of(t.destination)]
    size = size_text(sum(c.bytes for c in between), all(t.exact for t in links))
    devices = {*plan.partitions, *(r.device for r in plan.loads)}  # some only hold variables
    variables = sum(r.variables for r in plan.loads) if len(devices) > len(plan.partitions) else 0
    what = count_text(facts.nodes, "node") + (f" and {count_text(variables, 'variable')}" if variables else "")
    tasks = len({task_of(d) for d in devices})
    one_worker = "" if facts.one_worker is None else f"the step of one worker, {short(facts.one_worker.task)}; "
    text = f"{one_worker}{what} on {count_text(len(devices), 'device')} of {count_text(tasks, 'task')}"
    text += f"; {_channels_text(len(plan.channels), len(between), direct, size)}"
    if updates := moved_updates(plan.partitions, plan.decisions.device_of) if plan.moved_parts else {}:
        text += f", {count_text(len(updates), 'one-sided update')} ({size_text(sum(updates.values()))} per step)"
    if fed := [
        plan.graph.get_tensor_by_name(name)
        for name in sorted({name for p in plan.partitions.values() for name in p.feeds})
    ]:
        size = size_text(
            sum(plan.sizes.bytes(t) for t in fed), all(has_known_bytes(t.dtype, plan.sizes.of(t).dims) for t in fed)
        )
        text += f"; {count_text(len(fed), 'feed')} ({size} per step)"
    if idle := facts.idle_tasks:
        text += f"; nothing runs on {listed(map(short, idle), LISTED)}{_why_fewer(plan, tasks)}"
    by_device: dict[str, list[str]] = {}
    for task, device in plan.moved_parts.items():
        by_device.setdefault(device, []).append(short(task))
    for device, moved in by_device.items():
        what = "partition" if len(moved) == 1 else "partitions"
        text += f"; {short(device)} runs the {what} of {', '.join(sorted(moved))} in shared memory"
    adding = Counter(device for node, device in plan.added_to.items() if node.type == ACCUMULATOR)
    for device, count in adding.items():
        text += f"; {short(device)} adds to {count_text(count, 'accumulator')} of other tasks in shared memory"
    return text + _access_text(plan)


def _channels_text(channels: int, between: int, direct: int, size: str) -> str:
    """How many channels there are, how many of them are between tasks, and how many of those are one-sided reads."""
    if not channels:
        return "no channels"
    text = count_text(channels, "channel")
    if between < channels:
        text += f", {between or 'none'} of them"
    text += " between tasks" + (f" ({size} per step)" if between else "")
    if not direct:
        return text
    if between == 1:
        return f"{text}, as a one-sided read"
    return f"{text}, {'all' if direct == between else f'{direct} of these'} as one-sided reads"


def _why_fewer(plan: PlanData, tasks: int) -> str:
    """What a search for this step has proven about plans on more tasks; '' if nothing."""
    solution = plan.solution
    if solution is None or not solution.is_of_step or not solution.lower_bound:
        return ""
    limit = time_text(solution.lower_bound)
    if solution.minimized is Objective.THROUGHPUT:
        limit = f"no plan can end a step more often than every {limit}"
    else:
        limit = f"no plan can take less than {limit}"
    fewest = "one task is" if tasks == 1 else f"{tasks} tasks are"
    return f" ({fewest} fastest: {limit})" if solution.gap < 1e-9 else f" ({limit})"


def _access_text(plan: PlanData) -> str:
    """Which tasks use each other's memory, and whether that is assumed or found."""
    access = plan.access
    text = f"; shared memory is {access.how}" if access.used else ""
    text += " (dt.place with shared_memory=False assumes none)" if text and not access.found else ""
    ways = {(r.task, r.owner) for r in access.refused if not r.variable}
    if ways:
        task, owner = min(ways)
        more = f", and {count_text(len(ways) - 1, 'more pair')}," if len(ways) > 1 else ""
        text += f"; {short(task)} and {short(owner)}{more} share no memory ({access.how})"
    return text


Table = tuple[tuple[str, ...], list[tuple[str, ...]], str]
"""What `table` takes: the head, rows, and what is left out."""


def devices_table(plan: PlanData) -> Table:
    """A row for each of the first devices that are used: its nodes, variables, their memory, its operations. The others are counted."""
    emulated = {str(d.name) for d in plan.cluster.devices if d.emulated}
    rows: list[tuple[str, ...]] = [
        (
            short(r.device) + (" (emulated)" if r.device in emulated else ""),
            str(r.nodes),
            str(r.variables),
            size_text(r.variable_bytes, r.exact),
            number_text(*_flops(plan, r.device)),
        )
        for r in plan.loads[:ROWS]
    ]
    return ("device", "nodes", "variables", "their memory", "flop"), rows, _left_out(plan.loads)


def _left_out(rows: Sequence[object]) -> str:
    """The line that counts the rows for which a table has no room."""
    return f"... and {len(rows) - ROWS} more" if len(rows) > ROWS else ""


def _flops(plan: PlanData, device: str) -> tuple[float, bool]:
    """Arithmetic operations of one step on a device, and whether they depend on no unknown size and number of iterations."""
    part = plan.partitions.get(device)
    if part is None:
        return 0.0, True
    return work(part.nodes, plan.sizes.cost).flops, plan.sizes.is_exact(part.nodes) and not part.has_loop


def links_table(plan: PlanData) -> Table:
    """A row for each of the first pairs of devices with traffic, with times for known links. The others are counted."""
    found = plan.traffic[:ROWS]
    times = [link_seconds(t, plan.cluster) for t in found]
    header: tuple[str, ...] = ("link", "tensors", "control", "per step")
    rows: list[tuple[str, ...]] = [
        (
            f"{short(t.source)} -> {short(t.destination)}",
            str(t.tensors),
            str(t.control),
            size_text(t.bytes, t.exact),
        )
        for t in found
    ]
    if any(s is not None for s in times):
        header = (*header, "time")
        rows = [(*r, "" if s is None else time_text(s, t.exact)) for r, s, t in zip(rows, times, found, strict=True)]
    return header, rows, _left_out(plan.traffic)


def link_seconds(crossing: Traffic, cluster: Cluster) -> float | None:
    """The time of a step's traffic on a link without contention; None if the link is not known."""
    source, destination = task_of(crossing.source), task_of(crossing.destination)
    link = cluster.link(source, destination) if source != destination else None
    return None if link is None else link.seconds(crossing.bytes)


def scopes_table(plan: PlanData) -> Table:
    """The nodes folded by name (`scope_tree.py`), and a line that counts omitted rows."""
    rows = fold(((n.name, _place(plan, n, device)) for device, p in plan.partitions.items() for n in p.nodes), ROWS)
    left = rows[ROWS:]
    rest = f"... and {len(left)} more with {count_text(sum(len(r.nodes) for r in left), 'node')}" if left else ""
    return ("scope", "nodes", "where"), [(r.label, str(len(r.nodes)), _where(r)) for r in rows], rest


_RUN_BY = " (run by "


def _where(row: Row) -> str:
    """The places of a row's nodes; of several only the devices, as there is no room for more."""
    places = row.devices
    if len(places) > 1:
        places = Counter()
        for place, nodes in row.devices.items():
            places[place.partition(_RUN_BY)[0]] += nodes
    return where(places)


def _place(plan: PlanData, node: Node, device: str) -> str:
    """The device that runs a node; for one that it runs in another task's memory, that of the node, and the task that runs it."""
    if not (plan.moved_parts or plan.added_to) or is_copied(node):
        return device
    home = plan.decisions.device_of(node)
    by = plan.added_to.get(node, plan.moved_parts.get(task_of(home)))
    return f"{home}{_RUN_BY}{task_of(device)})" if by == device and task_of(home) != task_of(device) else device


def _relaxations(plan: PlanData) -> str:
    found = plan.relaxations
    if not found:
        return ""
    lines = [f"Relaxed requests: {count_text(len(found), 'node')}"]
    for r in found[:ROWS]:
        text = f"{r.node} requested '{r.requested}', assigned {short(r.chosen)}: {r.reason}"
        lines.append(filled(text, "  ", "    "))
    if len(found) > ROWS:
        lines.append(f"  ... and {len(found) - ROWS} more (plan.relaxations)")
    return "\n".join(lines)
