"""The one door to Numba: inner loops of the searches are compiled when first used, then kept on disk.

Only modules that hold such loops import this one, and they are imported when a search starts. So
`import dovetail` does not pay for Numba. The compiled code is cached beside the sources, or where that is
read-only in the user's cache folder; the first search on a machine takes some ten seconds longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The same function, compiled for the types it is called with. It holds no lock while it runs."""
    made: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(F, made)


@compiled
def next_random(state: int) -> int:
    """The next state of a 63-bit random sequence (xorshift64); the state is the number drawn. Never 0.

    A sequence of our own, because it must be the same on every machine and for every thread.
    """
    state ^= (state << 13) & 0x7FFFFFFFFFFFFFFF
    state ^= state >> 7
    state ^= (state << 17) & 0x7FFFFFFFFFFFFFFF
    return state


@compiled
def seeded(seed: int) -> int:
    """A first state from a small seed; the first draws are thrown away, as they still resemble the seed."""
    state = (seed * 2654435761 + 88172645463325252) & 0x7FFFFFFFFFFFFFFF
    if state == 0:
        state = 88172645463325252
    for _ in range(8):
        state = next_random(state)
    return state
