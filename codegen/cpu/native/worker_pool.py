"""Worker threads that stay for a whole plan: they go from one shared launch to the next without Python and without being woken.

Waking a thread takes about 70 microseconds, and both threads need the GIL for it. The launches of a plan (`plan`) follow each other
immediately. So helper threads of the thread pool that have joined the first launch spin on shared memory, which holds the number and
record of the next launch. They spin for `PATIENCE_NS`, yield the core now and then, and leave as soon as the plan is over, unless
another plan is known to follow.

    caller   helpers that have joined: members           helper
             write the launch: record, counters
             order = its number                ------>   inside += 1; if the order is still the same: take a share of the work
    take a share of the work
             order = 0: no helper starts any more
    wait until the work is done                <------   inside -= 1

A record is written only while no helper is inside: a late one finds another order and takes no work. As in `thread_pool`, the caller
never waits for a helper that has not started. A process has one worker pool, whose threads are those of `thread_pool`. While one
thread holds it, others share their work through `thread_pool` alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from ..thread_pool import FINISHED, LINE, Ranges, helpers
from . import vm

Array: TypeAlias = np.ndarray[Any, Any]

PATIENCE_NS = 200_000  # for which helpers look for the next launch
_YIELD = 64  # looks between which others may have the core

_ORDER, _INSIDE, _MEMBERS, _RUNNING, _JOINED, _TAKEN = (LINE * i for i in range(6))
_FAILED, _LAST, _WORDS, _COUNT, _SHARING, _IS_UNITS, _RANGES = (LINE * 6 + i for i in range(7))
_RECORD = LINE * 8  # words of the record of a launch
_LONGEST = vm.HEAD + vm.MOST_ARGUMENTS
_COUNTERS = _RECORD + -(-_LONGEST // LINE) * LINE


class WorkerPool:
    """The worker pool of a process. A thread holds it from `begin` to `end`, and calls `launch_units` and `launch_ranges` between."""

    def __init__(self, most: int) -> None:
        """`most`: threads that may share a launch, the caller among them."""
        self._most = most
        self._memory = np.zeros(_COUNTERS + (most + 2) * LINE, np.int64)  # lines of their own: it does not matter which
        self._at = self._memory.ctypes.data
        self._code = _code()
        self._held = threading.Lock()
        self._shift = _Shift(self)
        self._looks = self._code.looks(PATIENCE_NS)

    def begin(self, threads: int) -> bool:
        """Take the pool and call helpers, so that `threads` work, the caller included. False: another thread holds the pool."""
        if threads <= 1 or threads > self._most or not self._held.acquire(blocking=False):
            return False
        self._memory[_RUNNING] = 1
        self.call(threads)
        return True

    def end(self, goes_on: bool = False) -> None:
        """Release the pool. `goes_on`: another plan follows at once, so helpers go on to spin for its launches."""
        self._memory[_RUNNING] = int(goes_on)
        self._held.release()

    def call(self, threads: int) -> None:
        """Wake the helpers that are missing. A helper that arrives after the launch takes no work."""
        all_helpers = helpers(os.getpid())
        all_helpers.leave_core_of_caller()
        for _ in range(threads - 1 - int(self._memory[_MEMBERS])):
            self._code.join(self._at)
            all_helpers.put(self._shift)

    def launch_units(self, record: int, words: int, counters: int, units: int, threads: int) -> int | None:
        """Share the units of a record (`thread_pool.share_units`).

        Args:
            record: its address. words: of the record, the last two the thread and the units. counters: the word with their address.

        Returns:
            0, or the status of a kernel that failed; None: not run, because a helper is still busy with an earlier launch.
        """
        return self._launch(record, words, counters, units, 0, threads)

    def launch_ranges(self, record: int, words: int, ranges: Array, threads: int) -> int | None:
        """Share ranges, rows of two int64. Each range is written to the last two words of the record."""
        return self._launch(record, words, -1, len(ranges), ranges.ctypes.data, threads)

    def _launch(self, record: int, words: int, counters: int, count: int, ranges: int, threads: int) -> int | None:
        if self._memory[_MEMBERS] < threads - 1:
            self.call(threads)
        status = self._code.launch(self._at, record, words, counters, count, ranges, min(threads, count), self._looks)
        return None if status < 0 else status

    def serve(self) -> None:
        """Run as a helper: take shares of launches until the plan is over, or no launch has arrived for a while."""
        self._code.serve(self._at, self._looks)


class _Shift:
    """A task for a helper thread, as the queue of `thread_pool` takes it."""

    __slots__ = ("_pool",)

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def help(self) -> None:
        """Serve until the plan is over."""
        self._pool.serve()


def worker_pool() -> WorkerPool | None:
    """The pool of this process; None where the system does not support it."""
    return _worker_pool(os.getpid())


@cache
def _worker_pool(process: int) -> WorkerPool | None:
    try:
        return WorkerPool(len(helpers(process)) + 1)
    except (OSError, AttributeError):
        return None


def ranges_array(ranges: Ranges) -> Array:
    """Ranges as `launch_ranges` takes them."""
    return np.array(ranges, np.int64)


# --- compiled code ---------------------------------------------------------------------------------------------------


class _Code:
    """The compiled functions."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        text = _text(*(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (library.sched_yield, library.usleep)))
        at = vm.compiled_functions(text)
        i64 = ctypes.c_int64

        def function(name: str, arguments: int, result: Any = i64) -> Callable[..., Any]:
            return ctypes.CFUNCTYPE(result, *[i64] * arguments)(at(name))

        self.launch, self.serve = function("launch", 8), function("serve", 2, None)
        self.join, self._wait = function("join", 1, None), function("look", 1, None)

    def looks(self, nanoseconds: int) -> int:
        """How many looks take so long, on this machine."""
        some, fastest = 2000, float("inf")
        for _ in range(3):
            began = time.perf_counter_ns()
            self._wait(some)
            fastest = min(fastest, time.perf_counter_ns() - began)
        return max(100, int(nanoseconds * some / fastest))


