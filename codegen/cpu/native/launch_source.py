"""The loops that run a launch table, and those of the threads that share its launches. `table` says what its words are.

    caller   writes the launch to its slot: record, counters      helper
             order = its number                      ------>       inside += 1; if the order is still the same: take a share of the work
             wakes helpers that sleep
             takes a share of the work
             order = 0: no helper starts any more
             waits until the work is done            <------       inside -= 1

A slot's record is written only while no helper is inside: a late one finds another order and takes no work. The caller never waits for
a helper that has not started.

A helper that goes to sleep says so, and then looks once more for orders; a caller writes its order, and then looks whether a helper
sleeps. So one of them sees the other. Who wakes a helper takes it off the number of sleepers first, and writes a byte to the pipe that
they read from. A byte too many only makes a helper look once in vain.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit

from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.native import machine as c, table as t
from dovetail.codegen.cpu.work_ranges import FINISHED, LINE

_WORDS, _NUMBER = "int64[::1]", "int64"


@m.inner(f"void({_NUMBER})", error_model="numpy")
def rest(i):
    """The i-th pause of a spinning thread; now and then it yields the core."""
    c.pause()
    if i % t.YIELD == t.YIELD - 1:
        c.give_way()


@m.inner(f"void({_WORDS}, {_NUMBER}, {_NUMBER})", error_model="numpy")
def share(memory, slot, thread):
    """A share of a slot's launch: units, or ranges, that no thread has taken."""
    record = slot + t.RECORD
    words, count, ranges = memory[record], memory[record + t.COUNT], memory[record + t.RANGES]
    at = slot + t.MINE + thread * t.LONGEST  # a record of this thread's own
    c.copy_bytes(c.address_of_element(memory, at), c.address_of_element(memory, record), t.WORD * words)
    if ranges == 0:
        memory[at + words - 2], memory[at + words - 1] = thread, count
        if c.call_record(memory, at, t.HEAD) != 0:
            c.count_up(memory, slot + t.FAILED, 1)
        return
    while True:  # the caller takes the first ranges, helpers the last: what a core wrote in the launch before is still in its caches
        taken = c.count_up(memory, slot + t.TAKEN, 1 if thread == 0 else 1 << 32)
        front, back = taken & 0xFFFFFFFF, taken >> 32
        if front + back >= count:
            return
        mine = ranges + 2 * t.WORD * (front if thread == 0 else count - 1 - back)
        memory[at + words - 2], memory[at + words - 1] = c.number_at(mine, t.WORD), c.number_at(mine + t.WORD, t.WORD)
        if c.call_record(memory, at, t.HEAD) != 0:
            c.count_up(memory, slot + t.FAILED, 1)
            return


@njit(f"void({_WORDS}, {_NUMBER})", error_model="numpy", nogil=True, no_cfunc_wrapper=True, cache=True)
def serve(memory, size):
    """The loop of a helper, which never ends: shares of the slots' launches. A slot has `size` words.

    It sleeps when no launch has come for as long as it is patient.
    """
    looks, slots = memory[t.LOOKS], (memory.size - t.SLOT) // size
    seen = np.zeros(slots, np.int64)
    n = 0
    while True:
        has_worked = False
        for b in range(slots):
            slot = t.SLOT + b * size
            order = c.count_now(memory, slot + t.ORDER)
            if order == 0 or order == seen[b]:
                continue
            c.count_up(memory, slot + t.INSIDE, 1)
            if c.count_now(memory, slot + t.ORDER) == order:
                thread = c.count_up(memory, slot + t.JOINED, 1) + 1
                if thread < memory[slot + t.RECORD + t.THREADS]:
                    share(memory, slot, thread)
                has_worked = True
            seen[b] = order
            c.count_up(memory, slot + t.INSIDE, -1)
        n = 0 if has_worked else n + 1
        if n <= looks:
            rest(n)
            continue
        c.count_up(memory, t.SLEEPING, 1)
        is_wanted = False
        for b in range(slots):
            order = c.count_now(memory, t.SLOT + b * size + t.ORDER)
            is_wanted |= order != 0 and order != seen[b]
        if not is_wanted and c.read_bytes(memory[t.READ_END], c.address_of_element(memory, t.BYTE), 1) > 0:
            n = 0
            continue
        if c.count_up(memory, t.SLEEPING, -1) <= 0:  # someone has woken this thread just now
            c.count_up(memory, t.SLEEPING, 1)
        n = 0
        if not is_wanted:  # interrupted by a signal
            c.sleep(1000)


