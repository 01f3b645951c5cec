"""The part of a traced step that runs on this task: a `TaskStep` that records events (`observability/step_notes.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...codegen.ir.program import Call, Program, Read
from ...graph.resources.async_request import Request
from ..observability.step_notes import Recorder, bytes_of, clock
from ..wire.messages import ChannelKey
from .async_kernel import AsyncKernel
from .executor import ABSENT, Executor
from .step import StepRuntime, TaskStep


class TracedStep(TaskStep):
    """A `TaskStep` that records its events."""

    def __init__(
        self, recorder: Recorder, number: int, session: str, programs: Sequence[Program], feeds: Mapping[str, Any], runtime: StepRuntime,
    ) -> None:  # fmt: skip
        self._recorder = recorder
        self._since: dict[ChannelKey | Executor, int] = {}  # awaited channel or waiting executor -> start of the wait
        super().__init__(number, session, [recorder.instrumented(p) for p in programs], feeds, runtime)

    def take(self, channel: ChannelKey, executor: Executor) -> Any:
        # Recorded before the executor is registered: the delivering thread may run it before this returns.
        paused = self._since.get(channel)
        began = self._since[channel] = clock() if paused is None else paused
        value = super().take(channel, executor)
        if value is not ABSENT:
            self._since.pop(channel, None)
            if paused is not None:
                self._recorder.waited(executor.program.device, f"channel {channel}", began)
        return value

    def read(self, now: Read, slots: list[Any], device: str) -> None:
        began = clock()
        super().read(now, slots, device)
        for receive, slot in zip(now.receives, now.slots, strict=True):
            if receive.reached is None:
                self._recorder.read(receive, device, began, bytes_of(slots[slot]))

    def give(self, destination: str, channel: ChannelKey, value: Any) -> None:
        self._recorder.sent(channel, destination, value)
        super().give(destination, channel, value)

    def deliver(self, channel: ChannelKey, value: Any) -> None:
        self._recorder.arrived(channel)
        super().deliver(channel, value)

    def deliver_all(self, values: Mapping[ChannelKey, Any]) -> None:
        for channel, value in values.items():
            self.deliver(channel, value)

    def begin(
        self, call: Call, inputs: Sequence[Any], device: str, noted: Callable[[Any], None] | None = None
    ) -> AsyncKernel[Executor]:
        began = clock()
        return super().begin(call, inputs, device, lambda result: self._recorder.ran_beside(call, began, result))

    def awaited(self, begun: AsyncKernel[Executor], executor: Executor) -> bool:
        paused = self._since.get(executor)
        if paused is None:
            self._since[executor] = clock()
        if not super().awaited(begun, executor):
            return False
        del self._since[executor]
        if paused is not None:
            self._recorder.waited(executor.program.device, begun.what, paused)
        return True

    def wait_for(self, request: Request, executor: Executor) -> bool:
        self._since[executor] = clock()
        return super().wait_for(request, executor)

    def answered(self, executor: Executor) -> Request | None:
        request = super().answered(executor)
        began = self._since.pop(executor, None)
        if request is not None and began is not None:
            self._recorder.waited(executor.program.device, request.what, began)
        return request
