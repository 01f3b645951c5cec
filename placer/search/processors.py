"""The processors of machines, which the tasks of a machine share.

A node keeps some of its machine's cores busy while it runs (`Problem.used`). Where the nodes that run at once on one machine want more
cores than there are, all of them slow down by the same factor, until one of them ends or another one begins. So the end of a node is
known only for as long as nothing else begins: the clock asks after each event which ends have moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .problem import Problem


class Processors:
    """The processors of machines: nodes that run there at once share them, so each may take longer than by itself."""

    def __init__(self, problem: Problem, where: Sequence[int]) -> None:
        many = problem.host is not None and problem.used is not None and problem.devices > 1
        self._host = [problem.host[d] for d in where] if many and problem.host is not None else []
        self._used = problem.used.tolist() if problem.used is not None else []
        self._cores = float(problem.cores)
        self._left: dict[int, dict[int, float]] = {}  # machine -> node that runs -> seconds that it needs by itself
        self._since: dict[int, float] = {}
        self._rate: dict[int, float] = {}
        self._touched: set[int] = set()

    def _pass(self, host: int, now: float) -> dict[int, float]:
        """Let time pass on a machine."""
        left, spent = self._left.setdefault(host, {}), (now - self._since.get(host, now)) * self._rate.get(host, 1.0)
        for x in left:
            left[x] = max(left[x] - spent, 0.0)
        self._since[host] = now
        self._touched.add(host)
        return left

    def begins(self, x: int, now: float, takes: float) -> None:
        """A node begins that takes so many seconds by itself."""
        if self._host and self._host[x] >= 0:
            self._pass(self._host[x], now)[x] = takes

    def ends(self, x: int, now: float) -> None:
        """A node has ended."""
        if self._host and self._host[x] >= 0:
            self._pass(self._host[x], now).pop(x, None)

    def changed(self, now: float) -> Iterable[tuple[int, float]]:
        """The nodes whose ends have moved, with the new ones."""
        touched, self._touched = self._touched, set()
        out: list[tuple[int, float]] = []
        for host in touched:
            left = self._left[host]
            before, rate = self._rate.get(host, 1.0), min(1.0, self._cores / max(sum(self._used[x] for x in left), 1e-9))
            self._rate[host] = rate
            if rate < 1.0 or before < 1.0:
                out += [(x, now + seconds / rate) for x, seconds in left.items()]
        return out
