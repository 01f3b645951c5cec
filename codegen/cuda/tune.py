"""Which of several candidates is fastest here: measured once, remembered on disk.

A candidate runs a few times between two events. Each gets its turn in several rounds, and the fastest round counts: anything else
that the GPU does makes a round slower. The result is kept in the cache folder, under a hash of what was compared and of the
kind of GPU, so other processes need not measure; a machine with another GPU does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from .. import disk_cache
from .device import Device

ROUNDS = 3
RUNS = 5  # in a round, at least
LONG_MS = 2.0  # a round need not be longer than this
_FORMAT = 1

_chosen: dict[str, int] = {}


def fastest(device: Device, key: str, candidates: Sequence[Callable[[], None]]) -> int:
    """The position of the candidate that takes the least time; the device is entered.

    Args:
        device: where they run.
        key: what is compared: equal keys get the same answer.
        candidates: functions that queue one run each on the device's compute stream. They run several times.
    """
    if len(candidates) == 1:
        return 0
    name = hashlib.sha256(repr((_FORMAT, device.name, len(candidates), key)).encode()).hexdigest()[:32]
    known = _chosen.get(name)
    if known is None:
        known = _read(name, len(candidates))
    if known is None:
        times = measure(device, candidates)
        known = min(range(len(times)), key=times.__getitem__)
        disk_cache.put(
            disk_cache.folder("tuned") / f"{name}.json",
            json.dumps({"best": known, "ms": [round(t, 6) for t in times], "key": key, "gpu": device.name}).encode(),
            anew=True,
        )
    _chosen[name] = known
    return known


def measure(device: Device, candidates: Sequence[Callable[[], None]]) -> list[float]:
    """Milliseconds of one run of each, the fastest of a few rounds."""
    best = [float("inf")] * len(candidates)
    runs = [RUNS] * len(candidates)
    for i, candidate in enumerate(candidates):
        candidate()  # what loads and compiles does so now
        device.compute.synchronize()
        once = _timed(device, candidate, 1)
        runs[i] = max(1, min(RUNS, int(LONG_MS / max(once, 1e-3))))
    for _ in range(ROUNDS):
        for i, candidate in enumerate(candidates):
            best[i] = min(best[i], _timed(device, candidate, runs[i]))
    return best


def _timed(device: Device, candidate: Callable[[], None], runs: int) -> float:
    begin, end = device.event(timing=True), device.event(timing=True)
    device.compute.record(begin)
    for _ in range(runs):
        candidate()
    device.compute.record(end)
    end.synchronize()
    return end.milliseconds_since(begin) / runs


def _read(name: str, count: int) -> int | None:
    try:
        best = json.loads((disk_cache.folder("tuned") / f"{name}.json").read_bytes())["best"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return best if type(best) is int and 0 <= best < count else None
