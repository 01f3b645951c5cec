"""Where a variable's value lives, and how it is read and changed: by whole steps, each atomic.

Some values lie where other processes read them or change them, too (`shared_storage.py`); nobody who holds a `VariableState` has to know.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..core.dtypes import DType
from ..core.errors import FailedPreconditionError, InvalidArgumentError
from ..core.shape import Dims, compatible, text
from .shared_storage import Opened, Post, Postable, kept_copy, may_change, shared

Array = np.ndarray[Any, Any]


class VariableState(Postable):
    """Where a variable's value lives.

    A read is a snapshot that costs nothing: what it gave out is never changed. So an update stores a new array, or changes the
    old one where nobody but the variable holds it (`changing`). Either is atomic: while one is at work readers wait.

    A variable that has a post (`graph/resources/shared_storage.py`) tells it of each change, and keeps its value where others can
    read it. While it is *opened* others change it, too: then its value is kept by that, and none here.
    """

    __slots__ = ("__weakref__", "_is_elsewhere", "_opened", "_post", "_value", "dtype", "lock", "name")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self.dtype = dtype.base
        self.lock = threading.Lock()
        self._value: Array | None = None
        self._post: Post | None = None
        self._opened: Opened | None = None
        self._is_elsewhere = True  # than the post says

    def __enter__(self) -> None:
        """Let nobody else change it, here or in another process."""
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
        """A variable of its own with the same name and value. FailedPreconditionError before the first assignment."""
        copy = VariableState(self.name, self.dtype)
        copy._value = self.read()
        return copy

    def _there(self) -> Array:
        """The value, for those who hold the lock."""
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
            raise InvalidArgumentError(
                None,
                None,
                f"Variable '{self.name}' has shape {text(dims)}; a value of shape {text(array.shape)} cannot be assigned to it",
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

    def open(self, opened: Callable[[Array], Opened | None]) -> bool:
        """Keep the value where others change it, too: at the place that is made of it, if one is. Whether it is there now."""
        with self.lock:
            value: Any = self._value
            if self._opened is None and isinstance(value, np.ndarray):
                self._opened = opened(value)
                if self._opened is not None:
                    self._value = None  # nobody changes what others hold
            return self._opened is not None

    def reach(self, opened: Opened) -> None:
        """Stand for a variable of another process from now on."""
        self._opened = opened

    def _take_back(self) -> None:
        """Let no other process change it any more. For holders of the lock."""
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

    def post(self, post: Post | None) -> None:
        """Tell this post of each change from now on; None: nobody any more."""
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
        """Store a value that lies where no post can show it, such as a GPU's memory. For holders of the lock."""
        if self._opened is not None:
            self._take_back()
        if self._post is not None:
            self._post.show(None)
        self._is_elsewhere = True
        self._value = value

    def _store(self, new: Array, is_own: bool = True) -> Array:
        """Make an array the value; a copy of it, where it is not its variable's own. For holders of the lock.

        With a post, the old value is overwritten where nobody holds it: others know then where the new one lies.
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
        """The value, for a holder of the lock to overwrite and to put back: a copy, where somebody holds it or a part of it,
        here or in another process.

        Readers find no value in the meantime and wait for the lock. So nobody can get hold of the array after it was found to be
        held by nobody: only the list here, and the call that asks for the number of references, do.
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
    """Whether a value lies in memory that is not NumPy's own, and another one fits there."""
    return isinstance(old, np.ndarray) and old.base is not None and old.shape == new.shape


def _is_free(held: list[Array]) -> bool:
    """Whether an array may be overwritten that only this list holds: nobody else refers to it, here or in another process."""
    return sys.getrefcount(held[0]) <= 2 and may_change(held[0]) and held[0].flags.c_contiguous


def update_together(states: Sequence[VariableState], change: Callable[..., Sequence[Any]]) -> None:
    """Store `change(*old values)`, one new value per state, atomically; `change` must not modify its arguments.

    Locks are taken in one order for everybody, so two updates can't wait for each other. Nothing changes when `change` fails.
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

    Who holds an old value keeps it: then the variable gets a copy, and it is that which is overwritten. Check everything before
    the first element is written, because what was written stays when an exception leaves the block.

    >>> with changing([state]) as (value,):
    ...     value[rows] += 1
    """
    return _Changing(states)


class _Changing(AbstractContextManager[list[Array]]):
    """A class, since a generator as a context takes as long as a small update."""

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
    """The locks of several variables, taken in this order; those between processes in that of their places."""

    __slots__ = ("_opened", "_states")

    def __init__(self, states: Sequence[VariableState]) -> None:
        self._states = states
        self._opened: list[Opened] = []

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


__all__ = ["VariableState", "changing", "read_together", "update_together"]
