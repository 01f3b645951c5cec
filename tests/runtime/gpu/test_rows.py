"""Rows on GPUs that are stand-ins: scatters, sparse updates of optimizers, tiling, picking, long sorts. None of it on the host."""

import numpy as np
import pytest
from gpu_programs import agree, instructions

import dovetail as dt
from dovetail.codegen.gpu.graph_regions import GraphRegion
from dovetail.codegen.ir.program import Call

pytestmark = pytest.mark.gpu

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.standard_normal((9, 5)).astype(np.float32)
ROWS = RANDOM.standard_normal((2, 3, 5)).astype(np.float32) + 3
AT = np.array([[3, 8, 3], [0, 3, 5]], np.int32)
KINDS = ("update", "add", "sub", "mul", "div", "min", "max")


@pytest.mark.parametrize("resource", [False, True])
def test_scatters_into_variables(fake, resource):
    def build():
        fetches = []
        at, rows = dt.placeholder(dt.int32, [2, None]), dt.placeholder(dt.float32, [2, None, 5])
        for kind in KINDS:
            v = dt.get_variable(kind, initializer=TABLE, use_resource=resource)
            fetches.append(dt.identity(getattr(dt, f"scatter_{kind}")(v, at, rows)))
        v = dt.get_variable("one", initializer=TABLE, use_resource=resource)
        fetches.append(dt.identity(dt.scatter_add(v, at, 2.5)))
        for kind in ("update", "add", "sub"):
            v = dt.get_variable(f"nd_{kind}", initializer=TABLE, use_resource=resource)
            fetches.append(dt.identity(getattr(dt, f"scatter_nd_{kind}")(v, [[3, 1], [8, 4], [3, 1]], [1.0, 2.0, 3.0])))
        return fetches, {at: AT, rows: ROWS}

    assert not [n for n in agree(build, 2) if "host" in n]


def test_a_scatter_changes_a_variable_in_place_unless_somebody_holds_it(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        v = dt.get_variable("v", initializer=np.zeros((100, 50), np.float32), use_resource=True)
        change = dt.scatter_add(v, [1], np.ones((1, 50), np.float32)).op
        before = v.read_value()
        with dt.control_dependencies([before]):
            later = dt.scatter_add(v, [1], np.ones((1, 50), np.float32)).op
        with dt.control_dependencies([later]):
            held = before + 0.0
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        session.run(change)
        fake.log.clear()
        session.run(change)
        assert [x for x in fake.log if x[0] == "copy"] == []
        assert session.run(held).sum() == 100  # as it was before the second change
        assert session.run(v).sum() == 150


def test_a_row_that_is_not_there_is_left_out(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        v = dt.get_variable("v", initializer=np.zeros((3, 2), np.float32), use_resource=True)
        at = dt.placeholder(dt.int32, [None])
        change = dt.scatter_max(v, at, 1.0).op
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        session.run(change, {at: [7, 1, -1]})
        np.testing.assert_array_equal(session.run(v), [[0, 0], [1, 1], [0, 0]])


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: dt.train.GradientDescentOptimizer(0.1),
        lambda: dt.train.MomentumOptimizer(0.1, 0.9),
        lambda: dt.train.AdagradOptimizer(0.1),
        lambda: dt.train.AdamOptimizer(0.1),
        lambda: dt.train.FtrlOptimizer(0.1),
    ],
    ids=["GradientDescent", "Momentum", "Adagrad", "Adam", "Ftrl"],
)
def test_sparse_updates(fake, resource, optimizer):
    def build():
        table = dt.get_variable("table", initializer=TABLE, use_resource=resource)
        at = dt.placeholder(dt.int32, [2, None])
        rows = dt.nn.embedding_lookup(table, at)
        train = optimizer().minimize(dt.reduce_sum(rows * rows * ROWS))
        return [train, rows, table], {at: AT}

    names = agree(build, 3)
    assert [n for n in names if "Sparse" in n or "Scatter" in n or "CUDA graph" in n]
    assert not [n for n in names if "host" in n]


def test_sparse_updates_are_checked(fake, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CHECK", "2")

    def build():
        table = dt.get_variable("table", initializer=TABLE, use_resource=True)
        dense = dt.get_variable("dense", initializer=TABLE, use_resource=True)
        rows = dt.nn.embedding_lookup(table, AT)
        train = dt.train.MomentumOptimizer(0.1, 0.9).minimize(dt.reduce_sum(rows * rows) + dt.reduce_sum(dense * dense))
        return [train, dt.scatter_sub(dense, [0], [[1.0] * 5]).op], {}

    agree(build, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: dt.scatter_nd([[3], [1], [3]], x[:3], [5, 5]),
        lambda x: dt.scatter_nd([[3, 1], [1, 0], [3, 1]], x[:3, 0], [4, 2]),
        lambda x: dt.tensor_scatter_nd_update(x, [[3, 1], [1, 0]], x[0, :2]),
        lambda x: dt.tensor_scatter_nd_add(x, [[3], [1], [3]], x[:3]),
        lambda x: dt.tensor_scatter_nd_max(x, [[3], [1], [3]], x[:3]),
        lambda x: dt.gather_nd(x, [[3, 1], [1, 0]]),
        lambda x: dt.gather_nd(x, [[[3]], [[1]]]),
        lambda x: dt.tile(x, [2, 3]),
        lambda x: dt.tile(x[:, None, :], [1, 4, 1]),
        lambda x: dt.matmul(dt.cast(x, dt.float64), dt.cast(x, dt.float64), transpose_b=True),
    ],
    ids=["scatter_nd", "elements", "update", "add", "max", "gather_nd", "slices", "tile", "between", "float64 product"],
)
def test_values(fake, make):
    def build():
        x = dt.placeholder(dt.float32, [None, 5])
        y = make(x)
        return [y, *dt.gradients(dt.reduce_sum(y * y), [x])], {x: TABLE}

    assert not [n for n in agree(build) if "host" in n]


