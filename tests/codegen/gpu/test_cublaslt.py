"""Products by cuBLASLt, on stand-ins for the library and the driver: numbers, measuring, and what happens where it is missing."""

import gc
import inspect

import numpy as np
import pytest
from fake_cublaslt import FakeCublasLt
from gpu_backends import IS_REAL, gpus_for_tests

import dovetail as dt
from dovetail.codegen.gpu import autotune
from dovetail.codegen.gpu.driver import cublaslt
from dovetail.codegen.gpu.driver.cublaslt import Product, library_products
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.gpu.toolchain import compile
from dovetail.graph.core.dtypes import as_dtype, bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, float64


@pytest.fixture
def fake():
    with gpus_for_tests(1) as made:
        yield made


@pytest.fixture
def library(fake):
    """A stand-in; None: NVIDIA's own, on a real GPU."""
    if IS_REAL:
        pytest.importorskip("nvmath.bindings.cublasLt", exc_type=ImportError)
        yield None
        return
    made = FakeCublasLt(fake)
    before = cublaslt.use(made)
    yield made
    cublaslt.use(before)


SMALL = Product((float32, float32), float32, (4, 4, 4, 1))


def made(product, *arrays, bias=None):
    """What a product's first candidate gives."""
    gpu = device(0)
    m, n, _, batch = product.sizes
    candidate, *_ = library_products(gpu, product)
    given = [gpu.from_host(np.ascontiguousarray(x)) for x in (*arrays, *([] if bias is None else [bias]))]
    out = gpu.empty((batch, m, n), product.result.np, "out")
    with gpu.entered():
        candidate([*(x.pointer for x in given), out.pointer])
    return gpu.to_host(out).astype(np.float64)


ATOL = {2: 5e-2, 4: 1e-5, 8: 1e-13}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batch", [1, 3])
def test_numbers(library, dtype, transposed, batch):
    rng, kind = np.random.default_rng(0), as_dtype(dtype)
    m, n, k = 5, 7, 6
    a, b = (rng.standard_normal((batch, *s)).astype(kind.np) for s in ((m, k), (k, n)))
    stored = [np.swapaxes(x, 1, 2) if flip else x for x, flip in zip((a, b), transposed, strict=True)]
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for result in {kind, float32} if kind.size == 2 else {kind}:
        product = Product((kind, kind), result, (m, n, k, batch), transposed, (m * k, k * n))
        np.testing.assert_allclose(made(product, *stored), expected, atol=ATOL[result.size])
        assert IS_REAL or library.products.pop() == (n, m, k)


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [(30, 0), (0, 42), (0, 0)])
def test_one_matrix_for_a_whole_stack(library, steps):
    rng = np.random.default_rng(1)
    a, b = (
        rng.standard_normal((3 if step else 1, *s)).astype(np.float32)
        for step, s in zip(steps, ((5, 6), (6, 7)), strict=True)
    )
    product = Product((float32, float32), float32, (5, 7, 6, 3), steps=steps)
    np.testing.assert_allclose(made(product, a, b), np.broadcast_to(a @ b, (3, 5, 7)), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [float32, bfloat16, float64], ids=lambda d: d.name)
def test_a_bias_is_added_to_each_row_before_rounding(library, dtype):
    rng = np.random.default_rng(2)
    a, b, bias = (rng.standard_normal(s).astype(dtype.np) for s in ((5, 6), (6, 7), (7,)))
    expected = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
    product = Product((dtype, dtype), dtype, (5, 7, 6, 1), bias=True)
    np.testing.assert_allclose(made(product, a, b, bias=bias)[0], expected, atol=ATOL[dtype.size])


@pytest.mark.gpu
@pytest.mark.parametrize("types", [(float8_e4m3fn, float8_e4m3fn), (float8_e4m3fn, float8_e5m2)])
def test_products_of_float8_where_the_second_operand_lies_transposed(library, types):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(t.np) for s, t in zip(((16, 32), (48, 32)), types, strict=True))
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    product = Product(types, bfloat16, (16, 48, 32, 1), (False, True))
    np.testing.assert_allclose(made(product, a, b)[0], expected, rtol=1e-2, atol=5e-2)
    assert library_products(device(0), Product(types, bfloat16, (16, 48, 32, 1))) == []  # as Hopper does not take it


@pytest.mark.parametrize(
    "types",
    [
        (float32, float16, float32),
        (float32, float32, float64),
        (float16, float16, bfloat16),
        (float64, float64, float32),
    ],
)
def test_types_that_it_has_no_product_of(library, types):
    assert library_products(device(0), Product(types[:2], types[2], (4, 4, 4, 1))) == []
    assert not library.alive


def test_several_algorithms_compete(library):
    library.algorithms = 5
    products = library_products(device(0), SMALL)
    assert len({p.name for p in products}) == len(products) == 3
    x = device(0).from_host(np.eye(4, dtype=np.float32))
    out = device(0).empty((4, 4), np.dtype(np.float32), "out")
    with device(0).entered():
        for product in products:
            product([x.pointer, x.pointer, out.pointer])
    assert library.used == [0, 1, 2]


def test_nothing_is_left_when_a_product_goes(library):
    products = library_products(device(0), SMALL)
    assert sorted(x.kind for x in library.alive.values()) == ["handle", "layout", "layout", "layout", "operation"]
    del products
    gc.collect()
    assert [x.kind for x in library.alive.values()] == ["handle"]


