"""How a session's kernels are made: who decides, what a warm-up does, whose name an error has."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.cpu import jit
from dovetail.codegen.cpu.kernels.fused import CpuFusedKernel
from dovetail.codegen.ir.program import Call
from dovetail.codegen.options import KernelOptions
from dovetail.runtime.session.local_backend import LocalBackend

pytestmark = pytest.mark.usefixtures("own_cache")

ROOT = Path(__file__).resolve().parents[3]


def fused_kernels(session: dt.Session) -> list[CpuFusedKernel]:
    """The fused kernels of all programs of an in-process session."""
    target = session._backend
    assert isinstance(target, LocalBackend)
    calls = [i for p in target._worker._registered.values() for program in p.programs for i in program.instructions]
    return [i.kernel for i in calls if isinstance(i, Call) and isinstance(i.kernel, CpuFusedKernel)]


def chain(x: Any) -> Any:
    return dt.tanh(x * 2.0) + 1.0


def test_the_first_step_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # However long a busy machine takes.
    monkeypatch.setattr("dovetail.codegen.cpu.jit.COMPILE_AFTER_S", 3600.0)
    monkeypatch.setattr("dovetail.codegen.cpu.jit.LOAD_AFTER_S", 3600.0)
    with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(kernel_backend="auto")) as session:
        x = dt.placeholder(dt.float32, [None, 5000])
        y = chain(x)
        session.run(y, {x: np.zeros((1, 5000))})
        (kernel,) = fused_kernels(session)
        assert kernel.function is None


def test_a_warm_up_compiles_everything_and_runs_nothing() -> None:
    with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(kernel_backend="auto")) as session:
        x = dt.placeholder(dt.float32, [None, 5000])
        y = chain(x)
        session.warmup(y, [x])
        (kernel,) = fused_kernels(session)
        assert kernel.function is not None
        value = np.linspace(-3, 3, 10_000, dtype=np.float32).reshape(2, 5000)
        np.testing.assert_allclose(session.run(y, {x: value}), np.tanh(value * 2) + 1, rtol=1e-6, atol=1e-6)
        assert fused_kernels(session) == [kernel]


def test_numpy_fuses_nothing() -> None:
    with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(kernel_backend="numpy")) as session:
        x = dt.placeholder(dt.float32, [None, 5000])
        session.warmup(chain(x), [x])
        assert not fused_kernels(session)


def test_the_environment_decides_where_the_config_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_BACKEND", "numba")
    monkeypatch.setenv("DOVETAIL_CHECK", "2")
    assert dt.ConfigProto().kernel_options() == KernelOptions("numba", check=2)
    config = dt.ConfigProto(kernel_backend="numpy").settled()
    monkeypatch.setenv("DOVETAIL_CHECK", "0")
    assert config.kernel_options() == KernelOptions("numpy", check=2)


def test_a_backend_that_does_not_exist() -> None:
    with pytest.raises(dt.errors.InvalidArgumentError, match="auto, numba, numpy, not 'cuda'"):
        dt.Session(graph=dt.Graph(), config=dt.ConfigProto(kernel_backend="cuda"))


def test_options_survive_a_message_and_bad_ones_are_refused() -> None:
    options = KernelOptions("auto", True, 2, 3)
    assert KernelOptions.from_fields(options.to_fields()) == options
    for bad in (None, {}, {**options.to_fields(), "threads": True}, {**options.to_fields(), "backend": "x"}):
        with pytest.raises((TypeError, ValueError)):
            KernelOptions.from_fields(bad)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_an_error_inside_a_kernel_names_its_node(backend: str) -> None:
    with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(kernel_backend=backend)) as session:
        x, y = dt.placeholder(dt.float32, [None, 4]), dt.placeholder(dt.float32, [None, 4])
        z = dt.tanh(dt.add(dt.exp(x), y, name="these_differ") * 2.0)
        with pytest.raises(
            dt.errors.InvalidArgumentError, match="node 'these_differ' .AddV2., created at .*test_kernels.py"
        ) as e:
            session.run(z, {x: np.zeros((2, 4)), y: np.zeros((3, 4))})
        assert e.value.op.name == "these_differ"


def test_a_variable_that_is_not_there_is_named_in_a_kernels_program() -> None:
    with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
        v = dt.Variable(np.zeros(4, np.float32), name="v")
        y = dt.tanh(v * 2.0) + 1.0
        with pytest.raises(dt.errors.FailedPreconditionError, match="uninitialized value v"):
            session.run(y)


def test_reads_and_writes_keep_their_order() -> None:
    with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
        v = dt.Variable(np.full(3, 2.0, np.float32))
        before = v.read_value() * 3.0
        with dt.control_dependencies([before]):
            update = dt.assign_add(v, np.ones(3, np.float32))
        with dt.control_dependencies([update]):
            after = v.read_value() * 3.0
        session.run(dt.global_variables_initializer())
        for i in range(3):
            first, second = session.run([before + 1.0, after + 1.0])
            np.testing.assert_array_equal(first, np.full(3, (2 + i) * 3 + 1))
            np.testing.assert_array_equal(second, np.full(3, (3 + i) * 3 + 1))


def test_loops_and_branches_run_fused() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [6])
        n, out = dt.while_loop(
            lambda i, a: i < 5, lambda i, a: (i + 1, dt.tanh(a * 0.5) + a * a * 0.1), [dt.constant(0), x]
        )
        chosen = dt.cond(dt.reduce_sum(x) > 0, lambda: dt.exp(out) * 2.0 + x, lambda: dt.sigmoid(out) - x)
        results = []
        for backend in ("numpy", "numba"):
            with dt.Session(config=dt.ConfigProto(kernel_backend=backend)) as session:
                for sign in (1, -1):
                    results.append(session.run([n, out, chosen], {x: sign * np.arange(6) / 6}))
    for mine, theirs in zip(results[2:], results[:2], strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_cluster_is_told_by_the_session() -> None:
    with dt.Graph().as_default(), dt.LocalCluster({"worker": 2}) as cluster:
        x = dt.placeholder(dt.float32, [None, 64])
        with dt.device("/job:worker/task:1"):
            y = chain(x)
        with dt.Session(
            cluster.target("worker"), config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)
        ) as session:
            session.warmup(y, {x: None})
            value = np.linspace(-2, 2, 640, dtype=np.float32).reshape(10, 64)
            np.testing.assert_allclose(session.run(y, {x: value}), np.tanh(value * 2) + 1, rtol=1e-6, atol=1e-6)
    made = list(jit.folder().rglob("k*.py"))
    assert any("tanh" in path.read_text(encoding="utf-8") for path in made)


def test_numba_is_not_imported_before_it_compiles() -> None:
    program = """
import sys
import numpy as np
import dovetail as dt
x = dt.placeholder(dt.float32, [None, 5000])
with dt.Session() as session:
    session.run(dt.tanh(x * 2.0) + 1.0, {x: np.zeros((2, 5000))})
assert not {"numba", "llvmlite"} & set(sys.modules), "numba was imported"
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})


def test_a_step_lets_its_arrays_go_when_it_ends() -> None:
    import gc
    import weakref

    with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(kernel_backend="numpy")) as session:
        x = dt.placeholder(dt.float32, [None])
        y = x + 1.0
        session.run(y, {x: np.ones(3)})
        gc.disable()
        try:
            result = weakref.ref(session.run(y, {x: np.ones(3)}))
            assert result() is None
        finally:
            gc.enable()
