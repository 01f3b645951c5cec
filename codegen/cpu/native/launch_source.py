"""The loops that run a launch table, and those of the helper threads that share its launches. `table` has the layout of both.

    caller   writes the launch to its slot: record, counters      helper
             order = its number                      ------>       inside += 1; if the order is still the same: take a share of the work
             wakes helpers that sleep
             takes a share of the work
             order = 0: no helper starts any more
             waits until the work is done            <------       inside -= 1

A slot's record is written only while no helper is inside. A helper that comes late finds another order and takes no work. The caller
never waits for a helper that has not started.

No wake-up is lost. A helper first counts itself as sleeping, and then checks the orders once more; a caller first writes its order, and
then reads how many helpers sleep. So at least one of them sees what the other has written. To wake a helper, a caller decrements the
number of sleeping helpers, and then writes a byte to the pipe that these read. A byte too many only makes a helper check once in vain.
"""

import numpy as np
from numba import njit

from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.native import machine as c, table as t
from dovetail.codegen.cpu.work_ranges import FINISHED, LINE

_WORDS, _NUMBER = "int64[::1]", "int64"


@m.inner(f"void({_NUMBER})", error_model="numpy")
def rest(i):
    """The i-th pause of a spinning thread. After each `YIELD` of them it yields the core to other threads."""
    c.pause()
    if i % t.YIELD == t.YIELD - 1:
        c.give_way()


@m.inner(f"void({_WORDS}, {_NUMBER}, {_NUMBER})", error_model="numpy")
def share(memory, slot, thread):
    """Take part in a slot's launch: run units or ranges that no thread has taken, until there are none. thread: 0 is the caller."""
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
    """The loop of a helper, which never ends: it polls all slots, of `size` words each, and takes part in their launches.

    After `memory[LOOKS]` polls without a launch it sleeps until a caller wakes it.
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
    """Run a record together with the helpers.

    Returns the number of threads that failed; -1: nothing has run, since a helper is still inside the slot's previous launch.
    """
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
    """Run the records of a table in order, with helpers if there is a slot (not -1). Returns 0, or stops at the first that fails."""
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
    """Compare the arrays of a run with what `table.binding` expects, and write their addresses into the table.

    arrays: the address of a tuple. Returns -1, or the number of the first array with other sizes or strides. The caller holds the GIL.
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
    """The launches that need no kernel (`table.COPY` lists them), called as a kernel is."""
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
