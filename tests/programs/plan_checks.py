"""Checks the plans of programs while they run: what ran is what `dt.place` makes, and what crossed is what its plan says.

python plan_checks.py SCRIPT ARGUMENT...    runs a script so, in a process of its own
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from same_plan import assert_placed_alike, assert_simulates_its_channels, assert_transfers_are_planned

import dovetail as tf
from dovetail.placer.cluster.load import cluster_text
from dovetail.runtime.session.prepared_steps import PreparedSteps

BRANCHING = frozenset({"Switch", "RefSwitch", "Merge", "RefMerge"})
"""Ops of steps whose values decide what crosses."""


def checked(run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """`PreparedSteps.run` with checks after the first step of each kind, which is traced unless the program does that itself.

    `dt.place` must make its plan from a description of the cluster alone. Exactly the transfers of this plan must be simulated, and
    must have happened.
    """
    seen: set[Any] = set()

    def run_checked(
        steps: PreparedSteps, wanted: Any, feeds: Any, options: Any, metadata: Any = None
    ) -> dict[str, Any]:
        key = id(steps), wanted.tensors, wanted.targets, tuple(feeds)
        if key in seen or steps.is_closed:
            return run(steps, wanted, feeds, options, metadata)
        seen.add(key)
        own = tf.RunMetadata() if metadata is None else None
        if own is not None:
            timeout = 0 if options is None else options.timeout_in_ms
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, timeout_in_ms=timeout)
        values = run(steps, wanted, feeds, options, own or metadata)
        last = steps._last
        if (
            last is None
            or not last[1]
            or steps.is_closed
            or last[0].signature[0] != wanted.tensors
            or last[0].signature[1] != wanted.targets
        ):
            return values  # another thread has run a step meanwhile, or all was fed
        plan = steps.last_plan
        if plan is not None:
            assert_placed_alike(plan, cluster_text(plan.cluster), allow_soft_placement=plan.decisions.soft)
            assert_simulates_its_channels(plan)
            branches = any(n.type in BRANCHING for p in plan.partitions.values() for n in p.nodes)
            if own is not None and own.trace is not None and not branches:
                assert_transfers_are_planned(own.trace)
        return values

    return run_checked


if __name__ == "__main__":
    PreparedSteps.run = checked(PreparedSteps.run)  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
