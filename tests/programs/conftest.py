"""Programs as users write them: what these tests share.

Every test here stands for one kind of program and is written as its user would write it, with processes
where the program has processes. Two promises are kept for all of them: nothing waits without a limit, and no
process that a test started is alive after it.
"""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plan_checks
import pytest
from plan_checks import checked

import dovetail as tf
from dovetail.runtime.session.prepared_steps import PreparedSteps

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_S = 240  # for one test, on a busy machine; the watchdog ends tests that wait without computing sooner
MARK = "DOVETAIL_TEST_RUN"  # in the environment of every process that a test starts, and so of theirs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The hook sees the tests of all folders; those of this one get a short limit."""
    here = {path for path in {item.path for item in items} if Path(__file__).parent in path.parents}
    for item in items:
        if item.path in here and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


# --- no orphans ------------------------------------------------------------------------------------------


class Watch:
    """Sees the processes that tests start, and those that these start, by a mark in their environment."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}\0".encode()

    def alive(self) -> dict[int, str]:
        """Process id -> command; a process that has ended has no environment any more."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to somebody else
                if self._mark in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def wait_for_end(self, before: dict[int, str], timeout_s: float = 3) -> dict[int, str]:
        """Wait until no processes are alive but those of `before`. Those that remain after the limit."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = {pid: command for pid, command in self.alive().items() if pid not in before}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.02)

    def check(self, before: dict[int, str], timeout_s: float = 3) -> None:
        """Fail if processes other than those of `before` do not end; end them then."""
        left = self.wait_for_end(before, timeout_s)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if left:
            pytest.fail(f"processes outlived their test: {left}")


@pytest.fixture(scope="session")
def watch() -> Iterator[Watch]:
    """Mark all processes that start from here on, and watch them."""
    os.environ[MARK] = mark = secrets.token_hex(8)
    yield Watch(mark)
    del os.environ[MARK]


@pytest.fixture(scope="module", autouse=True)
def module_leaves_nothing(watch: Watch) -> Iterator[None]:
    """Clusters that a module's tests share end with the module."""
    before = watch.alive()
    yield
    watch.check(before)


@pytest.fixture(autouse=True)
def test_leaves_nothing(watch: Watch, module_leaves_nothing: None) -> Iterator[None]:
    """What a test starts itself ends with the test."""
    before = watch.alive()
    yield
    watch.check(before)


# --- plans -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def plans_are_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans of all steps are checked, here and in the processes that `start` starts."""
    monkeypatch.setattr(PreparedSteps, "run", checked(PreparedSteps.run))


# --- graphs and processes -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    """Each test builds in a default graph of its own."""
    with tf.Graph().as_default() as fresh:
        yield fresh


@pytest.fixture
def addresses() -> Iterator[Callable[[int], list[str]]]:
    """`addresses(n)`: n addresses on this machine with ports that nobody else gets until the test is over."""
    with contextlib.ExitStack() as held:

        def reserve(count: int) -> list[str]:
            ports = []
            for _ in range(count):
                s = held.enter_context(socket.socket())
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may bind it while it does not listen
                s.bind(("127.0.0.1", 0))
                ports.append(s.getsockname()[1])
            return [f"localhost:{port}" for port in ports]

        yield reserve


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start("script.py", argument, ...)`: run one of `scripts/` in a process that ends with the test."""
    processes: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, plan_checks.__file__, str(SCRIPTS / script), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()  # closes its pipes


@pytest.fixture
def where_it_runs() -> Callable[..., str]:
    """`where_it_runs(session, fetch, feed_dict)`: the device that a failing node names in its error.

    The values fed must make just one node fail. So the test sees where it ran, not only where it was placed.
    """

    def device(session: tf.Session, fetch: object, feed_dict: dict[object, object] | None = None) -> str:
        with pytest.raises(tf.errors.OpError) as caught:
            session.run(fetch, feed_dict)
        named = re.search(r"\bon (/job:\S+/device:\w+:\d+)", str(caught.value))
        assert named, f"the error names no device: {caught.value}"
        return named[1]

    return device


@dataclass(frozen=True, repr=False)
class Digits:
    """scikit-learn's handwritten digits: 64 grey values from 0 to 1, classes 0 to 9; a fifth is held out."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


@pytest.fixture(scope="session")
def digits() -> Digits:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int64)
    held_out = len(y) // 5
    return Digits(x[held_out:], y[held_out:], x[:held_out], y[:held_out])
