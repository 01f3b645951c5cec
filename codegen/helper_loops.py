"""What a helper of compiled kernels does all its life (see `helper_calls`), as functions that Numba compiles."""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen.helper_calls import (
    BELL,
    COUNT,
    DESK,
    DESKS,
    INSIDE,
    NUMBERS,
    OPEN,
    THREADS,
    add,
    do_what_lies_there,
    look,
    sleep_on,
)


def serve(board, until, unused):
    """Help at every desk that is open, and sleep when there is none; ends when the bell has been rung `until` times."""
    while True:
        seen = look(board, BELL)
        if seen >= until:
            break
        helped = False
        for i in range(COUNT):
            desk = DESKS + i * DESK
            job = look(board, desk + OPEN)
            if job == 0:
                continue
            add(board, desk + INSIDE, 1)
            if look(board, desk + OPEN) == job:
                number = add(board, desk + NUMBERS, 1)
                if number < board[desk + THREADS]:
                    do_what_lies_there(board, desk, number)
                    helped = True
            add(board, desk + INSIDE, -1)
        if not helped:
            sleep_on(board, BELL, seen)
