"""Which tasks tell the client that they have done their part of a step, and of which that follows.

A program runs in one order. One whose last step is a send has done everything when what it sends has come, and the program that takes
it ends later. So following the last sends from program to program, one comes to a program that ends without one, and when that has
ended, all before it have:

    ps      read the variables ── send ──┐
    worker                     receive ──┴── compute, fetch          only the worker reports

A task need not report if each of its programs ends with a send to another one, and the client fetches nothing from it. Errors are
always reported.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..codegen.ir.partition import SendTensor, Unit


def must_report(units: Iterable[Unit]) -> bool:
    """Whether the client must hear of the end of a task's part, which these units are."""
    return any(u.fetches or not u.steps or not isinstance(u.steps[-1], SendTensor) for u in units)


__all__ = ["must_report"]
