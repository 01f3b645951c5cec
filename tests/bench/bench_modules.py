"""The modules of bench/, for tests: their folder is on the path only while they load, and they are forgotten afterwards."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

BENCH = Path(__file__).resolve().parents[2] / "bench"


@contextlib.contextmanager
def loaded(name: str) -> Iterator[ModuleType]:
    """A module of bench/; those that it loads are forgotten with it."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCH))
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))
    yield module
    for other in set(sys.modules) - before:
        if Path(getattr(sys.modules[other], "__file__", None) or "/").parent == BENCH:
            del sys.modules[other]
