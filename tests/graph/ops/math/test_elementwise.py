"""What users see of the elementwise and reducing functions besides numbers: names, operators, conversions,
errors.
"""

from __future__ import annotations

import numpy as np
import pytest
from reference_interpreter import Interpreter

from dovetail.compat.tf1.image.colour import convert_image_dtype
from dovetail.compat.tf1.names.functions import to_double, to_int32, to_int64
from dovetail.graph.core.build import constant, convert, placeholder
from dovetail.graph.core.graph import Graph
from dovetail.graph.ops.array.concat_stack import concat, stack
from dovetail.graph.ops.math import (
    arithmetic as a,
    clip,
    compare as k,
    compare as logic,
    elementwise as m,
    reduce,
    scan,
    statistics,
)
from dovetail.graph.ops.math.cast import cast, to_float
from dovetail.graph.ops.math.clip import saturate_cast
from dovetail.graph.tensors.indexed_slices import IndexedSlices


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as g:
        yield g


def value(x):
    return Interpreter(x.graph, check=True).run(x)


@pytest.mark.parametrize(
    ("build", "name", "op"),
    [
        (lambda x: x + x, "add", "AddV2"),
        (lambda x: x - x, "sub", "Sub"),
        (lambda x: x * x, "mul", "Mul"),
        (lambda x: x / x, "truediv", "RealDiv"),
        (lambda x: x // x, "floordiv", "FloorDiv"),
        (lambda x: x % x, "mod", "FloorMod"),
        (lambda x: x**x, "pow", "Pow"),
        (lambda x: -x, "Neg", "Neg"),
        (lambda x: abs(x), "Abs", "Abs"),
        (lambda x: x < x, "Less", "Less"),
        (lambda x: x >= x, "GreaterEqual", "GreaterEqual"),
        (lambda x: x + 1.0, "add", "AddV2"),
        (lambda x: a.add(x, x), "Add", "AddV2"),
        (lambda x: a.subtract(x, 1.0), "Sub", "Sub"),
        (lambda x: a.divide(x, x), "truediv", "RealDiv"),
        (lambda x: a.div(x, x), "div", "RealDiv"),
        (lambda x: a.multiply(x, x, name="mine"), "mine", "Mul"),
        (lambda x: a.add_n([x, x]), "AddN", "AddN"),
        (lambda x: m.exp(x), "Exp", "Exp"),
        (lambda x: clip.clip_by_value(x, 0.0, 1.0), "clip_by_value", "Maximum"),
        (lambda x: reduce.reduce_sum(x), "Sum", "Sum"),
        (lambda x: reduce.reduce_mean(x, 0), "Mean", "Mean"),
        (lambda x: reduce.reduce_max(x, 0, name="top"), "top", "Max"),
        (lambda x: scan.argmax(x, 0), "ArgMax", "ArgMax"),
        (lambda x: scan.cumsum(x), "Cumsum", "Cumsum"),
        (lambda x: cast(x, "int32"), "Cast", "Cast"),
        (lambda x: k.where(x > 0, x, x), "Select", "Select"),
    ],
)
def test_names_are_tensorflows(build, name, op):
    y = build(placeholder("float32", [3]))
    assert (y.op.name, y.op.type) == (name, op)


def test_names_of_operands(graph):
    x = placeholder("float32", [3])
    _ = x + 1.0, 2.0 - x, reduce.reduce_sum(x), reduce.reduce_sum(x, 0), scan.argmax(x), m.exp(3.0)
    names = [n.name for n in graph.nodes]
    assert names == [
        "Placeholder", "add/y", "add", "sub/x", "sub", "Const", "Sum", "Sum_1/reduction_indices", "Sum_1",
        "ArgMax/dimension", "ArgMax", "Exp/x", "Exp",
    ]  # fmt: skip


def test_python_numbers_take_the_tensors_type():
    for dtype in ("int8", "uint64", "float16", "bfloat16", "float64"):
        x = constant(3, dtype)
        assert (x + 1).dtype.name == dtype
        assert (1 - x).dtype.name == dtype
    assert (constant(1.0, "float16") * 2.5).dtype.name == "float16"


def test_operators_with_arrays_on_the_left():
    y = np.ones(2, np.float32) + constant([1.0, 2.0])
    np.testing.assert_array_equal(value(y), [2, 3])


def test_true_division_of_integers():
    assert a.truediv(constant(7), 2).dtype.name == "float64"
    assert a.truediv(constant(7, "int16"), 2).dtype.name == "float32"
    assert value(constant(7) / 2) == 3.5
    assert value(a.div(constant(-7), 2)) == -4


NUMPY = np.array([1.0, 2.0, 3.0])  # float64, as NumPy makes it


@pytest.mark.parametrize(
    "build",
    [
        lambda t: t + NUMPY,
        lambda t: NUMPY + t,
        lambda t: a.add(t, NUMPY),
        lambda t: t * np.int64(2),
        lambda t: np.int32(2) * t,
        lambda t: t * (NUMPY > 0) * 2,
        lambda t: t + NUMPY.astype(np.int64),
        lambda t: a.maximum(t, NUMPY / 2) + NUMPY,
        lambda t: clip.clip_by_value(t, NUMPY, NUMPY + 5) * 2,
        lambda t: k.where(t > 0, t + t, NUMPY),
    ],
)
def test_arrays_take_the_type_of_the_tensor(build):
    """As in TensorFlow: programs mix arrays of float64 with tensors of float32."""
    t = constant([1.0, 2.0, 3.0])
    found = build(t)
    assert found.dtype.name == "float32"
    np.testing.assert_array_equal(value(found), [2, 4, 6])


def test_arrays_that_would_lose_something_keep_their_type():
    whole = constant([1, 2, 3])
    assert (whole + np.arange(3)).dtype.name == "int32"
    for array in (NUMPY, np.array([2**40, 0, 0]), np.array([1j, 0, 0])):
        with pytest.raises(TypeError, match="must have one element type"):
            whole + array


def test_logic_operators_follow_the_type():
    t = constant([True, False])
    i = constant([6, 3])
    np.testing.assert_array_equal(value(t & True), [True, False])
    np.testing.assert_array_equal(value(~t | False), [False, True])
    np.testing.assert_array_equal(value(t ^ t), [False, False])
    np.testing.assert_array_equal(value(i & 2), [2, 2])
    np.testing.assert_array_equal(value(1 | i), [7, 3])
    np.testing.assert_array_equal(value(~i), [-7, -4])
    assert (t & t).op.name == "and_2"


def test_equality_of_tensors_is_identity():
    x = constant(1.0)
    assert x == x
    assert (x == constant(1.0)) is False


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (
            lambda: constant(1.0) + constant(1),
            TypeError,
            r"AddV2 'add': operands must have one element type, not float32 and int32; use dt.cast",
        ),
        (
            lambda: constant([1.0, 2]) * constant([1.0, 2, 3]),
            ValueError,
            r"(?s)Shapes \(2,\) and \(3,\) cannot be broadcast.*input 0: .* \(2,\)",
        ),
        (lambda: m.exp(constant(1)), TypeError, "Exp 'Exp': element type int32 is not supported"),
        (
            lambda: logic.logical_and(constant(1), constant(1)),
            TypeError,
            "element type int32 is not supported; supported: bool",
        ),
        (lambda: constant(1) + 1.5, TypeError, "one element type, not int32 and float32"),
        (lambda: a.add_n([]), ValueError, "at least one tensor"),
        (lambda: a.accumulate_n([constant(1.0)], shape=[2]), ValueError, "not compatible"),
        (lambda: a.accumulate_n([constant(1.0)], tensor_dtype="int32"), TypeError, "tensor_dtype is int32"),
        (lambda: a.add_n([constant([1.0]), constant([1.0, 2])]), ValueError, "not compatible"),
        (lambda: a.scalar_mul(constant([1.0, 2]), constant(1.0)), ValueError, "Only a scalar can scale"),
        (lambda: reduce.reduce_sum(constant([1.0]), 1), ValueError, "axis 1 does not exist: for rank 1"),
        (lambda: reduce.reduce_sum(constant([[1.0]]), [0, -2]), ValueError, "an axis occurs twice"),
        (
            lambda: reduce.reduce_sum(constant([1.0]), 0.5),
            TypeError,
            "axes must be int32 or int64, not float32",
        ),
        (
            lambda: reduce.reduce_sum(constant([1.0]), 0, reduction_indices=0),
            ValueError,
            "Cannot specify both 'axis' and 'reduction_indices'",
        ),
        (lambda: reduce.reduce_any(constant([1.0])), TypeError, "element type float32 is not supported"),
        (lambda: scan.argmax(constant(1.0)), ValueError, "at least one axis"),
        (lambda: scan.argmax(constant([1.0]), 3), ValueError, "axis 3 does not exist: for rank 1"),
        (lambda: scan.argmax(constant([1.0]), 0, dimension=0), ValueError, "both 'axis' and 'dimension'"),
        (
            lambda: scan.argmax(constant([1.0]), output_type="float32"),
            ValueError,
            "output_type must be int32 or int64",
        ),
        (lambda: scan.cumsum(constant([1.0]), [0]), ValueError, "the axis: Shape must be rank 0 but is rank 1"),
        (lambda: k.where(constant([True]), constant([1.0])), ValueError, "both be given"),
        (
            lambda: k.where(constant([1]), constant([1.0]), constant([1.0])),
            TypeError,
            "the condition must be bool",
        ),
        (
            lambda: k.where(constant([True, False]), constant([1.0]), constant([1.0])),
            ValueError,
            "the condition must be a scalar",
        ),
        (lambda: cast(constant("a"), "int32"), TypeError, "element type string is not supported"),
        (lambda: cast(constant(1), "no type"), TypeError, "Cannot convert value 'no type'"),
        (lambda: clip.clip_by_value(constant(1.0), constant([0.0, 0.0]), 1.0), ValueError, "not compatible"),
        (lambda: clip.global_norm(constant(1.0)), TypeError, "must be a list"),
        (lambda: clip.global_norm([None]), ValueError, "at least one tensor"),
        (
            lambda: statistics.norm(constant([1.0]), "nuclear"),
            ValueError,
            "'ord' must be a supported vector norm",
        ),
        (
            lambda: statistics.norm(constant([[1.0]]), 2, axis=[0, 1]),
            ValueError,
            "'ord' must be a supported matrix norm",
        ),
        (
            lambda: statistics.norm(constant([1.0]), axis=[0, 1, 2]),
            ValueError,
            "must be None, an integer, or a tuple of 2",
        ),
        (lambda: statistics.reduce_variance(constant([1])), TypeError, "must be of floating type"),
    ],
)
def test_errors(build, error, text):
    with pytest.raises(error, match=text):
        build()