@cache
def _code() -> _Code:
    return _Code()


_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "AMD64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "arm64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}  # fmt: skip
"""The instruction that tells a core that its thread is spinning."""


def _text(sched_yield: int, usleep: int) -> str:
    declared, pause = _PAUSES.get(platform.machine(), ("", ""))
    return f"""
{declared}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; the i-th pause of a spinning thread; now and then it yields the core
define void @rest(i64 %i) alwaysinline {{
  {pause}
  %now = urem i64 %i, {_YIELD}
  %is_now = icmp eq i64 %now, {_YIELD - 1}
  br i1 %is_now, label %yield, label %go
yield:
  %ignored = call i32 inttoptr (i64 {sched_yield} to ptr)()
  br label %go
go:
  ret void
}}

define void @look(i64 %count) {{
start:
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %i1, %next ]
  call void @rest(i64 %i)
  %i1 = add i64 %i, 1
  %is_end = icmp eq i64 %i1, %count
  br i1 %is_end, label %end, label %next
end:
  ret void
}}

define void @join(ptr %pool) {{
  %members = getelementptr i64, ptr %pool, i64 {_MEMBERS}
  %before = atomicrmw add ptr %members, i64 1 seq_cst
  ret void
}}

; a share of the launch: units, or ranges, that no thread has taken
define void @share(ptr %pool, i64 %thread) {{
start:
  %mine = alloca [{_LONGEST} x i64]
  %record = getelementptr i64, ptr %pool, i64 {_RECORD}
  %words_place = getelementptr i64, ptr %pool, i64 {_WORDS}
  %words = load i64, ptr %words_place
  %bytes = mul i64 %words, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %mine, ptr %record, i64 %bytes, i1 false)
  %trampoline_place = getelementptr i64, ptr %mine, i64 1
  %trampoline = load ptr, ptr %trampoline_place
  %function_place = getelementptr i64, ptr %mine, i64 2
  %function = load ptr, ptr %function_place
  %arguments = getelementptr i64, ptr %mine, i64 {vm.HEAD}
  %before_last = sub i64 %words, 2
  %last = sub i64 %words, 1
  %first_number = getelementptr i64, ptr %mine, i64 %before_last
  %second_number = getelementptr i64, ptr %mine, i64 %last
  %count_place = getelementptr i64, ptr %pool, i64 {_COUNT}
  %count = load i64, ptr %count_place
  %kind_place = getelementptr i64, ptr %pool, i64 {_IS_UNITS}
  %kind = load i64, ptr %kind_place
  %failed_place = getelementptr i64, ptr %pool, i64 {_FAILED}
  %is_units = icmp ne i64 %kind, 0
  br i1 %is_units, label %units, label %ranges
units:
  store i64 %thread, ptr %first_number
  store i64 %count, ptr %second_number
  %status = call i32 %trampoline(ptr %function, ptr %arguments)
  %is_wrong = icmp ne i32 %status, 0
  br i1 %is_wrong, label %wrong, label %end
wrong:
  store atomic i64 1, ptr %failed_place monotonic, align 8
  br label %end
ranges:
  %ranges_place = getelementptr i64, ptr %pool, i64 {_RANGES}
  %table = load ptr, ptr %ranges_place
  %taken_place = getelementptr i64, ptr %pool, i64 {_TAKEN}
  %is_caller = icmp eq i64 %thread, 0
  %one = select i1 %is_caller, i64 1, i64 {1 << 32}
  br label %next
next:
  %taken = atomicrmw add ptr %taken_place, i64 %one seq_cst
  %front = and i64 %taken, {(1 << 32) - 1}
  %back = lshr i64 %taken, 32
  %both = add i64 %front, %back
  %is_left = icmp slt i64 %both, %count
  br i1 %is_left, label %range, label %end
range:
  %from_end = sub i64 %count, %back
  %from_end1 = sub i64 %from_end, 1
  %i = select i1 %is_caller, i64 %front, i64 %from_end1
  %i2 = mul i64 %i, 2
  %lo_place = getelementptr i64, ptr %table, i64 %i2
  %hi_place = getelementptr i64, ptr %lo_place, i64 1
  %lo = load i64, ptr %lo_place
  %hi = load i64, ptr %hi_place
  store i64 %lo, ptr %first_number
  store i64 %hi, ptr %second_number
  %status2 = call i32 %trampoline(ptr %function, ptr %arguments)
  %is_well2 = icmp eq i32 %status2, 0
  br i1 %is_well2, label %next, label %wrong
end:
  ret void
}}

; the loop of a helper
define void @serve(ptr %pool, i64 %looks) {{
start:
  %order_place = getelementptr i64, ptr %pool, i64 {_ORDER}
  %inside = getelementptr i64, ptr %pool, i64 {_INSIDE}
  %members = getelementptr i64, ptr %pool, i64 {_MEMBERS}
  %running_place = getelementptr i64, ptr %pool, i64 {_RUNNING}
  %joined = getelementptr i64, ptr %pool, i64 {_JOINED}
  %sharing_place = getelementptr i64, ptr %pool, i64 {_SHARING}
  br label %look
look:
  %seen = phi i64 [ 0, %start ], [ %seen, %wait ], [ %seen, %late ], [ %order, %done ]
  %n = phi i64 [ 0, %start ], [ %n1, %wait ], [ %n, %late ], [ 0, %done ]
  %order = load atomic i64, ptr %order_place acquire, align 8
  %is_none = icmp eq i64 %order, 0
  %is_old = icmp eq i64 %order, %seen
  %is_nothing = or i1 %is_none, %is_old
  br i1 %is_nothing, label %idle, label %enter
idle:
  %running = load atomic i64, ptr %running_place monotonic, align 8
  %is_over = icmp eq i64 %running, 0
  %n1 = add i64 %n, 1
  %is_long = icmp sgt i64 %n1, %looks
  %goes = or i1 %is_over, %is_long
  br i1 %goes, label %leave, label %wait
wait:
  call void @rest(i64 %n)
  br label %look
enter:
  %ignored = atomicrmw add ptr %inside, i64 1 seq_cst
  %now = load atomic i64, ptr %order_place seq_cst, align 8
  %is_still = icmp eq i64 %now, %order
  br i1 %is_still, label %work, label %late
late:
  %ignored2 = atomicrmw sub ptr %inside, i64 1 seq_cst
  br label %look
work:
  %number = atomicrmw add ptr %joined, i64 1 seq_cst
  %thread = add i64 %number, 1
  %sharing = load i64, ptr %sharing_place
  %is_wanted = icmp slt i64 %thread, %sharing
  br i1 %is_wanted, label %part, label %done
part:
  call void @share(ptr %pool, i64 %thread)
  br label %done
done:
  %ignored3 = atomicrmw sub ptr %inside, i64 1 seq_cst
  br label %look
leave:
  %ignored4 = atomicrmw sub ptr %members, i64 1 seq_cst
  ret void
}}

; 0; 1: a kernel failed; -1: nothing was done
define i64 @launch(ptr %pool, ptr %record, i64 %words, i64 %counters, i64 %count, ptr %ranges, i64 %sharing, i64 %looks) {{
start:
  %order_place = getelementptr i64, ptr %pool, i64 {_ORDER}
  %inside = getelementptr i64, ptr %pool, i64 {_INSIDE}
  %own = getelementptr i64, ptr %pool, i64 {_RECORD}
  %own_counters = getelementptr i64, ptr %pool, i64 {_COUNTERS}
  br label %before
before:
  %n = phi i64 [ 0, %start ], [ %n1, %busy ]
  %others = load atomic i64, ptr %inside seq_cst, align 8
  %is_free = icmp eq i64 %others, 0
  br i1 %is_free, label %write, label %busy
busy:
  call void @rest(i64 %n)
  %n1 = add i64 %n, 1
  %is_long = icmp sgt i64 %n1, %looks
  br i1 %is_long, label %nothing, label %before
nothing:
  ret i64 -1
write:
  %bytes = mul i64 %words, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr %record, i64 %bytes, i1 false)
  %words_place = getelementptr i64, ptr %pool, i64 {_WORDS}
  store i64 %words, ptr %words_place
  %count_place = getelementptr i64, ptr %pool, i64 {_COUNT}
  store i64 %count, ptr %count_place
  %sharing_place = getelementptr i64, ptr %pool, i64 {_SHARING}
  store i64 %sharing, ptr %sharing_place
  %ranges_place = getelementptr i64, ptr %pool, i64 {_RANGES}
  store ptr %ranges, ptr %ranges_place
  %joined = getelementptr i64, ptr %pool, i64 {_JOINED}
  store i64 0, ptr %joined
  %taken_place = getelementptr i64, ptr %pool, i64 {_TAKEN}
  store i64 0, ptr %taken_place
  %failed_place = getelementptr i64, ptr %pool, i64 {_FAILED}
  store i64 0, ptr %failed_place
  %kind_place = getelementptr i64, ptr %pool, i64 {_IS_UNITS}
  %is_units = icmp sge i64 %counters, 0
  %kind = zext i1 %is_units to i64
  store i64 %kind, ptr %kind_place
  br i1 %is_units, label %count_units, label %publish
count_units:
  %lines = add i64 %sharing, 1
  %counter_bytes = mul i64 %lines, {LINE * 8}
  call void @llvm.memset.p0.i64(ptr %own_counters, i8 0, i64 %counter_bytes, i1 false)
  %address_place = getelementptr i64, ptr %own, i64 %counters
  store ptr %own_counters, ptr %address_place
  br label %publish
publish:
  %last_place = getelementptr i64, ptr %pool, i64 {_LAST}
  %last = load i64, ptr %last_place
  %order = add i64 %last, 1
  store i64 %order, ptr %last_place
  store atomic i64 %order, ptr %order_place seq_cst, align 8
  call void @share(ptr %pool, i64 0)
  store atomic i64 0, ptr %order_place seq_cst, align 8
  %finished_place = getelementptr i64, ptr %own_counters, i64 {FINISHED}
  br label %wait
wait:
  %k = phi i64 [ 0, %publish ], [ %k1, %go_on ]
  %others2 = load atomic i64, ptr %inside seq_cst, align 8
  %is_alone = icmp eq i64 %others2, 0
  %finished = load atomic i64, ptr %finished_place seq_cst, align 8
  %is_finished = icmp sge i64 %finished, %count
  %units_done = and i1 %is_units, %is_finished
  %is_done = or i1 %is_alone, %units_done
  br i1 %is_done, label %end, label %again
again:
  %k1 = add i64 %k, 1
  %is_short = icmp slt i64 %k, %looks
  br i1 %is_short, label %spin, label %sleep
spin:
  call void @rest(i64 %k)
  br label %go_on
sleep:
  %ignored = call i32 inttoptr (i64 {usleep} to ptr)(i32 50)
  br label %go_on
go_on:
  br label %wait
end:
  %failed = load atomic i64, ptr %failed_place seq_cst, align 8
  ret i64 %failed
}}
"""
