"""What a session tells of restarted tasks, without processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dovetail.graph.core.errors import AbortedError, UnavailableError
from dovetail.graph.core.graph import Graph
from dovetail.graph.ops.array.identity_and_placeholders import no_op
from dovetail.runtime.master.master import TaskPart
from dovetail.runtime.session.fetches import Fetches
from dovetail.runtime.session.prepared_steps import Backend, PreparedSteps


class Task(Backend):
    """A cluster of one task."""

    devices = ()
    is_local = is_replicated = False

    def __init__(self) -> None:
        self.incarnation, self.is_cut = 1, False

    def extend(self, graph: Graph) -> None: ...

    def prepare(self, signature: Any, warm: bool = False, deterministic: bool = False) -> list[TaskPart]:
        return [TaskPart("/job:ps", self.incarnation, "program", (), ())]

    def run(self, parts: Sequence[TaskPart], feeds: Mapping[str, Any], *more: Any) -> dict[str, Any]:
        if self.is_cut:
            raise UnavailableError.of("nothing gets through")
        return {}


def test_an_error_that_the_task_survived_does_not_hide_its_restart() -> None:
    task, graph = Task(), Graph()
    with graph.as_default():
        for name in "abc":
            no_op(name)
    steps = PreparedSteps(graph, task)

    def run(node: str) -> None:
        steps.run(Fetches((), (node,), lambda values: None), {}, None)

    run("a")
    task.is_cut = True
    with pytest.raises(UnavailableError):
        run("a")
    task.is_cut = False
    run("a")
    task.incarnation = 2
    with pytest.raises(AbortedError, match="was restarted since this session used it last"):
        run("b")
    run("b")
    task.is_cut = True
    with pytest.raises(UnavailableError):
        run("b")
    task.is_cut, task.incarnation = False, 3
    run("c")  # the caller has been warned
