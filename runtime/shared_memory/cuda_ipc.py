"""Lends GPU memory to other processes of the machine by CUDA IPC.

Theory of operation. It works like lending shared memory (`pool.py`), and uses it. A process has an `ExportTable`: a segment whose
words stand for loans, and whose bytes stand for blocks of GPU memory. A tensor for a GPU of another task is sent as the handle of its
block (`codegen/gpu/driver/ipc.py`), its offset there, and the loan's word. The receiver opens the handle, once per block, copies the
tensor from GPU to GPU, and then clears the word. A block that the receiver has open has a word as well, which it clears when it closes
the block. Loans of dead processes are reclaimed.

    gpu_loans     tensors of a step, lent to a task that maps this process's memory (`transport/peer.py`)
    gpu_refused   I cannot open these: send them through host memory, and lend me nothing more for that GPU

The driver must not free memory that another process has open. So the pool marks such a block as unwanted instead of freeing it. A
process that has it open closes it at its next tick, and the pool frees it at its next attempt.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...codegen.gpu.driver.api import CudaError
from ...codegen.gpu.driver.ipc import Incoming, Outgoing, closed, handle_of, opened
from ...graph.core import dtypes
from ...graph.core.settings import setting
from ..wire.messages import ChannelKey, Message
from .segment import PAGE, Mapper, Reference, is_alive, is_available, new_segment

logger = logging.getLogger(__name__)

MOST_BLOCKS = PAGE  # exported at once

Loan: TypeAlias = list[Any]
"""Channel, destination GPU, element type, shape, offset in the block, then the fields of `Lent`, as plain data."""


@dataclass(slots=True, eq=False)
class _Export:
    """An exported block: its number in the table, its handle, and (process, GPU) -> the word of the process that has it open."""

    number: int
    handle: bytes
    size: int
    readers: dict[tuple[int, str, int], int] = field(default_factory=dict)


class ExportTable:
    """The GPU memory that this process lends. Thread-safe."""

    def __init__(self) -> None:
        self._segment = new_segment(PAGE, 1)
        self._lock = threading.Lock()
        self._exports: dict[tuple[int, int], _Export] = {}  # (GPU, address) -> block
        self._closing: dict[tuple[int, int], list[_Export]] = {}
        self._lent: dict[int, Outgoing] = {}  # loan -> the tensor, kept alive

    def place(self, loan: int, number: int = 0) -> list[int]:
        """The addresses of a loan's word and of a block's byte, as plain data."""
        return list(Reference(os.getpid(), self._segment.fd, self._segment.number, loan, PAGE + number))

    def lend(self, tensor: Outgoing, reader: int, task: str, gpu: int) -> list[Any] | None:
        """Lend an `Outgoing` to a process. Returns handle, size and number of its block, and both addresses. None: the table is full.

        Raises:
            CudaError: its memory cannot be lent.
        """
        device, block = tensor.array.device, tensor.block
        key = device.index, block.pointer
        handle = b""
        if key not in self._exports:  # a block is added only here, and removed only when it is unused
            handle = handle_of(device, block.pointer)
            device.pool.may_free = lambda pointer: self.may_free(device.index, pointer)
        with self._lock:
            self._settle()
            known = self._exports.get(key)
            if known is None:
                taken = {e.number for every in ([*self._exports.values()], *self._closing.values()) for e in every}
                number = next((n for n in range(MOST_BLOCKS) if n not in taken), -1)
                if number < 0:
                    return None
                self._segment.memory[PAGE + number] = 0
                known = self._exports[key] = _Export(number, handle, block.size)
            borrower = reader, task, gpu
            word = known.readers.get(borrower, -1)
            if not self._is_open(known, borrower):
                word = known.readers[borrower] = self._segment.mark(_open(known), reader)
            loan = self._segment.mark(known.number, reader) if word >= 0 else -1
            if loan < 0:
                return None
            self._lent[loan] = tensor
        return [known.handle, known.size, known.number, self.place(loan), self.place(word, known.number)]

    def take_back(self, loan: int) -> Outgoing | None:
        """End a loan that its borrower refused, and return its tensor; None if there is none."""
        with self._lock:
            tensor = self._lent.pop(loan, None)
            if tensor is not None:
                self._segment.take_back(loan)
            return tensor

    def may_free(self, gpu: int, pointer: int) -> bool:
        """Whether a block that is unused here may be freed. If other processes have it open, asks them to close it."""
        with self._lock:
            key = gpu, pointer
            export = self._exports.pop(key, None)
            if export is not None:
                self._segment.memory[PAGE + export.number] = 1
                self._closing.setdefault(key, []).append(export)
            self._settle()
            return key not in self._closing

    def lent(self) -> int:
        """The number of loans."""
        with self._lock:
            self._settle()
            return len(self._lent)

    def tidy(self) -> None:
        """Reclaim the loans of dead processes."""
        with self._lock:
            self._segment.reclaim()
            self._settle()

    def _is_open(self, export: _Export, borrower: tuple[int, str, int]) -> bool:
        return self._segment.loans.get(export.readers.get(borrower, -1)) == (_open(export), borrower[0])

    def _settle(self) -> None:
        """Forget the returned loans."""
        segment = self._segment
        segment.settle()
        self._lent = {loan: tensor for loan, tensor in self._lent.items() if loan in segment.loans}
        open_elsewhere = {
            key: [e for e in exports if any(self._is_open(e, borrower) for borrower in e.readers)]
            for key, exports in self._closing.items()
        }
        self._closing = {key: exports for key, exports in open_elsewhere.items() if exports}


def _open(export: _Export) -> int:
    """The marker of the words of processes that have a block open; loans are marked with its number."""
    return -1 - export.number


class _Import:
    """A borrowed tensor: while it lives, its block stays open; its end returns the loan."""

    __slots__ = ("__weakref__", "block", "word")

    def __init__(self, block: _ImportedBlock, word: Any) -> None:
        self.block, self.word = block, word
        block.uses.add(self)


@dataclass(slots=True, eq=False)
class _ImportedBlock:
    """A block of another process, open here. `flag`: its byte in the table; releasing it reports that the block is closed."""

    device: Any
    pointer: int
    owner: int
    flag: Any
    uses: weakref.WeakSet[_Import] = field(default_factory=weakref.WeakSet)


class CudaIpc:
    """The GPU memory that a server lends and borrows.

    Args:
        gpus: numbers of its physical GPUs.
        reader_of: the process of a task, if it maps this one's memory; else 0.
        send: (task, kind, fields): sends a message to another task.
        otherwise: (task, step, tensors by channel): sends refused tensors through host memory; on any thread.
    """

    def __init__(
        self, task: str, gpus: Iterable[int], reader_of: Callable[[str], int],
        send: Callable[[str, str, dict[str, Any]], None], otherwise: Callable[[str, int, Mapping[ChannelKey, Outgoing]], None],
    ) -> None:  # fmt: skip
        self.task, self.gpus = task, frozenset(gpus)
        self._reader_of, self._send, self._otherwise = reader_of, send, otherwise
        self._refused: set[tuple[str, int]] = set()
        self._opened: dict[tuple[int, int, int, int], _ImportedBlock] = {}  # process, table, block, GPU -> open block
        self._borrower = Mapper()
        self._lock = threading.Lock()

    # --- lending ---------------------------------------------------------------------------------------------------

    def lends(self, destination: str) -> bool:
        """Whether another task can map this process's GPU memory. A driver opens no memory of its own process."""
        task, _, gpu = destination.partition("/device:GPU:")
        if not gpu or task == self.task or (task, int(gpu)) in self._refused:
            return False
        return self._reader_of(task) not in (0, os.getpid()) and exports_of_process() is not None

    def lend(self, channel: ChannelKey, tensor: Outgoing) -> Loan | None:
        """Lend a tensor, and return its description for the other task; None: send it through host memory."""
        task, _, gpu = tensor.destination.partition("/device:GPU:")
        reader, table, array = self._reader_of(task), exports_of_process(), tensor.array
        if not reader or table is None:
            return None
        try:
            lent = table.lend(tensor, reader, task, int(gpu))
        except CudaError as e:
            logger.warning("%s: memory of %s cannot be lent to other processes: %s", self.task, array.device, e)
            self._refused.add((task, int(gpu)))
            return None
        if lent is None:
            return None
        return [channel, int(gpu), dtypes.as_dtype(array.dtype).name, list(array.shape), tensor.offset, *lent]

    def on_gpu_refused(self, peer: bytes, message: Message) -> None:
        """Another task could not read what it was lent: send that through host memory, and lend to that GPU no more."""
        fields, table = message.fields, exports_of_process()
        task = fields["task"]
        tensors: dict[ChannelKey, Outgoing] = {}
        for channel, gpu, loan in fields["loans"]:
            self._refused.add((task, gpu))
            tensor = None if table is None else table.take_back(loan)
            if tensor is not None:
                tensors[channel] = tensor
        if tensors:
            logger.warning("%s cannot open GPU memory of %s: tensors go by the host's memory", task, self.task)
            self._otherwise(task, fields["step"], tensors)

    # --- borrowing -------------------------------------------------------------------------------------------------

    def take(self, fields: Mapping[str, Any]) -> dict[ChannelKey, Any]:
        """Handle `gpu_loans`: return the tensors of a message, by channel, and refuse those that cannot be opened."""
        arrived: dict[ChannelKey, Any] = {}
        refused: list[list[ChannelKey]] = []
        for loan in fields["loans"]:
            channel, gpu, *_, place, _ = loan
            try:
                arrived[channel] = self._incoming(loan)
            except (ValueError, TypeError, CudaError) as e:
                logger.warning("%s: GPU memory of %s cannot be opened: %s", self.task, fields["task"], e)
                refused.append([channel, gpu, place[3]])
        if refused:
            self._send(fields["task"], "gpu_refused", {"step": fields["step"], "task": self.task, "loans": refused})
        return arrived

    def _incoming(self, loan: Sequence[Any]) -> Incoming:
        from ...codegen.gpu.driver.device import device  # loads the CUDA bindings

        _, gpu, name, shape, offset, handle, size, number, place, of_block = loan
        if gpu not in self.gpus or not setting("DOVETAIL_CUDA_IPC"):
            raise ValueError(f"{self.task} has no GPU:{gpu}, or maps no memory of others (DOVETAIL_CUDA_IPC)")
        dtype = dtypes.as_dtype(name).np
        count = dtype.itemsize * math.prod(shape)
        if dtype.hasobject or not 0 < count <= size - offset:
            raise ValueError("a tensor beyond its block")
        reference = Reference(*place)
        key = reference.pid, reference.number, number, gpu
        with self._lock:
            block = self._opened.get(key)
        if block is None:
            flag = self._borrower.borrow(of_block, 1)
            made = _ImportedBlock(device(gpu), opened(device(gpu), handle, size), reference.pid, flag)
            with self._lock:
                block = self._opened.setdefault(key, made)
            if block is not made:
                made.flag.word = None  # the block stays open; its byte says when to close it
                closed(made.device, made.pointer)
        use = _Import(block, self._borrower.borrow(reference, 1))  # last: a refused tensor must not return the loan
        return Incoming(block.device, tuple(shape), dtype, block.pointer + offset, use)

    # --- tick --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Return loans that were read, close blocks that are unwanted or whose owner is gone, and reclaim loans of dead processes."""
        if not self.gpus:
            return
        own = _tables.get(os.getpid())
        if own is not None:
            own.tidy()
        with self._lock:
            blocks = list(self._opened.items())
        for one in {b.device for _, b in blocks}:
            one.make_current()
            one.release_held()
        for key, block in blocks:
            if block.flag[0] or not is_alive(block.owner):
                with self._lock:
                    if block.uses or self._opened.pop(key, None) is None:
                        continue
                try:
                    closed(block.device, block.pointer)
                except CudaError as e:
                    logger.info("%s: memory of process %d could not be closed: %s", self.task, block.owner, e)
        self._borrower.let_go()


_tables: dict[int, ExportTable] = {}  # process -> table: a forked child has its own
_making = threading.Lock()


def exports_of_process() -> ExportTable | None:
    """This process's export table; None where memory cannot be shared, or sharing is off."""
    if not setting("DOVETAIL_CUDA_IPC") or int(setting("DOVETAIL_SHARED_MEMORY_MB")) <= 0 or not is_available():
        return None
    with _making:
        pid = os.getpid()
        if pid not in _tables:
            _tables[pid] = ExportTable()
        return _tables[pid]
