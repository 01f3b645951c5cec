"""Products by cuBLASLt, on stand-ins for the library and the driver: numbers, measuring, and what happens where it is missing."""

import gc
import inspect

import numpy as np
import pytest
from fake_cublaslt import FakeCublasLt
from fake_driver import fake_gpus

import dovetail as dt
from dovetail.codegen import triton_compile
from dovetail.codegen.cuda import cublaslt, tune
from dovetail.codegen.cuda.cublaslt import library_products
from dovetail.codegen.cuda.device import device
from dovetail.graph.dtypes import as_dtype, float32


@pytest.fixture
def fake():
    with fake_gpus(1) as made:
        yield made


@pytest.fixture
def library(fake):
    made = FakeCublasLt(fake)
    before = cublaslt.use(made)
    yield made
    cublaslt.use(before)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batch", [1, 3])
def test_numbers(library, dtype, transposed, batch):
    rng, kind = np.random.default_rng(0), as_dtype(dtype)
    m, n, k = 5, 7, 6
    a, b = (rng.standard_normal((batch, *s)).astype(kind.np) for s in ((m, k), (k, n)))
    stored = [np.swapaxes(x, 1, 2) if flip else x for x, flip in zip((a, b), transposed, strict=True)]
    gpu = device(0)
    (product,) = library_products(gpu, kind, (m, n, k, batch), transposed)
    given = [gpu.from_host(np.ascontiguousarray(x)) for x in stored]
    out = gpu.empty((batch, m, n), kind.np, "out")
    with gpu.entered():
        product([*(x.pointer for x in given), out.pointer])
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(
        gpu.to_host(out).astype(np.float64), wanted, atol={2: 5e-2, 4: 1e-5, 8: 1e-13}[kind.size]
    )
    assert library.products == [(n, m, k)]


def test_nothing_is_left_when_a_product_goes(library):
    products = library_products(device(0), float32, (4, 4, 4, 1), (False, False))
    assert sorted(x.kind for x in library.alive.values()) == ["handle", "layout", "layout", "layout", "operation"]
    del products
    gc.collect()
    assert [x.kind for x in library.alive.values()] == ["handle"]


def test_a_product_that_it_has_no_algorithm_for_is_left_to_others(library):
    library.algorithms = 0
    assert library_products(device(0), float32, (4, 4, 4, 1), (False, False)) == []


def test_where_the_library_is_missing_there_is_no_candidate(fake, monkeypatch):
    before = cublaslt.use(None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    try:
        assert library_products(device(0), float32, (4, 4, 4, 1), (False, False)) == []
    finally:
        cublaslt.use(before)


def test_where_it_cannot_start_the_log_says_why(library, monkeypatch, caplog):
    def create():
        raise RuntimeError("libcublasLt.so is missing")

    monkeypatch.setattr(library, "create", create)
    with caplog.at_level("INFO"):
        assert library_products(device(0), float32, (4, 4, 4, 1), (False, False)) == []
    assert "cuBLASLt is not used on <GPU:0 Fake GPU>: libcublasLt.so is missing" in caplog.text


@pytest.mark.parametrize("wins", [True, False])
def test_it_competes_with_the_template_and_wins_where_it_is_faster(fake, library, monkeypatch, tmp_path, wins):
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton_compile, "compile_kernel", fake.compile_kernel)
    monkeypatch.setattr(tune, "_chosen", {})
    monkeypatch.setattr(
        tune, "measure", lambda device, candidates: [1.0] * (len(candidates) - 1) + [0.5 if wins else 2.0]
    )
    x, w = np.ones((5, 8), np.float32), np.arange(32, dtype=np.float32).reshape(8, 4)
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        fed = dt.placeholder(dt.float32, [None, 8])
        y = dt.matmul(fed, dt.constant(w))
    with dt.Session(graph=graph) as session:
        np.testing.assert_allclose(session.run(y, {fed: x}), x @ w)
    assert bool(library.products) == wins
    assert bool([x for x in fake.launches() if x[1] == "matmul"]) != wins


def test_the_stand_in_has_the_bindings_functions_with_their_arguments():
    real = pytest.importorskip("nvmath.bindings.cublasLt")
    checked = 0
    for name, function in inspect.getmembers(FakeCublasLt, inspect.isfunction):
        if name.startswith("_"):
            continue
        said = getattr(real, name).__doc__.splitlines()[0]  # matmul_preference_destroy(intptr_t pref)
        theirs = [a.split()[-1] for a in said[said.index("(") + 1 : said.index(")")].split(",") if a]
        assert list(inspect.signature(function).parameters)[1:] == theirs, name
        checked += 1
    assert checked == 12
    assert real.matmul_heuristic_result_dtype == FakeCublasLt.matmul_heuristic_result_dtype
    assert (real.MatmulDescAttribute.TRANSA, real.MatmulDescAttribute.TRANSB) == (3, 4)
    assert (real.MatrixLayoutAttribute.BATCH_COUNT, real.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET) == (5, 6)
    assert real.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES == 1
