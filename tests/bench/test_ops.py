"""The benchmark of single operations: each of its operations runs in Dovetail."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from bench_modules import loaded

import dovetail as dt


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with loaded("ops") as module:
        yield module


@pytest.mark.parametrize("family", ["elementwise", "reductions", "arranging", "products", "images"])
def test_every_operation_of_a_family_runs(bench: ModuleType, family: str) -> None:
    for name, (function, arrays) in bench.FAMILIES[family](dt).items():
        with dt.Graph().as_default(), dt.Session() as session:
            assert session.run(function(*map(dt.constant, arrays)).op) is None, name
