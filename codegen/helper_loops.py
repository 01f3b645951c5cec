"""What a kernel's helpers do, without Python: look for work for a while, and do their part of it.

`board` is what caller and helpers tell each other, see `native_helpers`. Nobody enters a job but while it is open and he counts as
being inside, and no new one is put up before all have left, so nobody ever finds a job half replaced by the next.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen.helper_calls import FEW, add, call_few, call_many, look, pause
from dovetail.codegen.native_helpers import COUNT, FAILED, FUNCTION, INSIDE, OPEN, PLACES, RANGES, SLEPT, UNITS
from dovetail.codegen.threads import FINISHED, TAKEN


@njit(error_model="numpy")
def call(board, own):
    """Call the job's function; 0: it ended well."""
    if board[COUNT] <= FEW:
        return call_few(board[FUNCTION], own)
    return call_many(board[FUNCTION], own)


@njit(error_model="numpy")
def work(board, words, counters, edges, own):
    """A thread's part of the job that is open."""
    count, ranges, told = board[COUNT], board[RANGES], 0
    for i in range(count):
        own[i] = words[i]
    if ranges == 0:
        told = call(board, own)  # which takes one unit after the other
    else:
        while told == 0:
            i = add(counters, TAKEN, 1)
            if i >= ranges:
                break
            own[count - 2], own[count - 1] = edges[2 * i], edges[2 * i + 1]
            told = call(board, own)
            if told == 0:
                add(counters, FINISHED, 1)
    if told != 0:
        add(board, FAILED, 1)


def drive(board, words, counters, edges, own, job, looks):
    """What the caller does: open the job, do a part, close it, and look for a while whether the helpers have finished theirs."""
    add(board, OPEN, job)
    work(board, words, counters, edges, own)
    add(board, OPEN, -job)
    while looks > 0 and look(board, INSIDE) > 0 and look(counters, FINISHED) < board[UNITS]:
        pause()
        looks -= 1


def serve(board, words, counters, edges, own, looks, unused):
    """What a helper does until it has looked so many times without finding a job that it has not been in."""
    last, left = 0, looks
    while left > 0:
        job = look(board, OPEN)
        if job == 0 or job == last:
            pause()
            left -= 1
            continue
        last = job
        add(board, INSIDE, 1)
        if look(board, OPEN) == job and add(board, PLACES, -1) > 0:
            work(board, words, counters, edges, own)
            left = looks
        add(board, INSIDE, -1)
    add(board, SLEPT, 1)
