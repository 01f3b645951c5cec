"""Where the program stands: in a strategy's scope, in one of its replicas, or outside all of them.

Two contexts. *Cross-replica*: inside `strategy.scope()`, and in what `merge_call` runs; a value may be one per replica.
*Replica*: inside the function that `strategy.run` runs, once per replica. Outside every scope the default strategy holds:
one replica, and the program is in it.

The open contexts belong to a thread. A thread that runs a replica starts with the contexts of whoever called `run`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .replica import ReplicaContext
    from .strategy import Strategy


class _Contexts(threading.local):
    def __init__(self) -> None:
        self.stack: tuple[tuple[Strategy, ReplicaContext | None], ...] = ()


_contexts = _Contexts()


def contexts() -> tuple[Any, ...]:
    """The open contexts of this thread, innermost last: (strategy, replica context or None)."""
    return _contexts.stack


def set_contexts(stack: tuple[Any, ...]) -> None:
    """Make these the open contexts of this thread."""
    _contexts.stack = stack


class entered:  # noqa: N801  (used as `with entered(...)`)
    """A block in which `strategy` is current: in a replica's context, or across replicas (None)."""

    def __init__(self, strategy: Strategy, replica: ReplicaContext | None) -> None:
        self._pair = strategy, replica
        self._outer: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._outer = _contexts.stack
        _contexts.stack = (*self._outer, self._pair)

    def __exit__(self, *exc: object) -> None:
        _contexts.stack = self._outer


class outside_strategies:  # noqa: N801  (used as `with outside_strategies()`)
    """A block outside all strategies, in whatever scope the program stands: for a graph that has nothing to do with it."""

    def __enter__(self) -> None:
        self._outer = _contexts.stack
        _contexts.stack = ()

    def __exit__(self, *exc: object) -> None:
        _contexts.stack = self._outer


def _default() -> Strategy:
    from .strategy import default_strategy

    return default_strategy()


def has_strategy() -> bool:
    """Whether a strategy other than the default one is current.

    >>> with MirroredStrategy().scope():
    ...     assert has_strategy()
    """
    return bool(_contexts.stack) and _contexts.stack[-1][0] is not _default()


def get_strategy() -> Strategy:
    """The current strategy; outside every scope, the default one: one replica."""
    return _contexts.stack[-1][0] if _contexts.stack else _default()


def get_replica_context() -> ReplicaContext | None:
    """The replica that is being built; None across replicas. Outside every scope: the default strategy's only one."""
    if _contexts.stack:
        found: ReplicaContext | None = _contexts.stack[-1][1]
        return found
    return _default()._only_replica


def in_cross_replica_context() -> bool:
    """Whether the program is inside a strategy's scope, but in none of its replicas."""
    return get_replica_context() is None


def require_replica_context() -> ReplicaContext:
    """The replica that is being built; RuntimeError across replicas."""
    context = get_replica_context()
    if context is None:
        raise RuntimeError(
            "Method requires being in a replica context: call it in the function that `strategy.run` runs"
        )
    return context


__all__ = ["get_replica_context", "get_strategy", "has_strategy", "in_cross_replica_context"]