def test_an_error_names_the_line_and_changes_nothing(graph):
    x, y = constant([1.0, 2.0]), constant([1.0, 2.0, 3.0])
    before = len(graph)
    with pytest.raises(ValueError, match="test_elementwise.py") as caught:
        a.add(x, y, name="wrong")
    assert "a.add(x, y, name=" in str(caught.value)
    assert len(graph) == before
    assert a.add(x, x, name="wrong").op.name == "wrong"


def test_casting_to_the_same_type_adds_nothing(graph):
    x = constant(1.0)
    before = len(graph)
    assert cast(x, "float32") is x
    assert to_float(x) is x
    assert len(graph) == before


def test_named_casts():
    x = constant(1.7)
    assert [t(x).op.name for t in (to_double, to_int32, to_int64)] == ["ToDouble", "ToInt32", "ToInt64"]
    assert value(to_int32(x)) == 1


@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "float16"])
@pytest.mark.parametrize("source", ["float32", "float64", "int64", "bfloat16"])
def test_saturating_casts_stay_within_limits(source, target):
    x = constant(np.array([-1e30, -3, 0, 3, 1e30]).clip(-(2.0**62), 2.0**62), source)
    low, mid_low, zero, mid, high = value(saturate_cast(x, target)).astype(np.float64)
    limits = np.iinfo(target) if "int" in target else np.finfo(target)
    assert float(limits.min) <= low < -2 or low == 0 == limits.min
    assert (mid_low, zero, mid) == (max(-3, float(limits.min)), 0, 3)
    assert 100 < high <= float(limits.max)


