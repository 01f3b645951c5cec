"""The value of a variable, with atomic reads and updates.

Other processes may also read or update a value (`shared_storage.py`). This is transparent to users of a `VariableState`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from sys import getrefcount
from typing import Any

import numpy as np

from ..core.dtypes import Array, DType
from ..core.errors import FailedPreconditionError, invalid
from ..core.reference_counts import ONLY_ITEM
from ..core.shape import Dims, compatible, text
from .chunked_snapshot import SMALLEST_BYTES, ChunkedSnapshot
from .shared_storage import Publishable, Share, SharedValue, kept_copy, may_change


class VariableState(Publishable):
    """The value of a variable, with copy-on-write.

    A read is a snapshot without a copy, because a returned array is never changed. So an update stores a new array, or overwrites the
    old one if only the variable refers to it (`changing`). Updates are atomic, so readers may have to wait.

    Other processes may read and update a published variable (`shared_storage.py`). Its `SharedValue` holds the value, unless the value
    cannot be shared.

    Attributes:
        on_change: a function or None. It is called with the lock held when the value changes in this process. Its argument is the rows
            that change (indices into the first axis, which may be out of range), or None for all rows.
    """

    __slots__ = ("__weakref__", "_share", "_shared", "_snapshots", "_value", "dtype", "lock", "name", "on_change")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self.dtype = dtype.base
        self.lock = threading.Lock()
        self._value: Array | None = None
        self._share: Share | None = None  # not None if the variable is published
        self._shared: SharedValue | None = None  # holds a shared value
        self._snapshots: tuple[weakref.ref[ChunkedSnapshot], ...] = ()  # chunked snapshots of the value
        self.on_change: Callable[[Array | None], None] | None = None

    def __enter__(self) -> None:
        """Take the lock, and the lock between processes."""
        self.lock.acquire()
        if self._shared is not None:
            try:
                self._shared.acquire()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *error: object) -> None:
        try:
            if self._shared is not None:
                self._shared.release()
        finally:
            self.lock.release()

    @property
    def is_initialized(self) -> bool:
        """Whether the variable has a value."""
        if self._value is not None:
            return True
        shared = self._shared
        if shared is not None:
            return shared.is_there
        with self.lock:  # the value may be changing in place
            return self._value is not None or self._shared is not None

    def read(self) -> Array:
        """A snapshot of the value. FailedPreconditionError before the first assignment."""
        value = self._value
        if value is None:
            shared = self._shared
            if shared is not None:
                value = shared.read()
                if value is not None:
                    return value
            with self:  # the value may be changing in place
                return self._there()
        return value

    def snapshot(self) -> VariableState:
        """A separate variable with the same name and value. FailedPreconditionError before the first assignment."""
        copy = VariableState(self.name, self.dtype)
        copy._value = self.read()
        return copy

    def read_in_chunks(self) -> Array | ChunkedSnapshot:
        """As `read`. A large value is a chunked snapshot, so that the variable can still be changed in place."""
        if self._shared is not None:
            return self.read()
        with self:
            return self._in_chunks()

    def _in_chunks(self) -> Array | ChunkedSnapshot:
        """As `read_in_chunks`. The lock is held."""
        value = self._there()
        if self._shared is not None or type(value) is not np.ndarray or value.nbytes < SMALLEST_BYTES:
            return value
        if not value.ndim or value.dtype.hasobject or not value.flags.c_contiguous:
            return value
        made = ChunkedSnapshot(value, self.lock, lambda: self._value)
        self._snapshots = (*[s for s in self._snapshots if s() is not None], weakref.ref(made))
        return made

    def _keep(self, rows: Array | None) -> None:
        """Let chunked snapshots copy these rows (None means all), because they will change. The lock is held."""
        value = self._there()
        for snapshot in [s() for s in self._snapshots]:
            if snapshot is not None:
                snapshot.keep(value, rows)

    def _leave(self) -> None:
        """Leave the value to its chunked snapshots, because the variable gets another value. The lock is held."""
        for snapshot in [s() for s in self._snapshots]:
            if snapshot is not None and self._value is not None:
                snapshot.leave(self._value)
        self._snapshots = ()

    def _there(self) -> Array:
        """The value. The lock is held."""
        if self._value is None:
            if self._shared is not None:
                value = self._shared.read()
                if value is None:
                    raise self._shared.gone()
                return value
            raise FailedPreconditionError.of(
                f"Attempting to use uninitialized value {self.name}: run its initializer (dt.global_variables_initializer()) first",
            )
        return self._value

    def assign(self, value: Any, dims: Dims = None) -> Array:
        """Store a value. `dims` is the static shape that it must fit. None means any shape."""
        array = np.asarray(value, self.dtype.np)
        if not compatible(array.shape, dims):
            raise invalid(
                f"Variable '{self.name}' has shape {text(dims)}; a value of shape {text(array.shape)} cannot be assigned to it"
            )
        is_own = array is not value and array.base is None  # otherwise it may be a view of a message or of a fed array
        if not is_own and self._share is None and self._shared is None:
            array, is_own = kept_copy(array), True
        with self:
            return self._store(array, is_own)

    def update(self, change: Callable[[Array], Any]) -> Array:
        """Store `change(old value)` atomically. `change` must not modify its argument."""
        with self:
            new = np.asarray(change(self._there()), self.dtype.np)
            self._store(new)
        return new

    @property
    def is_shared(self) -> bool:
        """As `Publishable.is_shared`."""
        return self._shared is not None

    def publish(self, share: Share | None) -> None:
        """As `Publishable.publish`."""
        with self.lock:
            self._take_back()
            self._leave()
            self._share = share
            value: Any = self._value
            if isinstance(value, np.ndarray) and self._shares(value):
                self._value = None  # the shared value replaces it

    def reach(self, shared: SharedValue) -> None:
        """From now on, represent a shared variable of another process."""
        self._shared = shared

    def _shares(self, value: Array) -> bool:
        """Share a value if the variable is published. Returns whether it is shared. The lock is held."""
        if self._share is not None:
            self._shared = self._share(value)
        return self._shared is not None

    def _take_back(self) -> None:
        """End the sharing. The lock is held."""
        shared = self._shared
        if shared is not None:
            self._value = shared.close()
            self._value.flags.writeable = False
            self._shared = None

    def move(self, value: Any) -> None:
        """Store a value that cannot be shared, such as one in a GPU's memory. The lock is held."""
        self._take_back()
        self._leave()
        self._value = value
        if self.on_change is not None:
            self.on_change(None)

    def _store(self, new: Array, is_own: bool = True) -> Array:
        """Store an array, or a copy of it unless `is_own`, because other code may change it. The lock is held."""
        if self.on_change is not None:
            self.on_change(None)
        if self._snapshots:
            self._leave()
        shared = self._shared
        if shared is not None:
            if shared.fits(new):
                np.copyto(shared.begin(copied=False), new)
                shared.end()
                return new
            self._take_back()
        if self._share is not None and self._shares(new):
            self._value = None
            return new
        if not is_own:
            new = kept_copy(new)
        new.flags.writeable = False
        self._value = new
        return new

    def _take(self, rows: Array | None = None) -> Array:
        """Take the value out, to overwrite these rows (None means any) before `_put_back`. The lock is held.

        Returns a copy if something else refers to the array or a part of it, here or in another process. Until `_put_back`, readers find
        no value and wait for the lock. So no reference to the array can appear after its reference count was read.
        """
        if self._shared is not None:
            return self._shared.begin()
        if self._snapshots:
            self._keep(rows)
        held = [self._there()]
        self._value = None
        if not _is_free(held):
            try:
                held.append(kept_copy(held[0]))
            except MemoryError:
                self._put_back(held[0])
                raise
        held[-1].flags.writeable = True
        return held.pop()

    def _put_back(self, value: Array, rows: Array | None = None) -> None:
        """Put the value back after `_take`. `rows` are the rows that may have changed. None means all."""
        if self.on_change is not None:
            self.on_change(rows)
        if self._shared is not None:
            self._shared.end()
        else:
            value.flags.writeable = False
            self._value = value


