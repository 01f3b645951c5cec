"""What each part of the placement search gains: workloads with it and without it, by the same seeds and budget.

A row has the mean objective of five seeds, with the part (`dovetail`) and without it (`peer`). Work is counted, so rows are the same on
any machine, busy or not. A part stays if some workload is worse by 0.3 % without it: parts that were kept for less are gone (good starts
from which other rounds set out: 0.2 % at most).

    python bench/ablation.py --search                          # all: an hour on two cores
    python bench/ablation.py --search --only "crossover of chains"

The workloads are those in the folders that DOVETAIL_PLACEMENT_WORKLOADS names (`placement_quality.py`, `step_workloads.py`), each searched
for what its folder asks for.
"""

import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from placement_quality import BUDGET_S, DEFAULT, FOLDER, SEEDS

from _harness import Row, main, row
from _workloads import Case, cases, load_judge, problem_of

SEARCH = "dovetail.placer.search"
TARGET = "ratio <= 0.997"


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


PARTS: Mapping[str, Mapping[str, Any]] = {
    "contiguous splits": {"portfolio._Search._contiguous": _nothing},
    "lists on levels of coarseness": {"portfolio._Search._lists_on_levels": _nothing},
    "folded orders": {"orderings._on_the_way_back": lambda p: np.zeros(p.groups, bool)},
    "exact solving": {"exact.is_small": lambda *_: False},
    "coarseness": {"rounds.coarsened": lambda items, *_: [_level(items)]},
    "changes of walks, part by part": {"rounds.mixed": lambda p, behind, before, *_: (before, 0.0)},
    "crossover of chains": {"portfolio.MEETING": -1.0},
    "hot beginnings": {"portfolio._Search._chain": lambda self, number: _chain(number, self)},
    "beginning anew": {"portfolio.PATIENCE": np.inf},
}
"""By name: what stands in the place of functions and numbers."""


def _level(items: Any) -> Any:
    from dovetail.placer.search.coarsen_hypergraph import Level

    return Level(items, None)


def _chain(number: int, of: Any) -> Any:
    from dovetail.placer.search.rounds import Chain

    return Chain(number, of.best, of.value)


@cache
def mean(case: Case, seeds: int, without: str | None = None) -> float:
    """The mean objective over seeds."""
    from dovetail.placer.search.portfolio import search

    folder = case.path.parent
    problem = problem_of(
        load_judge(folder if (folder / "evaluate.py").exists() else DEFAULT).Workload(str(case.path)), case.objective
    )
    with ExitStack() as turned_off:
        for where, what in PARTS.get(without or "", {}).items():
            turned_off.enter_context(patch(f"{SEARCH}.{where}", what))
        return statistics.mean(search(problem, budget_s=BUDGET_S, seed=seed).objective for seed in range(seeds))


def rows(part: str, quick: bool) -> Iterator[Row]:
    """One row per workload; in a short run, with one seed."""
    seeds = 1 if quick else SEEDS
    for folder in os.environ.get(FOLDER, str(DEFAULT)).split(os.pathsep):
        for case in cases(Path(folder)):
            title = f"{part}: {case.name}, {case.objective.value}"
            yield row(title, "", mean(case, seeds), mean(case, seeds, part), "without it", TARGET)


def run() -> None:
    """From the command line."""
    main("What each part of the placement search gains", {part: partial(rows, part) for part in PARTS})
