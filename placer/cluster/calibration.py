"""A machine's profile: what kernels, launches and messages take on it, as `dovetail calibrate` measured it.

One file per kind of machine (processor, cores, release of Dovetail) lies in the cache folder. Plans for tasks of this machine use it
unless `DOVETAIL_PROFILE` says otherwise. The profile is part of the plan's cluster, so a saved plan keeps it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...graph.core.errors import InvalidArgumentError
from ...graph.core.interpreter_state import own_cores
from ...graph.core.settings import cache_folder, setting
from ...graph.formats.atomic_files import write_bytes_durably

logger = logging.getLogger(__name__)

VERSION = 7
"""That of what is measured: kinds of kernels (`cost/launches.py`) and overheads."""
KEY = "dovetail calibration"
"""The name of its version in JSON."""
OVERHEADS = (
    "launch", "region", "call", "variable", "step", "fed byte", "remote step", "remote fed byte", "task", "transfer", "message", "wake",
    "shared byte", "tcp byte", "read", "update",
)  # fmt: skip
"""Names of `Calibration.overheads`: seconds of a kernel in a native region, of such a region, of a call from Python, of a variable that a
step reads, of a step in the client's process and one elsewhere, of each byte fed to either, of each task beyond the first, of a transfer
between two tasks that do nothing else, of a message for a task that computes, of waking one that waits, of a byte in shared memory and
over TCP, of a one-sided read and update."""


class Point(NamedTuple):
    """One measurement of a kind of kernel: how much work, the seconds that it took, and the cores that it kept busy meanwhile."""

    work: float
    seconds: float
    cores: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured on a machine.

    Attributes:
        machine: its processor. cores: that a process may use. date: when it was measured, ISO 8601. release: of Dovetail.
        kernels: kind of kernel -> points by ascending work: bytes or operations, as `placer/cost/launches.py` counts them for the kind.
        overheads: seconds, by the names of `OVERHEADS`.
        shared: cores that the tasks of a machine keep busy together, when each has work for one; from 1 to all.
    """

    machine: str
    cores: int
    date: str
    release: str
    kernels: Mapping[str, tuple[Point, ...]]
    overheads: Mapping[str, float]
    shared: float

    def at(self, kind: str, work: float) -> tuple[float, float]:
        """Seconds and busy cores of so much work, interpolated between the points on logarithmic axes; beyond them at their rates."""
        points = self.kernels[kind]
        first, last = points[0], points[-1]
        if work <= first.work:
            return first.seconds * max(work, 0.0) / first.work, first.cores
        if work >= last.work:
            return last.seconds * work / last.work, last.cores
        x, y, z = np.log([(p.work, p.seconds, max(p.cores, 1.0)) for p in points]).T
        at = math.log(work)
        return float(np.exp(np.interp(at, x, y))), float(np.exp(np.interp(at, x, z)))

    def to_text(self) -> str:
        """The profile as JSON, for `from_text`."""
        return json.dumps(self.to_fields(), indent=1)

    def to_fields(self) -> dict[str, Any]:
        """The same as JSON's values, for `from_fields`."""
        return {KEY: VERSION, **asdict(self)}

    @staticmethod
    def from_text(text: str | bytes, source: str = "the machine's profile") -> Calibration:
        """What `to_text` gave; `source`: where an error says that it came from.

        Raises:
            InvalidArgumentError: it is no such profile, or one of another version.
        """
        try:
            return Calibration.from_fields(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise InvalidArgumentError.of(f"{source}: {e}; measure anew with `dovetail calibrate`") from None

    @staticmethod
    def from_fields(data: Any) -> Calibration:
        """The same from parsed JSON. ValueError, TypeError, KeyError, AttributeError: it is no profile."""
        if data.get(KEY) != VERSION:
            raise ValueError(f"it is no machine's profile of version {VERSION}")
        kernels = {
            str(kind): tuple(Point(*map(_positive, p)) for p in found) for kind, found in data["kernels"].items()
        }
        overheads = {str(name): _positive(s) for name, s in data["overheads"].items()}
        if set(overheads) != set(OVERHEADS) or not all(kernels.values()) or "stream" not in kernels:
            raise ValueError("it lacks kernels or overheads")
        if any(a.work >= b.work for found in kernels.values() for a, b in zip(found, found[1:], strict=False)):
            raise ValueError("the points of a kernel are not in order")
        machine, date, release = (str(data[key]) for key in ("machine", "date", "release"))
        cores, shared = int(_positive(data["cores"])), _positive(data["shared"])
        if not 1 <= shared <= cores:
            raise ValueError(f"tasks cannot keep {shared:g} of {cores} cores busy")
        return Calibration(machine, cores, date, release, kernels, overheads, shared)

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write it, by default to where plans of this machine look for it. The file appears whole or not at all."""
        path = own_path() if path is None else Path(path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes_durably(path, (self.to_text() + "\n").encode())
        return path

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Calibration:
        """Read what `save` wrote. InvalidArgumentError: the file is damaged, or no profile. OSError: it cannot be read."""
        return Calibration.from_text(Path(path).read_bytes(), str(path))

    def __str__(self) -> str:
        return f"{self.machine}, {self.cores} cores, measured {self.date[:10]}"


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no time, rate or size")
    return float(value)


@cache
def processor() -> str:
    """The name of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def release() -> str:
    """The release of Dovetail; empty in a checkout that is not installed."""
    from importlib import metadata  # it loads the standard library's mail package

    try:
        return metadata.version("dovetail")
    except metadata.PackageNotFoundError:
        return ""


def own_path() -> Path:
    """Where this machine's profile is kept, if it was measured."""
    key = hashlib.sha256(f"{processor()}|{own_cores()}|{release()}|{VERSION}".encode()).hexdigest()[:16]
    return cache_folder() / "machines" / f"{key}.json"


def own() -> Calibration | None:
    """This machine's profile, as `DOVETAIL_PROFILE` says; None: it was not measured, or is not to be used.

    A damaged file in the cache folder is left out, with a warning.

    Raises:
        InvalidArgumentError: the file that the setting names is damaged. OSError: it cannot be read.
    """
    named = str(setting("DOVETAIL_PROFILE"))
    if named == "none":
        return None
    path = Path(named) if named else own_path()
    try:
        at = path.stat()
    except FileNotFoundError:
        if named:
            raise
        return None
    return _loaded(path, at.st_mtime_ns, at.st_size, bool(named))


@cache
def _loaded(path: Path, _changed: int, _size: int, strict: bool) -> Calibration | None:
    try:
        return Calibration.load(path)
    except InvalidArgumentError as e:
        if strict:
            raise
        logger.warning("plans do not use this machine's profile: %s", e.message)
        return None
