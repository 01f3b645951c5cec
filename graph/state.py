"""State that outlives a step, and how the kernel of a stateful op reaches it.

The reference of a stateful op is called as `reference(context, *inputs, **attrs)`. The `Context` belongs to one node in one
session: it names the node, gives out resources (variables, queues) by container and name, and counts how often the node has
run, which is what a counter-based random generator needs. The reference evaluator and the runtime's workers both use it, so
an op's definition says once what the op does to state.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from .collectives import Collectives
from .dtypes import DType
from .errors import FailedPreconditionError, InvalidArgumentError
from .memory import kept_copy, may_change
from .requests import Desk
from .shape import Dims, compatible, text

Array = np.ndarray[Any, Any]
R = TypeVar("R")


class _Dead:
    """The type of `DEAD`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<dead>"


DEAD: Any = _Dead()
"""Stands where a tensor has no value, because the branch that it is in was not taken."""


def frozen(value: Array) -> Array:
    """The value as an array that nobody will change: itself when that is sure, else a copy."""
    value = np.asarray(value)
    if value.flags.writeable or value.base is not None:  # a fed array, or a view of a message
        value = value.copy()
        value.flags.writeable = False
    return value


class VariableState:
    """Where a variable's value lives.

    A read is a snapshot that costs nothing: what it gave out is never changed. So an update stores a new array, or changes the
    old one where nobody but the variable holds it (`changing`). Either is atomic: while one is at work readers wait.
    """

    __slots__ = ("_value", "dtype", "lock", "name")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self.dtype = dtype.base
        self.lock = threading.Lock()
        self._value: Array | None = None

    @property
    def is_initialized(self) -> bool:
        """Whether it has a value yet."""
        if self._value is not None:
            return True
        with self.lock:  # it may be changing in place
            return self._value is not None

    def read(self) -> Array:
        """A snapshot of the value. FailedPreconditionError before the first assignment."""
        value = self._value
        if value is None:
            with self.lock:  # it may be changing in place
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
        if array is value or array.base is not None:
            array = kept_copy(array)  # what came in may be a view of a message or of a fed array
        array.flags.writeable = False
        with self.lock:
            self._value = array
        return array

    def update(self, change: Callable[[Array], Any]) -> Array:
        """Store `change(old value)`, atomically; `change` must not modify its argument."""
        with self.lock:
            new = np.asarray(change(self._there()), self.dtype.np)
            new.flags.writeable = False
            self._value = new
        return new

    def _take(self) -> Array:
        """The value, for a holder of the lock to overwrite and to put back: a copy, where somebody holds it or a part of it,
        here or in another process.

        Readers find no value in the meantime and wait for the lock. So nobody can get hold of the array after it was found to be
        held by nobody: only the list here, and the call that asks for the number of references, do.
        """
        held = [self._there()]
        self._value = None
        if sys.getrefcount(held[0]) > 2 or not may_change(held[0]) or not held[0].flags.c_contiguous:
            try:
                held.append(kept_copy(held[0]))
            except MemoryError:
                self._value = held[0]
                raise
        held[-1].flags.writeable = True
        return held.pop()


def update_together(states: Sequence[VariableState], change: Callable[..., Sequence[Any]]) -> None:
    """Store `change(*old values)`, one new value per state, atomically; `change` must not modify its arguments.

    Locks are taken in one order for everybody, so two updates can't wait for each other. Nothing changes when `change` fails.
    """
    with _locked(states):
        new = change(*[s._there() for s in states])
        arrays = [np.asarray(value, s.dtype.np) for s, value in zip(states, new, strict=True)]
        for state, array in zip(states, arrays, strict=True):
            array.flags.writeable = False
            state._value = array


@contextmanager
def changing(states: Sequence[VariableState]) -> Iterator[list[Array]]:
    """The values of different variables, all contiguous, to be overwritten in place, atomically.

    Who holds an old value keeps it: then the variable gets a copy, and it is that which is overwritten. Check everything before
    the first element is written, because what was written stays when an exception leaves the block.

    >>> with changing([state]) as (value,):
    ...     value[rows] += 1
    """
    with _locked(states):
        values: list[Array] = []
        try:
            for state in states:
                values.append(state._take())
            yield values
        finally:
            for state, value in zip(states, values, strict=False):
                value.flags.writeable = False
                state._value = value


def _locked(states: Sequence[VariableState]) -> AbstractContextManager[Any]:
    """All of their locks."""
    if len(states) == 1:
        return states[0].lock
    held = ExitStack()
    for state in sorted(set(states), key=lambda s: (s.name, id(s))):
        held.enter_context(state.lock)
    return held


class Resources:
    """All state of one task (or of one isolated session): container -> name -> resource.

    Attributes:
        collectives: where the task's collective ops meet those of others.
    """

    def __init__(self, collectives: Collectives | None = None) -> None:
        self.collectives = Collectives() if collectives is None else collectives
        self._containers: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def get_or_create(self, container: str, name: str, kind: type[R], make: Callable[[], R]) -> R:
        """The resource of that name, made if there is none.

        Raises:
            InvalidArgumentError: the name is taken by a resource of another kind.
        """
        with self._lock:
            found = self._containers.setdefault(container, {})
            if name not in found:
                found[name] = make()
            resource = found[name]
        if not isinstance(resource, kind):
            raise InvalidArgumentError(
                None, None, f"'{name}' in container '{container}' is a {type(resource).__name__}, not a {kind.__name__}"
            )
        return resource

    def find(self, container: str, name: str) -> Any:
        """The resource of that name, or None."""
        return self._containers.get(container, {}).get(name)

    def clear(self, container: str) -> bool:
        """Drop a container with all that is in it; whether it existed."""
        with self._lock:
            lost = self._containers.pop(container, None)
        for resource in (lost or {}).values():
            if isinstance(resource, Desk):
                resource.drop()
        return lost is not None

    def __iter__(self) -> Iterator[tuple[str, str, Any]]:
        with self._lock:
            return iter([(c, n, r) for c, found in self._containers.items() for n, r in found.items()])


class SessionState:
    """What a session keeps between steps on one task: how often each node has run, and the seed of unseeded random ops."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        self._runs: dict[str, itertools.count[int]] = {}

    def count(self, node_name: str) -> int:
        """0 at the node's first run in this session, then 1, 2, ...: atomic, because both calls are single C operations."""
        return next(self._runs.setdefault(node_name, itertools.count()))


@dataclass(frozen=True, slots=True)
class Context:
    """What the kernel of a stateful op sees besides its inputs.

    Attributes:
        node_name: the node's name, for errors and as the default name of its state.
        container: where its state lives ('' is resolved to the task's default before).
        resources: the state of the task.
        session: what the session keeps between steps.
        output_dims: the node's static output shapes.
    """

    node_name: str
    container: str
    resources: Resources
    session: SessionState
    output_dims: tuple[Dims, ...] = ()

    def run_number(self) -> int:
        """How often this node has run in this session before now."""
        return self.session.count(self.node_name)
