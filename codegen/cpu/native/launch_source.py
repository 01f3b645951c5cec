"""The loops that run a launch table, and those of the threads that share its launches. `table` says what its words are.

    caller   helpers that have joined: members           helper
             write the launch: record, counters
             order = its number                ------>   inside += 1; if the order is still the same: take a share of the work
    take a share of the work
             order = 0: no helper starts any more
    wait until the work is done                <------   inside -= 1

A record is written only while no helper is inside: a late one finds another order and takes no work. The caller never waits for a
helper that has not started.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from numba import njit

from dovetail.codegen.cpu.native.machine import (
    address_of_element,
    call_record,
    copy_bytes,
    count_now,
    count_up,
    fields_of,
    give_way,
    number_at,
    pause,
    put_word,
    sleep,
)
from dovetail.codegen.cpu.native.table import (
    ADDRESS,
    COUNT,
    COUNTED,
    FAILED,
    FIELDS,
    HEAD,
    INSIDE,
    JOINED,
    LAST,
    LONGEST,
    MEMBERS,
    MINE,
    ORDER,
    RANGES,
    RECORD,
    RUNNING,
    SIZES,
    TAKEN,
    THREADS,
    WORD,
    YIELD,
)
from dovetail.codegen.cpu.thread_pool import FINISHED, LINE

_WORDS, _NUMBER = "int64[::1]", "int64"


@njit(f"void({_NUMBER})", error_model="numpy")
def rest(i):
    """The i-th pause of a spinning thread; now and then it yields the core."""
    pause()
    if i % YIELD == YIELD - 1:
        give_way()


@njit(f"void({_WORDS}, {_NUMBER})", error_model="numpy")
def share(pool, thread):
    """A share of the launch: units, or ranges, that no thread has taken."""
    words, count, ranges = pool[RECORD], pool[RECORD + COUNT], pool[RECORD + RANGES]
    at = MINE + thread * LONGEST  # a record of this thread's own
    copy_bytes(address_of_element(pool, at), address_of_element(pool, RECORD), WORD * words)
    if ranges == 0:
        pool[at + words - 2], pool[at + words - 1] = thread, count
        if call_record(pool, at, HEAD) != 0:
            count_up(pool, FAILED, 1)
        return
    while True:  # the caller takes the first ranges, helpers the last: what a core wrote in the launch before is still in its caches
        taken = count_up(pool, TAKEN, 1 if thread == 0 else 1 << 32)
        front, back = taken & 0xFFFFFFFF, taken >> 32
        if front + back >= count:
            return
        mine = ranges + 2 * WORD * (front if thread == 0 else count - 1 - back)
        pool[at + words - 2], pool[at + words - 1] = number_at(mine, WORD), number_at(mine + WORD, WORD)
        if call_record(pool, at, HEAD) != 0:
            count_up(pool, FAILED, 1)
            return


@njit(f"void({_WORDS}, {_NUMBER})", error_model="numpy", nogil=True, cache=True)
def serve(pool, looks):
    """The loop of a helper: shares of launches, until the table is done, or no launch has come for that many looks."""
    seen = n = 0
    while True:
        order = count_now(pool, ORDER)
        if order == 0 or order == seen:
            if count_now(pool, RUNNING) == 0 or n > looks:
                break
            rest(n)
            n += 1
            continue
        count_up(pool, INSIDE, 1)
        if count_now(pool, ORDER) == order:
            thread = count_up(pool, JOINED, 1) + 1
            if thread < pool[RECORD + THREADS]:
                share(pool, thread)
            seen, n = order, 0
        count_up(pool, INSIDE, -1)
    count_up(pool, MEMBERS, -1)


@njit(f"void({_WORDS})", error_model="numpy", cache=True)
def join(pool):
    """Count a helper that has been called."""
    count_up(pool, MEMBERS, 1)


@njit(f"int64({_WORDS}, {_NUMBER}, {_WORDS}, {_NUMBER})", error_model="numpy")
def shared(table, at, pool, looks):
    """Share a record with the helpers. 0: done; -1: nothing was done, since one is still busy with an earlier launch."""
    n = 0
    while count_now(pool, INSIDE) != 0:
        if n > looks:
            return -1
        rest(n)
        n += 1
    copy_bytes(address_of_element(pool, RECORD), address_of_element(table, at), WORD * table[at])
    pool[JOINED] = pool[TAKEN] = pool[FAILED] = 0
    is_units, count = table[at + RANGES] == 0, table[at + COUNT]
    counters = pool.size - (table[at + THREADS] + 1) * LINE
    if is_units:
        for i in range((table[at + THREADS] + 1) * LINE):
            pool[counters + i] = 0
        pool[RECORD + table[at + COUNTED]] = address_of_element(pool, counters)
    pool[LAST] += 1
    count_up(pool, ORDER, pool[LAST])
    share(pool, 0)
    count_up(pool, ORDER, -pool[LAST])
    n = 0
    while count_now(pool, INSIDE) != 0 and not (is_units and count_now(pool, counters + FINISHED) >= count):
        if n < looks:
            rest(n)
        else:
            sleep(50)
        n += 1
    return count_now(pool, FAILED)


@njit(f"int64({_WORDS}, {_NUMBER}, {_WORDS}, {_NUMBER})", error_model="numpy", nogil=True, cache=True)
def run(table, at, pool, looks):
    """Run records from word `at` on. Returns where it stopped: at the end; before a record whose helpers have to be called first;
    or, for a record that failed, the complement of its place.
    """
    while at < table.size:
        status = -1
        if table[at + THREADS] > 1:
            if count_now(pool, MEMBERS) < table[at + THREADS] - 1:
                return at
            status = shared(table, at, pool, looks)
        if status < 0:
            status = call_record(table, at, HEAD)
        if status != 0:
            return ~at
        at += table[at]
    return at


@njit(f"int64({_NUMBER}, {_WORDS}, {_WORDS})", error_model="numpy", cache=True)
def begin(arrays, binding, table):
    """Write the addresses of the arrays of a run, a tuple at address `arrays`, into a table: see `table.binding`.

    Returns -1, or the number of an array that is not as expected. Keeps Python's lock.
    """
    count, patches = binding[0], binding[1]
    at, fields = 2 + count, binding[binding.size - FIELDS :]
    for i in range(count):
        rank = max(0, binding[at])
        fields[SIZES + 2 * rank] = -1  # remains where there are no more axes
        if fields_of(arrays, i, fields) != 0:
            return i
        if binding[at] >= 0:
            jump = fields[ADDRESS - 1]
            if fields[SIZES + 2 * rank] != -1 or fields[ADDRESS] % min(jump, WORD) != 0:
                return i
            for axis in range(rank - 1, -1, -1):
                size = binding[at + 1 + axis]
                if fields[SIZES + axis] != size or size != 1 and fields[SIZES + rank + axis] != jump:
                    return i
                jump *= size
        at += 1 + rank
        binding[2 + i] = fields[ADDRESS]
    for k in range(at, at + 3 * patches, 3):
        table[binding[k]] = binding[2 + binding[k + 1]] + binding[k + 2]
    return -1


# --- the table's own functions, which records call as they do kernels ------------------------------------------------


@njit(f"void({_NUMBER}, {_NUMBER}, {_NUMBER})", error_model="numpy", nogil=True, cache=True)
def fill(address, words, number):
    for i in range(words):
        put_word(address + WORD * i, number)


@njit(f"void({', '.join([_NUMBER] * 4)})", error_model="numpy", nogil=True, cache=True)
def copy(to, source, lo, hi):
    copy_bytes(to + lo, source + lo, hi - lo)


@njit(f"void({', '.join([_NUMBER] * 5)})", error_model="numpy", nogil=True, cache=True)
def check(address, elements, size, least, limit):
    for i in range(elements):
        if not least <= number_at(address + i * size, size) < limit:
            raise IndexError


@njit(f"void({_NUMBER})", error_model="numpy", nogil=True, cache=True)
def look(times):
    """Look for work that many times."""
    for i in range(times):
        rest(i)
