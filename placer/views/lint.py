"""Lint of a plan: warnings about parts of it that cost time or memory, the most expensive first.

Each check examines one aspect. It reports figures, the line of the program, and one change that avoids the cost. If the change can be
applied to the plan automatically (`plan_warning.py`), `check` does so on request, and compares. A warning is not an error: the plan runs,
and gives the same results. Decisions that a search weighed, or that are predicted to be best, are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ...graph.core.errors import OpError
from ..plan_data import PlanData
from ..render.text import short, size_text, time_text
from .facts import Facts, without_compiling
from .lint_devices import idle, memory, setters_overridden, slower_than_one, uneven_bytes, uneven_work
from .lint_traffic import constants_sent, gradients, loops, read_again, slow_reads, small_batches, unknown_sizes
from .plan_warning import PlaceFunction, PlanWarning, with_change

CHECKS: Mapping[str, Callable[[Facts], Iterator[PlanWarning]]] = {
    "unknown-sizes": unknown_sizes,
    "slower-than-one": slower_than_one,
    "gradients": gradients,
    "setter-overridden": setters_overridden,
    "read-again": read_again,
    "slow-read": slow_reads,
    "small-batch": small_batches,
    "constant-sent": constants_sent,
    "loop": loops,
    "uneven-work": uneven_work,
    "uneven-bytes": uneven_bytes,
    "idle": idle,
    "memory": memory,
}
"""Kind of warning -> what finds it."""
FOR_MEMORY = frozenset({"uneven-bytes", "memory"})
"""The checks of memory that one device needs."""
MAY_SLOW_DOWN = FOR_MEMORY | {"setter-overridden"}
"""The checks whose changes may make a step slower: they are for what the program says, or for memory."""
PREDICTING = frozenset({"slower-than-one", "slow-read", "small-batch", "uneven-work", "idle", "memory"})
"""The checks that predict times, or memory at each moment."""


def check(
    plan: PlanData, place: PlaceFunction | None = None, *, predict: bool = True, facts: Facts | None = None
) -> list[PlanWarning]:
    """All warnings about a plan, those that cost the most bytes first.

    Args:
        place: function that places a graph, to apply the changes; None: they are not applied.
        predict: whether to predict times, which takes seconds for a plan of 100,000 nodes.
        facts: facts that were derived from the plan before.
    """
    facts = facts or Facts(plan)
    with without_compiling(plan):
        found = [w for name, find in CHECKS.items() if predict or name not in PREDICTING for w in find(facts)]
    # The reason for uneven work is known where one of these has been found.
    blamed = {d for w in found if w.kind in ("gradients", "uneven-bytes") for d in w.devices[:1]}
    found = [w for w in found if w.kind != "uneven-work" or w.devices[0] not in blamed]
    if place is not None:
        found = [_applied(w, facts, place) for w in found]
    return sorted(found, key=lambda w: -w.bytes)


def _applied(warning: PlanWarning, facts: Facts, place: PlaceFunction) -> PlanWarning:
    """A warning with the plan that its change gives."""
    if isinstance(warning.change, str):
        return replace(warning, result=f"Not applied: {warning.change}")
    try:
        fixed = with_change(facts.plan, warning.change, place)
    except (OpError, ValueError) as e:
        return replace(warning, result=f"Not applied: the changed graph cannot be placed: {str(e).splitlines()[0]}")
    new = Facts(fixed)
    now, then = time_text(facts.seconds, facts.is_exact), time_text(new.seconds, new.is_exact)
    parts = [f"predicted step time {then} instead of {now}"]
    if warning.change.batch is not None:
        rows, more = warning.change.batch
        parts = [f"predicted time for {rows} examples {time_text(new.seconds * rows / more)} instead of {now}"]
    sizes = {"between tasks": (new.bytes_between_tasks, facts.bytes_between_tasks)}
    if warning.kind in FOR_MEMORY:
        device = warning.devices[0]
        sizes[f"on {short(device)}"] = new.peak(device), facts.peak(device)
    for where, (size, was) in sizes.items():
        then, now = size_text(size, size == 0 or new.is_exact), size_text(was, was == 0 or facts.is_exact)
        if then != now:
            parts.append(f"{then} instead of {now} {where}")
    slower = new.seconds >= facts.seconds if warning.kind in ("idle", "uneven-work") else new.seconds > facts.seconds
    slower &= warning.change.batch is None and warning.kind not in MAY_SLOW_DOWN
    return replace(warning, fixed=fixed, result=f"{'No gain' if slower else 'Result'}: {', '.join(parts)}")
