"""What a step calls, for tests that run one without a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dovetail.codegen.ir.partition import RecvTensor
from dovetail.graph.core.errors import OpError
from dovetail.runtime.wire.messages import ChannelKey
from dovetail.runtime.worker.executor import Executor


class Notebook:
    """A shell that only keeps what it is told.

    Attributes:
        pushed: (destination, channel, value) of each tensor.
        ready: executions that can go on.
        offloaded: what may run beside the programs.
        outcomes: how the step ended.
    """

    def __init__(self) -> None:
        self.pushed: list[tuple[str, ChannelKey, Any]] = []
        self.ready: list[Executor] = []
        self.offloaded: list[Callable[[], None]] = []
        self.outcomes: list[Mapping[str, Any] | OpError] = []

    def push(self, destination: str, channel: ChannelKey, value: Any, more: bool) -> None:
        self.pushed.append((destination, channel, value))

    def schedule(self, execution: Executor) -> None:
        self.ready.append(execution)

    def resume(self, execution: Executor) -> None:
        self.ready.append(execution)

    def offload(self, work: Callable[..., None], *arguments: Any) -> None:
        self.offloaded.append(partial(work, *arguments))

    def want(self, receives: Sequence[RecvTensor]) -> None:
        raise AssertionError(f"nobody can be asked for {receives}")

    def finish(self, outcome: Mapping[str, Any] | OpError) -> None:
        self.outcomes.append(outcome)