@pytest.mark.parametrize("source", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("target", ["bfloat16", "float32", "float64"])
def test_saturating_casts_to_types_that_hold_all_change_nothing(source, target):
    x = np.array([np.iinfo(source).min, 0, 3, np.iinfo(source).max], source)
    np.testing.assert_array_equal(value(saturate_cast(constant(x), target)), value(cast(constant(x), target)))


@pytest.mark.parametrize("target", ["int8", "int32", "int64"])
def test_saturating_casts_cut_off_what_is_infinite(target):
    x = np.array([-np.inf, 2, np.inf], np.float16)
    limits = np.finfo(np.float16)  # no whole number of float16 is larger
    expected = np.clip([limits.min, 2, limits.max], np.iinfo(target).min, np.iinfo(target).max)
    np.testing.assert_array_equal(value(saturate_cast(constant(x), target)), expected)
    pixels = convert_image_dtype(constant([-np.inf, 0.5, 1e20]), "float16", saturate=True)
    np.testing.assert_array_equal(value(pixels), np.array([-np.inf, 0.5, np.inf]))


def test_global_clipping_shows_infinite_norms():
    (clipped,), norm = clip.clip_by_global_norm([constant([1.0, np.inf])], 1.0)
    assert np.isinf(value(norm))
    assert np.isnan(value(clipped)).all()


def test_global_clipping_leaves_short_tensors_and_keeps_rows():
    rows = IndexedSlices(constant([[3.0, 4.0]]), constant([1]), constant([5, 2]))
    (same, kept), norm = clip.clip_by_global_norm([constant([0.0]), rows], 10.0)
    assert value(norm) == 5
    np.testing.assert_array_equal(value(kept.values), [[3, 4]])
    assert kept.indices is rows.indices
    assert value(same) == 0


def test_indexed_slices(graph):
    rows = IndexedSlices(constant([[1.0], [2.0], [4.0]]), constant([1, 3, 1]), constant([4, 1]))
    assert rows.shape.as_list() == [4, 1]
    assert rows.dtype.name == "float32"
    np.testing.assert_array_equal(value(convert(rows)), [[0], [5], [0], [2]])
    np.testing.assert_array_equal(value(rows * 2.0), [[0], [10], [0], [4]])
    np.testing.assert_array_equal(value(a.scalar_mul(2.0, rows).values), [[2], [4], [8]])
    assert cast(rows, "float64").values.dtype.name == "float64"
    opposite = -IndexedSlices(rows.values, rows.indices)  # which has no dense form
    np.testing.assert_array_equal(value(opposite.values), [[-1], [-2], [-4]])
    assert opposite.indices is rows.indices
    with pytest.raises(ValueError, match="it has no dense_shape"):
        convert(IndexedSlices(constant([1.0]), constant([0])))
    assert "values=" in repr(rows)


def test_functions_work_outside_of_the_graphs_own_block():
    with Graph().as_default():
        x = constant([1.0, 2.0])
    y = reduce.reduce_sum(m.exp(x * 0.0) + 1.0, axis=0)
    assert y.graph is x.graph
    assert value(y) == 4


@pytest.mark.parametrize(
    ("build", "flops"),
    [
        (lambda x: x + x, 6),
        (lambda x: m.exp(x), 60),
        (lambda x: a.add_n([x, x, x]), 12),
        (lambda x: reduce.reduce_sum(x), 6),
        (lambda x: scan.cumsum(x), 6),
        (lambda x: scan.argmax(x), 6),
    ],
)
def test_work_counts_what_is_read(build, flops):
    node = build(placeholder("float32", [2, 3])).op
    assert node.opdef.cost_of(node).flops == flops


def test_an_array_in_front_keeps_its_type_where_no_tensor_is() -> None:
    wide = np.array([1.0, 2.0])
    for found in (a.add(wide, 0.1), a.add(0.1, wide), a.add(wide, np.float32(0.1)), a.maximum(wide, 0.5)):
        assert found.dtype.name == "float64"
    assert a.add(np.array([1, 2]), 1).dtype.name == "int64"
    np.testing.assert_array_equal(value(a.add(wide, 0.1)), wide + 0.1)


def test_sums_of_a_shape_that_is_told() -> None:
    x = placeholder("float32", None)
    assert a.accumulate_n([x, x], [None, 2], "float32").shape.as_list() == [None, 2]


def test_tensors_in_lists_take_the_type_that_is_asked_for() -> None:
    """As in TensorFlow; but fractions are not cut off."""
    n, wide, x = constant(3), constant(4, "int64"), constant([1.5, 2.5])
    run = Interpreter(n.graph).run
    assert run(x * [n, 2]).tolist() == [4.5, 5.0]
    assert run(convert([[n, wide], [1, n]], "int64")).tolist() == [[3, 4], [1, 3]]
    assert run(concat([constant([[1, 2]], "int64"), [[n, n]]], 1)).tolist() == [[1, 2, 3, 3]]
    with pytest.raises(TypeError, match="use dt.cast"):
        convert([x, x], "int32")
    with pytest.raises(TypeError, match="one element type, not int32 and float32"):
        constant([1, 2]) * [x[0], x[1]]
    with pytest.raises(TypeError, match="use dt.cast"):
        stack([n, wide])


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ([np.float64(0.5), 2], "float32"),
        ([[np.float64(0.5)], (np.float64(1),)], "float32"),
        ([np.int64(1), 2], "int32"),
        ([np.int64(2**40)], "int64"),
        ([1, np.float32(0.5)], "float32"),
        ([np.float16(0.5)], "float16"),
        ([np.uint8(1)], "uint8"),
        ([np.bool_(True)], "bool"),
        ([np.ones(2), np.ones(2)], "float64"),
        (np.float64(0.5), "float64"),
    ],
)
def test_numbers_of_numpy_in_lists_take_the_types_of_pythons(given, dtype) -> None:
    assert constant(given).dtype.name == dtype
    np.testing.assert_array_equal(value(constant(given)), np.array(given))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_logarithm_of_gamma_is_infinite_at_both_infinities(dtype) -> None:
    found = value(m.lgamma(constant([-np.inf, np.inf, np.nan, 0.0, -1.0, 3.0], dtype)))
    np.testing.assert_allclose(found, np.array([np.inf, np.inf, np.nan, np.inf, np.inf, np.log(2)], dtype), rtol=1e-3)
