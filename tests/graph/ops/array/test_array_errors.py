"""Wrong shapes, types and indices: refused at the user's line, naming the operands; or, when only the running
graph can know, an InvalidArgumentError that names the value."""

from __future__ import annotations

import re
from pathlib import Path

import array_ops as a
import numpy as np
import pytest
from reference_interpreter import Interpreter

from dovetail.graph.core.build import apply, constant, placeholder
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Graph
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.array import diagonal
from dovetail.graph.ops.linalg import linalg
from dovetail.graph.ops.linalg.einsum import einsum, tensordot
from dovetail.graph.ops.math import arithmetic, compare
from dovetail.graph.ops.nn.dense import bias_add
from dovetail.graph.ops.nn.normalization import fused_batch_norm
from dovetail.graph.ops.nn.softmax import softmax_cross_entropy_with_logits_v2


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as g:
        yield g


def t(*dims, dtype="float32", name="x"):
    return placeholder(dtype, list(dims), name=name)


def i32(*dims, name="i"):
    return t(*dims, dtype="int32", name=name)


# (what is built, error, words that its text must hold)
WRONG = {
    "reshape count": (
        lambda: a.reshape(t(2, 3), [4, 2]),
        ValueError,
        ["6 elements", "(4, 2)", "x:0 float32 (2, 3)"],
    ),
    "reshape multiple": (lambda: a.reshape(t(2, 3), [4, -1]), ValueError, ["multiple of 4"]),
    "reshape two unknown": (lambda: a.reshape(t(2, 3), [-1, -1]), ValueError, ["-1 at most once"]),
    "reshape type": (
        lambda: a.reshape(t(2, 3), [1.5]),
        TypeError,
        ["shape must be int32 or int64", "float32"],
    ),
    "reshape sizes one by one": (
        lambda: a.reshape(t(2, 3), 3, 2),
        TypeError,
        ["not 2. Several", "dt.reshape(x, [2, 3])"],
    ),
    "concat one by one": (lambda: a.concat(t(2, 3), t(2, 3), 1), TypeError, ["not 1. Several", "dt.concat([x, y], 1)"]),
    "concat of two": (
        lambda: a.concat(t(2, 3), t(2, 3)),
        TypeError,
        ["the axis must be a number", "dt.concat([x, y], 1)"],
    ),
    "stack one by one": (
        lambda: a.stack(t(2, 3), t(2, 3)),
        TypeError,
        ["the axis must be a number", "dt.stack([x, y], 1)"],
    ),
    "zeros sizes one by one": (lambda: a.zeros(3, 4), TypeError, ["4 is no dtype", "dt.zeros([3, 4])"]),
    "assignment": (
        lambda: t(2).__setitem__(0, 1.0),
        TypeError,
        ["not support item assignment", "tensor_scatter_nd_update"],
    ),
    "expand_dims axis": (lambda: a.expand_dims(t(2, 3), 3), ValueError, ["axis 3 does not exist", "[-3, 3)"]),
    "expand_dims nothing": (lambda: a.expand_dims(t(2)), ValueError, ["needs an axis"]),
    "expand_dims both": (lambda: a.expand_dims(t(2), 0, dim=0), ValueError, ["'axis'", "'dim'", "Cannot specify both"]),
    "squeeze size": (lambda: a.squeeze(t(2, 3), [1]), ValueError, ["dimension 1", "3, not 1"]),
    "broadcast": (lambda: a.broadcast_to(t(2, 3), [3, 2]), ValueError, ["(2, 3)", "(3, 2)"]),
    "broadcast rank": (lambda: a.broadcast_to(t(2, 3), [3]), ValueError, ["(2, 3)", "(3,)"]),
    "transpose": (lambda: a.transpose(t(2, 3), [0, 0]), ValueError, ["perm [0, 0]", "not a permutation"]),
    "transpose rank": (lambda: a.transpose(t(2, 3), [0, 2, 1]), ValueError, ["perm [0, 2, 1]", "(2, 3)"]),
    "ensure_shape": (lambda: a.ensure_shape(t(2, 3), [None, 4]), ValueError, ["(2, 3)", "(?, 4)"]),
    "concat sizes": (
        lambda: a.concat([t(2, 3), t(2, 4, name="y")], 0),
        ValueError,
        ["x:0", "(2, 3)", "y:0", "(2, 4)"],
    ),
    "concat rank": (lambda: a.concat([t(2, 3), t(2, name="y")], 0), ValueError, ["(2, 3)", "(2,)"]),
    "concat rank, along the last axis": (
        lambda: a.concat([t(2, 3), t(2, name="y")], 1),
        ValueError,
        ["(2, 3)", "(2,)"],
    ),
    "concat types": (lambda: a.concat([t(2), i32(2)], 0), TypeError, ["float32", "int32", "dt.cast"]),
    "concat axis": (lambda: a.concat([t(2), t(2)], 1), ValueError, ["axis 1 does not exist"]),
    "concat scalars": (lambda: a.concat([t(), t()], 0), ValueError, ["dt.stack"]),
    "split uneven": (lambda: a.split(t(2, 5), 2, 1), ValueError, ["size 5", "2 equal pieces"]),
    "split sizes": (lambda: a.split(t(5), [2, 2]), ValueError, ["[2, 2]", "5"]),
    "split none": (lambda: a.split(t(5), 0), ValueError, ["at least 1"]),
    "split unknown": (lambda: a.split(t(5), i32(None)), ValueError, ["pass num="]),
    "stack shapes": (lambda: a.stack([t(2), t(3, name="y")]), ValueError, ["(2,)", "(3,)"]),
    "stack types": (lambda: a.stack([t(2), i32(2)]), TypeError, ["float32", "int32"]),
    "stack nothing": (lambda: a.stack([]), ValueError, ["at least one"]),
    "unstack size": (lambda: a.unstack(t(3), 2), ValueError, ["size 3, not 2"]),
    "unstack unknown": (lambda: a.unstack(t(None)), ValueError, ["pass num="]),
    "tile rank": (lambda: a.tile(t(2, 3), [2]), ValueError, ["2 dimensions", "not 1"]),
    "tile negative": (lambda: a.tile(t(2), [-1]), ValueError, ["[-1]"]),
    "pad rows": (lambda: a.pad(t(2, 3), [[1, 1]]), ValueError, ["2 dimensions", "not 1"]),
    "pad shape": (lambda: a.pad(t(2), [[1, 1, 1]]), ValueError, ["(rank, 2)"]),
    "pad negative": (lambda: a.pad(t(2), [[-1, 1]]), ValueError, ["negative"]),
    "pad mirror": (lambda: a.pad(t(3), [[3, 0]], "REFLECT"), ValueError, ["[3, 0]", "size is 3"]),
    "pad mode": (lambda: a.pad(t(3), [[1, 0]], "WRAP"), ValueError, ["CONSTANT, REFLECT or SYMMETRIC"]),
    "pad value": (lambda: a.pad(t(3), [[1, 0]], constant_values=i32()), TypeError, ["float32", "int32"]),
    "slice outside": (lambda: a.slice(t(3), [2], [2]), ValueError, ["slice of 2 from 2", "size 3"]),
    "slice rank": (lambda: a.slice(t(3, 3), [0], [1]), ValueError, ["(3, 3)"]),
    "index outside": (lambda: t(3)[3], ValueError, ["index 3", "size 3"]),
    "index negative": (lambda: t(3)[-4], ValueError, ["index -4", "size 3"]),
    "index too many": (lambda: t(3)[0, 0], ValueError, ["2 indices", "(3,)"]),
    "index two ellipses": (lambda: t(3)[..., ...], ValueError, ["one ellipsis"]),
    "index step": (lambda: t(3)[::0], ValueError, ["strides[0]", "zero"]),
    "index float": (lambda: t(3)[1.0], TypeError, ["1.0", "dt.gather"]),
    "index list": (lambda: t(3)[[0, 1]], TypeError, ["[0, 1]", "dt.gather"]),
    "index bool": (lambda: t(3)[True], TypeError, ["bool is not an index"]),
    "index tensor": (lambda: t(3)[i32(2)], TypeError, ["integer scalar tensors"]),
    "iterate": (lambda: list(t(None)), TypeError, ["not known before the graph runs"]),
    "gather types": (lambda: a.gather(t(3), t(2)), TypeError, ["indices must be int32 or int64"]),
    "gather scalar": (lambda: a.gather(t(), i32()), ValueError, ["params: Shape must be at least rank 1"]),
    "gather axis": (lambda: a.gather(t(3), i32(), axis=1), ValueError, ["axis 1 does not exist"]),
    "gather batches": (lambda: a.gather(t(2, 3), i32(3, 1), batch_dims=1), ValueError, ["(2, 3)", "(3, 1)"]),
    "gather batch_dims": (lambda: a.gather(t(2, 3), i32(2), batch_dims=2), ValueError, ["batch_dims 2"]),
    "gather_nd depth": (lambda: a.gather_nd(t(2, 3), i32(4, 3)), ValueError, ["3 numbers", "(2, 3)"]),
    "scatter_nd updates": (lambda: a.scatter_nd(i32(4, 1), t(3), [5]), ValueError, ["(3,)", "(4,)"]),
    "scatter_nd rest": (lambda: a.scatter_nd(i32(4, 1), t(4, 2), [5, 3]), ValueError, ["(4, 3)", "(4, 2)"]),
    "tensor_scatter types": (
        lambda: a.tensor_scatter_nd_add(t(3), i32(1, 1), i32(1)),
        TypeError,
        ["float32", "int32"],
    ),
    "one_hot indices": (lambda: a.one_hot(t(3), 2), TypeError, ["float32"]),
    "one_hot depth": (lambda: a.one_hot(i32(3), -1), ValueError, ["depth"]),
    "reverse twice": (lambda: a.reverse(t(2, 3), [0, -2]), ValueError, ["twice"]),
    "segments prefix": (lambda: a.unsorted_segment_sum(t(3, 2), i32(2), 4), ValueError, ["(3, 2)", "(2,)"]),
    "segments count": (lambda: a.unsorted_segment_sum(t(3), i32(3), -1), ValueError, ["num_segments", "-1"]),
    "segments rows": (lambda: a.segment_sum(t(3, 2), i32(2)), ValueError, ["3 rows", "2 ids"]),
    "partition": (lambda: a.dynamic_partition(t(3), i32(2), 2), ValueError, ["(3,)", "(2,)"]),
    "partition count": (lambda: a.dynamic_partition(t(3), i32(3), 0), ValueError, ["at least 1"]),
    "stitch": (lambda: a.dynamic_stitch([i32(2)], [t(3)]), ValueError, ["(3,)", "(2,)"]),
    "mask shape": (lambda: a.boolean_mask(t(3, 2), t(2, dtype="bool")), ValueError, ["(2,)", "(3, 2)"]),
    "mask type": (lambda: a.boolean_mask(t(3), i32(3)), TypeError, ["bool"]),
    "mask scalar": (lambda: a.boolean_mask(t(3), t(dtype="bool")), ValueError, ["at least 1"]),
    "unique rank": (lambda: a.unique(t(2, 2)), ValueError, ["rank 1, not 2"]),
    "fill negative": (lambda: a.fill([-2], 1.0), ValueError, ["negative"]),
    "fill value": (lambda: a.fill([2], t(1)), ValueError, ["Shape must be rank 0"]),
    "range zero": (lambda: a.range(0, 5, 0), ValueError, ["delta must not be zero"]),
    "range away": (lambda: a.range(5, 0), ValueError, ["from 5", "limit 0"]),
    "range type": (lambda: a.range(t(dtype="bool")), TypeError, ["bool"]),
    "linspace none": (lambda: a.linspace(0.0, 1.0, 0), ValueError, ["at least 1"]),
    "top_k": (lambda: a.top_k(t(2, 3), 4), ValueError, ["k is 4", "3 entries"]),
    "top_k scalar": (lambda: a.top_k(t()), ValueError, ["at least rank 1"]),
    "sort direction": (lambda: a.sort(t(2), direction="UP"), ValueError, ["ASCENDING or DESCENDING"]),
    "sort rank": (lambda: a.sort(placeholder("float32"), 0), ValueError, ["set_shape"]),
    "in_top_k": (lambda: a.in_top_k(t(2, 3), i32(3), 1), ValueError, ["2 rows", "3 entries"]),
    "searchsorted": (lambda: a.searchsorted(t(2), i32(2)), TypeError, ["float32", "int32"]),
    "matmul sizes": (
        lambda: linalg.matmul(t(2, 3), t(4, 5, name="y")),
        ValueError,
        ["(2, 3)", "(4, 5)", "3 to equal 4", "x:0", "y:0"],
    ),
    "matmul transposed": (
        lambda: linalg.matmul(t(2, 3), t(3, 5), transpose_a=True),
        ValueError,
        ["transposed (2, 3)"],
    ),
    "matmul types": (lambda: linalg.matmul(t(2, 2), i32(2, 2)), TypeError, ["float32", "int32", "dt.cast"]),
    "matmul vector": (lambda: linalg.matmul(t(2, 2), t(2)), ValueError, ["rank 2, not 1"]),
    "matmul batches": (lambda: linalg.matmul(t(2, 3, 3), t(4, 3, 3)), ValueError, ["(2,)", "(4,)"]),
    "matmul both": (lambda: linalg.matmul(t(2, 2), t(2, 2), True, adjoint_a=True), ValueError, ["Only one"]),
    "einsum label": (lambda: einsum("i1->i", t(2, 2)), ValueError, ["'1' is not a label"]),
    "einsum output": (lambda: einsum("ij->ik", t(2, 2)), ValueError, ["'k'"]),
    "einsum operands": (lambda: einsum("ij,jk->ik", t(2, 2)), ValueError, ["2 operands, not 1"]),
    "einsum sizes": (lambda: einsum("ij,jk->ik", t(2, 3), t(4, 5)), ValueError, ["label 'j'", "3 and 4"]),
    "einsum rank": (lambda: einsum("ij->i", t(2, 3, 4)), ValueError, ["rank 2", "(2, 3, 4)"]),
    "tensordot axes": (lambda: tensordot(t(2, 3), t(3, 2), 3), ValueError, ["from 0 to 2"]),
    "tensordot pair": (lambda: tensordot(t(2, 3), t(3, 2), [[0, 1], [0]]), ValueError, ["as many"]),
    "diag_part": (lambda: diagonal.diag_part(t(2, 3)), ValueError, ["twice over", "(2, 3)"]),
    "set_diag": (lambda: diagonal.matrix_set_diag(t(2, 3), t(3)), ValueError, ["(2,)", "(3,)"]),
    "zeros unknown": (lambda: a.zeros([None]), ValueError, ["complete shape"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused_when_built(case: str, graph: Graph) -> None:
    build, error, words = WRONG[case]
    with pytest.raises(error) as caught:
        build()
    for word in words:
        assert word in str(caught.value)


def test_refusal_names_operands_and_line(graph: Graph) -> None:
    x, y = t(2, 3), t(4, 5, name="y")
    before = len(graph)
    with pytest.raises(ValueError) as caught:
        linalg.matmul(x, y, name="layer")  # the user's line
    text = str(caught.value)
    assert "MatMul 'layer'" in text
    assert "x:0 float32 (2, 3)" in text and "y:0 float32 (4, 5)" in text
    assert re.search(rf"at .*{re.escape(Path(__file__).name)}:\d+", text)
    assert "# the user's line" in text
    assert len(graph) == before


# (what is built of placeholders of unknown shape, what is fed, words)
FAILING = {
    "reshape": (lambda x, i: a.reshape(x, i), np.zeros(6), [4, 2], ["(6,)", "[4, 2]"]),
    "squeeze": (lambda x, i: a.squeeze(x, [0]), np.zeros((2, 3)), [0], ["[0]", "(2, 3)"]),
    "broadcast": (a.broadcast_to, np.zeros((2, 3)), [3, 2], ["(2, 3)", "[3, 2]"]),
    "transpose": (lambda x, i: a.transpose(x, i), np.zeros((2, 3)), [1, 1], ["[1, 1]", "permutation"]),
    "concat": (lambda x, i: a.concat([x, a.ones([2])], 0), np.zeros((2, 3)), [0], ["(2, 3)", "(2,)"]),
    "split": (lambda x, i: a.split(x, 2), np.zeros(3), [0], ["(3,)", "2 equal"]),
    "splitv": (lambda x, i: a.split(x, i, num=2), np.zeros(3), [1, 1], ["(3,)", "[1, 1]"]),
    "stack": (lambda x, i: a.stack([x, a.ones([2])]), np.zeros(3), [0], ["(3,)", "(2,)"]),
    "unstack": (lambda x, i: a.unstack(x, 2), np.zeros(3), [0], ["(3,)", "2 tensors"]),
    "slice": (lambda x, i: a.slice(x, i, [2]), np.zeros(3), [2], ["[2]", "(3,)"]),
    "index": (lambda x, i: x[i[0]], np.zeros(3), [5], ["index 5", "size 3"]),
    "gather": (lambda x, i: a.gather(x, i), np.zeros(3), [0, 3], ["indices[1] = 3", "[0, 3)"]),
    "gather_nd": (
        lambda x, i: a.gather_nd(x, a.reshape(i, [1, 2])),
        np.zeros((2, 2)),
        [0, 2],
        ["[0, 2]", "(2, 2)"],
    ),
    "scatter_nd": (
        lambda x, i: a.scatter_nd(a.reshape(i, [-1, 1]), x, [3]),
        np.zeros(1),
        [3],
        ["= [3]", "(3,)"],
    ),
    "tensor_scatter": (
        lambda x, i: a.tensor_scatter_nd_add(x, a.reshape(i, [-1, 1]), [1.0]),
        np.zeros(1),
        [-1],
        ["[-1]"],
    ),
    "segments": (
        lambda x, i: a.unsorted_segment_sum(x, i, 2),
        np.zeros(2),
        [0, 2],
        ["segment_ids[1] = 2", "[0, 2)"],
    ),
    "sorted segments": (a.segment_sum, np.zeros(2), [1, 0], ["sorted"]),
    "partition": (lambda x, i: a.dynamic_partition(x, i, 2), np.zeros(2), [0, 2], ["partitions[1] = 2", "[0, 2)"]),
    "top_k": (lambda x, i: a.top_k(x, i[0]), np.zeros(2), [3], ["k is 3", "(2,)"]),
    "range": (lambda x, i: a.range(i[0], i[1]), np.zeros(1), [3, 1], ["from 3", "limit 1"]),
    "range zero": (
        lambda x, i: a.range(i[0], i[1], i[2]),
        np.zeros(1),
        [3, 1, 0],
        ["delta must not be zero"],
    ),
    "invert": (lambda x, i: a.invert_permutation(i), np.zeros(1), [1, 1], ["[1, 1]"]),
    "matmul": (lambda x, i: linalg.matmul(x, a.ones([2, 2])), np.zeros((2, 3)), [0], ["(2, 3)", "(2, 2)"]),
    "add_n of two shapes": (lambda x, i: arithmetic.add_n([x, x[:1]]), np.zeros(3), [0], ["AddN", "(3,), (1,)"]),
    "one bias for all": (lambda x, i: bias_add(x, x[0][:1]), np.zeros((2, 3)), [0], ["each channel", "(2, 3)", "(1,)"]),
    "one scale for all": (
        lambda x, i: fused_batch_norm(x, np.ones(1, np.float32), np.ones(1, np.float32)),
        np.zeros((1, 2, 2, 3)),
        [0],
        ["each channel", "(1, 2, 2, 3)", "(1,)"],
    ),
    "a condition along two axes": (lambda x, i: compare.where(x > 0, x[0], x[0]), np.zeros((2, 2)), [0], ["condition"]),
    "unique of a matrix": (lambda x, i: a.unique(x), np.zeros((2, 2)), [0], ["vector", "(2, 2)"]),
    "one target for all rows": (lambda x, i: a.in_top_k(x, i, 1), np.zeros((3, 2)), [0], ["3 rows", "1 entries"]),
    "batches of fewer indices": (
        lambda x, i: a.gather(x, i[:, None], axis=1, batch_dims=1),
        np.zeros((3, 2)),
        [0],
        ["(3, 2)", "(1, 1)"],
    ),
    "matmul of vectors": (lambda x, i: linalg.matmul(x, x), np.zeros(3), [0], ["Matrices", "(3,)"]),
    "reshape to a negative size": (lambda x, i: a.reshape(x, i), np.zeros((3, 2)), [-2, 3], ["[-2, 3]"]),
    "one hot of a negative depth": (lambda x, i: a.one_hot(i, i[0]), np.zeros(0), [-1], ["depth", "-1"]),
    "einsum": (lambda x, i: einsum("ij,jk->ik", x, a.ones([2, 2])), np.zeros((2, 3)), [0], ["label 'j'"]),
    "pad": (lambda x, i: a.pad(x, a.reshape(i, [1, 2])), np.zeros(2), [-1, 0], ["[[-1, 0]]"]),
}


@pytest.mark.parametrize("case", FAILING)
def test_fails_when_run(case: str) -> None:
    build, x_value, i_value, words = FAILING[case]
    x, i = placeholder("float32"), i32(None)
    node = build(x, i)
    node = node[0] if isinstance(node, (list, tuple)) else node
    with pytest.raises(InvalidArgumentError) as caught:
        Interpreter(x.graph).run(node, {x: x_value, i: i_value})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("start", "limit"), [(0, 2**63 - 1), (-(2**62), 2**62), (0, 2**60)])
def test_a_range_beyond_all_memory_is_not_empty(start: int, limit: int) -> None:
    ends = placeholder("int64", [2])
    numbers = a.range(ends[0], ends[1])
    with pytest.raises(MemoryError, match="range of"):
        Interpreter(ends.graph).run(numbers, {ends: [start, limit]})


# Attrs may come from a message, so the rules themselves must refuse what no public function would write.
@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Shape", 1, {"out_type": "int32"}),
        ("Squeeze", 1, {"squeeze_dims": 1}),
        ("Pack", 1, {"axis": "0"}),
        ("Unpack", 1, {"num": None, "axis": 0}),
        ("MatMul", 2, {"transpose_a": "no", "transpose_b": False}),
        ("MatMul", 2, {}),
        ("MatMul", 1, {"transpose_a": False, "transpose_b": False}),
        ("Einsum", 2, {"equation": 5}),
        ("Einsum", 2, {"equation": "ij,jk"}),
        ("MirrorPad", 2, {"mode": "WRAP"}),
        ("PyFunc", 1, {"token": 5, "process": "x", "Tout": ()}),
        ("PyFunc", 1, {"token": "5", "process": "x", "Tout": ("float32",)}),
    ],
)
def test_rules_refuse_wrong_attrs(op: str, inputs: int, attrs: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        apply(op, [constant(np.zeros((2, 2), np.float32))] * inputs, attrs)


def test_gradients_that_need_to_know_a_rank_say_so() -> None:
    x = placeholder("float32")
    with pytest.raises(ValueError, match="set_shape"):
        gradients(a.gather(x, placeholder("int32"), axis=1, batch_dims=1), [x])


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: a.invert_permutation([[1, 0]]), ValueError, "a permutation: Shape must be rank 1 but is rank 2"),
        (lambda: a.invert_permutation(np.array([1.0, 0.0])), TypeError, "int32 or int64, not float64"),
        (lambda: a.invert_permutation([True]), TypeError, "int32 or int64, not bool"),
        (lambda: softmax_cross_entropy_with_logits_v2(1.0, 1.0), ValueError, "logits: Shape must be at least rank 1"),
    ],
)
def test_constants_of_a_wrong_rank_or_type_are_told_as_tensors_are(make, kind, text):
    with pytest.raises(kind, match=text):
        make()
