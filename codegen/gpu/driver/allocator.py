"""Caching allocator for the memory of one GPU, with a limit, and an out-of-memory error that lists the largest tensors.

A driver allocation stops the GPU, so freed blocks are cached and reused for requests of the same size. Sizes are rounded up to four
steps per power of two, so that a cached block often fits, and at most a quarter of it is wasted.

A block may be reused while kernels that use it are still queued: the next user queues its work behind them, on the same stream. Blocks
that a copy stream fills must wait for the compute stream instead. So a block has a *home*, the stream on which its next user starts. If
that is not the compute stream, an event is recorded there when the block is freed, and the next copy into it waits for the event.

A block is freed with the last reference to its `Block`, which may happen anywhere, even inside `allocate`. So freeing only appends to a
queue, which `allocate` empties first. While a CUDA graph is captured, its thread gets blocks that the graph keeps (`GraphMemory`), because
it contains their addresses. Blocks freed during the capture are reused in the same graph, whose kernels run in order. So a graph holds
the peak memory of its steps, not the sum. If memory runs out, graphs are dropped before an error is raised.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....graph.core.errors import ResourceExhaustedError
from .api import OUT_OF_MEMORY, bindings, check

SMALLEST = 512  # bytes: the alignment of cuMemAlloc

COMPUTE, COPY_IN = 0, 1
"""Homes of blocks."""


def rounded(count: int) -> int:
    """The block size for a request, in bytes.

    >>> rounded(1), rounded(513), rounded(1_000_000)
    (512, 1024, 1048576)
    """
    if count <= 4 * SMALLEST:
        return -(-count // SMALLEST) * SMALLEST
    step = 1 << ((count - 1).bit_length() - 3)
    return -(-count // step) * step


@dataclass(eq=False, slots=True, weakref_slot=True)
class Block:
    """A block of a GPU's memory. It returns to its pool with its last reference.

    `used`: an event after its last use, if known; otherwise its next user waits for all work queued when the block is freed.
    """

    pointer: int
    size: int
    home: int
    returned: deque[tuple[int, int, int, Any]]
    used: Any = None

    def __del__(self) -> None:
        self.returned.append((self.pointer, self.size, self.home, self.used))


class GraphBlock:
    """A block of a graph's memory while one array of the capture uses it. It is free for later ones when it is deleted."""

    __slots__ = ("block", "pointer", "returned")

    def __init__(self, block: Block, returned: deque[Block]) -> None:
        self.block = block
        self.pointer = block.pointer
        self.returned = returned

    def __del__(self) -> None:
        self.returned.append(self.block)


