"""The value of a variable, with atomic reads and updates.

Other processes may also read or update a value (`shared_storage.py`). This is transparent to users of a `VariableState`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..core.dtypes import Array, DType
from ..core.errors import FailedPreconditionError, invalid
from ..core.shape import Dims, compatible, text
from .shared_storage import Publishable, PublishedValue, SharedValue, kept_copy, may_change, shared


class VariableState(Publishable):
    """The value of a variable: copy-on-write.

    A read is a snapshot without a copy: a returned array is never changed. So an update stores a new array, or overwrites the old
    one if only the variable refers to it (`changing`). Both are atomic: readers wait meanwhile.

    A published variable (`shared_storage.py`) notifies its `PublishedValue` of each change and keeps its value in shared memory. While
    it is shared (`open`), other processes update it, too: then its `SharedValue` holds the value.
    """

    __slots__ = ("__weakref__", "_is_elsewhere", "_opened", "_post", "_value", "dtype", "lock", "name")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self.dtype = dtype.base
        self.lock = threading.Lock()
        self._value: Array | None = None
        self._post: PublishedValue | None = None
        self._opened: SharedValue | None = None
        self._is_elsewhere = True  # whether the value is not at its published address

    def __enter__(self) -> None:
        """Take the lock, and that between processes."""
        self.lock.acquire()
        if self._opened is not None:
            try:
                self._opened.acquire()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *error: object) -> None:
        try:
            if self._opened is not None:
                self._opened.release()
        finally:
            self.lock.release()

    @property
    def is_initialized(self) -> bool:
        """Whether it has a value yet."""
        if self._value is not None:
            return True
        opened = self._opened
        if opened is not None:
            return opened.is_there
        with self.lock:  # it may be changing in place
            return self._value is not None or self._opened is not None

    def read(self) -> Array:
        """A snapshot of the value. FailedPreconditionError before the first assignment."""
        value = self._value
        if value is None:
            opened = self._opened
            if opened is not None:
                value = opened.read()
                if value is not None:
                    return value
            with self:  # it may be changing in place
                return self._there()
        return value

    def snapshot(self) -> VariableState:
        """A separate variable with the same name and value. FailedPreconditionError before the first assignment."""
        copy = VariableState(self.name, self.dtype)
        copy._value = self.read()
        return copy

    def _there(self) -> Array:
        """The value. The lock is held."""
        if self._value is None:
            if self._opened is not None:
                value = self._opened.read()
                if value is None:
                    raise self._opened.gone()
                return value
            raise FailedPreconditionError(
                None, None,
                f"Attempting to use uninitialized value {self.name}: run its initializer (dt.global_variables_initializer()) first",
            )  # fmt: skip
        return self._value

    def assign(self, value: Any, dims: Dims = None) -> Array:
        """Store a value; `dims` is the static shape that it must fit (None: any)."""
        array = np.asarray(value, self.dtype.np)
        if not compatible(array.shape, dims):
            raise invalid(
                f"Variable '{self.name}' has shape {text(dims)}; a value of shape {text(array.shape)} cannot be assigned to it"
            )
        is_own = array is not value and array.base is None  # else it may be a view of a message or of a fed array
        if not is_own and self._post is None:
            array, is_own = kept_copy(array), True
        with self:
            return self._store(array, is_own)

    def update(self, change: Callable[[Array], Any]) -> Array:
        """Store `change(old value)`, atomically; `change` must not modify its argument."""
        with self:
            new = np.asarray(change(self._there()), self.dtype.np)
            self._store(new)
        return new

    def open(self, opened: Callable[[Array], SharedValue | None]) -> bool:
        """Share the value with processes that also update it, in the `SharedValue` from `opened`. Returns whether it is shared."""
        with self.lock:
            value: Any = self._value
            if self._opened is None and isinstance(value, np.ndarray):
                self._opened = opened(value)
                if self._opened is not None:
                    self._value = None  # an array that others refer to is never changed
            return self._opened is not None

    def reach(self, opened: SharedValue) -> None:
        """Represent a shared variable of another process from now on."""
        self._opened = opened

    def _take_back(self) -> None:
        """End the sharing. The lock is held."""
        opened = self._opened
        if opened is not None:
            self._value = opened.close()
            self._value.flags.writeable = False
            self._opened = None
            self._is_elsewhere = True
            if self._post is not None:
                self._post.show(self._value)
                self._is_elsewhere = False
            opened.closed()

    def post(self, post: PublishedValue | None) -> None:
        """As `Publishable.post`."""
        with self.lock:
            self._take_back()
            if self._post is not None:
                self._post.show(None)
            self._post = post
            self._is_elsewhere = True
            value: Any = self._value
            if post is None:
                return
            if isinstance(value, np.ndarray):
                value = self._value = shared(value)
                value.flags.writeable = False
            post.show(value)

    def move(self, value: Any) -> None:
        """Store a value that cannot be published, such as one in a GPU's memory. The lock is held."""
        if self._opened is not None:
            self._take_back()
        if self._post is not None:
            self._post.show(None)
        self._is_elsewhere = True
        self._value = value

    def _store(self, new: Array, is_own: bool = True) -> Array:
        """Store an array as the value, or a copy if others may change it (not `is_own`). The lock is held.

        The old value of a published variable is overwritten if nothing refers to it, so that the value's address stays the same.
        """
        opened = self._opened
        if opened is not None:
            if opened.fits(new):
                np.copyto(opened.begin(copied=False), new)
                opened.end()
                return new
            self._take_back()
        post = self._post
        if post is None:
            if not is_own:
                new = kept_copy(new)
            new.flags.writeable = False
            self._value = new
            return new
        held: list[Any] = [self._value]
        self._value = None
        post.change()
        try:
            if _has_room(held[0], new) and _is_free(held):
                held[0].flags.writeable = True
                np.copyto(held[0], new)
            else:
                self._is_elsewhere = True
                held[0] = shared(new) if is_own else kept_copy(new, posted=True)
        finally:
            self._put_back(held[0])
        stored: Array = held[0]
        return stored

    def _take(self) -> Array:
        """The value, to be overwritten and put back with the lock held; a copy, if anything refers to it or a part of it, here or in
        another process.

        Readers find no value meanwhile and wait for the lock. So nothing can take a reference to the array after its reference count was
        found to be two: the list here, and the counting call.
        """
        if self._opened is not None:
            return self._opened.begin()
        held = [self._there()]
        self._value = None
        if self._post is not None:
            self._post.change()
        if not _is_free(held):
            try:
                held.append(kept_copy(held[0], self._post is not None))
                self._is_elsewhere = True
            except MemoryError:
                self._put_back(held[0])
                raise
        held[-1].flags.writeable = True
        return held.pop()

    def _put_back(self, value: Array | None) -> None:
        """End what `_take` began."""
        if self._opened is not None:
            self._opened.end()
            return
        if value is not None:
            value.flags.writeable = False
        self._value = value
        if self._post is None:
            return
        if self._is_elsewhere:
            self._post.show(value)
            self._is_elsewhere = False
        else:
            self._post.changed()


