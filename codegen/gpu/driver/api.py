"""The CUDA driver: the only module that imports `cuda.bindings`.

The bindings are NVIDIA's own, one Python function per function of the driver. This module finds them, turns error codes into
exceptions, and counts the GPUs; on a machine without one it loads nothing. Other modules call `check(bindings().cuSomething(...))`.

Tests replace the bindings with a stand-in by `use`. It records launches and keeps "device memory" in host memory, so the package runs
without a GPU.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ....graph.core.gpu_models import model_named

logger = logging.getLogger(__name__)

_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
NOT_READY = 600  # CUDA_ERROR_NOT_READY
PEER_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
_NO_DEVICE = (100, 101)  # CUDA_ERROR_NO_DEVICE, CUDA_ERROR_INVALID_DEVICE
_NOT_INITIALIZED = 3
_FATAL = frozenset((214, 220, 700, 702, 710, *range(714, 720), 721))
"""Codes that the driver repeats at every later call: failed memory, an address out of bounds, an assertion, a kernel that took too long...
The process cannot use the GPU any more."""

_found: Any = None
_process = 0  # that found it


class CudaError(Exception):
    """The driver refused something, or an earlier kernel failed.

    Attributes:
        code: the driver's number for it.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def is_final(self) -> bool:
        """Whether the process cannot use the GPU any more. Otherwise only this call has failed."""
        return self.code in _FATAL


def bindings() -> Any:
    """The driver's functions: the module `cuda.bindings.driver`, or a test's stand-in.

    Raises:
        ImportError: it is not installed; says what to install.
    """
    global _found, _process
    if _found is None:
        try:
            from cuda.bindings import driver  # here: it loads CUDA's driver library
        except ImportError as e:
            raise ImportError(f"GPUs need the package cuda-bindings: pip install 'dovetail[cuda]' ({e})") from e
        _found, _process = driver, os.getpid()
    return _found


def use(stand_in: Any) -> Any:
    """Replace the bindings (None: import the real ones again); returns the previous ones."""
    global _found, _process
    before, _found, _process = _found, stand_in, os.getpid()
    gpu_count.cache_clear()
    return before


def check(result: tuple[Any, ...]) -> Any:
    """The value that a function of the driver returned: a tuple if there are several, None if there is none.

    Raises:
        CudaError: it failed.
    """
    code = int(result[0])
    if code:
        raise error(code)
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]


def error(code: int) -> CudaError:
    """The exception for an error code, in the driver's words."""
    driver = bindings()
    words = []
    for ask in (driver.cuGetErrorName, driver.cuGetErrorString):
        failed, text = ask(driver.CUresult(code))
        if not int(failed) and text is not None:
            words.append(text.decode() if isinstance(text, bytes) else str(text))
    text = ": ".join(words) or f"CUDA error {code}"
    if code in _FATAL:
        text += (
            ". A kernel or the GPU has failed before this call, and this process cannot use the GPU any more: what was in its memory is "
            "lost. Start the process again; compute-sanitizer finds the kernel, DOVETAIL_CHECK=2 compares each with its reference"
        )
    elif code == _NOT_INITIALIZED and os.getpid() != _process:
        text += (
            f". This process was forked from process {_process}, which had used the driver: start it anew instead, for instance by "
            "multiprocessing.get_context('spawn')"
        )
    return CudaError(code, text)


@cache
def gpu_count() -> int:
    """How many GPUs this process can use; 0 where there is no driver, or no bindings. Found once."""
    if _found is None:
        if not any(Path(sign).exists() for sign in _DRIVER_FILES):
            return 0
        if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
            logger.warning(
                "This machine has a GPU, which needs the package cuda-bindings: pip install 'dovetail[cuda]'"
            )
            return 0
    try:
        driver = bindings()
        check(driver.cuInit(0))
        return int(check(driver.cuDeviceGetCount()))
    except (CudaError, ImportError, RuntimeError, OSError) as e:
        if not isinstance(e, CudaError) or e.code not in _NO_DEVICE:
            logger.warning("The GPU of this machine cannot be used: %s", e)
        return 0


def present_gpus() -> tuple[tuple[int, str], ...]:
    """Bytes of memory and model (`graph/core/gpu_models.py`) of each GPU of this process. It does not start anything on them."""
    found = []
    for index in range(gpu_count()):
        ordinal = check(bindings().cuDeviceGet(index))
        model = model_named(product_of(ordinal), architecture_of(ordinal))
        found.append((int(check(bindings().cuDeviceTotalMem(ordinal))), model.name))
    return tuple(found)


def product_of(ordinal: Any) -> str:
    """The product's name of a GPU."""
    name = check(bindings().cuDeviceGetName(256, ordinal))
    return (name if isinstance(name, str) else bytes(name).split(b"\0")[0].decode()).strip()


def architecture_of(ordinal: Any) -> int:
    """The compute capability of a GPU, times ten."""
    ask = bindings().CUdevice_attribute
    parts = (ask.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ask.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    major, minor = (int(check(bindings().cuDeviceGetAttribute(part, ordinal))) for part in parts)
    return 10 * major + minor


# --- streams and events ----------------------------------------------------------------------------------------------


_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: the default stream, which other libraries use, does not wait for it


class Stream:
    """A queue of work of the device that is current when it is made.

    Args:
        context: the device's. It must be current in a thread that waits.
        new_event: makes the device's events.
    """

    __slots__ = ("context", "handle", "new_event")

    def __init__(self, context: Any, new_event: Callable[[], Event]) -> None:
        self.context = context
        self.new_event = new_event
        self.handle = check(bindings().cuStreamCreate(_NON_BLOCKING))

    def record(self, event: Event | None = None) -> Event:
        """An event that has happened when all work queued so far is done."""
        event = event or self.new_event()
        check(bindings().cuEventRecord(event.handle, self.handle))
        return event

    def wait(self, event: Event) -> None:
        """Let what is queued from now on start after the event; the caller goes on."""
        check(bindings().cuStreamWaitEvent(self.handle, event.handle, 0))

    def synchronize(self) -> None:
        """Wait until all work queued so far is done. CudaError when a kernel failed."""
        driver = bindings()
        check(driver.cuCtxSetCurrent(self.context))
        check(driver.cuStreamSynchronize(self.handle))


@dataclass(eq=False, slots=True)
class Event:
    """A point in a stream.

    Args:
        handle: the driver's.
        context: the device's; a thread that has none may wait, too.
        end: takes the handle when no reference to the event is left: one without timing is used again, another one destroyed.
    """

    handle: Any
    context: Any
    end: Callable[[Any], Any]

    def __del__(self) -> None:
        self.end(self.handle)

    @property
    def is_done(self) -> bool:
        """Whether it has happened."""
        driver = bindings()
        check(driver.cuCtxSetCurrent(self.context))
        code = int(driver.cuEventQuery(self.handle)[0])
        if code not in (0, NOT_READY):
            check((code,))
        return code == 0

    def synchronize(self) -> None:
        """Wait until it has happened."""
        driver = bindings()
        check(driver.cuCtxSetCurrent(self.context))
        check(driver.cuEventSynchronize(self.handle))

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two events that were made with `timing=True`."""
        return float(check(bindings().cuEventElapsedTime(earlier.handle, self.handle)))
