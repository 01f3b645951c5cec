"""How the copies of a variable are kept, where a distribution strategy makes several: words that variables and strategies share."""

from __future__ import annotations

import enum


class VariableSynchronization(enum.Enum):
    """When the copies of a variable are made equal."""

    AUTO = 0
    """As the strategy sees fit: on write."""
    NONE = 1
    """Never: there is one copy."""
    ON_WRITE = 2
    """With each change: all copies are equal at all times."""
    ON_READ = 3
    """Each replica changes its own copy; who reads the variable outside the replicas gets them aggregated."""


class VariableAggregation(enum.Enum):
    """What becomes of values that the replicas assign to a variable."""

    NONE = 0
    """It is an error that replicas assign to it."""
    SUM = 1
    """Their sum is assigned."""
    MEAN = 2
    """Their mean is assigned."""
    ONLY_FIRST_REPLICA = 3
    """The first replica's is assigned."""


__all__ = ["VariableAggregation", "VariableSynchronization"]