def _has_room(old: Any, new: Array) -> bool:
    """Whether a value is in memory that NumPy does not own, and another one fits there."""
    return isinstance(old, np.ndarray) and old.base is not None and old.shape == new.shape


def _is_free(held: list[Array]) -> bool:
    """Whether only this list refers to its array, here or in another process, so that it may be overwritten."""
    return sys.getrefcount(held[0]) <= 2 and may_change(held[0]) and held[0].flags.c_contiguous


def update_together(states: Sequence[VariableState], change: Callable[..., Sequence[Any]]) -> None:
    """Store `change(*old values)`, one new value per state, atomically; `change` must not modify its arguments.

    Locks are taken in one order everywhere, so two updates cannot deadlock. Nothing changes when `change` fails.
    """
    with _locked(states):
        new = change(*[s._there() for s in states])
        arrays = [np.asarray(value, s.dtype.np) for s, value in zip(states, new, strict=True)]
        for state, array in zip(states, arrays, strict=True):
            state._store(array)


def read_together(states: Sequence[VariableState]) -> list[Array]:
    """The values of variables, all of one moment. FailedPreconditionError: one has none yet."""
    with _locked(states):
        return [s._there() for s in states]


def changing(states: Sequence[VariableState]) -> AbstractContextManager[list[Array]]:
    """The values of different variables, all contiguous, to be overwritten in place, atomically.

    Existing snapshots do not change: the variable then gets a copy to overwrite. Check everything before the
    first element is written, because an exception in the block does not undo writes.

    >>> with changing([state]) as (value,):
    ...     value[rows] += 1
    """
    return _Changing(states)


class _Changing(AbstractContextManager[list[Array]]):
    """`changing` as a class: a generator-based context manager takes as long as a small update."""

    __slots__ = ("_locks", "_states", "_values")

    def __init__(self, states: Sequence[VariableState]) -> None:
        self._states = states
        self._values: list[Array] = []
        self._locks = _locked(states)

    def __enter__(self) -> list[Array]:
        self._locks.__enter__()
        try:
            for state in self._states:
                self._values.append(state._take())
        except BaseException:
            self.__exit__()
            raise
        return self._values

    def __exit__(self, *error: object) -> None:
        try:
            for state, value in zip(self._states, self._values, strict=False):
                state._put_back(value)
        finally:
            self._locks.__exit__(None, None, None)


def _locked(states: Sequence[VariableState]) -> AbstractContextManager[Any]:
    """All of their locks: first those of this process, then those between processes."""
    if len(states) == 1:
        return states[0]
    return _Locks(sorted(set(states), key=lambda s: (s.name, id(s))))


class _Locks(AbstractContextManager[None]):
    """The locks of several variables, taken in this order; those between processes by their keys."""

    __slots__ = ("_opened", "_states")

    def __init__(self, states: Sequence[VariableState]) -> None:
        self._states = states
        self._opened: list[SharedValue] = []

    def __enter__(self) -> None:
        for state in self._states:
            state.lock.acquire()
        self._opened = [s._opened for s in self._states if s._opened is not None]
        if self._opened:
            self._opened.sort(key=lambda o: o.key)
            try:
                for opened in self._opened:
                    opened.acquire()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *error: object) -> None:
        try:
            for opened in self._opened:
                opened.release()
        finally:
            for state in self._states:
                state.lock.release()
