"""NCCL: collectives from GPU to GPU, through the bindings of nccl4py (`nccl.bindings.nccl`).

A `NcclLink` is one member's side of a communicator, a `DeviceLink` of `graph/resources/collective_context.py`. It belongs to a session, a
group and a rank. It runs its jobs in its own thread and on its own stream, in the order of the runs' numbers: a communicator needs the
same calls in the same order from all members, and each call completes on the device when all members have made it.

The communicator is non-blocking (`blocking = 0`): its calls return "in progress" and are polled. So the thread can always check
whether the link was stopped, and abort the communicator, which ends kernels that spin on the device. It polls for the end of a run in
the same way, because waiting for a collective with a dead member would never end.

If the package or the library is missing, there are no links, and values are sent in messages.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....graph.core.errors import AbortedError, OpError, UnavailableError
from ....graph.resources.collective_context import LinkIdentity
from .api import CudaError, Event, Stream, bindings as cuda, check
from .array import DeviceArray
from .device import Device

logger = logging.getLogger(__name__)

POLL_S = 50e-6  # polling interval for the end of a run: about the time of a small run
SHUTDOWN_S = 5.0  # time limit of an orderly shutdown; then the communicator is aborted
IN_PROGRESS = 7  # ncclInProgress

TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
"""ncclDataType_t of the types that it reduces on every GPU."""
BYTES = 1  # ncclUint8: for data that is only moved
REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}  # ncclRedOp_t

_bindings: Any = None


def bindings() -> Any:
    """The package's module, imported at its first use, or a test's stand-in; False if it cannot be used."""
    if _bindings is None:
        use(_imported())
    return _bindings


def _imported() -> Any:
    if importlib.util.find_spec("nccl") is None:
        return False
    try:
        from nccl.bindings import nccl as found

        found.get_version()  # fails where the library itself is missing
    except Exception as e:  # the bindings' own errors for a missing library have no common class
        logger.info("NCCL is not used: %s", e)
        return False
    return found


def use(stand_in: Any) -> Any:
    """Replace the module (None: import the real one again); returns the previous one."""
    global _bindings
    before, _bindings = _bindings, stand_in
    return before


@dataclass(slots=True)
class Job:
    """The work of one run on a communicator.

    Attributes:
        ready: the event after which the operands are complete.
        arrays: all memory that the run reads or writes, which the job keeps alive.
        call: (NCCL, communicator, stream, rows of each member) -> the result, which is complete when the stream has reached it. It
            queues the work.
    """

    ready: Event
    arrays: Sequence[DeviceArray]
    call: Callable[[Any, Any, int, Sequence[int]], Any]


class _StoppedError(Exception):
    """The link was stopped."""


class NcclLink:
    """One member's end of a communicator: a `DeviceLink`.

    Args:
        device: the member's GPU.
        rank, size: its rank, and the size of the group.
    """

    def __init__(self, device: Device, rank: int, size: int) -> None:
        self.device, self.rank, self.size = device, rank, size
        self.identity, self._invitation = LinkIdentity(0, (0, 0)), b""
        nccl = bindings()
        if nccl:
            try:
                device.make_current()
                self._invitation = bytes(nccl.get_unique_id()) if rank == 0 else b""
                self.identity = LinkIdentity(int(nccl.get_version()), _identity(device))
            except Exception as e:  # no network that it can use, say; its errors have no common class but this one
                logger.warning("NCCL is not used on %s: %s", device, e)
        self._given = 0
        self._changed = threading.Condition()
        self._jobs: dict[int, tuple[bytes, Job, Sequence[int], Callable[[Any], None]]] = {}
        self._next = 0
        self._is_stopped = self._is_closed = False
        self._communicator: Any = None  # an object of the bindings
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None

    # --- as `DeviceLink`: none of these takes long -----------------------------------------------------------------------

    def invitation(self) -> bytes:
        """As `DeviceLink.invitation`: NCCL's unique id."""
        return self._invitation

    def next_number(self) -> int:
        """As `DeviceLink.next_number`."""
        self._given += 1
        return self._given - 1

    def start(self, number: int, invitation: bytes, job: Job, rows: Sequence[int], tell: Callable[[Any], None]) -> None:
        """As `DeviceLink.start`."""
        with self._changed:
            self._jobs[number] = invitation, job, rows, tell
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"nccl {self.device.index}", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """As `DeviceLink.stop`."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def close(self) -> None:
        """Shut down: the thread finalizes the communicator with the other members."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._changed:
                while self._next not in self._jobs and not self._is_closed and not self._is_stopped:
                    self._changed.wait()
                if self._is_stopped or self._next not in self._jobs:
                    waiting, self._jobs = list(self._jobs.values()), {}
                    break
                invitation, job, rows, tell = self._jobs.pop(self._next)
                self._next += 1
            result = self._outcome(invitation, job, rows)
            tell(result)
            del job, result, tell  # so that their memory goes back before the next one comes
        for _, _, _, tell in waiting:
            tell(_stopped())
        self._part()

    def _outcome(self, invitation: bytes, job: Job, rows: Sequence[int]) -> Any:
        """The result of a run, or its error. After an error the link cannot be used."""
        try:
            return self._run(invitation, job, rows)
        except _StoppedError:
            error: OpError = _stopped()
        except Exception as e:  # NCCL's own errors have no common class but this one; CudaError; no memory
            last = "" if self._communicator is None else str(bindings().get_last_error(self._communicator))
            text = f"NCCL failed: {e}: {last}" if last else f"NCCL failed: {e}"
            error = e if isinstance(e, OpError) else UnavailableError.of(text)
        self.stop()
        return error

    def _run(self, invitation: bytes, job: Job, rows: Sequence[int]) -> Any:
        nccl = bindings()
        self.device.make_current()
        if self._communicator is None:
            self._connect(nccl, invitation)
        assert self._stream is not None
        self._stream.wait(job.ready)
        result = job.call(nccl, self._communicator, int(self._stream.handle), rows)
        self._settle(nccl)
        done = self._stream.record()
        while not done.is_done:
            self._look(nccl)
            time.sleep(POLL_S)
        return result

    def _connect(self, nccl: Any, invitation: bytes) -> None:
        with self.device.entered():
            self._stream = Stream(self.device.context, self.device.event)
        identity, config = nccl.UniqueId.from_buffer(invitation), nccl.Config()
        config.blocking = 0
        self._communicator = nccl.comm_init_rank_config(self.size, identity.ptr, self.rank, config.ptr)
        self._settle(nccl)
        logger.info("rank %d of %d is connected by NCCL on %s", self.rank, self.size, self.device)

    def _settle(self, nccl: Any) -> None:
        """Wait until the communicator has accepted the last call."""
        while self._look(nccl) == IN_PROGRESS:
            time.sleep(POLL_S)

    def _look(self, nccl: Any) -> int:
        """The communicator's state; raises if it has failed, or the link was stopped."""
        if self._is_stopped:
            raise _StoppedError
        state = int(nccl.comm_get_async_error(self._communicator))
        if state not in (0, IN_PROGRESS):
            last = nccl.get_last_error(self._communicator)
            raise UnavailableError.of(f"NCCL failed: {nccl.get_error_string(state)}: {last}")
        return state

    def _part(self) -> None:
        """Destroy the communicator. An orderly shutdown waits for the other members, which may still read this member's memory."""
        nccl = bindings()
        if self._communicator is None or not nccl:
            return
        communicator, until = self._communicator, time.monotonic() + SHUTDOWN_S
        try:
            self.device.make_current()
            if not self._is_stopped:
                nccl.comm_finalize(communicator)
                while time.monotonic() < until and not self._is_stopped:
                    if int(nccl.comm_get_async_error(communicator)) != IN_PROGRESS:
                        nccl.comm_destroy(communicator)
                        self._communicator = None
                        return
                    time.sleep(1e-3)
            nccl.comm_abort(communicator)
        except Exception as e:  # it is of no use any more in any case
            logger.info("a communicator of NCCL could not be ended: %s", e)
        self._communicator = None


def _stopped() -> OpError:
    return AbortedError.of("another member has ended it")


def _identity(device: Device) -> tuple[int, int]:
    """A GPU's unique id, as two integers."""
    try:
        uuid = check(cuda().cuDeviceGetUuid(device.ordinal))
    except CudaError:
        return 0, device.index
    first, second = np.frombuffer(bytes(uuid.bytes)[:16], np.int64).tolist()
    return first, second


_links: weakref.WeakKeyDictionary[Any, dict[Any, NcclLink]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def link_of(session: Any, device: Device, members: tuple[str, ...], rank: int) -> NcclLink:
    """A session's link for a member of a group. It ends with the session."""
    with _lock:
        links = _links.get(session)
        if links is None:
            links = _links[session] = {}
            weakref.finalize(session, _close, links)
        found = links.get((members, rank))
        if found is None:
            found = links[members, rank] = NcclLink(device, rank, len(members))
        return found


def _close(links: dict[Any, NcclLink]) -> None:
    for link in links.values():
        link.close()
