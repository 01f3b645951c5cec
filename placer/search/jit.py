"""The one door to Numba: inner loops of the searches are compiled when first used, then kept on disk.

The compiled code is cached beside the sources, or where that is read-only in the user's cache folder. The first search on a machine
takes half a minute longer; processes that start at once share that work. Compiled functions hold those that they call, so the cache goes
by the content of all files of this folder: Numba by itself looks at a function's own file only. Within `interpreted` the same functions run
as the Python that they are, and give the same answers: so a first answer, and one pass over a few nodes, wait for no compiled code.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from ...graph.formats.atomic_files import locked

F = TypeVar("F", bound=Callable[..., object])
TINY = 100  # nodes, at most, that one pass goes over as Python
FEW = 10_000  # nodes, at most, that Python goes over sooner than code is compiled: a part of a second
# The longest wait for another process that compiles a loop: it may have been stopped. The largest loops compile in 15 s.
WAIT_S = 60.0

_is_interpreting: ContextVar[bool] = ContextVar("is_interpreting", default=False)


@contextlib.contextmanager
def interpreted(yes: bool = True) -> Iterator[None]:
    """Run loops as Python; with False, as before."""
    if not yes or _is_interpreting.get():
        yield
        return
    token = _is_interpreting.set(True)
    try:
        with np.errstate(all="ignore"):  # as compiled code does: infinite and undefined numbers are no errors
            yield
    finally:
        _is_interpreting.reset(token)


class _Loop:
    """A function that is compiled for the types it is called with, and then holds no lock while it runs."""

    def __init__(
        self,
        function: Callable[..., object],
        *,
        is_one_pass: bool = False,
        is_inlined: bool = False,
        is_inner: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.is_one_pass, self.is_inlined, self.is_inner = function, is_one_pass, is_inlined, is_inner
        self.was_needed = self.is_loaded = False

    @functools.cached_property
    def machine(self) -> Any:
        """The compiled function."""
        import numba

        # Numba's stubs lack these.
        wrappers: dict[str, Any] = {"no_cpython_wrapper": self.is_inner, "no_cfunc_wrapper": True}
        compiled = numba.njit(nogil=True, error_model="numpy", forceinline=self.is_inlined, **wrappers)
        machine: Any = compiled(self.function)
        machine.enable_caching()
        # Private to Numba, here and in `_load`: its settings of caches hold for the whole process, also for the user's own functions.
        machine._cache._cache_file._source_stamp = _stamp()
        return machine

    @property
    def _numba_type_(self) -> Any:
        """How compiled functions that call this one see it."""
        return self.machine._numba_type_

    def __call__(self, *args: object) -> object:
        if _is_interpreting.get():
            return self.function(*args)
        if self.is_inner or (self.is_one_pass and len(cast(Any, args[0]).first_value) <= TINY + 1):
            with interpreted():
                return self.function(*args)
        if not self.is_loaded:
            self._load(args)
        return self.machine(*args)

    def _load(self, args: tuple[object, ...]) -> None:
        """Load the code for these arguments, or compile it: of processes that start at once one compiles, and the others load it then.

        There is one lock for all loops, as those that are called by several are compiled with each.
        """
        types, cache = tuple(map(self.machine.typeof_pyval, args)), self.machine._cache
        key = cache._index_key(types, self.machine.targetctx.codegen())
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # where files can't be locked, each compiles its own
                if key not in cache._cache_file._load_index():
                    cache._impl.locator.ensure_cache_path()
                    held.enter_context(locked(Path(cache.cache_path, "compiling.lock"), WAIT_S))
            self.machine.compile(types)
        self.is_loaded = True


@functools.cache
def _stamp(folder: Path = Path(__file__).parent) -> str:
    """What compiled code depends on beside its own function."""
    files = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def compiled(function: F) -> F:
    """The same function, compiled when it is first called."""
    return cast(F, _Loop(function))


def inlined(function: F) -> F:
    """The same for a small function: each caller has a copy of its code."""
    return cast(F, _Loop(function, is_inlined=True, is_inner=True))


def inner(function: F) -> F:
    """The same for a function that only compiled code calls; called from elsewhere, it runs as the Python that it is.

    So no code is made that takes arguments from Python, which is a third of the time that compiling all takes. Callers give it numbers as
    `np.int64(0)`: for the constant 0 it would be compiled once more.
    """
    return cast(F, _Loop(function, is_inner=True))


def is_first_call(loop: Callable[..., object], nodes: int) -> bool:
    """Whether a loop over few nodes is to be called for the first time: compiling it, or loading it, would take longer."""
    assert isinstance(loop, _Loop)
    is_first, loop.was_needed = not loop.was_needed, True
    return is_first and nodes <= FEW


def one_pass(function: F) -> F:
    """The same for a function that goes once over `Arrays`, its first argument: with few nodes it is interpreted anyway."""
    return cast(F, _Loop(function, is_one_pass=True))


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
