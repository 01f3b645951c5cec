"""Sparse tensors against NumPy: every op on random ones, what is refused, gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dovetail as tf

settings.register_profile("sparse", deadline=None, max_examples=25)
settings.load_profile("sparse")


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def run(fetches, feeds=None):
    with tf.Session() as session:
        return session.run(fetches, feeds)


@st.composite
def arrays(draw, rank=None, dtype=np.float32):
    """A dense array, many of whose elements are 0."""
    axes = draw(st.integers(1, 3)) if rank is None else rank
    shape = draw(st.tuples(*[st.integers(1, 4)] * axes))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    return (rng.integers(-4, 5, shape) * (rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 1.0])))).astype(dtype)


def parts(x):
    at = np.argwhere(x).astype(np.int64).reshape(-1, x.ndim)
    return at, x[tuple(at.T)], np.array(x.shape, np.int64)


def sparse(x):
    return tf.SparseTensor(*parts(x))


def dense(value):
    out = np.zeros(tuple(value.dense_shape), np.asarray(value.values).dtype)
    out[tuple(np.asarray(value.indices).T)] = value.values
    return out


def is_ordered(value):
    places = (
        np.ravel_multi_index(tuple(value.indices.T), tuple(value.dense_shape)) if len(value.indices) else np.array([])
    )
    return bool(np.all(np.diff(places) > 0))


@given(arrays())
def test_dense_and_back(x):
    with tf.Graph().as_default():
        there, back, other = run(
            [tf.sparse.to_dense(sparse(x)), tf.sparse.from_dense(x), tf.sparse_tensor_to_dense(sparse(x), 7)]
        )
    np.testing.assert_array_equal(there, x)
    for mine, theirs in zip(back, parts(x), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(other, np.where(x == 0, 7, x))


@given(arrays(), st.data())
def test_arranging(x, data):
    perm = data.draw(st.permutations(range(x.ndim)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    start = [data.draw(st.integers(0, n)) for n in x.shape]
    size = [data.draw(st.integers(0, n + 1)) for n in x.shape]
    count = data.draw(st.integers(1, x.shape[axis]))
    with tf.Graph().as_default():
        sp = sparse(x)
        shuffled = np.random.default_rng(0).permutation(len(parts(x)[0]))
        at, values, whole = parts(x)
        results = run({
            "transposed": tf.sparse.transpose(sp, perm), "reversed": tf.sparse_transpose(sp), "flat": tf.sparse.reshape(sp, [-1]),
            "reordered": tf.sparse.reorder(tf.SparseTensor(at[shuffled], values[shuffled], whole)),
            "expanded": tf.sparse.expand_dims(sp, axis), "twice": tf.sparse.concat(axis, [sp, sp, sp]),
            "slice": tf.sparse.slice(sp, start, size), "split": tf.sparse.split(sp, num_split=count, axis=axis),
            "positive": tf.sparse.retain(sp, sp.values > 0), "larger": tf.sparse.reset_shape(sp, [n + 2 for n in x.shape]),
        })  # fmt: skip
    wanted = {
        "transposed": x.transpose(perm), "reversed": x.T, "flat": x.reshape(-1), "reordered": x,
        "expanded": np.expand_dims(x, axis), "twice": np.concatenate([x, x, x], axis),
        "slice": x[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))], "split": np.array_split(x, count, axis),
        "positive": np.maximum(x, 0), "larger": np.pad(x, [(0, 2)] * x.ndim),
    }  # fmt: skip
    for name, value in results.items():
        many = (value, wanted[name]) if name == "split" else ([value], [wanted[name]])
        for mine, theirs in zip(*many, strict=True):
            assert is_ordered(mine), name
            np.testing.assert_array_equal(dense(mine), theirs, name)


@given(arrays(), st.data())
def test_reductions(x, data):
    axis = data.draw(
        st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1), st.sets(st.integers(0, x.ndim - 1), min_size=1))
    )
    axis = sorted(axis) if isinstance(axis, set) else axis
    keep = data.draw(st.booleans())
    axes = tuple(axis) if isinstance(axis, list) else axis
    with tf.Graph().as_default():
        total, largest, as_sparse = run([
            tf.sparse.reduce_sum(sparse(x), axis, keepdims=keep), tf.sparse_reduce_max(sparse(x), axis, keepdims=keep),
            tf.sparse.reduce_sum_sparse(sparse(x), axis, keepdims=keep),
        ])  # fmt: skip
    np.testing.assert_allclose(total, x.sum(axes, keepdims=keep))
    there = np.where(x != 0, x, -np.inf).max(axes, keepdims=keep)
    np.testing.assert_array_equal(largest, np.where(np.isinf(there), 0, there))
    assert as_sparse.indices.shape == (np.count_nonzero(total), np.ndim(total))
    np.testing.assert_allclose(dense(as_sparse) if np.ndim(total) else as_sparse.values.sum(), total)


@given(arrays(rank=2), st.integers(0, 2**16), st.booleans(), st.booleans())
def test_products_with_dense_matrices_and_their_gradients(x, seed, flip_a, flip_b):
    rng = np.random.default_rng(seed)
    b = rng.normal(size=(x.shape[0] if flip_a else x.shape[1], 3)).astype(np.float32)
    with tf.Graph().as_default():
        sp, other = sparse(x), tf.constant(b.T if flip_b else b)
        y = tf.sparse.sparse_dense_matmul(sp, other, adjoint_a=flip_a, adjoint_b=flip_b)
        gradients = tf.gradients(tf.reduce_sum(y * y), [sp.values, other])
        assert isinstance(gradients[1], tf.Tensor)  # also the rows that were not read, as in TensorFlow
        product, to_values, to_b = run([y, *map(tf.convert_to_tensor, gradients)])
    a = x.T if flip_a else x
    np.testing.assert_allclose(product, a @ b, rtol=1e-5, atol=1e-5)
    to_product = 2 * (a @ b)
    to_a = to_product @ b.T
    at = parts(x)[0]
    np.testing.assert_allclose(to_values, (to_a.T if flip_a else to_a)[tuple(at.T)], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(to_b.T if flip_b else to_b, a.T @ to_product, rtol=1e-4, atol=1e-4)


@given(arrays(rank=2), arrays(rank=2), st.integers(0, 2**16))
def test_arithmetic(x, y, seed):
    y = np.resize(y, x.shape)
    row = np.random.default_rng(seed).normal(size=x.shape[1:]).astype(np.float32)
    with tf.Graph().as_default():
        a, b = sparse(x), sparse(y)
        total, above, dense_total, large, small, scaled, divided, doubled = run([
            tf.sparse.add(a, b), tf.sparse_add(a, b, threshold=3.0), tf.sparse.add(a, y), tf.sparse.maximum(a, b),
            tf.sparse.minimum(a, b), a * row, a / (row + 10), a * 2.0,
        ])  # fmt: skip
    places = (x != 0) | (y != 0)
    assert len(total.values) == places.sum()  # a sum that is 0 stays
    np.testing.assert_allclose(dense(total), x + y)
    np.testing.assert_allclose(dense(above), np.where((np.abs(x + y) >= 3) | (x == 0) | (y == 0), x + y, 0))
    np.testing.assert_allclose(dense_total, x + y)
    np.testing.assert_array_equal(dense(large), np.maximum(x, y))
    np.testing.assert_array_equal(dense(small), np.minimum(x, y))
    np.testing.assert_allclose(dense(scaled), x * row, rtol=1e-6)
    np.testing.assert_allclose(dense(divided), x / (row + 10), rtol=1e-6)
    np.testing.assert_array_equal(dense(doubled), 2 * x)


@given(arrays(rank=2))
def test_softmax_and_filled_rows(x):
    with tf.Graph().as_default():
        soft, (filled, was_empty) = run([tf.sparse.softmax(sparse(x)), tf.sparse.fill_empty_rows(sparse(x), -9.0)])
    for row, mine in zip(x, dense(soft), strict=True):
        e = np.exp(row[row != 0] - row.max(initial=0))
        np.testing.assert_allclose(mine[row != 0], e / e.sum() if e.size else e, rtol=1e-5)
    empty = ~x.any(1)
    np.testing.assert_array_equal(was_empty, empty)
    wanted = x.copy()
    wanted[empty, 0] = -9
    np.testing.assert_array_equal(dense(filled), wanted)
    assert is_ordered(filled)


# --- embeddings -------------------------------------------------------------------------------------------------------


def combined(table, ids, weights, combiner):
    """Row by row, as its definition has it."""
    rows = []
    for mine, factors in zip(ids, weights, strict=True):
        total = sum(f * table[i] for i, f in zip(mine, factors, strict=True))
        by = {"sum": 1.0, "mean": sum(factors), "sqrtn": np.sqrt(sum(f * f for f in factors))}[combiner]
        rows.append(total / by)
    return np.array(rows, np.float32)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", None])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_rows_of_a_table_are_combined_by_example(combiner, shards, is_weighted):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9, 4)).astype(np.float32)
    ids = [[1, 3], [8], [3, 3, 0, 5]]
    weights = [[0.5, 2.0], [3.0], [1.0, 0.25, 2.0, 1.5]]
    at = [[i, j] for i, mine in enumerate(ids) for j in range(len(mine))]
    sp_ids = tf.SparseTensor(at, np.concatenate(ids), [3, 4])
    sp_weights = tf.SparseTensor(at, np.concatenate(weights).astype(np.float32), [3, 4]) if is_weighted else None
    params = tf.constant(table) if shards == 1 else [tf.constant(table[i::shards]) for i in range(shards)]
    y = tf.nn.embedding_lookup_sparse(params, sp_ids, sp_weights, combiner=combiner)
    gradient = tf.gradients(tf.reduce_sum(y), params if shards == 1 else params[0])[0]
    got, slope = run([y, tf.convert_to_tensor(gradient)])
    factors = weights if is_weighted else [[1.0] * len(mine) for mine in ids]
    np.testing.assert_allclose(got, combined(table, ids, factors, combiner or "mean"), rtol=1e-5)
    for row, found in zip(range(0, 9, shards), slope, strict=True):
        basis = np.zeros_like(table)
        basis[row] = 1.0
        np.testing.assert_allclose(
            found, combined(basis, ids, factors, combiner or "mean").sum(0), rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_an_example_without_ids_gets_zeros(combiner, is_weighted):
    sp_ids = tf.SparseTensor([[1, 0], [3, 0], [3, 1]], np.array([1, 0, 1]), [4, 2])
    sp_weights = tf.SparseTensor(sp_ids.indices, np.array([1.0, 2.0, 3.0], np.float32), [4, 2])
    table = tf.constant([[1.0, 2.0], [3.0, 5.0]])
    y = tf.nn.embedding_lookup_sparse(table, sp_ids, sp_weights if is_weighted else None, combiner=combiner)
    got, slope = run([y, tf.convert_to_tensor(tf.gradients(y, table)[0])])
    np.testing.assert_array_equal(got[[0, 2]], np.zeros((2, 2)))
    assert (got[[1, 3]] > 0).all() and np.isfinite(slope).all()


def test_a_safe_lookup_takes_data_as_they_come():
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    at = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 0]]
    ids = tf.SparseTensor(at, np.array([0, 1, -1, 2, 3]), [2, 2, 2])
    weights = tf.SparseTensor(at, np.array([1.0, 2.0, 1.0, 0.0, -0.5], np.float32), [2, 2, 2])
    look = tf.nn.safe_embedding_lookup_sparse
    zeros, defaults, weighted = run([look(table, ids), look(table, ids, default_id=3), look(table, ids, weights)])
    mean = (table[0] + table[1]) / 2
    np.testing.assert_allclose(zeros, [[mean, 0 * mean], [table[2], table[3]]])
    np.testing.assert_allclose(defaults, [[mean, table[3]], [table[2], table[3]]])
    np.testing.assert_allclose(weighted, [[(table[0] + 2 * table[1]) / 3, 0 * mean], [0 * mean, 0 * mean]], rtol=1e-6)


def test_segments_of_rows_that_are_picked():
    data = np.arange(8, dtype=np.float32).reshape(4, 2)
    total, mean, root = run([
        f(data, [3, 0, 0, 1], [0, 0, 1, 1]) for f in (tf.sparse.segment_sum, tf.sparse.segment_mean, tf.sparse.segment_sqrt_n)
    ])  # fmt: skip
    wanted = np.array([data[3] + data[0], data[0] + data[1]])
    np.testing.assert_allclose(total, wanted)
    np.testing.assert_allclose(mean, wanted / 2)
    np.testing.assert_allclose(root, wanted / np.sqrt(2), rtol=1e-6)


def test_segments_of_rows_that_are_picked_are_as_many_as_is_said():
    """Segments without rows are 0, also behind the last that has some."""
    data = np.arange(8, dtype=np.float32).reshape(4, 2)
    given = data, [3, 0, 1], [0, 2, 2]
    found = run([
        f(*given, num_segments=4) for f in (tf.sparse_segment_sum, tf.sparse_segment_mean, tf.sparse_segment_sqrt_n)
    ])  # fmt: skip
    for rows, parts in zip(found, (1, 2, np.sqrt(2)), strict=True):
        wanted = [data[3], [0, 0], (data[0] + data[1]) / parts, [0, 0]]
        np.testing.assert_allclose(rows, wanted, rtol=1e-6)


# --- the others -------------------------------------------------------------------------------------------------------


def test_text_ids_indicators_and_values_by_id():
    words = tf.SparseTensor([[0, 1], [1, 0]], ["a", "b"], [2, 2])
    ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], np.array([2, 0, 3], np.int64), [2, 2])
    values = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [0.5, 1.5, 2.5], [2, 2])
    text, indicator, merged, eye = run([
        tf.sparse.to_dense(words, ""), tf.sparse.to_indicator(ids, 4), tf.sparse.merge(ids, values, 4), tf.sparse.eye(2, 3),
    ])  # fmt: skip
    assert text.tolist() == [[b"", b"a"], [b"b", b""]]
    assert indicator.tolist() == [[True, False, True, False], [False, False, False, True]]
    np.testing.assert_array_equal(dense(merged), [[1.5, 0, 0.5, 0], [0, 0, 0, 2.5]])
    np.testing.assert_array_equal(dense(eye), np.eye(2, 3))


def test_joining_expands_other_axes_only_if_asked():
    a, b = tf.SparseTensor([[0, 0]], [1], [1, 1]), tf.SparseTensor([[2, 0]], [2], [3, 1])
    joined = run(tf.sparse.concat(1, [a, b], expand_nonconcat_dim=True))
    np.testing.assert_array_equal(dense(joined), [[1, 0], [0, 0], [0, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="shapes differ"):
        run(tf.sparse.concat(1, [a, b]))


def test_rows_of_indexed_slices_are_masked_away():
    slices = tf.IndexedSlices([[1.0], [2.0], [3.0]], [12, 26, 37], [50, 1])
    kept = run(tf.sparse_mask(slices, [37, 12]))
    assert (kept.values.tolist(), kept.indices.tolist()) == ([[2.0]], [26])


@pytest.mark.parametrize(
    ("indices", "problem"),
    [([[0, 1], [0, 0]], "out of order"), ([[0, 0], [0, 0]], "repeated"), ([[0, 0], [2, 0]], "out of bounds"),
     ([[-1, 0], [0, 0]], "out of bounds")],
)  # fmt: skip
def test_coordinates_are_checked_in_each_step(indices, problem):
    sp = tf.SparseTensor(indices, [1, 2], [2, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
        run(tf.sparse.to_dense(sp))
    if problem == "repeated":
        assert run(tf.sparse.to_dense(sp, validate_indices=False)).tolist() == [[2, 0], [0, 0]]  # the last counts


def test_sparse_to_dense_takes_vectors_and_scalars():
    a, b = run([tf.sparse_to_dense([1, 3], [5], 1, 9), tf.sparse_to_dense(2, [4], 7)])
    assert (a.tolist(), b.tolist()) == ([9, 1, 9, 1, 9], [0, 0, 7, 0])


@pytest.mark.parametrize(
    ("at", "shape", "values", "default", "problem"),
    [
        ([1, 3], [5], [1, 2, 3], 0, r"sparse_values has incorrect shape \[3\], should be \[\] or \[2\]"),
        ([1, 3], [5], [[1], [2]], 0, "sparse_values has incorrect shape"),
        ([1, 3], [5], [1, 2], [0], "default_value should be a scalar"),
        ([[1, 1]], [5], [1], 0, "output_shape has incorrect number of elements"),
        ([1, 7], [5], [1, 2], 0, r"indices\[1\] = \[7\] is out of bounds"),
    ],
)
def test_sparse_to_dense_takes_one_value_for_each_place(at, shape, values, default, problem):
    found = tf.sparse_to_dense(at, shape, values, default, validate_indices=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
        run(found)


def test_products_of_sizes_that_do_not_match_are_refused():
    a = tf.SparseTensor([[0, 0], [1, 1]], [1.0, 2.0], [2, 2])
    with pytest.raises(ValueError, match="2 and 3"):
        tf.sparse_tensor_dense_matmul(a, tf.ones([3, 2]))
    b = tf.placeholder(tf.float32, [None, 2])
    product = tf.sparse_tensor_dense_matmul(a, b, adjoint_a=True)
    with tf.Session() as session:
        assert session.run(product, {b: np.ones((2, 2))}).tolist() == [[1, 1], [2, 2]]
        with pytest.raises(tf.errors.InvalidArgumentError, match="inner dimension does not match"):
            session.run(product, {b: np.ones((3, 2))})


def test_sums_and_products_of_other_shapes_are_refused():
    a = tf.SparseTensor([[0]], [1], [1])
    b = tf.SparseTensor([[1]], [2], [2])
    for f in (tf.sparse_add, tf.sparse_maximum):
        with pytest.raises(tf.errors.InvalidArgumentError, match="shapes do not match"):
            run(f(a, b))
        with pytest.raises(ValueError, match="same ranks"):
            f(a, tf.SparseTensor([[0, 0]], [1], [1, 1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="broadcasts dense to sparse only"):
        run(tf.ones([3], tf.int32) * b)
    with pytest.raises(ValueError, match="not compatible"):
        tf.sparse_retain(a, [True, False])


def test_sparse_tensors_go_through_functions_of_one_operand():
    x = tf.SparseTensor([[0, 1], [2, 0]], [-1.0, 4.0], [3, 2])
    dense = tf.constant([[2.0], [3.0], [5.0]])
    found = run(
        [tf.negative(x), tf.abs(x), tf.square(x), dense * x, tf.shape(x), tf.size(x), tf.rank(x), tf.cast(x, tf.int32)]
    )
    assert [f.values.tolist() for f in found[:4]] == [[1, -4], [1, 4], [1, 16], [-2, 20]]
    assert (found[4].tolist(), found[5], found[6], found[7].values.tolist()) == ([3, 2], 6, 2, [-1, 4])
    value = tf.SparseTensorValue([[0, 1]], [1.0], [3, 2])
    assert run(tf.shape(value)).tolist() == [3, 2]


def test_ranks_and_axes_may_come_late():
    x = tf.SparseTensor(tf.placeholder(tf.int64), tf.placeholder(tf.float32), tf.placeholder(tf.int64))
    feeds = {x: tf.SparseTensorValue([[1, 0], [0, 1]], [1.0, 2.0], [2, 2])}
    axis = tf.placeholder(tf.int32, [])
    reshaped = tf.sparse_reshape(x, [4, 1, -1])
    assert reshaped.indices.shape.as_list() == [None, 3]
    with tf.Session() as session:
        assert session.run(tf.sparse_reorder(x), feeds).values.tolist() == [2.0, 1.0]
        wide = tf.sparse.expand_dims(x, axis)
        assert session.run(wide, {**feeds, axis: -2}).dense_shape.tolist() == [2, 1, 2]
        assert session.run(reshaped, feeds).indices.tolist() == [[2, 0, 0], [1, 0, 0]]


def test_reshapes_know_their_shapes():
    x = tf.SparseTensor([[0, 0]], [1], [4, 6])
    assert tf.sparse_reshape(x, tf.stack([2, tf.placeholder(tf.int32, [])])).shape.as_list() == [2, 12]
    with pytest.raises(ValueError, match="Cannot reshape"):
        tf.sparse_reshape(x, [5, 5])
    with pytest.raises(ValueError, match="At most one"):
        tf.sparse_reshape(x, [-1, -1])


def test_values_by_several_ids():
    a, b = (tf.SparseTensor([[0, 0], [1, 0]], ids, [2, 1]) for ids in ([3, 1], [0, 2]))
    values = tf.SparseTensor([[0, 0], [1, 0]], [0.5, 1.5], [2, 1])
    merged = run(tf.sparse_merge([a, b], values, [4, 5]))
    assert (merged.indices.tolist(), merged.dense_shape.tolist()) == ([[0, 3, 0], [1, 1, 2]], [2, 4, 5])
    with pytest.raises(TypeError, match="both be lists"):
        tf.sparse_merge([a, b], values, 4)


def test_negative_numbers_are_not_counted():
    with pytest.raises(tf.errors.InvalidArgumentError, match="non-negative"):
        run(tf.bincount([1, -1, 2]))


def test_shapes_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="needs indices"):
        tf.SparseTensor([[0, 0]], [1, 2], [2, 2])
    with pytest.raises(ValueError, match="needs indices"):
        tf.SparseTensor([[0, 0]], [1], [2, 2, 2])
    with pytest.raises(TypeError, match="must be integers"):
        tf.SparseTensor([[0.5, 0]], [1], [2, 2])
    with pytest.raises(TypeError, match="SparseTensor"):
        tf.sparse.reorder(tf.constant([1]))
    with pytest.raises(ValueError, match="the rank of the sparse tensor"):
        tf.sparse.transpose(tf.sparse_placeholder(tf.float32))
    late = tf.placeholder_with_default([3], [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not fit"):
        run(tf.sparse.reshape(tf.SparseTensor([[0, 0]], [1], [2, 2]), late))
    with pytest.raises(ValueError, match="should have dimension sizes"):
        tf.sparse_reset_shape(tf.SparseTensor([[0, 0]], [1], [2, 2]), [3, 1])


@pytest.mark.parametrize("f", [tf.sparse_segment_sum, tf.sparse_segment_mean, tf.sparse_segment_sqrt_n])
@pytest.mark.parametrize(
    ("ids", "text"), [([0, -1], "sorted"), ([-1, 0], "sorted"), ([1, 0], "sorted"), ([0, 4], "= 4 is not in")]
)
def test_segment_ids_beside_a_number_of_segments_are_checked(f, ids, text) -> None:  # type: ignore[no-untyped-def]
    fed = tf.placeholder(tf.int32, [None])
    y = f(tf.ones([4, 3]), [0, 1], fed, num_segments=4)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=text):
        session.run(y, {fed: ids})


def test_a_row_of_a_sparse_product_is_not_negative() -> None:
    indices = tf.placeholder(tf.int64, [None, 2])
    y = tf.sparse_tensor_dense_matmul(tf.SparseTensor(indices, [1.0, 1.0], [4, 4]), tf.ones([4, 3]))
    with tf.Session() as session:
        assert session.run(y, {indices: [[0, 0], [3, 1]]}).sum() == 6
        for row in (-1, 4):
            with pytest.raises(tf.errors.InvalidArgumentError, match=str(row)):
                session.run(y, {indices: [[0, 0], [row, 1]]})
