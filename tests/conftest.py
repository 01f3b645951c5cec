"""What all tests share: hypothesis profiles, what Ctrl-C means to child processes, a cache of kernels, and a watchdog for waits."""

import contextlib
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
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

# What was measured on the machine that runs the tests must not change what plans say.
os.environ["DOVETAIL_PROFILE"] = "none"
os.environ.setdefault("DOVETAIL_VERIFY_PASSES", "1")  # in processes that tests start, too

# Tests start a thousand Python processes. Each compiles 400 modules anew where the shell forbids to keep bytecode: 1 s instead of 0.4 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Python writes the stacks of all threads when it ends by SIGABRT: the watchdog ends children that way.
os.environ["PYTHONFAULTHANDLER"] = "1"


@pytest.fixture(scope="session")
def kernels_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is empty when the tests begin. All processes that run tests share it: a product of matrices takes 6 s to compile."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"


@pytest.fixture(scope="module")
def own_cache(kernels_of_this_run: Path) -> Iterator[None]:
    """A module's tests find no kernels that were compiled before this run, and leave none to others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOVETAIL_CACHE_DIR", str(kernels_of_this_run))
        yield


def pytest_configure() -> None:
    """On a machine with a GPU, the strict driver is loaded before the real one, whose place it takes."""
    if os.environ.get("DOVETAIL_TEST_GPU", "0") == "0" and Path("/proc/driver/nvidia/version").exists():
        import strict_driver  # here: few machines need it

        strict_driver.missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fast tests run first. On a real GPU, foreign libraries are loaded whose warnings are not ours."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    if os.environ.get("DOVETAIL_TEST_GPU", "0") != "0":
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.filterwarnings(r"error:::dovetail\..*"))


def pytest_collection_finish() -> None:
    _freeze()


_frozen_for: Path | None = None  # the file whose tests run


def _freeze() -> None:
    """Take what there is out of garbage collection: thousands of tests, and libraries that were imported since.

    A test that collects garbage, as each one of GPUs does, took 1 s for them.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries that look for leaks when Python ends (nanobind) count what is frozen."""
    gc.unfreeze()


# --- the watchdog ----------------------------------------------------------------------------------------

WAIT_S = float(os.environ.get("DOVETAIL_TEST_WAIT_S", "60"))  # the longest wait of a test
_phase_began: float | None = None  # when a test's set-up, call or tear-down did; None: between them


def pytest_sessionstart() -> None:
    """A process of its own looks on (`watchdog.py`): it opens files and takes time, which tests of both would see."""
    if sys.platform == "linux":
        signal.signal(signal.SIGUSR2, _on_wait)
        script = Path(__file__).with_name("watchdog.py")
        subprocess.run([sys.executable, "-I", str(script), str(os.getpid()), str(WAIT_S)], check=True)


def _on_wait(_number: int, _frame: FrameType | None) -> None:
    """The process has waited for `WAIT_S`. If a test does so, it fails with the stacks of all threads, its children's too."""
    if _phase_began is None or time.monotonic() - _phase_began < WAIT_S:
        return
    faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    for pid in _children():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGABRT)
    pytest.fail(f"the test waited for {WAIT_S:g} s: no process of it computed; all stacks are on standard error")


def _children() -> list[int]:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(pid) for file in tasks for pid in file.read_text().split()]


@contextlib.contextmanager
def _phase() -> Iterator[None]:
    global _phase_began
    _phase_began = time.monotonic()
    try:
        yield
    finally:
        _phase_began = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    global _frozen_for
    if item.path != _frozen_for:
        _frozen_for = item.path
        _freeze()
    with _phase():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with _phase():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    with _phase():
        yield
    _check_compiled_kernels()


# --- kernels for GPUs ------------------------------------------------------------------------------------

_checked: set[str] = set()


def _check_compiled_kernels() -> None:
    """No kernel that a test has compiled asks for more shared memory than its target has: a driver would refuse it."""
    compiler = sys.modules.get("dovetail.codegen.gpu.toolchain.compile")
    made = getattr(compiler, "_binaries", {})
    for key in made.keys() - _checked:
        _checked.add(key)
        b = made[key]
        most = b.target.block_shared_bytes
        if b.shared_bytes > most:
            pytest.fail(
                f"{b.entry} for {b.target} asks for {b.shared_bytes} bytes of shared memory; a block has {most}"
            )
