"""Candidates that a driver refuses are left out: a step runs by another one, or on the host."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gpu_backends import RecordedDriver, gpus_for_tests

import dovetail as dt
from dovetail.codegen.gpu import autotune
from dovetail.codegen.gpu.ir import TritonKernel
from dovetail.codegen.gpu.toolchain import compile

pytest.importorskip("triton")

INVALID_VALUE, NO_BINARY, ILLEGAL_ADDRESS = 1, 209, 700


@pytest.fixture(params=["0", "1"], ids=["likely", "tuned"])
def fake(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[RecordedDriver]:
    with gpus_for_tests(1) as made:
        monkeypatch.setenv("DOVETAIL_AUTOTUNE", request.param)
        monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(autotune, "_chosen", {})
        monkeypatch.setattr(compile, "compile_kernel", made.compile_kernel)
        yield made


def product(steps: int = 3) -> list[np.ndarray[Any, Any]]:
    """A product of two matrices on the GPU, at each of some steps; the right result."""
    a, b = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float32)
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x, y = dt.placeholder(dt.float32, [32, 32]), dt.placeholder(dt.float32, [32, 32])
        z = dt.matmul(x, y)
    with dt.Session(graph=graph) as session:
        made = [session.run(z, {x: a, y: b}) for _ in range(steps)]
    for got in made:
        np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)
    return made


def first_of(refused: list[TritonKernel], kernel: TritonKernel) -> bool:
    """Whether a kernel is the first one that is asked for."""
    if kernel.name == "matmul" and not refused:
        refused.append(kernel)
    return kernel in refused


Refusal = Callable[[RecordedDriver, Callable[[TritonKernel], bool]], None]


def too_much_shared_memory(fake: RecordedDriver, which: Callable[[TritonKernel], bool]) -> None:
    fake.shared = lambda kernel: 278_552 if which(kernel) else 0


def not_loaded(fake: RecordedDriver, which: Callable[[TritonKernel], bool]) -> None:
    fake.refuses = lambda function, kernel: NO_BINARY if function == "cuModuleLoadData" and which(kernel) else 0


def not_launched(fake: RecordedDriver, which: Callable[[TritonKernel], bool]) -> None:
    fake.refuses = lambda function, kernel: INVALID_VALUE if function == "cuLaunchKernel" and which(kernel) else 0


@pytest.mark.parametrize("refusal", [too_much_shared_memory, not_loaded, not_launched])
def test_a_refused_candidate_is_left_out(
    fake: RecordedDriver, refusal: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[TritonKernel] = []
    refusal(fake, lambda kernel: first_of(refused, kernel))
    with caplog.at_level(logging.WARNING, "dovetail.codegen.gpu"):
        product()
    assert refused and "a candidate is left out" in caplog.text
    assert any(kind == "launch" for kind, *_ in fake.launches()), "another one runs on the GPU"


@pytest.mark.parametrize("refusal", [too_much_shared_memory, not_loaded, not_launched])
def test_without_any_candidate_the_step_runs_on_the_host(fake: RecordedDriver, refusal: Refusal) -> None:
    refusal(fake, lambda kernel: True)
    product()
    assert not fake.ran


def test_a_gpu_that_has_failed_is_no_reason_to_try_another_candidate(fake: RecordedDriver) -> None:
    asked = []
    fake.refuses = lambda function, kernel: (
        (asked.append(kernel), ILLEGAL_ADDRESS)[1] if function == "cuLaunchKernel" else 0
    )
    with pytest.raises(dt.errors.InternalError, match="cannot use the GPU any more"):
        product()
    assert len(asked) == 1