class GraphMemory:
    """The memory of a graph that the calling thread is capturing.

    Attributes:
        blocks: all of it.
        thread: the capturing thread.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.thread = threading.get_ident()
        self._returned: deque[Block] = deque()
        self._free: dict[int, list[Block]] = {}

    def reuse(self, size: int) -> GraphBlock | None:
        """A block of this size that is free at this point of the capture; None: there is none."""
        while self._returned:
            block = self._returned.popleft()
            self._free.setdefault(block.size, []).append(block)
        free = self._free.get(size)
        return GraphBlock(free.pop(), self._returned) if free else None

    def new(self, block: Block) -> GraphBlock:
        """A block that the graph keeps from now on."""
        self.blocks.append(block)
        return GraphBlock(block, self._returned)


class Pool:
    """The memory of one GPU that this process uses. Safe to use from several threads.

    Args:
        name: the GPU's, for errors.
        context: the GPU's.
        mark: records an event after all work queued on the compute stream.
        limit: the most bytes that it may get from the driver.

    Attributes:
        graphs: objects whose memory only saves time. Their `give_up` frees it, and returns whether there was any.
    """

    def __init__(self, name: str, context: Any, mark: Callable[[], Any], limit: int) -> None:
        self.name = name
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.limit = limit
        self.reserved = 0
        self.in_use = 0
        self._context = context
        self._mark = mark
        self._lock = threading.RLock()
        self._returned: deque[tuple[int, int, int, Any]] = deque()
        self._free: dict[tuple[int, int], list[tuple[int, Any]]] = {}
        self._live: dict[int, tuple[int, str]] = {}
        self.may_free: Callable[[int], bool] = lambda pointer: True  # whether no other process maps a free block
        self.graph_memory: GraphMemory | None = None  # while a graph is captured: the owner of its blocks

    def allocate(
        self, count: int, label: str = "", home: int = COMPUTE, *, filled: bool = False
    ) -> tuple[Block | GraphBlock, Any]:
        """A block of at least `count` bytes, and the event that its first user must wait for (None: nothing).

        Args:
            count: bytes, more than 0.
            label: the node's name, for the out-of-memory error.
            home: the stream of its first user: the event is given for `COPY_IN` only.
            filled: it is filled now, also while a graph is captured, and not by the graph.

        Raises:
            ResourceExhaustedError: out of memory, even after all cached blocks were returned to the driver.
        """
        size = rounded(count)
        graph_memory = self.graph_memory
        if graph_memory is None or graph_memory.thread != threading.get_ident():
            return self._block(size, label, home)
        filled = filled or home != COMPUTE
        again = None if filled else graph_memory.reuse(size)
        if again is not None:
            return again, None
        block, event = self._block(size, f"{label or '(not named)'}, kept by a graph", home)
        if not filled:
            return graph_memory.new(block), event
        graph_memory.blocks.append(block)  # each run of the graph reads what is in it now
        return block, event

    def _block(self, size: int, label: str, home: int) -> tuple[Block, Any]:
        with self._lock:
            if self._returned:
                self._take_back()
            kept = self._free.get((home, size))
            if kept:
                pointer, event = kept.pop()
            else:
                pointer, event = self._more(size, label), None
            self._live[pointer] = (size, label)
            self.in_use += size
        return Block(pointer, size, home, self._returned), event

    def largest(self) -> list[tuple[int, str]]:
        """(bytes, label) of the ten largest blocks in use, the largest first."""
        with self._lock:
            self._take_back()
            return sorted(self._live.values(), key=lambda x: (-x[0], x[1]))[:10]

    def trim(self) -> int:
        """Return cached free blocks to the driver; returns their bytes."""
        with self._lock:
            self._take_back()
            freed, driver = 0, bindings()
            check(driver.cuCtxSetCurrent(self._context))
            for (_, size), kept in self._free.items():
                seen = [(pointer, event) for pointer, event in kept if not self.may_free(pointer)]
                for pointer in {p for p, _ in kept} - {p for p, _ in seen}:
                    check(driver.cuMemFree(pointer))
                    freed += size
                kept[:] = seen
            self.reserved -= freed
            return freed

    def _take_back(self) -> None:
        event = None
        while self._returned:
            pointer, size, home, used = self._returned.popleft()
            if home != COMPUTE and used is None:
                used = event = event or self._mark()
            del self._live[pointer]
            self.in_use -= size
            self._free.setdefault((home, size), []).append((pointer, used if home != COMPUTE else None))

    def _more(self, size: int, label: str) -> int:
        driver = bindings()
        check(driver.cuCtxSetCurrent(self._context))
        for attempt in ("as it is", "trimmed", "without graphs"):
            if attempt == "without graphs" and True not in [graph.give_up() for graph in list(self.graphs)]:
                break
            if attempt != "as it is":
                self.trim()
            if self.reserved + size > self.limit:
                continue
            made = driver.cuMemAlloc(size)
            if int(made[0]) != OUT_OF_MEMORY:
                self.reserved += size
                return int(check(made))
        raise ResourceExhaustedError.of(self._no_room(size, label))

    def _no_room(self, size: int, label: str) -> str:
        whom = f" for {label}" if label else ""
        lines = [
            f"{self.name} is out of memory: no room for {_bytes(size)}{whom}; {_bytes(self.in_use)} of at most "
            f"{_bytes(self.limit)} are in use. The largest:"
        ]
        lines += [f"  {_bytes(b):>10}  {who or '(not named)'}" for b, who in self.largest()] or ["  (nothing)"]
        lines.append(
            "Other processes may hold the rest. Use smaller batches, or put variables on other devices; "
            "DOVETAIL_GPU_MEMORY sets the limit."
        )
        return "\n".join(lines)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
