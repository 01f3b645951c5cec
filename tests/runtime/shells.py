"""What a step calls, for tests that run one without a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.codegen.ir.partition import RecvTensor
from dovetail.graph.core.errors import OpError
from dovetail.runtime.wire.messages import ChannelKey
from dovetail.runtime.worker.executor import Execution
from dovetail.runtime.worker.step import TaskStep


class Notebook:
    """A shell that only keeps what it is told.

    Attributes:
        pushed: (destination, channel, value) of each tensor.
        ready: executions that can go on.
        put_aside: what may run beside the programs.
        outcomes: how the step ended.
    """

    def __init__(self) -> None:
        self.pushed: list[tuple[str, ChannelKey, Any]] = []
        self.ready: list[Execution] = []
        self.put_aside: list[Callable[[], None]] = []
        self.outcomes: list[Mapping[str, Any] | OpError] = []

    def push(self, destination: str, channel: ChannelKey, value: Any) -> None:
        self.pushed.append((destination, channel, value))

    def schedule(self, execution: Execution) -> None:
        self.ready.append(execution)

    def resume(self, execution: Execution) -> None:
        self.ready.append(execution)

    def aside(self, work: Callable[[], None]) -> None:
        self.put_aside.append(work)

    def want(self, receives: Sequence[RecvTensor]) -> None:
        raise AssertionError(f"nobody can be asked for {receives}")

    def finish(self, step: TaskStep, outcome: Mapping[str, Any] | OpError) -> None:
        self.outcomes.append(outcome)