def _is_free(held: list[Array]) -> bool:
    """Whether only this list refers to its array, also among other processes, so that the array may be overwritten."""
    return getrefcount(held[0]) <= ONLY_ITEM and may_change(held[0]) and held[0].flags.c_contiguous


def update_together(states: Sequence[VariableState], change: Callable[..., Sequence[Any]]) -> None:
    """Store `change(*old values)`, a new value per state, atomically. `change` must not modify its arguments.

    Locks are always taken in the same order, so two updates cannot deadlock. If `change` fails, no value changes.
    """
    with _locked(states):
        new = change(*[s._there() for s in states])
        arrays = [np.asarray(value, s.dtype.np) for s, value in zip(states, new, strict=True)]
        for state, array in zip(states, arrays, strict=True):
            state._store(array)


def read_together(states: Sequence[VariableState]) -> list[Array]:
    """The values of variables at one moment. FailedPreconditionError if one is not initialized."""
    with _locked(states):
        return [s._there() for s in states]


def read_together_in_chunks(*states: VariableState) -> Any:
    """As `read_together`, with values as for `read_in_chunks`, as the result of a kernel."""
    with _locked(states):
        values = tuple([s._in_chunks() for s in states])
    return values[0] if len(values) == 1 else values


def changing(states: Sequence[VariableState], rows: Array | None = None) -> AbstractContextManager[list[Array]]:
    """A block that overwrites the values of different variables in place, atomically. The arrays are contiguous.

    Existing snapshots do not change: the variable gets a copy, and chunked snapshots copy the rows. An exception in the block does not
    undo writes, so check all conditions before the first write.

    Args:
        states: the variables.
        rows: the rows that the block changes, as indices into the first axis. None means any.

    >>> with changing([state]) as (value,):
    ...     value[rows] += 1
    """
    return _Changing(states, rows)


