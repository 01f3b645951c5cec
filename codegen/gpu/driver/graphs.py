"""CUDA graphs: launches that are recorded once and started together.

During a `capture`, the driver records this thread's launches with their arguments instead of running them. So the addresses are
fixed: the graph keeps the memory that was allocated meanwhile, and the caller must keep all other memory that it uses at the same
address. The driver starts a run of a graph when the previous one is done, so no two runs use its memory at once.

    with capture(device) as graph:
        kernel.launch(...)
    with device.entered():
        graph.launch()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .allocator import Kept
from .api import bindings, check, error
from .device import Device

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Graph:
    """Launches of one device, in order.

    Attributes:
        device: where they run.
        memory: what was allocated while it was captured.
        executable: the driver's; None until the capture has ended.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = Kept()
        self.executable: Any = None
        driver = bindings()
        self._start = driver.cuGraphLaunch
        self._destroy = driver.cuGraphExecDestroy  # kept here: when Python ends, modules may be gone before this

    def launch(self) -> None:
        """Queue the graph on the compute stream; the device is entered. RuntimeError if nothing was captured."""
        if self.executable is None:
            raise RuntimeError("the graph was not captured to its end")
        code = self._start(self.executable, self.device.main.handle)[0]
        if code:
            raise error(int(code))

    def __del__(self) -> None:
        # A graph that still runs is destroyed by the driver when it has ended; its memory is used again behind it on the stream.
        if self.executable is not None:
            self._destroy(self.executable)


@contextmanager
def capture(device: Device) -> Iterator[Graph]:
    """Record this thread's launches. If the body fails, nothing was launched and there is no graph."""
    graph, driver, stream = Graph(device), bindings(), device.recorder
    with device.entered():
        if device.compute is not device.main:
            raise RuntimeError("a graph is being captured already")
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(_RELAXED)))
        device.compute, device.pool.keeper = stream, graph.memory
        try:
            yield graph
        except BaseException:
            driver.cuStreamEndCapture(stream.handle)  # whatever it says: the stream is done with this
            raise
        finally:
            device.compute, device.pool.keeper = device.main, None
        captured = check(driver.cuStreamEndCapture(stream.handle))
        graph.executable = check(driver.cuGraphInstantiate(captured, 0))
        check(driver.cuGraphDestroy(captured))
