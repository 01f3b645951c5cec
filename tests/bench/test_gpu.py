"""bench/gpu.py without a GPU: what it says, and that its parts run, on a stand-in and small arrays."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from gpu_backends import RecordedDriver, gpus_for_tests
from gpu_programs import gpus_with_kernels

from dovetail.codegen.gpu.driver.api import gpu_count

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("gpu", "_gpu_parts", "_gpu_timing", "_gpu_numbers", "_gpu_links", "_gpu_models")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setenv("DOVETAIL_BACKEND", "numpy")  # a benchmark says so for its process; this one has other tests
    import _gpu_parts as parts
    import gpu

    import _gpu_timing as timing

    monkeypatch.setattr(parts, "ELEMENTS", {True: 1 << 10})
    monkeypatch.setattr(parts, "COLUMNS", 1 << 7)
    monkeypatch.setattr(parts, "PRODUCTS", {True: ((16, 16, 32),)})
    monkeypatch.setattr(parts, "ATTENTIONS", {True: ((1, 2, 16, 16),)})
    monkeypatch.setattr(parts, "CONVOLUTIONS", {True: ((1, 6, 16, 16, 3),)})
    monkeypatch.setattr(parts, "AT_ONCE", 1 << 14)
    monkeypatch.setattr(parts, "CHAIN", 4)
    for module in (parts, timing):
        monkeypatch.setattr(module, "seconds_of", lambda start, wait, **rest: (start(), wait(), 1e-3)[-1])
    monkeypatch.setattr(gpu, "apart", lambda part, quick, seconds: gpu.measured(part, quick))
    yield gpu
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def fake() -> Iterator[RecordedDriver]:
    with gpus_with_kernels() as made:
        yield made


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")
def test_says_what_it_needs_where_there_is_no_gpu() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "gpu.py")], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("bench/gpu.py measures NVIDIA GPUs, and this machine has none that Dovetail can use")


def test_runs_and_writes_json(bench, fake, tmp_path) -> None:
    file = tmp_path / "gpu.json"
    bench.main(["--quick", "--json", str(file), "--only", "memory", "--only", "products"])
    facts = json.loads(file.read_text())
    assert facts["errors"] == {} and facts["gpu"] == "Strict GPU"
    assert [r["name"].split(",")[0] for r in facts["rows"]] == [
        "copy of 0 MiB", "GELU chain", "sum of all", "sums of rows", "sums of columns", "softmax of rows",
        "layer norm of rows", "running sums of rows", "transpose",
        "rows looked up at random", "rows added at random", "bfloat16 product 16 x 16 x 32",
    ]  # fmt: skip
    assert all(x[0] == "launch" for x in fake.launches())
    assert len(fake.copies()) < 30  # what is measured stays on the GPU


def test_links_are_measured_or_left_out(bench, fake, monkeypatch, capsys) -> None:
    from fake_nccl import FakeNccl

    import _gpu_links as parts_of_links
    from dovetail.codegen.gpu.driver import nccl

    monkeypatch.setattr(parts_of_links, "MIB", {True: (2,)})
    monkeypatch.setattr(parts_of_links, "ROUNDS", 1)
    monkeypatch.setattr(parts_of_links, "in_another_process", parts_of_links.taken_from)
    fake.strict.open_own_handles()
    rows, errors = bench.measured("links", True)
    assert [r.name for r in rows] == ["2 MiB from another process's GPU memory"] and not errors
    assert "skipped, since 1 GPU" in capsys.readouterr().out
    with gpus_for_tests(2) as two:
        two.strict.be_patient(2)
        two.strict.open_own_handles()
        before = nccl.use(FakeNccl(two))
        try:
            rows, errors = bench.measured("links", True)
            assert [r.name for r in rows][1:] == ["all_reduce of 2 MiB by NCCL, 2 GPUs"] and not errors
        finally:
            for thread in [t for t in threading.enumerate() if t.name.startswith("nccl ")]:
                thread.join(60.0)
            nccl.use(before)


@pytest.mark.slow
def test_the_host_launches_and_captures(bench, fake, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["_gpu_parts"], "LAUNCHES", 2)
    rows, errors = bench.measured("launches", True)
    assert len(rows) == 5 and not errors
    assert [x for x in fake.launches() if x[0] == "graph launch"]


@pytest.mark.slow
def test_attention_and_convolutions_run(bench, fake) -> None:
    for part in ("attention", "convolution"):
        rows, errors = bench.measured(part, True)
        assert len(rows) == 2 and not errors


def test_the_parts_fit_the_time_of_the_whole(bench) -> None:
    """None takes another's time; wrong numbers make a speed worthless, so they come first."""
    assert next(iter(bench.PARTS)) == "numbers"
    assert sum(minutes for _, minutes in bench.PARTS.values()) <= bench.MINUTES <= 9


def test_cases_without_times_run_side_by_side(bench, fake, monkeypatch) -> None:
    """Each waits for the others: they are there at once."""
    parts, meet = sys.modules["_gpu_parts"], threading.Barrier(2)

    def case(name: str):
        meet.wait(60.0)
        yield parts.row(name, "difference", 0.0)

    monkeypatch.setattr(bench, "WORKERS", 2)
    monkeypatch.setitem(bench.PARTS, "numbers", (lambda quick: ((n, lambda n=n: case(n)) for n in "ab"), 1.0))
    rows, errors = bench.measured("numbers", True)
    assert sorted(r.name for r in rows) == ["a", "b"] and not errors


def test_a_case_that_fails_does_not_stop_the_others(bench, fake, monkeypatch, tmp_path, capsys) -> None:
    parts = sys.modules["_gpu_parts"]

    def broken():
        raise RuntimeError("no such kernel")
        yield

    def cases(quick: bool):
        yield "first", broken
        yield "second", lambda: iter([parts.row("second", "ms", 1.0)])
        raise RuntimeError("no such device")

    monkeypatch.setitem(bench.PARTS, "memory", (cases, 1.0))
    file = tmp_path / "gpu.json"
    bench.main(["--quick", "--json", str(file), "--only", "memory", "--only", "products"])
    facts = json.loads(file.read_text())
    assert facts["errors"] == {
        "memory: first": "RuntimeError: no such kernel",
        "memory": "RuntimeError: no such device",
    }
    product = "bfloat16 product 16 x 16 x 32"
    assert [r["name"] for r in facts["rows"]] == ["second", product]
    assert "failed: memory: first (RuntimeError: no such kernel)" in capsys.readouterr().err


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")
def test_a_process_that_ends_badly_is_told(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import gpu

    rows, errors = gpu.apart("launches", True, 60)  # there is no GPU, so it gives up
    assert rows == [] and errors == {"launches": "the process ended with 1"}
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "block"])
def test_models_train(bench, fake, monkeypatch, model) -> None:
    import _gpu_models

    monkeypatch.setattr(_gpu_models, "WIDTHS", (12, 16, 16, 10))
    monkeypatch.setattr(_gpu_models, "TOKENS", 16)
    monkeypatch.setattr(_gpu_models, "WIDTH", 16)
    monkeypatch.setattr(_gpu_models, "HEADS", 2)
    step, wait = _gpu_models.dovetail(model, 4)
    before = wait()
    step()  # brings constants there
    copies = len(fake.copies())
    for _ in range(2):
        step()
    assert fake.copies()[copies:] == []  # a step is the GPU's work alone
    assert wait() < before
