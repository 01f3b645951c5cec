"""The loops that run a launch table, and those of the helper threads that share its launches. `launches` has the layout of both.

    caller   writes the address of the record      helper
             order = a new number        ------>       inside += 1; if the order is still the same: takes parts of the work
             wakes helpers, if too few are awake
             takes parts of the work
             order = 0: no helper starts any more
             waits until inside = 0       <------      inside -= 1

A helper that comes late finds another order, and reads no record. The caller never waits for a helper that has not started.

No wake-up is lost. A helper first counts itself as sleeping, and then checks the order once more; a caller first writes its order, and
then reads how many helpers sleep. So at least one of them sees what the other has written. To wake a helper, a thread decrements the
number of sleeping helpers, and then writes a byte to the pipe that these read.
"""

import numpy as np
from numba import njit

from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.native import launches as t, machine as c

_WORDS, _NUMBER = "int64[::1]", "int64"


@m.inner(f"{_NUMBER}({_NUMBER}, {_NUMBER}, {_NUMBER})", error_model="numpy")
def launch(record, lo, hi):
    """Call the kernel of the record at an address for a range. Returns 0: success."""
    return c.call_kernel(m.word(record, t.KERNEL), record + 8 * t.HEAD, lo, hi)


@m.inner(f"void({_WORDS}, boolean)", error_model="numpy")
def share(memory, is_caller):
    """Run parts of the launch that no thread has taken, until there are none.

    The caller takes the first parts, helpers the last: what a core wrote in the launch before is still in its caches.
    """
    record = memory[t.RECORD]
    parts, length = m.word(record, t.PARTS), m.word(record, t.LENGTH)
    while True:
        part = c.take(memory, t.TAKEN, is_caller, parts)
        if part < 0:
            return
        if launch(record, length * part // parts, length * (part + 1) // parts) != 0:
            c.count_up(memory, t.FAILED, 1)
            return


@m.inner(f"void({_WORDS}, {_NUMBER})", error_model="numpy")
def wake(memory, count):
    """Wake up to that many helpers."""
    while count > 0 and c.count_now(memory, t.SLEEPING) > 0:
        if c.count_up(memory, t.SLEEPING, -1) <= 0:
            c.count_up(memory, t.SLEEPING, 1)  # all are woken
            return
        c.write_bytes(memory[t.WRITE_END], c.address_of_element(memory, t.BYTE), 1)
        count -= 1


@njit(f"void({_WORDS})", error_model="numpy", nogil=True, no_cfunc_wrapper=True, cache=True)
def serve(memory):
    """The loop of a helper, which never ends: it looks for orders, and takes part in launches.

    Between two looks it yields its core to other threads. After `memory[LOOKS]` of them it sleeps until a caller wakes it.
    """
    n = seen = 0
    while True:
        order = c.count_now(memory, t.ORDER)
        if order != 0 and order != seen:
            others = c.count_up(memory, t.INSIDE, 1)
            if c.count_now(memory, t.ORDER) == order and others < m.word(memory[t.RECORD], t.THREADS) - 1:
                share(memory, False)
            c.count_up(memory, t.INSIDE, -1)
            seen, n = order, 0
            continue
        n += 1
        if n <= memory[t.LOOKS]:
            c.give_way()
            continue
        n = 0
        c.count_up(memory, t.SLEEPING, 1)
        order = c.count_now(memory, t.ORDER)
        if order != 0 and order != seen:
            wake(memory, 1)  # itself, or another one
        while c.read_bytes(memory[t.READ_END], c.address_of_element(memory, t.BYTE), 1) <= 0:
            c.sleep(1000)  # interrupted by a signal


@m.inner(f"{_NUMBER}({_WORDS}, {_NUMBER}, {_NUMBER})", error_model="numpy")
def shared(memory, record, helpers):
    """Run a record together with up to so many helpers; returns the number of threads that failed."""
    memory[t.RECORD] = record
    memory[t.TAKEN] = memory[t.FAILED] = 0
    memory[t.LAST] += 1
    c.count_up(memory, t.ORDER, memory[t.LAST])
    wake(memory, helpers - (memory[t.HELPERS] - c.count_now(memory, t.SLEEPING)))
    share(memory, True)
    c.count_up(memory, t.ORDER, -memory[t.LAST])
    n = 0
    while c.count_now(memory, t.INSIDE) != 0:
        n += 1
        if n > t.WAITS:
            c.sleep(50)
    return c.count_now(memory, t.FAILED)


@njit(f"int64({_NUMBER}, {_WORDS}, {_WORDS}, {_WORDS})", error_model="numpy", no_cfunc_wrapper=True, cache=True)
def run(arrays, patches, table, memory):
    """Run the records of a table in order, without the GIL. Returns 0, or stops at the first that fails.

    arrays: the address of a tuple of arrays. patches: for each of their addresses in the records its word of the table, the number of
    the array, and an offset in bytes. memory: of the helpers; empty: there are none.
    """
    for i in range(0, patches.size, 3):
        begin = c.address_of_array(arrays, patches[i + 1])
        if begin == 0:
            return 1  # it is no array
        table[patches[i]] = begin + patches[i + 2]
    thread = c.release_gil()
    at = failed = 0
    while at < table.size and failed == 0:
        record = c.address_of_element(table, at)
        if memory.size > 0 and table[at + t.THREADS] > 1:
            failed = shared(memory, record, table[at + t.THREADS] - 1)
        else:
            failed = launch(record, 0, table[at + t.LENGTH])
        at += table[at]
    c.take_gil(thread)
    return failed


@m.launched
def clear(words, lo, hi):
    """Fill a part of a vector of bytes with zeros."""
    x = m.vector(words, 0, np.uint8)
    for i in range(lo, hi):
        m.store(x, 0, i, 0)
