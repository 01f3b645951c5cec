"""The search driver: many cheap starts, the best by exact evaluation, then annealing over levels of coarseness.

1. a first assignment within memory, in milliseconds (feasible.py);
2. contiguous splits of many orders (`contiguous.py`, `orderings.py`);
3. for a step on a clock: HEFT and m-ETF on every level of coarseness (`list_scheduling.py`, `coarsen_dag.py`);
4. for small problems: a proof, from the best so far (exact.py);
5. chains of rounds of annealing (`rounds.py`), for steps of more than five thousand nodes on a merged problem; these are then refined by
   passes of moves within windows (`window_search.py`).

There are `CHAINS` chains, whatever the machine; each round is done by a core of its own, where there are so many. A chain whose last
rounds have brought nothing begins anew with other random numbers. Chains for a step on a clock are crossed now and then, and go on from
what is best of all that descends from them (`crossover.py`). This goes on until the work allowed for is done, or the lower bound is met,
or many new beginnings have brought nothing.

Work is counted, not timed: one evaluation or move has a stated price in seconds, about what it takes on a
common processor. So the same problem with the same seed gives the same answer on any machine, busy or not,
and `budget_s` is met only roughly. A caller with a limit in time stops reading
`improvements` when it is over: each answer is better than those before, and the first comes within a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from itertools import cycle
from typing import TypeAlias

import numpy as np

from ...graph.core.errors import invalid
from . import SEARCHES
from .bounds import lower_bound
from .clock import run
from .coarsen_dag import levels
from .coarsen_hypergraph import Items, coarsened, items_of, memory_share
from .contiguous import split
from .crossover import crossed
from .feasible import first_assignment
from .jit import interpreted, is_first_call
from .list_scheduling import list_schedule
from .orderings import orders
from .problem import Found, Objective, Problem, Solution
from .rounds import CHAINS, Chain, descents, node_price, walks
from .transfers import with_fewer_transfers
from .types import Flags, Ints
from .window_search import ended, window_pass

VISIT_S = 3e-8  # price of one evaluation, for each node that it goes over
MIN_S = 1.0  # starts may spend this much even if the budget is smaller
CORES = 2  # that the budget is for
PATIENCE = 9  # rounds without gain after which a chain begins anew
MEETING = 0.7  # of the budget is left when the chains for a step on a clock are first crossed ...
MEETING_EVERY = 0.1  # ... and so much of it lies between two such times
TRANSFERS_SHARE = 0.03  # of the budget at most, besides, for sending less at the same objective
BEGINNINGS = 24  # without gain after which the search ends
CUT_S = 2e-9  # price of one (start, end, state, kind) of a contiguous split
CUT_WORK = 4e7  # of these at most for one order; problems with more are merged first
CUT_STATES = 4096
CUT_SHARE = 0.3  # of the budget at most for contiguous splits
MERGED_SHARE = 0.4  # of what is left for the search on a merged problem
MERGED_S = 1.0  # of that at most on huge steps
PROMISING = 1.1  # times the best: what the lists of a merged problem may take at most, if walks there are to be tried
HUGE = 100_000  # nodes of a step whose passes and evaluations take so long that others have to be chosen with care
ROOM = 5e-3  # part of the objective by which it must exceed the bound, if merging a huge step is to be tried
NEAR = 1e-3  # the same for passes over all of it
HALVED = 0.4  # of the nodes at most that a merged problem of a huge step keeps, to be worth its lists
MERGING = 3.0  # times the nodes of a huge step that merging may look at in all
DENSEST = 16  # inputs of a node, on average, at most in a merged problem
WALK_NODES = 5000  # walks judge moves on at most so many nodes; larger problems are merged first


Watcher: TypeAlias = Callable[[Solution, float, bool], None]
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(show: Watcher) -> Iterator[None]:
    """Call `show(best, spent, exact)` whenever a search has a better answer, or has spent more of its budget.

    `spent` is a part of the budget. `exact` is False where sizes are unknown: `best` then has a time that counts them as 1, and no bound.
    An interrupt (Ctrl-C) ends the search with the best so far.
    """
    token = _watcher.set(show)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def shown_with(predicted: Callable[[Solution], float]) -> Iterator[None]:
    """A context manager in which a watcher, if there is one, sees other objectives than those of a problem that leaves out some costs."""
    show = _watcher.get()
    if show is None:
        yield
        return
    known: dict[int, float] = {}  # by the number of improvements so far

    def show_predicted(solution: Solution, spent: float, exact: bool) -> None:
        found = len(solution.history)
        if found not in known:
            known[found] = predicted(solution)
        show(replace(solution, objective=known[found]), spent, exact)

    with watched(show_predicted):
        yield


def search(
    problem: Problem,
    *,
    budget_s: float = 5.0,
    seed: int = 0,
    strategy: str = "auto",
    starts: Sequence[tuple[str, Ints]] = (),
    exact: bool = True,
) -> Solution:
    """The best assignment found.

    Args:
        budget_s: search effort: what `CORES` cores of a common processor do in so many seconds; 0: only starts.
        seed: random seed of the search; the same problem, seed and budget give the same answer.
        strategy: one of `SEARCHES`: all of the portfolio, or one part of it.
        starts: names and assignments of groups (m,) to be considered first; those that break constraints
            are passed over.
        exact: whether all sizes are known; if not, nothing is proven.

    Raises:
        InfeasibleError: the hard constraints cannot be met.
        InvalidArgumentError: the strategy found nothing that keeps the constraints and can run. ValueError: there is no such strategy.
    """
    solution = None
    try:
        for better in improvements(
            problem, budget_s=budget_s, seed=seed, strategy=strategy, starts=starts, exact=exact
        ):
            solution = better
    except KeyboardInterrupt:
        if _watcher.get() is None or solution is None:
            raise
    if solution is None:
        raise invalid(
            f"The strategy {strategy!r} found no assignment that keeps the device blocks, fits memory and can run; try 'auto'"
        )
    return solution


def improvements(
    problem: Problem,
    *,
    budget_s: float = 5.0,
    seed: int = 0,
    strategy: str = "auto",
    starts: Sequence[tuple[str, Ints]] = (),
    exact: bool = True,
) -> Iterator[Solution]:
    """The answers of `search` one by one, each better than those before; stop when time is up."""
    if strategy not in SEARCHES:
        raise ValueError(f"There is no search {strategy!r}; searches: {', '.join(SEARCHES)}")
    of_step = _Search(problem, budget_s, seed, exact=exact)
    steps = of_step.run(strategy, starts)
    at_once = strategy in ("auto", "local-search") and is_first_call(run, of_step.problem.nodes)
    while True:
        with interpreted(at_once):
            found = next(steps, None)
        at_once = False
        if found is None:
            return
        yield found


class _Search:
    """The best so far, and what was spent."""

    def __init__(
        self, problem: Problem, budget_s: float, seed: int, is_merged: bool = False, exact: bool = True
    ) -> None:
        self.given, self.problem, self.exact = problem, problem.of_step(), exact
        self.seed, self.left, self.is_merged = seed, budget_s, is_merged
        self.started = time.perf_counter()
        self.best: Ints | None = None  # device of each group
        self.value = np.inf
        self.bound = 0.0
        self.show = None if is_merged else _watcher.get()
        self.whole = budget_s
        self.smaller: tuple[Problem, Ints] | None = None  # a merged problem that is small enough to walk on
        self.promise = np.inf  # what lists of merged problems take by those problems' own clock
        self.history: list[Found] = []

    def run(self, strategy: str, starts: Sequence[tuple[str, Ints]] = ()) -> Iterator[Solution]:
        yield from self._tried([s for s in starts if not self.problem.violations(s[1][self.problem.group])])
        if strategy == "single":
            yield from self._tried(self._singles())
            return
        first = first_assignment(self.given)  # its error names nodes
        if strategy in ("auto", "local-search", "exact"):
            yield from self._tried([("first fit", first)])
        self.bound = lower_bound(self.problem)
        if strategy == "auto":
            yield from self._tried(self._singles())
        clock = self.problem.objective is not Objective.THROUGHPUT
        if strategy == "contiguous" or (strategy == "auto" and not self._is_large):
            yield from self._tried(self._contiguous())
        if strategy in ("heft", "m-etf"):
            yield from self._tried(self._listed(self.problem, strategy))
        if strategy == "auto" and clock:
            yield from self._tried(self._lists_of_large() if self._is_large else self._lists_on_levels())
        if strategy in ("auto", "exact"):
            from .exact import exactly, is_small  # loads the searches

            if strategy == "exact" or (not self._is_large and is_small(self.problem, self.items)):
                proven = exactly(self.problem, self.items, self._chosen(), self.value, self.bound)
                self.bound = max(self.bound, proven.bound)
                yield from self._tried([("exact", proven.where)] if proven.where is not None else [])
        if strategy in ("auto", "local-search"):
            yield from self._rounds()
            self._send_less()
        if self.history:
            yield self._solution()  # what was proven may have come after what was found
            self._report()

    # -- keeping the best ----------------------------------------------------------------------------------

    def _tried(self, found: Iterator[tuple[str, Ints]] | Sequence[tuple[str, Ints]]) -> Iterator[Solution]:
        for by, where in found:
            value = self.problem.evaluate(where[self.problem.group])
            if value < self.value * (1 - 1e-12):
                self.value, self.best = value, where.copy()
                self.history.append(Found(by, value, time.perf_counter() - self.started))
                yield self._solution()
                self._report()

    def _report(self) -> None:
        """Pass the best answer to the watcher, if there is one."""
        if self.show is not None:
            spent = min(1.0, max(0.0, 1 - self.left / self.whole)) if self.whole else 1.0
            self.show(self._solution(), spent, self.exact)

    def _solution(self) -> Solution:
        assignment = self._chosen()[self.given.group]
        assignment.flags.writeable = False
        bound = min(self.bound, self.value) if self.exact else 0.0
        return Solution(assignment, self.value, bound, tuple(self.history))

    def _chosen(self) -> Ints:
        assert self.best is not None
        return self.best

    @property
    def _is_done(self) -> bool:
        return self.left <= 0 or self.value <= self.bound * (1 + 1e-9)

    def _is_within(self, part: float) -> bool:
        """Whether the best exceeds the bound by less than this part of it: then there is little to gain."""
        return self.value <= self.bound * (1 + part)

    @cached_property
    def items(self) -> Items:
        """The groups as items."""
        return items_of(self.problem)

    @cached_property
    def kinds(self) -> _Kinds:
        """Which devices are alike."""
        return _kinds(self.problem)

    @property
    def _is_large(self) -> bool:
        """Whether this is a step on a clock that is searched on a smaller problem, then refined in windows."""
        p = self.problem
        return p.objective is Objective.MAKESPAN and p.nodes > WALK_NODES and not self.is_merged

    def _send_less(self) -> None:
        """Go on with an assignment that has no larger objective, and sends less."""
        if not self.is_merged and self.best is not None:
            self.best, price = with_fewer_transfers(
                self.problem, self.best, node_price(self.problem), TRANSFERS_SHARE * self.whole
            )
            self.left -= price
            self.value = self.problem.evaluate(self.best[self.problem.group])

    # -- starts --------------------------------------------------------------------------------------------

    def _singles(self) -> Iterator[tuple[str, Ints]]:
        p = self.problem
        fits = p.group_allowed.all(axis=0) & (p.memory.sum() <= p.capacity)
        seen: set[tuple[object, ...]] = set()
        for d in np.flatnonzero(fits).tolist():
            like = (int(p.device_class[d]), int(p.slots[d]))
            if like not in seen:  # everything on one of two equal devices is the same twice
                seen.add(like)
                yield f"single {d}", np.full(p.groups, d, np.int32)

    def _contiguous(self) -> Iterator[tuple[str, Ints]]:
        p, items, kinds = self.problem, self.items, self.kinds
        label = np.arange(p.groups, dtype=np.int32)
        states = float(np.prod(kinds.count + 1.0)) * len(kinds.count)
        most = max(100, int(np.sqrt(2 * CUT_WORK / states)))
        if p.groups > most:
            cap = float(items.seconds.min(axis=0).sum()) / p.devices / 16
            for level in coarsened(items, most, cap, memory_share(p), self.seed)[1:]:
                assert level.label is not None
                label, items = level.label[label], level.items
        if len(items.memory) > 2 * most:
            return
        price = CUT_S * states * len(items.memory) ** 2 / 2 + VISIT_S * p.nodes
        additive = p.objective is not Objective.THROUGHPUT
        share = CUT_SHARE / 3 if additive else CUT_SHARE  # walks on a clock are worth more
        least = self.left - share * max(self.left, MIN_S)
        allowed = np.ascontiguousarray(items.allowed[:, kinds.first])
        bound = np.inf
        for number, order in enumerate(orders(p, items, label)):
            if self.left < least:
                return
            self.left -= price
            cost, cuts = split(
                items, order, p.device_class[kinds.first], kinds.count, allowed, p.capacity[kinds.first],
                p.port_latency[kinds.first], p.port_per_byte[kinds.first], additive, bound,
            )  # fmt: skip
            if np.isinf(cost):
                continue
            # Sums only resemble a step on a clock, so splits that are a little worse by them are looked at.
            bound = cost if not additive else min(bound, 1.5 * cost)
            where = np.empty(len(order), np.int32)
            where[order] = kinds.members[cuts >> 16, cuts & 65535]
            yield f"contiguous {number}", where[label]

    def _listed(self, problem: Problem, strategy: str) -> Iterator[tuple[str, Ints]]:
        where = np.full(problem.groups, -1, np.int32)
        if list_schedule(
            problem.arrays, problem.rank, problem.group, problem.group_allowed, problem.group_memory,
            problem.capacity, strategy == "m-etf", where,
        ):  # fmt: skip
            yield strategy, where

    def _lists_on_levels(self) -> Iterator[tuple[str, Ints]]:
        p = self.problem
        work = float(p.seconds.min(axis=0).sum())
        for share in (2, 8) if p.nodes <= WALK_NODES else (8,):
            found = levels(p, 2 * p.devices, work / p.devices / share, memory_share(p))
            for number, (coarse, label) in enumerate(found):
                if number and coarse.nodes * 1.3 > found[number - 1][0].nodes:
                    continue  # hardly another level
                if coarse.nodes > WALK_NODES:
                    self.smaller = found[min(number + 1, len(found) - 1)]
                for strategy in ("heft", "m-etf"):
                    for by, where in self._listed(coarse, strategy):
                        yield f"{by} on {coarse.nodes} items", where[label]

    def _lists_of_large(self) -> Iterator[tuple[str, Ints]]:
        """The same where an evaluation is costly: only the lists that are best on a merged problem get one."""
        p = self.problem
        with ThreadPoolExecutor(2) as pool:  # loops run side by side, as they hold no lock
            slow = pool.submit(lambda: list(self._listed(p, "m-etf")))
            yield from self._listed(p, "heft")
            lists: list[tuple[float, int, str, Ints]] = []
            if not self._is_within(ROOM):
                for coarse, label in self._merged():
                    for found in pool.map(lambda by, on=coarse: list(self._listed(on, by)), ("heft", "m-etf")):
                        for by, where in found:
                            value = coarse.evaluate(where[coarse.group])
                            self.promise = min(self.promise, value)
                            lists.append((value, len(lists), f"{by} on {coarse.nodes} items", where[label]))
            for _, _, by, where in sorted(lists, key=lambda entry: entry[:2])[:2]:
                yield by, where
            yield from slow.result()

    def _merged(self) -> Iterator[tuple[Problem, Ints]]:
        """The levels of a large step whose lists are worth a look; the last is what walks are tried on."""
        p, n = self.problem, self.problem.nodes
        work = float(p.seconds.min(axis=0).sum())
        effort, kept = (MERGING * n, HALVED) if n > HUGE else (np.inf, 1.0)
        chain = levels(p, WALK_NODES, work / p.devices / 8, memory_share(p), DENSEST, effort)
        self.smaller = chain[-1]
        before = n
        for number, (coarse, label) in enumerate(chain[1:], 1):
            if number == len(chain) - 1 or (coarse.nodes <= kept * n and coarse.nodes * 1.8 <= before):
                yield coarse, label
            before = coarse.nodes

    # -- rounds --------------------------------------------------------------------------------------------

    def _rounds(self) -> Iterator[Solution]:
        if self.problem.groups < 2 or self.problem.devices < 2:
            return
        if (
            self.problem.objective is not Objective.THROUGHPUT
            and self.problem.nodes > WALK_NODES
            and not self.is_merged
        ):
            yield from self._rounds_on_merged()
            if self._is_large:
                yield from self._passes()
            return
        self.left, self.whole = CORES * self.left, CORES * self.whole
        p, items = self.problem, self.items
        clock = p.objective is not Objective.THROUGHPUT
        if clock:
            a_round = walks(p, items, self.seed, self.left, self._chosen())
        else:
            a_round = descents(p, items, self.seed, self.left)
        begun, idle, gained = 0, 0, self.value
        chains: list[Chain] = []
        meeting, random = self.left * MEETING, np.random.default_rng(self.seed)
        with ThreadPoolExecutor(min(CHAINS, os.cpu_count() or 1)) as cores:  # compiled loops hold no lock
            while not self._is_done and idle < BEGINNINGS:
                if clock and self.left < meeting:
                    found = [(self.value, self._chosen()), *((c.value, c.best) for c in chains)]
                    best, price = crossed(p, self.kinds.of, found, node_price(p), random, cores)
                    self.left -= price
                    meeting = self.left - self.whole * MEETING_EVERY
                    yield from self._tried([("crossover", best[0][1])])
                    chains = [
                        replace(c, best=w, value=v, idle=0) for c, (v, w) in zip(chains, cycle(best), strict=False)
                    ]
                while len(chains) < CHAINS:
                    chains.append(self._chain(begun))
                    begun += 1
                done = cores.map(a_round, chains)
                for chain, (where, value, price) in zip(chains, done, strict=True):
                    self.left -= price
                    if value < self.value:
                        yield from self._tried([(f"annealing {chain.rounds}", where)])
                    is_gain = value < chain.value * (1 - 1e-12)  # sums of loads differ by rounding
                    chain.rounds, chain.idle = chain.rounds + 1, 0 if is_gain else chain.idle + 1
                    if value <= chain.value:  # an equal one, too: the next round sees other moves
                        chain.best, chain.value = where, value
                    if chain.idle == PATIENCE:
                        idle, gained = 0 if self.value < gained else idle + 1, self.value
                chains = [c for c in chains if c.idle < PATIENCE]
                self._report()

    def _chain(self, number: int) -> Chain:
        """A chain that sets out from the best; for a step on a clock all but the first two with a hot walk."""
        leaves = number >= CHAINS // 2 and self.problem.objective is not Objective.THROUGHPUT
        return Chain(number, self._chosen(), np.inf if leaves else self.value)

    def _rounds_on_merged(self) -> Iterator[Solution]:
        """Rounds on a problem with fewer nodes, which only resembles this one; the best of them are tried here."""
        p = self.problem
        if self.smaller is None:
            if p.nodes > HUGE and self._is_large:  # merging it was not worth while
                return
            work = float(p.seconds.min(axis=0).sum())
            self.smaller = levels(p, WALK_NODES, work / p.devices / 8, memory_share(p))[-1]
        coarse, label = self.smaller
        # Under the caps it may not merge any further, or its values may remain as many as they were.
        if coarse.nodes > 4 * WALK_NODES or len(coarse.value_target) > DENSEST * coarse.nodes:
            return
        spent = MERGED_SHARE * self.left
        if p.nodes > HUGE:
            if self.promise > PROMISING * self.value:
                return
            spent = min(spent, MERGED_S)
        inner = _Search(coarse, spent, self.seed, is_merged=True)
        found = list(inner.run("auto"))
        self.left -= spent
        for each in found if p.nodes <= HUGE else found[-1:]:
            group_of = np.empty(coarse.groups, np.int32)
            group_of[coarse.group] = each.assignment
            yield from self._tried([(f"{each.history[-1].by} on {coarse.nodes} items", group_of[label])])

    def _passes(self) -> Iterator[Solution]:
        """Passes of moves within windows over all nodes, while they gain something; then the end by itself."""
        number, gained, first = 0, True, self.value
        is_huge, price = self.problem.nodes > HUGE, 0.0
        while gained and not self._is_done and not (is_huge and (self._is_within(NEAR) or price > self.left)):
            before, left = self.value, self.left
            yield from self._pass(number)
            gained, number, price = self.value < before * (1 - 1e-4), number + 1, left - self.left
        where, price = ended(self.problem, self._chosen(), self.seed)
        self.left -= price
        yield from self._tried([("end", where)])
        if number == 0 and self.value == first and not self._is_done:
            yield from self._pass(number)

    def _pass(self, number: int) -> Iterator[Solution]:
        where, price = window_pass(self.problem, self._chosen(), self.seed + number)
        self.left -= price
        yield from self._tried([(f"windows {number}", where)])


class _Kinds:
    """Kinds of devices: those of a kind are interchangeable.

    Attributes:
        of: (D,) the kind of each device. first: (Q,) its first device. count: (Q,) how many it has.
        members: (Q, most) its devices; the rest of a row repeats the last.
    """

    def __init__(self, of: Ints) -> None:
        self.of = of
        self.count = np.bincount(of).astype(np.int32)
        groups = [np.flatnonzero(of == q) for q in range(len(self.count))]
        self.first = np.array([g[0] for g in groups], np.int32)
        most = int(self.count.max())
        self.members = np.array([np.pad(g, (0, most - len(g)), mode="edge") for g in groups], np.int32)


def _kinds(p: Problem) -> _Kinds:
    allowed: Flags = p.allowed
    key: dict[tuple[object, ...], int] = {}
    of = np.empty(p.devices, np.int32)
    for d in range(p.devices):
        like = (
            int(p.device_class[d]), float(p.capacity[d]), float(p.port_latency[d]), float(p.port_per_byte[d]),
            allowed[:, d].tobytes(),
        )  # fmt: skip
        of[d] = key.setdefault(like, len(key))
    found = _Kinds(of)
    if np.prod(found.count + 1.0) > CUT_STATES:  # too many to count: devices of a class stand for each other
        return _Kinds(np.unique(p.device_class, return_inverse=True)[1].astype(np.int32))
    return found
