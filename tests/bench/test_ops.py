"""The benchmark of single operations: each of its operations runs in Dovetail."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import dovetail as dt

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """bench/ops.py; its folder is on the path only while it loads."""
    sys.path.insert(0, str(BENCH))
    try:
        import ops
    finally:
        sys.path.remove(str(BENCH))
    yield ops
    for name in ("ops", "_harness", "_processes"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("family", ["elementwise", "reductions", "arranging", "products"])
def test_every_operation_of_a_family_runs(bench: ModuleType, family: str) -> None:
    for name, (function, arrays) in bench.FAMILIES[family](dt).items():
        with dt.Graph().as_default(), dt.Session() as session:
            assert session.run(function(*map(dt.constant, arrays)).op) is None, name
