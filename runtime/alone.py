"""Parts of steps that meet nobody: one program that neither sends, nor receives, nor waits.

If it is short as well, it is run where it was asked for, by the thread that heard of it: nobody can want to abort it, to hear what it
waits for, or to deliver something to it meanwhile. So the books that are kept of running steps need not be opened, which take as long
as a small program itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from ..codegen.ir.program import Call
from ..graph.core.errors import OpError
from .execution import Execution
from .loaded import Loaded, Stretch
from .step import TaskStep


def only_stretch(loaded: Loaded) -> Stretch | None:
    """The stretch of programs that are one, which runs to its end whatever others do; None if they are not."""
    if len(loaded.programs) != 1 or any(type(now) is not Call for now in loaded.programs[0].instructions):
        return None
    return loaded.stretches.setdefault((loaded.programs[0].device, 0), Stretch())


class Alone(TaskStep):
    """A step as its only program sees it.

    Args:
        loaded: the program, which has an `only_stretch`.
        feeds: name -> value.

    Attributes:
        outcome: what is fetched, or the error, when it has run.

    Raises:
        InternalError: a feed is missing.
    """

    __slots__ = ("_execution", "_stretch", "outcome")

    outcome: Mapping[str, Any] | OpError

    def __init__(self, number: int, loaded: Loaded, feeds: Mapping[str, Any]) -> None:
        self.is_over = False  # nor will it be before it has run
        assert loaded.alone is not None
        self._stretch = loaded.alone
        self._execution = Execution(self, loaded.programs[0])
        self._execution.feed(number, feeds)

    def run(self) -> None:
        """Run the program to its end."""
        began = perf_counter()
        self._execution.run()
        self._stretch.measured(perf_counter() - began, None)
        del self._execution  # which refers to this

    def ended(self, fetched: Mapping[str, Any]) -> None:
        """As `TaskStep.ended`."""
        self.outcome = fetched

    def fail(self, error: OpError) -> None:
        """As `TaskStep.fail`."""
        self.outcome = error


__all__ = ["Alone", "only_stretch"]
