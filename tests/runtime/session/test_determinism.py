"""The same bits in every run: kernels that are compiled before they run, wherever a program, or its replicas, need that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as dt

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def never_swaps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of this process stay with NumPy for as long as they may, however long a busy machine takes."""
    for name in ("COMPILE_AFTER_S", "LOAD_AFTER_S"):
        monkeypatch.setattr(f"dovetail.codegen.cpu.jit.{name}", 3600.0)
    yield


def build() -> tuple[Any, Any]:
    """What the compiled kernel, NumPy's calls, and a sum in another order round differently: a result, and what is fed."""
    x = dt.placeholder(dt.float32, [None, 500])
    return dt.reduce_sum(dt.tanh(x * 2.0) + dt.exp(x) * 0.1, axis=1), x


FED = np.random.RandomState(0).uniform(-2, 2, (64, 500)).astype(np.float32)


def ran(target: str = "", warm: bool = False) -> bytes:
    """The bits of the result of a first step."""
    with dt.Graph().as_default(), dt.Session(target, config=dt.ConfigProto(kernel_backend="auto")) as session:
        y, x = build()
        if warm:
            session.warmup(y, [x])
        return bytes(session.run(y, {x: FED}).tobytes())


@pytest.mark.usefixtures("never_swaps")
def test_a_cold_run_has_the_bits_of_a_warm_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ran(warm=True)
    assert ran() != compiled  # what the switch is for
    monkeypatch.setenv("DOVETAIL_DETERMINISTIC", "0")  # so that it is taken back afterwards
    dt.config.enable_op_determinism()
    assert ran() == compiled


@pytest.mark.slow
def test_tasks_follow_the_program_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ran(warm=True)
    with dt.LocalCluster({"worker": 1}) as cluster:
        target = cluster.target("worker", 0)
        assert ran(target) != compiled
        monkeypatch.setenv("DOVETAIL_DETERMINISTIC", "1")
        assert ran(target) == compiled


@pytest.mark.usefixtures("never_swaps")
def test_mirrored_replicas_need_not_ask() -> None:
    compiled = ran(warm=True)
    strategy = dt.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with dt.Graph().as_default(), strategy.scope():
        dt.get_variable("v", [])
        results, x = [], dt.placeholder(dt.float32, [None, 500])
        for device in ("/cpu:0", "/cpu:1"):
            with dt.device(device):
                results.append(dt.reduce_sum(dt.tanh(x * 2.0) + dt.exp(x) * 0.1, axis=1))
        config = dt.ConfigProto(kernel_backend="auto", device_count={"CPU": 2})
        with dt.Session(config=config) as session:
            assert [r.tobytes() for r in session.run(results, {x: FED})] == [compiled, compiled]


def test_random_ops_need_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_DETERMINISTIC", "1")
    with dt.Graph().as_default():
        with pytest.raises(RuntimeError, match="require a seed"):
            dt.random_normal([2])
        dt.random_normal([2], seed=1)
        dt.set_random_seed(1)
        dt.random_normal([2])