@m.inner(f"void({_WORDS}, {_NUMBER})", error_model="numpy")
def wake(memory, count):
    """Wake up to that many helpers."""
    while count > 0 and c.count_now(memory, t.SLEEPING) > 0:
        if c.count_up(memory, t.SLEEPING, -1) <= 0:
            c.count_up(memory, t.SLEEPING, 1)  # another caller was quicker
            return
        c.write_bytes(memory[t.WRITE_END], c.address_of_element(memory, t.BYTE), 1)
        count -= 1


@m.inner(f"int64({_WORDS}, {_NUMBER}, {_WORDS}, {_NUMBER})", error_model="numpy")
def shared(table, at, memory, slot):
    """Share a record with the helpers. 0: done; -1: nothing was done, since one is still busy with an earlier launch."""
    n, looks = 0, memory[t.LOOKS]
    while c.count_now(memory, slot + t.INSIDE) != 0:
        if n > looks:
            return -1
        rest(n)
        n += 1
    c.copy_bytes(c.address_of_element(memory, slot + t.RECORD), c.address_of_element(table, at), t.WORD * table[at])
    memory[slot + t.JOINED] = memory[slot + t.TAKEN] = memory[slot + t.FAILED] = 0
    threads, count = table[at + t.THREADS], table[at + t.COUNT]
    is_units = table[at + t.RANGES] == 0
    counters = slot + t.MINE + threads * t.LONGEST
    if is_units:
        c.fill_bytes(c.address_of_element(memory, counters), 0, t.WORD * (threads + 1) * LINE)
        memory[slot + t.RECORD + table[at + t.COUNTED]] = c.address_of_element(memory, counters)
    memory[slot + t.LAST] += 1
    c.count_up(memory, slot + t.ORDER, memory[slot + t.LAST])
    wake(memory, threads - 1)
    share(memory, slot, 0)
    c.count_up(memory, slot + t.ORDER, -memory[slot + t.LAST])
    n = 0
    while c.count_now(memory, slot + t.INSIDE) != 0 and not (
        is_units and c.count_now(memory, counters + FINISHED) >= count
    ):
        if n < looks:
            rest(n)
        else:
            c.sleep(50)
        n += 1
    return c.count_now(memory, slot + t.FAILED)


@njit(f"int64({_WORDS}, {_WORDS}, {_NUMBER})", error_model="numpy", nogil=True, no_cfunc_wrapper=True, cache=True)
def run(table, memory, slot):
    """Run a table's records, with helpers if there is a slot (not -1). 0: all succeeded."""
    at = status = 0
    while at < table.size and status == 0:
        status = -1
        if slot >= 0 and table[at + t.THREADS] > 1:
            status = shared(table, at, memory, slot)
        if status < 0:
            status = c.call_record(table, at, t.HEAD)
        at += table[at]
    return status


@njit(f"int64({_NUMBER}, {_WORDS}, {_WORDS})", error_model="numpy", no_cfunc_wrapper=True, cache=True)
def begin(arrays, binding, table):
    """Write the addresses of the arrays of a run, a tuple at address `arrays`, into a table: see `table.binding`.

    Returns -1, or the number of an array that is not as expected. Keeps Python's lock.
    """
    count, patches = binding[0], binding[1]
    at, fields = 2 + count, binding[binding.size - t.FIELDS :]
    for i in range(count):
        rank = max(0, binding[at])
        fields[t.SIZES + 2 * rank] = -1  # remains where there are no more axes
        if c.fields_of(arrays, i, fields) != 0:
            return i
        if binding[at] >= 0:
            if fields[t.SIZES + 2 * rank] != -1 or fields[t.ADDRESS] % min(fields[t.ADDRESS - 1], t.WORD) != 0:
                return i
            for axis in range(rank):
                size, stride = binding[at + 1 + axis], binding[at + 1 + rank + axis]
                if fields[t.SIZES + axis] != size or size != 1 and fields[t.SIZES + rank + axis] != stride:
                    return i
        at += 1 + 2 * rank
        binding[2 + i] = fields[t.ADDRESS]
    for k in range(at, at + 3 * patches, 3):
        table[binding[k]] = binding[2 + binding[k + 1]] + binding[k + 2]
    return -1


@njit(f"void({', '.join([_NUMBER] * 6)})", error_model="numpy", nogil=True, no_cfunc_wrapper=True, cache=True)
def assist(what, address, other, size, low, high):
    """What tables do themselves, called as kernels are: see `table.COPY`."""
    if what == t.COPY:
        c.copy_bytes(address + low, other + low, high - low)
    elif what == t.CHECK:
        for i in range(other):
            if not low <= c.number_at(address + i * size, size) < high:
                raise IndexError
    elif what == t.FILL:
        c.fill_bytes(address, other, size)
    else:
        for i in range(size):
            rest(i)