def test_a_product_that_it_has_no_algorithm_for_is_left_to_others(library):
    library.algorithms = 0
    assert library_products(device(0), SMALL) == []


def test_where_the_library_is_missing_there_is_no_candidate(fake, monkeypatch):
    before = cublaslt.use(None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    try:
        assert library_products(device(0), SMALL) == []
    finally:
        cublaslt.use(before)


def test_where_it_cannot_start_the_log_says_why(library, monkeypatch, caplog):
    def create():
        raise RuntimeError("libcublasLt.so is missing")

    monkeypatch.setattr(library, "create", create)
    with caplog.at_level("INFO"):
        assert library_products(device(0), SMALL) == []
    assert "cuBLASLt is not used on <GPU:0 Strict GPU>: libcublasLt.so is missing" in caplog.text


@pytest.fixture
def tuned(fake, library, monkeypatch, tmp_path):
    """The library, beside templates among which nothing has been chosen yet."""
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile, "compile_kernel", fake.compile_kernel)
    monkeypatch.setattr(autotune, "_chosen", {})
    return library


def run_a_product():
    """A step of one product, whose numbers are checked."""
    x, w = np.ones((5, 8), np.float32), np.arange(32, dtype=np.float32).reshape(8, 4)
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        fed = dt.placeholder(dt.float32, [None, 8])
        y = dt.matmul(fed, dt.constant(w))
    with dt.Session(graph=graph) as session:
        np.testing.assert_allclose(session.run(y, {fed: x}), x @ w)


@pytest.mark.parametrize("wins", [True, False])
def test_it_competes_with_the_template_and_wins_where_it_is_faster(fake, tuned, monkeypatch, wins):
    monkeypatch.setattr(
        autotune, "measure", lambda device, candidates: [1.0] * (len(candidates) - 1) + [0.5 if wins else 2.0]
    )
    run_a_product()
    assert bool(tuned.products) == wins
    assert bool([x for x in fake.launches() if x[1] == "matmul"]) != wins


@pytest.mark.parametrize("chosen", [True, False], ids=["when it runs", "when it is measured"])
def test_a_product_that_the_library_refuses_is_left_out(fake, tuned, monkeypatch, chosen):
    def refused(*arguments):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")  # the library's own errors have no common class

    monkeypatch.setattr(tuned, "matmul", refused)
    if chosen:
        monkeypatch.setattr(autotune, "measure", lambda device, candidates: [2.0] * (len(candidates) - 1) + [1.0])
    run_a_product()
    assert [x for x in fake.launches() if x[1] == "matmul"], "by the template"


def signatures(real):
    """Names of the stand-in's functions and arguments, beside those of something real."""
    for name, function in inspect.getmembers(FakeCublasLt, inspect.isfunction):
        if not name.startswith("_"):
            yield name, list(inspect.signature(function).parameters)[1:], getattr(real, name)


def test_the_stand_in_has_the_bindings_functions_with_their_arguments():
    real = pytest.importorskip("nvmath.bindings.cublasLt", exc_type=ImportError)
    checked = 0
    for name, arguments, function in signatures(real):
        said = function.__doc__.splitlines()[0]  # matmul_preference_destroy(intptr_t pref)
        assert arguments == [a.split()[-1] for a in said[said.index("(") + 1 : said.index(")")].split(",") if a], name
        checked += 1
    assert checked == 13
    assert real.matmul_heuristic_result_dtype == FakeCublasLt.matmul_heuristic_result_dtype
    desc, layout, preference = real.MatmulDescAttribute, real.MatrixLayoutAttribute, real.MatmulPreferenceAttribute
    assert (desc.TRANSA, desc.TRANSB, desc.EPILOGUE, desc.BIAS_POINTER) == (3, 4, 7, 8)
    assert real.Epilogue.BIAS == 4
    assert (layout.BATCH_COUNT, layout.STRIDED_BATCH_OFFSET) == (5, 6)
    assert (preference.MAX_WORKSPACE_BYTES, preference.REDUCTION_SCHEME_MASK) == (1, 3)
    assert [getattr(preference, f"MIN_ALIGNMENT_{x}_BYTES") for x in "ABCD"] == [5, 6, 7, 8]
    assert (real.ReductionScheme.INPLACE, real.ReductionScheme.COMPUTE_TYPE) == (1, 2)


@pytest.fixture
def installed():
    """The library itself takes descriptions without a GPU. Skips where nvmath-python or the library is not installed."""
    bindings = pytest.importorskip("nvmath.bindings.cublasLt", exc_type=ImportError)
    try:
        bindings.get_version()
    except Exception as e:  # the bindings' own error for a missing library has no common class
        pytest.skip(str(e))
    return bindings


@pytest.mark.parametrize(
    "product",
    [
        Product((bfloat16, bfloat16), float32, (16, 32, 64, 3), (False, True), (0, 5), bias=True),
        Product((float8_e4m3fn, float8_e5m2), bfloat16, (16, 32, 64, 1), (False, True)),
        Product((float64, float64), float64, (16, 32, 64, 2), (True, False), (4, 0)),
    ],
)
def test_the_library_takes_what_it_is_told(installed, product):
    """Attributes and their sizes: the library checks them. It then looks for algorithms, for which it would need a GPU's handle."""

    class Library:
        calls, handle = installed, 0

    described = cublaslt._Described(Library, product)
    with pytest.raises(installed.cuBLASLtError, match="NOT_INITIALIZED"):
        described.algorithms()
