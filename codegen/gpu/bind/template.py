"""What the binding of a node to a template gives: a `Template`, which makes a `Choice` for the shapes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..ir import Routine


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be launched for inputs of certain shapes.

    Attributes:
        candidates: routines that all do the work.
        sizes: what a launch calls them.
        outputs: shape and type of each.
        results: how many of these are the node's; the others are by-products. 0: all.
    """

    candidates: Sequence[Routine]
    sizes: Mapping[str, int]
    outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
    results: int = 0


Choose: TypeAlias = "Callable[[Sequence[tuple[int, ...]], Sequence[Any]], Choice | None]"


@dataclass(slots=True)
class Template:
    """How one node runs.

    Attributes:
        inputs: how many of the node's inputs are loaded; of the others only the values on the host are used.
        choose: (shapes of the loaded inputs, values of the others, as tuples) -> what to launch; None: nothing, the fallback runs.
        order: the node's inputs in the order that the others follow: first those that are loaded. None: their own.
    """

    inputs: int
    choose: Choose
    order: tuple[int, ...] | None = None
