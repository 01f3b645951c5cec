"""What all tests share: hypothesis profiles, what Ctrl-C means to child processes, a cache of kernels, and a watchdog for waits."""

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings

# `ci` draws the same examples on every run and has no deadline, so a slow machine fails nothing.
# HYPOTHESIS_PROFILE=explore draws new and more ones, to look for what no run has seen yet.
settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A shell that starts the tests in the background makes them ignore SIGINT, and what is ignored is inherited by every child:
# tests that send one to a child would wait for ever. A handler of our own is not inherited, so children start with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Python writes the stacks of all threads when it ends by SIGABRT: the watchdog ends children that way.
os.environ["PYTHONFAULTHANDLER"] = "1"


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernels that a module's tests compile are kept in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


def pytest_collection_finish() -> None:
    """What there is when the tests begin stays: a test that collects garbage need not look through thousands of tests."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries that look for leaks when Python ends (nanobind) count what is frozen."""
    gc.unfreeze()


# --- the watchdog ----------------------------------------------------------------------------------------

WAIT_S = float(os.environ.get("DOVETAIL_TEST_WAIT_S", "60"))  # the longest wait of a test
_IDLE = 0.05  # a test waits if it and its children use less than this part of one core
_TICKS = os.sysconf("SC_CLK_TCK")


def _descendants(of: int) -> dict[int, float]:
    """Process id -> seconds of CPU time, with its ended children, of a process and all below it."""
    parents, used = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = sum(map(int, fields[11:15])) / _TICKS
    found = {of: used.get(of, 0.0)}
    for pid in sorted(parents):  # a child's number is mostly larger; the loop below takes the others
        if parents[pid] in found:
            found[pid] = used[pid]
    while more := {pid: used[pid] for pid in parents if parents[pid] in found and pid not in found}:
        found.update(more)
    return found


class _Watchdog(threading.Thread):
    """Fails a test that waits for more than `WAIT_S`: neither its process nor a child of it computes.

    A limit on the whole time of a test cannot do this: on a busy machine a test that computes takes minutes. The stacks of all
    threads of the test's process and of its children (which end by that) are written to the test's standard error.
    """

    def __init__(self) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._samples: deque[tuple[float, float]] = deque()  # (time, CPU seconds until then) of this test
        signal.signal(signal.SIGUSR2, self._fail)

    def begin(self) -> None:
        """A test begins, or has ended: what was seen until now does not count."""
        self._samples.clear()

    def run(self) -> None:
        while True:
            time.sleep(WAIT_S / 20)
            now, used = time.monotonic(), sum(_descendants(os.getpid()).values())
            samples = self._samples
            samples.append((now, used))
            with contextlib.suppress(IndexError):  # a test began meanwhile
                while now - samples[1][0] >= WAIT_S:
                    samples.popleft()
                since, before = samples[0]
                if now - since >= WAIT_S and used - before < _IDLE * (now - since):
                    samples.clear()
                    os.kill(os.getpid(), signal.SIGUSR2)

    @staticmethod
    def _fail(_number: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        for pid in _descendants(os.getpid()).keys() - {os.getpid()}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGABRT)
        pytest.fail(
            f"the test waited for {WAIT_S:g} s: neither its process nor a child of it computed; all stacks are on standard error"
        )


_watchdog: _Watchdog | None = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    global _watchdog
    if _watchdog is None and sys.platform == "linux":
        _watchdog = _Watchdog()
        _watchdog.start()
    if _watchdog is not None:
        _watchdog.begin()
    return (yield)
