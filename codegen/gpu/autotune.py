"""Autotuning: measures the candidates of a kernel once, and stores the fastest on disk.

Two events around a run time it. Before it, a buffer as large as the L2 cache is cleared, so that inputs come from memory, as in most steps.
It is cleared so often that this takes at least twice as long as the host took to queue the candidate's launches. So the timing covers
the GPU's work, as in a captured graph, even if Python launches slowly.

Candidates run round-robin, so that other load on the GPU affects all of them. The median of a candidate's runs counts. Candidates far
behind after the first round are dropped. Among equally fast ones the first (likely best) wins. Tuning takes about 0.25 s, or one round.
The result is stored under a hash of the candidates, the GPU model and the driver version, for other processes on such a machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

import numpy as np

from ...graph.core.errors import ResourceExhaustedError
from .. import artifact_cache
from .driver.api import Event, bindings, check
from .driver.array import DeviceArray
from .driver.device import Device
from .driver.launch import leaves_others

logger = logging.getLogger(__name__)

MOST_TURNS, FEWEST_TURNS = 9, 5
ENOUGH_MS = 250.0  # for all rounds of all candidates
LONG_MS = 50.0  # a candidate that takes so long runs once: differences between such are not noise
BEHIND = 4.0  # a candidate so many times slower than the fastest is dropped
EQUAL = 1.01  # times as long as the fastest
_PASSES_TIMED = 8
_SHORTEST_PASS_MS = 0.002  # for 50 MB: no GPU is faster
_MOST_PASSES = 200
_FORMAT = 3

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
    version = int(check(bindings().cuDriverGetVersion()))
    name = hashlib.sha256(repr((_FORMAT, device.name, version, len(candidates), key)).encode()).hexdigest()[:32]
    known = _chosen.get(name)
    if known is None:
        known = _read(name, len(candidates))
    if known is None:
        times = measure(device, candidates)
        known = next(i for i, t in enumerate(times) if t <= EQUAL * min(times))
        ms = [None if t == inf else round(t, 6) for t in times]
        about = {"best": known, "ms": ms, "key": key, "gpu": device.name, "driver": version}
        artifact_cache.put(artifact_cache.folder("tuned") / f"{name}.json", json.dumps(about).encode(), anew=True)
    _chosen[name] = known
    return known


def measure(device: Device, candidates: Sequence[Callable[[], None]]) -> list[float]:
    """Milliseconds of one run of each: the median of its turns. A candidate that cannot be launched takes infinitely long.

    Raises:
        Exception: the GPU has failed, or no candidate can be launched.
    """
    flush = _Flush(device)
    samples: list[list[float]] = []
    hosts: list[float] = []  # milliseconds that the host takes to queue a run of each
    failure: Exception | None = None
    for candidate in candidates:
        hosts.append(0.0)
        try:
            candidate()  # what loads and compiles does so now
            began = time.perf_counter()
            candidate()
            hosts[-1] = 1e3 * (time.perf_counter() - began)
            samples.append(_timed(device, flush, [(candidate, hosts[-1])]))
        except Exception as e:
            if not leaves_others(e):
                raise
            logger.warning("a candidate is left out: %s", e)
            failure = e
            samples.append([inf])
    best = min(s[0] for s in samples)
    if best == inf and failure is not None:
        raise failure
    rest = [i for i, (once,) in enumerate(samples) if once <= BEHIND * best and best < LONG_MS]
    if len(rest) > 1:
        turn_ms = sum(samples[i][0] for i in rest)
        for _ in range(max(FEWEST_TURNS, min(MOST_TURNS, int(ENOUGH_MS / max(turn_ms, 1e-3)))) - 1):
            for i, took in zip(rest, _timed(device, flush, [(candidates[i], hosts[i]) for i in rest]), strict=True):
                samples[i].append(took)
    return [statistics.median(s) for s in samples]


def _timed(device: Device, flush: _Flush, candidates: Sequence[tuple[Callable[[], None], float]]) -> list[float]:
    """Milliseconds of a run of each, one after the other. With each stands how long the host takes to queue it."""
    events: list[tuple[Event, Event]] = []
    for candidate, host_ms in candidates:
        flush.queue(2.0 * host_ms)
        begin, end = device.event(timing=True), device.event(timing=True)
        device.compute.record(begin)
        candidate()
        device.compute.record(end)
        events.append((begin, end))
    events[-1][1].synchronize()
    return [end.milliseconds_since(begin) for begin, end in events]


class _Flush:
    """Empties the L2 cache, and keeps the GPU busy. Does nothing where there is no room for a buffer."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.buffer: DeviceArray | None = None
        self.ms = 1.0  # of one pass
        with suppress(ResourceExhaustedError):
            self.buffer = device.empty((device.l2_bytes,), np.dtype(np.uint8), "measuring candidates")
            begin, end = device.event(timing=True), device.event(timing=True)
            device.compute.record(begin)
            for _ in range(_PASSES_TIMED):
                device.clear(self.buffer)
            device.compute.record(end)
            end.synchronize()
            self.ms = max(end.milliseconds_since(begin) / _PASSES_TIMED, _SHORTEST_PASS_MS)

    def queue(self, least_ms: float) -> None:
        """Queue one pass, or as many as take so long."""
        for _ in range(0 if self.buffer is None else min(1 + int(least_ms / self.ms), _MOST_PASSES)):
            assert self.buffer is not None
            self.device.clear(self.buffer)


def _read(name: str, count: int) -> int | None:
    try:
        best = json.loads((artifact_cache.folder("tuned") / f"{name}.json").read_bytes())["best"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return best if type(best) is int and 0 <= best < count else None