class _Changing(AbstractContextManager[list[Array]]):
    """`changing` as a class, because a generator-based context manager takes as long as a small update."""

    __slots__ = ("_locks", "_rows", "_states", "_values")

    def __init__(self, states: Sequence[VariableState], rows: Array | None = None) -> None:
        self._states = states
        self._rows = rows
        self._values: list[Array] = []
        self._locks = _locked(states)

    def __enter__(self) -> list[Array]:
        self._locks.__enter__()
        try:
            for state in self._states:
                self._values.append(state._take(self._rows))
        except BaseException:
            self.__exit__()
            raise
        return self._values

    def __exit__(self, *error: object) -> None:
        try:
            for state, value in zip(self._states, self._values, strict=False):
                state._put_back(value, self._rows)
        finally:
            self._locks.__exit__(None, None, None)


def _locked(states: Sequence[VariableState]) -> AbstractContextManager[Any]:
    """The locks of several variables: first those of this process, then those between processes."""
    if len(states) == 1:
        return states[0]
    return _Locks(sorted(set(states), key=lambda s: (s.name, id(s))))


class _Locks(AbstractContextManager[None]):
    """The locks of several variables, taken in the order of `states`. Those between processes are taken in the order of their keys."""

    __slots__ = ("_shared", "_states")

    def __init__(self, states: Sequence[VariableState]) -> None:
        self._states = states
        self._shared: list[SharedValue] = []

    def __enter__(self) -> None:
        for state in self._states:
            state.lock.acquire()
        self._shared = [s._shared for s in self._states if s._shared is not None]
        if self._shared:
            self._shared.sort(key=lambda o: o.key)
            try:
                for shared in self._shared:
                    shared.acquire()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *error: object) -> None:
        try:
            for shared in self._shared:
                shared.release()
        finally:
            for state in self._states:
                state.lock.release()
