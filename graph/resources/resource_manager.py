"""The resource manager: state that persists between steps, and its interface for the kernels of stateful ops.

The reference of a stateful op is called as `reference(context, *inputs, **attrs)`. The `Context` belongs to one node in one
session. It has the node's name and its resources (variables, queues) by container and name. It counts the runs of the node for
counter-based random generators. The reference evaluator and the runtime's workers both use it, so an op's definition
specifies its effect on state once.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..core.dtypes import Array, DType
from ..core.errors import invalid
from ..core.shape import Dims
from .async_request import AsyncResource
from .collective_context import CollectiveContext, SingleMember
from .shared_storage import Publishable, Share
from .variable import VariableState

R = TypeVar("R")


class _Dead:
    """The type of `DEAD`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<dead>"


DEAD: Any = _Dead()
"""The value of a dead tensor, whose branch was not taken."""


def frozen(value: Array) -> Array:
    """The value as an array that never changes. A copy, unless the array is read-only and owns its memory."""
    value = np.asarray(value)
    if value.flags.writeable or value.base is not None:  # a fed array, or a view of a message
        value = value.copy()
        value.flags.writeable = False
    return value


class Resources:
    """All state of a task or of an isolated session: container -> name -> resource.

    Attributes:
        collectives: runs the task's collective ops with those of other tasks.
        default_container: the container of nodes that do not set one.
        version: how often a container was cleared.
        data_folders: folders whose files may be read by data sets of other processes. None means all.
        functions: compiled functions that use the state, by function.
        steps_started: number of steps that the task has started. Steps of isolated sessions count in the task's state.
        inner: executors of functions and pipelines of data sets. `cancel(resources)` of each is called when the task ends.
    """

    def __init__(self, collectives: CollectiveContext | None = None, default_container: str = "") -> None:
        self.default_container = default_container
        self.collectives: CollectiveContext = SingleMember() if collectives is None else collectives
        self._containers: dict[str, dict[str, Any]] = {}
        self.data_folders: tuple[str, ...] | None = ()
        self.functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.inner: weakref.WeakSet[Any] = weakref.WeakSet()
        self.version = self.steps_started = 0
        self._published: dict[tuple[str, str], Share] = {}  # also for resources that are not made yet
        self._on_change: Callable[[str, str, Array | None], None] | None = None
        self._lock = threading.Lock()

    def get_or_create(self, container: str, name: str, kind: type[R], make: Callable[[], R]) -> R:
        """Find or make a resource.

        Raises:
            InvalidArgumentError: the name belongs to a resource of another kind.
        """
        resource = self.find(container, name)
        if resource is None:  # otherwise no lock is needed
            with self._lock:
                found = self._containers.setdefault(container, {})
                resource = found.get(name)
                if resource is None:
                    resource = make()
                    self._watch(container, name, resource)
                    if isinstance(resource, Publishable) and (container, name) in self._published:
                        resource.publish(self._published[container, name])
                    found[name] = resource
        if not isinstance(resource, kind):
            raise invalid(f"'{name}' in container '{container}' is a {type(resource).__name__}, not a {kind.__name__}")
        return resource

    def variable(self, container: str, name: str, dtype: DType) -> VariableState:
        """Find or make a variable.

        Raises:
            InvalidArgumentError: the variable has another type, or the name belongs to another kind of resource.
        """
        state = self.get_or_create(container, name, VariableState, lambda: VariableState(name, dtype))
        if state.dtype is not dtype:
            raise invalid(
                f"Trying to access variable '{name}' as {dtype.name}, but another graph made it as {state.dtype.name}: use another "
                "name, another container, or the same type"
            )
        return state

    def find(self, container: str, name: str) -> Any:
        """The resource of a name, or None."""
        return self._containers.get(container, {}).get(name)

    def clear(self, container: str) -> bool:
        """Delete a container with all its resources. Returns whether it existed."""
        with self._lock:
            lost = self._containers.pop(container, None)
            self.version += 1
            for resource in (lost or {}).values():
                if isinstance(resource, Publishable):
                    resource.publish(None)
        for resource in (lost or {}).values():
            if isinstance(resource, AsyncResource):
                resource.drop()
        return lost is not None

    def publish(self, container: str, name: str, share: Share | None) -> None:
        """Publish the resource of a name as soon as it exists. Stop publishing it if `share` is None."""
        with self._lock:
            if share is None:
                self._published.pop((container, name), None)
            else:
                self._published[container, name] = share
            resource = self.find(container, name)
            if isinstance(resource, Publishable):
                resource.publish(share)

    def watch(self, on_change: Callable[[str, str, Array | None], None]) -> None:
        """Call `on_change(container, name, rows)` when a variable changes. `rows` are those of `VariableState.on_change`."""
        with self._lock:
            self._on_change = on_change
            for container, found in self._containers.items():
                for name, resource in found.items():
                    self._watch(container, name, resource)

    def _watch(self, container: str, name: str, resource: object) -> None:
        if self._on_change is not None and isinstance(resource, VariableState):
            resource.on_change = partial(self._on_change, container, name)

    def __iter__(self) -> Iterator[tuple[str, str, Any]]:
        with self._lock:
            return iter([(c, n, r) for c, found in self._containers.items() for n, r in found.items()])


class SessionState:
    """A session's state on a task that persists between steps: the runs of each node, and the seed of unseeded random ops."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        self._runs: dict[str, itertools.count[int]] = {}

    def count(self, node_name: str) -> int:
        """The number of earlier runs of a node in this session. Atomic, because both calls are single C operations."""
        return next(self._runs.setdefault(node_name, itertools.count()))


@dataclass(frozen=True, slots=True)
class Context:
    """The first argument of a stateful op's kernel.

    Attributes:
        node_name: the node's name, for errors and as the default name of its state.
        container: the container of its state. The default container has its name, not ''.
        resources: the state of the task.
        session: the session's state between steps.
        output_dims: the node's static output shapes.
    """

    node_name: str
    container: str
    resources: Resources
    session: SessionState
    output_dims: tuple[Dims, ...] = ()

    def run_number(self) -> int:
        """The number of earlier runs of this node in this session."""
        return self.session.count(self.node_name)
