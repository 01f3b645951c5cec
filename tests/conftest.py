"""What all tests share: hypothesis profiles, what Ctrl-C means to child processes, a cache of kernels, and a watchdog for waits."""

import contextlib
import faulthandler
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
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
_LOOKS = 20  # within WAIT_S
_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(path: Path) -> list[str]:
    """The fields of a process or thread behind its name: state, parent, ..."""
    return path.read_text().rpartition(")")[2].split()


def _family() -> dict[int, float]:
    """Process id -> seconds of CPU time, with its ended children, of this process and all below it."""
    parents, used = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            fields = _stat(folder / "stat")
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = sum(map(int, fields[11:15])) / _TICKS
    found = {os.getpid(): used.get(os.getpid(), 0.0)}
    while more := {pid: used[pid] for pid in parents if parents[pid] in found and pid not in found}:
        found.update(more)
    return found


def _is_runnable(pids: Iterable[int]) -> bool:
    """Whether a thread of these processes, other than the one that asks, runs or waits for a core or a disk."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(thread.name) != threading.get_native_id() and _stat(thread / "stat")[0] in "RD":
                    return True
    return False


class _Watchdog(threading.Thread):
    """Fails a test that waits for more than `WAIT_S`: neither its process nor a child of it computes, or waits for a core.

    A limit on the whole time of a test cannot do this: on a busy machine a test that computes takes minutes. The stacks of all
    threads of the test's process and of its children (which end by that) are written to the test's standard error.
    """

    def __init__(self) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._looks: deque[tuple[float, float, bool]] = (
            deque()
        )  # (time, CPU seconds until then, runnable) of this phase
        self._is_on = False
        signal.signal(signal.SIGUSR2, self._fail)

    def watch(self, is_on: bool) -> None:
        """A phase of a test begins, or has ended: what was seen until now does not count."""
        self._is_on = is_on
        self._looks.clear()

    def run(self) -> None:
        while True:
            time.sleep(WAIT_S / _LOOKS)
            family = _family()
            looks = self._looks
            looks.append((time.monotonic(), sum(family.values()), _is_runnable(family)))
            with contextlib.suppress(IndexError, RuntimeError):  # a phase began meanwhile
                while looks[-1][0] - looks[1][0] >= WAIT_S:
                    looks.popleft()
                seconds, used = looks[-1][0] - looks[0][0], looks[-1][1] - looks[0][1]
                is_starved = sum(runnable for _, _, runnable in looks) > len(looks) // 4
                if self._is_on and seconds >= WAIT_S and used < _IDLE * seconds and not is_starved:
                    looks.clear()
                    os.kill(os.getpid(), signal.SIGUSR2)

    def _fail(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_on:
            return
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        for pid in _family().keys() - {os.getpid()}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGABRT)
        pytest.fail(f"the test waited for {WAIT_S:g} s: no process of it computed; all stacks are on standard error")


@functools.cache
def _watchdog() -> _Watchdog:
    made = _Watchdog()
    made.start()
    return made


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    _watchdog().watch(True)
    try:
        yield
    finally:
        _watchdog().watch(False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    with _watched():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with _watched():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    with _watched():
        return (yield)
