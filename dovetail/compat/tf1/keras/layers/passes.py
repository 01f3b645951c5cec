"""Passes through a model: what they need beside their tensors.

A pass says whether it trains, and takes what the layers add to the loss and to their moving averages on the way. Passes belong to a
thread, as replicas do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .....graph.core.graph import Node, Tensor


@dataclass(slots=True)
class Pass:
    """One pass through a model.

    Attributes:
        training: whether layers behave as while training: a bool, or a scalar bool tensor.
        collects: whether somebody takes what follows; else layers do as if they were called alone.
        losses: what layers have added to the loss.
        moves: (variable, value, momentum): moving averages that are to move towards a value.
    """

    training: Any = False
    collects: bool = True
    losses: list[Tensor] = field(default_factory=list)
    moves: list[tuple[Any, Tensor, float]] = field(default_factory=list)


class _Passes(threading.local):
    def __init__(self) -> None:
        self.open: list[Pass] = []
        self.path: tuple[str, ...] = ()  # names of the layers that are being called, outermost first
        self.depth = 0  # how many layers are being called


passes = _Passes()


@contextmanager
def passing(training: Any, inside: bool = False) -> Iterator[Pass]:
    """A block whose layers are called for one pass; `inside`: a part of the pass that is going on, with another `training`."""
    outer = current_pass()
    if not inside:
        made = Pass(training)
    elif outer is None:
        made = Pass(training, collects=False)
    else:
        made = Pass(training, outer.collects, outer.losses, outer.moves)
    passes.open.append(made)
    try:
        yield passes.open[-1]
    finally:
        passes.open.pop()


def current_pass() -> Pass | None:
    """The pass that is going on in this thread."""
    return passes.open[-1] if passes.open else None


def move_averages(strategy: Any, moves: Sequence[tuple[Any, Tensor, float]]) -> list[Node]:
    """Nodes that let moving averages move, all replicas' values taken together. Called in a replica."""
    if not moves:
        return []
    from .....distribute.context import get_replica_context

    variables, momenta = [v for v, _, _ in moves], [m for _, _, m in moves]
    context = get_replica_context()
    if strategy is None or context is None:
        return [_moved(v, x, m) for v, x, m in moves]

    def merged(_: Any, values: list[Any]) -> list[Node]:
        means = strategy._mean_gradients(values, variables) if strategy.num_replicas_in_sync > 1 else values
        return [_moved(v, x, m) for v, x, m in zip(variables, means, momenta, strict=True)]

    found: list[Node] = context.merge_call(merged, ([x for _, x, _ in moves],))
    return found


def _moved(variable: Any, value: Any, momentum: float) -> Node:
    step = (variable.value() - value) * (1.0 - momentum)
    node: Node = variable.assign_sub(step, read_value=False)
    return node
