"""Products with elementwise work at their edges: one launch on a GPU (a stand-in), with the CPU's numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_backends import RecordedDriver
from gpu_programs import Build, close, results_on

import dovetail as dt

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("launch_by_launch")]

RANDOM = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def launches(fake: RecordedDriver, build: Build, rtol: float = 2e-5) -> list[str]:
    """Run a program on a CPU and a GPU, compare, and give the names of what the GPU launched."""
    (mine,), _ = results_on("/gpu:0", build)
    (theirs,), _ = results_on("/cpu:0", build)
    for x, y in zip(mine, theirs, strict=True):
        assert x.dtype == y.dtype
        digits = 2e-2 if y.dtype.itemsize == 2 else rtol
        close(x, y, digits, digits)
    return [x[1] for x in fake.launches()]


def dense(dtype: Any = dt.float32, rows: int | None = None) -> tuple[Any, Any, dict[Any, Any]]:
    """An input, a weight and what is fed for them."""
    x, w = dt.placeholder(dtype, [rows, 24]), dt.placeholder(dtype, [24, 20])
    return x, w, {x: numbers(5, 24).astype(dtype.np), w: numbers(24, 20).astype(dtype.np)}


# --- behind ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    [
        lambda y, bias, other: dt.nn.relu(y + bias),
        lambda y, bias, other: dt.nn.gelu(dt.nn.bias_add(y, bias)) + other,
        lambda y, bias, other: dt.cast(dt.tanh(y * 0.5), dt.bfloat16),
        lambda y, bias, other: dt.where_v2(y > other, y, dt.zeros_like(y)) - bias,
        lambda y, bias, other: dt.cast(dt.abs(y) < 1.0, dt.int32),
    ],
    ids=["relu", "gelu and residual", "cast", "select", "to integers"],
)
@pytest.mark.parametrize("rows", [5, None])
def test_a_dense_layer_is_one_kernel(fake, after, rows):
    def build():
        x, w, feeds = dense(rows=rows)
        bias, other = dt.placeholder(dt.float32, [20]), dt.placeholder(dt.float32, [rows, 20])
        return [after(dt.matmul(x, w), bias, other)], {**feeds, bias: numbers(20), other: numbers(5, 20)}

    assert launches(fake, same(build)) == ["matmul"]


def same(build: Callable[[], Any]) -> Callable[[], Any]:
    """With the same random numbers each time."""
    state = RANDOM.bit_generator.state

    def again() -> Any:
        RANDOM.bit_generator.state = state
        return build()

    return again


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
def test_narrow_floats_are_rounded_once(fake, dtype):
    def build():
        x, w, feeds = dense(dtype)
        return [dt.nn.relu(dt.matmul(x, w) + dt.constant(numbers(20), dtype))], feeds

    assert launches(fake, same(build)) == ["matmul"]


def test_several_outputs_and_the_product_itself(fake):
    def build():
        x, w, feeds = dense()
        y = dt.matmul(x, w)
        z = y + 1.0
        return [dt.nn.gelu(z), z, y], feeds

    assert launches(fake, same(build)) == ["matmul"]


def test_a_product_that_is_needed_again_later_is_an_output_of_the_kernel(fake):
    def build():
        x, w, feeds = dense()
        y = dt.matmul(x, w)
        return [dt.reduce_sum(dt.matmul(dt.nn.relu(y), y, transpose_b=True)), dt.cumsum(y)], feeds

    names = launches(fake, same(build))
    assert names[0] == "matmul" and names.count("matmul") == 2 and len(names) == 4


def test_a_product_behind_which_rows_are_reduced_is_left_alone(fake):
    def build():
        x, w, feeds = dense()
        return [dt.nn.softmax(dt.matmul(x, w) + 1.0)], feeds

    assert launches(fake, same(build)) == ["matmul", "kernel"]


@pytest.mark.parametrize("known", [True, False])
def test_rows_that_were_a_stack(fake, known):
    def build():
        x = dt.placeholder(dt.float32, [2 if known else None, 3, 8])
        w, bias = dt.placeholder(dt.float32, [8, 12]), dt.placeholder(dt.float32, [12])
        residual = dt.placeholder(dt.float32, [2 if known else None, 3, 12])
        y = dt.reshape(dt.matmul(dt.reshape(x, [-1, 8]), w), [-1, 3, 12])
        return [dt.nn.relu(y + bias) + residual], {
            x: numbers(2, 3, 8), w: numbers(8, 12), bias: numbers(12), residual: numbers(2, 3, 12)
        }  # fmt: skip

    assert launches(fake, same(build)) == ["matmul"]


@pytest.mark.parametrize("masked", [True, False])
def test_stacks_of_matrices(fake, masked):
    def build():
        a, b = dt.placeholder(dt.float32, [None, 3, 5, 8]), dt.placeholder(dt.float32, [None, 3, 8, 7])
        y = dt.matmul(a, b) * 0.25
        mask = dt.placeholder(dt.float32, [None, 1, 5, 7])  # an axis of the stack only: a kernel of its own
        feeds = {a: numbers(2, 3, 5, 8), b: numbers(2, 3, 8, 7), mask: numbers(2, 1, 5, 7)}
        return [dt.tanh(y + mask) if masked else dt.tanh(y)], feeds

    assert launches(fake, same(build)) == (["matmul", "kernel"] if masked else ["matmul"])


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_convolutions(fake, data_format):
    def build():
        shape = [2, 9, 8, 3] if data_format == "NHWC" else [2, 3, 9, 8]
        x, w, bias = (
            dt.placeholder(dt.float32, shape),
            dt.placeholder(dt.float32, [3, 3, 3, 4]),
            dt.placeholder(dt.float32, [4]),
        )
        y = dt.nn.conv2d(x, w, strides=[1, 1, 1, 1], padding="SAME", data_format=data_format)
        y = dt.nn.relu(dt.nn.bias_add(y, bias, data_format=data_format))
        return [y], {x: numbers(*shape), w: numbers(3, 3, 3, 4), bias: numbers(4)}

    assert launches(fake, same(build)) == ["convolution"]


# --- before ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_work_on_operands(fake, transposed):
    def build():
        a = dt.placeholder(dt.float32, [24, 5] if transposed[0] else [5, 24])
        b = dt.placeholder(dt.float32, [20, 24] if transposed[1] else [24, 20])
        scale = dt.placeholder(dt.float32, a.dims[1:])
        y = dt.matmul(dt.maximum(a * scale, 0.0), b * 0.5 - 1.0, transpose_a=transposed[0], transpose_b=transposed[1])
        return [y], {a: numbers(*a.dims), b: numbers(*b.dims), scale: numbers(*scale.dims)}

    assert launches(fake, same(build)) == ["matmul"]


def test_weights_that_are_cast(fake):
    def build():
        x, w = dt.placeholder(dt.bfloat16, [5, 24]), dt.placeholder(dt.float32, [24, 20])
        y = dt.cast(dt.matmul(x, dt.cast(w, dt.bfloat16)), dt.float32) + 1.0
        return [y], {x: numbers(5, 24).astype(dt.bfloat16.np), w: numbers(24, 20)}

    assert launches(fake, same(build), 2e-2) == ["matmul"]


def test_what_is_costly_or_needed_by_others_is_made_once(fake):
    def build():
        x, w, feeds = dense()
        halved = x * 0.5
        return [dt.matmul(dt.exp(x), w), dt.matmul(halved, w), dt.reduce_sum(halved)], feeds

    names = launches(fake, same(build))
    assert names.count("matmul") == 2 and "kernel" in names  # one may make exp(x), the half and its sum


# --- what does not fit -----------------------------------------------------------------------------------------------


def test_sizes_that_turn_out_to_be_broadcast_run_part_by_part(fake):
    def build():
        x, w, feeds = dense()
        other = dt.placeholder(dt.float32, [None, 20])
        return [dt.nn.relu(dt.matmul(x, w) + other)], {**feeds, other: numbers(1, 20)}

    assert launches(fake, same(build))[0] == "matmul"


def test_an_error_names_the_product(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x, w = dt.placeholder(dt.float32, [None, None]), dt.placeholder(dt.float32, [None, 20])
        y = dt.nn.relu(dt.matmul(x, w, name="product") + 1.0, name="last")
    with dt.Session(graph=graph) as session, pytest.raises(dt.errors.InvalidArgumentError, match="'product'"):
        session.run(y, {x: numbers(2, 3), w: numbers(4, 20)})


def test_a_dropout_is_made_behind_its_product(fake):
    def build():
        x, w, feeds = dense(rows=5)
        other = dt.placeholder(dt.float32, [5, 20])
        y = dt.nn.dropout(dt.nn.relu(dt.matmul(x, w)), rate=0.25, seed=3) + other
        return [y], {**feeds, other: numbers(5, 20)}

    assert launches(fake, same(build)) == ["matmul"]


def test_float64_stays_apart(fake):
    def build():
        x, w = dt.placeholder(dt.float64, [5, 24]), dt.placeholder(dt.float64, [24, 20])
        return [dt.matmul(x, w) + 1.0], {x: RANDOM.random((5, 24)), w: RANDOM.random((24, 20))}

    assert launches(fake, same(build), 1e-12) == ["matmul", "kernel"]


def test_training_uses_them_in_both_directions(fake):
    def build():
        x, w, feeds = dense()
        w2, bias = dt.placeholder(dt.float32, [20, 8]), dt.placeholder(dt.float32, [20])
        hidden = dt.nn.relu(dt.matmul(x, w) + bias)
        loss = dt.reduce_sum(dt.square(dt.matmul(hidden, w2)))
        return [loss, *dt.gradients(loss, [w, w2])], {**feeds, w2: numbers(20, 8), bias: numbers(20)}

    names = launches(fake, same(build), 1e-4)
    assert sorted(set(names)) == ["kernel", "matmul"] and names.count("matmul") == 5


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_tells_of_them(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.bfloat16, [None, 64], name="x")
        w = dt.placeholder(dt.bfloat16, [64, 32], name="w")
        y = dt.nn.relu(dt.matmul(x, w, name="product") + dt.placeholder(dt.bfloat16, [32], name="bias"), name="y")
        with dt.Session(graph=graph) as session:
            kernels = session.plan(y).kernels("gpu:0")
    (kernel,) = kernels
    assert kernel.nodes == ("product", "add", "y")
    assert kernels.why_not_fused("product", "y") == "'product' and 'y' are both in kernel 0"
    assert kernels.calls == []
    assert (
        kernel.loops
        == """behind MatMul: loops over d0, d1
  v0: bfloat16[d0, d1] = load in0
  v1: bfloat16[d1] = load in1
  v2: bfloat16[d0, d1] = add v0 v1
  v3: bfloat16 = constant 0.0
  v4: bfloat16[d0, d1] = maximum v2 v3
  store out0[d0, d1] = v4"""
    )
    assert "tl.dot" in kernel.source and "maximum(" in kernel.source


@pytest.mark.parametrize(("left", "right"), [((3, 1, 4, 6), (6, 5)), ((6, 4), (1, 3, 6, 5))], ids=["second", "first"])
def test_one_matrix_for_a_stack_of_them_is_not_copied(fake, left, right):
    def build():
        x, y = dt.placeholder(dt.float32, left), dt.placeholder(dt.float32, right)
        adjoint = left[-1] != right[-2]
        return [dt.matmul(x, y, adjoint_a=adjoint)], {x: numbers(*left), y: numbers(*right)}

    assert launches(fake, same(build)) == ["matmul"]
