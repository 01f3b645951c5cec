"""What workers tell while they train: small values, a JSON line each when they come from another process."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """A worker has trained for a while. Loss and rate (steps per second) are means over that while."""

    worker: int
    steps: int
    global_step: int
    loss: float
    rate: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker has stopped training, because enough steps were made."""

    worker: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed."""

    worker: int
    message: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The parameters of this moment were tried on the digits that are never trained on."""

    accuracy: float
    predictions: Any  # int64, one per test digit


@dataclass(frozen=True, slots=True)
class Said:
    """A line of a process's output that is no report: a warning, part of a traceback."""

    task: str
    line: str


Report: TypeAlias = Progress | Finished | Failed | Evaluated | Said

_TRAVELLING: dict[str, type[Progress] | type[Finished] | type[Failed]] = {
    cls.__name__: cls for cls in (Progress, Finished, Failed)
}


def to_line(report: Progress | Finished | Failed) -> str:
    """A report as a line of JSON."""
    return json.dumps({"report": type(report).__name__, **dataclasses.asdict(report)})


def from_line(line: str, task: str) -> Report:
    """The report in a line that `task` wrote; `Said` when it is another line."""
    try:
        fields = json.loads(line)
        return _TRAVELLING[fields.pop("report")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Said(task, line)