def test_what_is_joined_may_be_empty(fake):
    def build():
        x, y = dt.placeholder(dt.float32, [None, 5]), dt.placeholder(dt.float32, [None, 5])
        z = dt.placeholder(dt.float32, [9, None])
        return [dt.concat([x, y], 0), dt.concat([x, z], 1)], {x: TABLE, y: TABLE[:0], z: TABLE[:, :0]}

    assert not [n for n in agree(build) if "host" in n]


@pytest.mark.parametrize(("length", "dtype"), [(5000, dt.float32), (70, dt.float64), (70, dt.int64)])
def test_long_rows_and_wide_elements_are_sorted(fake, length, dtype):
    x = RANDOM.integers(0, 1000, (2, length)).astype(dtype.as_numpy_dtype)

    def build():
        given = dt.placeholder(dtype, [2, None])
        return [*dt.nn.top_k(given, length - 3), dt.sort(given)], {given: x}

    assert not [n for n in agree(build) if "host" in n]


@pytest.mark.parametrize("resource", [False, True])
def test_rows_are_looked_up_and_added_inside_kernels(fake, resource):
    def build():
        table = dt.get_variable("table", initializer=TABLE, use_resource=resource)
        at = dt.placeholder(dt.int32, [None])
        rows = dt.nn.embedding_lookup(table, at)
        hidden = dt.tanh(rows * 2.0 + 1.0)
        sums = dt.math.unsorted_segment_sum(dt.exp(rows[:, 0:3]) * 0.5, at // 2, 6)
        return [hidden, dt.reduce_sum(hidden, 1), sums], {at: AT.ravel()}

    names = agree(build, 3)
    assert not [n for n in names if "host" in n and "FloorDiv" not in n]
    assert not [n for n in names if n in ("ResourceGather", "UnsortedSegmentSum")]


def test_labels_and_places_are_kernels(fake):
    def build():
        logits = dt.placeholder(dt.float32, [9, 5])
        labels = dt.constant([4, 0, 2, 2, 1, 3, 0, 4, 4])
        loss = dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        right = dt.reduce_mean(dt.cast(dt.equal(dt.argmax(logits, 1), dt.cast(labels, dt.int64)), dt.float32))
        fetches = [loss, right, dt.one_hot(labels, 5) * logits, *dt.gradients(loss, [logits])]
        return fetches, {logits: TABLE}

    assert not [n for n in agree(build) if "host" in n]


def test_the_loss_of_a_label_that_there_is_not_is_nan(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        logits, labels = dt.placeholder(dt.float32, [None, 5]), dt.placeholder(dt.int32, [None])
        loss = dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        (gradient,) = dt.gradients(loss, [logits])
    with dt.Session(graph=graph) as session:
        got, by_logits = session.run([loss, gradient], {logits: TABLE[:4], labels: [1, 5, -1, 0]})
    np.testing.assert_array_equal(np.isnan(got), [False, True, True, False])
    np.testing.assert_array_equal(np.isnan(by_logits).all(1), [False, True, True, False])


def test_a_step_of_an_embedding_is_captured(fake):
    """What is looked up changes from step to step, and so does the table; the graph reads both where they are."""
    random = np.random.default_rng(1)
    ids, labels = (random.integers(0, n, (4, 70)).astype(np.int32) for n in (9, 5))

    def trained(where):
        with dt.Graph().as_default() as graph, dt.device(where):
            table = dt.get_variable("table", initializer=TABLE, use_resource=True)
            at, expected = (dt.placeholder(dt.int32, [70]) for _ in range(2))
            logits = dt.tanh(dt.nn.embedding_lookup(table, at) * 1.5 + 0.25) * 3.0
            loss = dt.reduce_mean(dt.nn.sparse_softmax_cross_entropy_with_logits(labels=expected, logits=logits))
            right = dt.reduce_mean(dt.cast(dt.equal(dt.argmax(logits, 1, output_type=dt.int32), expected), dt.float32))
            train = dt.train.AdagradOptimizer(0.1).minimize(loss)
            start = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(start)
            losses = [
                session.run([loss, right, train], {at: i, expected: w})[:2] for i, w in zip(ids, labels, strict=True)
            ]
            replays = [
                i.kernel.replays
                for i in instructions(session)
                if isinstance(i, Call) and isinstance(i.kernel, GraphRegion)
            ]
            return losses, session.run(table), replays

    mine, theirs = trained("/gpu:0"), trained("/cpu:0")
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-5, atol=1e-6)
    assert mine[2] == [2]


@pytest.mark.parametrize(
    ("op", "argument"),
    [
        (dt.transpose, [0, 3]),
        (dt.transpose, [0, -1]),
        (lambda x, axis: dt.gather(x, [0, 1], axis=axis), 5),
        (dt.reduce_sum, [1, 1]),
        (dt.reduce_sum, [0, -2]),
        (dt.pad, [[1], [2], [0], [1]]),
        (lambda x, p: dt.pad(x, p, "SYMMETRIC"), [[1], [2], [0], [1]]),
    ],
)
def test_axes_and_margins_that_are_wrong_are_errors_on_gpus_too(fake, op, argument):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x, given = dt.placeholder(dt.float32, [3, 4]), dt.placeholder(dt.int32)
        given.set_shape(np.shape(argument) if np.ndim(argument) < 2 else None)
        y = op(x * 2.0, given) + 1.0
    with dt.Session(graph=graph) as session, pytest.raises(dt.errors.InvalidArgumentError):
        session.run(y, {x: np.ones((3, 4), np.float32), given: argument})
