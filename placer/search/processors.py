"""The processors of machines, which the tasks of a machine share.

What runs on a machine, a kernel or the hand-over of a value between two tasks, keeps some cores busy by itself. One kernel may use all of
them. What several tasks do at once gets `Problem.shared` cores together, as was measured: an operating system that packs what was just
woken on few cores, or tasks whose threads wait for each other, use fewer than there are. Where more is wanted, all slow down by the same
factor, until something ends or begins. So an end is known only for as long as nothing else begins: the clock asks after each event which
ends have moved.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .problem import Problem


def least_shared(problem: Problem) -> float:
    """Seconds that no placement is below because the cores of machines are shared; 0 where a device shares no machine.

    A node by itself has all cores of its machine, several at once have `Problem.shared`.
    """
    if problem.host is None or problem.used is None or (problem.host < 0).any():
        return 0.0
    share = np.minimum(1.0, problem.used / problem.shared)
    return float((problem.seconds.min(axis=0) * share).sum()) / len(np.unique(problem.host))


class Processors:
    """The processors of machines: what runs there at once shares them, so each may take longer than by itself."""

    def __init__(self, problem: Problem) -> None:
        self.are_shared = problem.host is not None and problem.devices > 1
        self._shared = float(problem.shared)
        # Machine -> what runs -> seconds that it needs by itself, cores.
        self._left: dict[int, dict[int, tuple[float, float]]] = {}
        self._since: dict[int, float] = {}
        self._rate: dict[int, float] = {}
        self._touched: set[int] = set()

    def _pass(self, host: int, now: float) -> dict[int, tuple[float, float]]:
        """Let time pass on a machine."""
        left, spent = self._left.setdefault(host, {}), (now - self._since.get(host, now)) * self._rate.get(host, 1.0)
        if spent:
            for x, (seconds, used) in left.items():
                left[x] = max(seconds - spent, 0.0), used
        self._since[host] = now
        self._touched.add(host)
        return left

    def begins(self, x: int, host: int, now: float, takes: float, used: float) -> None:
        """Something begins, of any number, that takes so many seconds of so many cores by itself. Machine -1 has cores for all."""
        if host >= 0:
            self._pass(host, now)[x] = takes, used

    def ends(self, x: int, host: int, now: float) -> None:
        """It has ended."""
        if host >= 0:
            self._pass(host, now).pop(x, None)

    def changed(self, now: float) -> Iterable[tuple[int, float]]:
        """What has moved its end, with the new one."""
        touched, self._touched = self._touched, set()
        out: list[tuple[int, float]] = []
        for host in touched:
            left = self._left[host]
            before, asked = self._rate.get(host, 1.0), sum(used for _, used in left.values())
            rate = 1.0 if len(left) < 2 else min(1.0, self._shared / max(asked, 1e-9))
            self._rate[host] = rate
            if rate < 1.0 or before < 1.0:
                out += [(x, now + seconds / rate) for x, (seconds, _) in left.items()]
        return out
