"""Searched placement of a million nodes: `auto` beside every single pass, on steps of different shape.

    python bench/auto_large.py [--quick] [--json FILE]

For each shape of `_large_steps.py` and each strategy: seconds of the search, by the clock and of the processors, and
the predicted time of the step. The peer of `auto` is the best single pass. Problems are arrays before the clock
starts; compiled code is loaded before, too. Processor time is what it takes on a quiet machine with one core.
"""

import time
from collections.abc import Iterator

import numpy as np

from _harness import Row, main, row
from _large_steps import SHAPES
from dovetail.placer.search.portfolio import search

PASSES = ("single", "heft", "m-etf", "contiguous")
COUNT, QUICK = 1_000_000, 100_000


def rows(quick: bool) -> Iterator[Row]:
    """Per shape: the predicted step, then what the searches took."""
    for make in SHAPES.values():  # load what is compiled
        search(make(20_000, np.random.default_rng(0)), budget_s=0.5)
    for shape, make in SHAPES.items():
        steps: dict[str, float] = {}
        took: dict[str, tuple[float, float]] = {}
        for strategy in (*PASSES, "auto"):
            problem = make(QUICK if quick else COUNT, np.random.default_rng(1))
            clock, processors = time.perf_counter(), time.process_time()
            try:
                steps[strategy] = search(problem, strategy=strategy).objective
            except ValueError:  # it does not fit memory this way
                continue
            took[strategy] = time.perf_counter() - clock, time.process_time() - processors
        auto = steps.pop("auto")
        best = min(steps, key=lambda strategy: steps[strategy])
        yield row(
            f"{shape}, {problem.nodes:,} nodes, step", "s", auto, steps[best], f"best single pass: {best}",
            target="ratio <= 0.999999999",
        )  # fmt: skip
        for strategy, step in steps.items():
            yield row(f"{shape}, step by {strategy}", "s", step)
        for strategy, (clock, processors) in took.items():
            yield row(
                f"{shape}, search by {strategy}", "s", clock, target="dovetail <= 15" if strategy == "auto" else ""
            )
            yield row(f"{shape}, search by {strategy}, processor time", "s", processors)


if __name__ == "__main__":
    main("Searched placement of large steps", rows)
