"""`Options` of data sets. Only `experimental_deterministic` has an effect; the other options are stored."""

from __future__ import annotations

from typing import Any


class _Group:
    """Options that are set as attributes. An option that is not set is None."""

    def __init__(self) -> None:
        self.__dict__.update(self._defaults())

    def _defaults(self) -> dict[str, Any]:
        return {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._set() == _of(other)

    __hash__ = None  # type: ignore[assignment]

    def _set(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if v is not None}

    def merge(self, options: Any) -> Any:
        """Returns these options, overridden by those that are set in `options`."""
        found = type(self)()
        for given in (self._set(), _of(options)):
            for key, value in given.items():
                mine = found.__dict__.get(key)
                found.__dict__[key] = mine.merge(value) if isinstance(mine, _Group) else value
        return found


def _of(options: Any) -> dict[str, Any]:
    return options._set() if isinstance(options, _Group) else {}


class OptimizationOptions(_Group):
    """`Options.experimental_optimization`."""


class ThreadingOptions(_Group):
    """`Options.experimental_threading`."""


class StatsOptions(_Group):
    """`Options.experimental_stats`."""


class DistributeOptions(_Group):
    """`Options.experimental_distribute`."""


class Options(_Group):
    """Options of a data set, for `Dataset.with_options`; all are None by default.

    >>> options = Options()
    >>> options.experimental_deterministic = False
    >>> dataset = dataset.with_options(options)
    """

    def _defaults(self) -> dict[str, Any]:
        return {
            "experimental_optimization": OptimizationOptions(),
            "experimental_threading": ThreadingOptions(),
            "experimental_stats": StatsOptions(),
            "experimental_distribute": DistributeOptions(),
        }
