"""The CPU benchmark runs what it names, and would notice if two systems did not compute the same."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("numba")

BENCH = Path(__file__).resolve().parents[2] / "bench"
MODULES = ("_convolutions", "_harness", "_kernels", "_models", "_processes", "cpu")


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """bench/cpu.py and what it uses; their folder is on the path only while they load."""
    sys.path.insert(0, str(BENCH))
    try:
        import cpu

        import _kernels
        import _models
    finally:
        sys.path.remove(str(BENCH))
    yield SimpleNamespace(kernels=_kernels, models=_models, cpu=cpu)
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def systems(bench: Any) -> Iterator[tuple[Any, Any]]:
    with bench.kernels.System("dovetail") as compiled, bench.kernels.System("dovetail-numpy") as plain:
        assert not compiled.missing
        assert not plain.missing
        yield compiled, plain


def test_the_rows_that_are_promised_are_there(bench: Any) -> None:
    promised = {"gelu", "softmax", "mlp", "block", "lenet", "lstm-forward", "lstm", "unrolled", "tiny"}
    assert set(bench.cpu.WORKLOADS) == promised
    assert set(bench.models.MODELS) <= set(bench.cpu.WORKLOADS)
    targets = {name: targets for name, (_, targets) in bench.cpu.WORKLOADS.items()}
    assert targets["gelu"] == {"numpy": 0.2, "jax": 1.0, "torch": 1.0}
    assert targets["lenet"] == {"jax": 1.5, "torch": 1.5}
    assert targets["lstm"] == targets["lstm-forward"] == {"tensorflow": 1.0}
    for name in ("mlp", "block", "unrolled"):
        assert targets[name]["jax"] == targets[name]["torch"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["conv-first-forward", "conv-small-image", "conv-small-filter"])
def test_convolutions_are_what_numpy_makes(systems: tuple[Any, Any], workload: str) -> None:
    compiled, plain = systems
    assert compiled.run(workload) == pytest.approx(plain.run(workload), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["tiny", "mlp", "block", "lenet", "lstm", "unrolled"])
def test_kernels_compute_what_numpy_does(systems: tuple[Any, Any], workload: str) -> None:
    """Three calls: where parameters are trained, their changes show in the second loss."""
    compiled, plain = systems
    for _ in range(3):
        assert compiled.run(workload) == pytest.approx(plain.run(workload), rel=1e-3)
    assert compiled.seconds > 0


@pytest.mark.slow
def test_one_quick_row(bench: Any, systems: tuple[Any, Any]) -> None:
    compiled, plain = systems
    row = bench.cpu.compared("tiny", "60 operations", compiled, plain, 1.05, 1)
    assert (row.name, row.unit, row.target) == ("60 operations", "ms", "ratio <= 1.05")
    assert row.dovetail > 0
    assert row.peer > 0


def test_systems_that_disagree_end_the_benchmark(bench: Any) -> None:
    class Fake:
        title, seconds = "another", 0.0

        def __init__(self, value: float) -> None:
            self.value = value

        def run(self, workload: str, calls: int = 1) -> float:
            return self.value

    with pytest.raises(SystemExit, match="do not agree: 1.0 and 2.0"):
        bench.cpu.compared("gelu", "chain", Fake(1.0), Fake(2.0), 1.0, 1)


def test_a_system_that_is_not_installed_says_so(bench: Any, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexec {sys.executable} -S -c "print(\'{{\\"missing\\": \\"No module named jax\\"}}\')"\n'
    )
    python.chmod(0o755)
    with bench.kernels.System("jax", str(python)) as system:
        assert system.missing == "No module named jax"
