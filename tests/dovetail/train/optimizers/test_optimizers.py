"""Optimizers: steps against formulas written apart, names and devices of nodes, and what they refuse."""

import numpy as np
import pytest
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.default_graph import GraphKeys
from dovetail.graph.core.graph import Graph
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.ops.array.dynamic_partition import boolean_mask
from dovetail.graph.ops.array.gather import gather
from dovetail.graph.ops.array.ranges import range as range_
from dovetail.graph.ops.array.sequences import repeat
from dovetail.graph.ops.linalg.linalg import matmul
from dovetail.graph.ops.math.cast import cast
from dovetail.graph.ops.math.compare import equal
from dovetail.graph.ops.math.elementwise import square
from dovetail.graph.ops.math.reduce import reduce_mean, reduce_sum
from dovetail.graph.ops.sparse.math import (
    sparse_segment_mean,
    sparse_segment_sqrt_n,
    sparse_segment_sum,
    sparse_tensor_dense_matmul,
)
from dovetail.graph.tensors.indexed_slices import IndexedSlices
from dovetail.graph.tensors.sparse_tensor import SparseTensor
from dovetail.graph.variables.store import global_variables_initializer
from dovetail.graph.variables.variable import Variable
from dovetail.train import (
    AdagradOptimizer,
    AdamOptimizer,
    AdamWOptimizer,
    GradientDescentOptimizer,
    MomentumOptimizer,
    Optimizer,
    RMSPropOptimizer,
    get_or_create_global_step,
)


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


# --- each rule once more, as its paper has it, one number at a time -----------------------------------------


def descent(rate):
    def start(w):
        return ()

    def step(w, g, t):
        return w - rate * g, ()

    return start, step


def momentum(rate, mu, nesterov=False):
    def start(w):
        return (0.0,)

    def step(w, g, t, a):
        a = mu * a + g
        return w - rate * (g + mu * a if nesterov else a), (a,)

    return start, step


def adagrad(rate, initial):
    def start(w):
        return (initial,)

    def step(w, g, t, a):
        a = a + g**2
        return w - rate * g * a**-0.5, (a,)

    return start, step


def adam(rate, b1, b2, eps):
    def start(w):
        return 0.0, 0.0

    def step(w, g, t, m, v):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        # The paper's corrections of m and v, with epsilon scaled to stand before the correction of the root.
        corrected_m, corrected_root = m / (1 - b1**t), (v / (1 - b2**t)) ** 0.5
        return w - rate * corrected_m / (corrected_root + eps / (1 - b2**t) ** 0.5), (m, v)

    return start, step


def rms_prop(rate, decay, mu, eps, centered=False):
    def start(w):
        return 1.0, 0.0, 0.0

    def step(w, g, t, s, mean, mom):
        s, mean = decay * s + (1 - decay) * g**2, decay * mean + (1 - decay) * g
        mom = mu * mom + rate * g / (s - mean**2 * centered + eps) ** 0.5
        return w - mom, (s, mean, mom)

    return start, step


CASES = {
    "descent": (lambda: GradientDescentOptimizer(0.1), descent(0.1)),
    "momentum": (lambda: MomentumOptimizer(0.05, 0.9), momentum(0.05, 0.9)),
    "nesterov": (lambda: MomentumOptimizer(0.05, 0.9, use_nesterov=True), momentum(0.05, 0.9, nesterov=True)),
    "adagrad": (lambda: AdagradOptimizer(0.3, 0.2), adagrad(0.3, 0.2)),
    "adam": (lambda: AdamOptimizer(0.1, 0.8, 0.95, 1e-3), adam(0.1, 0.8, 0.95, 1e-3)),
    "rmsprop": (lambda: RMSPropOptimizer(0.05, 0.8, 0.5, 1e-3), rms_prop(0.05, 0.8, 0.5, 1e-3)),
    "centered": (
        lambda: RMSPropOptimizer(0.05, 0.8, 0.5, 1e-3, centered=True),
        rms_prop(0.05, 0.8, 0.5, 1e-3, centered=True),
    ),
}
every_optimizer = pytest.mark.parametrize(("make", "formula"), CASES.values(), ids=CASES)
kinds = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])

START = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
SCALE = np.array([[0.5, 1.0], [2.0, 0.1], [1.5, 0.7]])


def follow(formula, steps, gradient):
    """The path of START under a formula; `gradient(w)` gives an array."""
    start, step = formula
    w, states = START.copy(), [[start(x) for x in row] for row in START]
    path = []
    for t in range(1, steps + 1):
        g = gradient(w)
        for i in np.ndindex(w.shape):
            w[i], states[i[0]][i[1]] = step(w[i], g[i], t, *states[i[0]][i[1]])
        path.append(w.copy())
    return path


@every_optimizer
@kinds
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-6)])
def test_dense_steps_follow_the_formula(graph, make, formula, use_resource, dtype, tolerance):
    w = Variable(START.astype(dtype), use_resource=use_resource)
    train_op = make().minimize(reduce_sum(square(w) * SCALE.astype(dtype)))
    run = Interpreter(graph, check=True)
    run.run(global_variables_initializer())
    for expected in follow(formula, 8, lambda x: 2 * SCALE * x):
        run.run(train_op)
        found = run.run(w.read_value())
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@every_optimizer
@kinds
def test_sparse_steps_follow_the_formula_on_the_rows_that_were_used(graph, make, formula, use_resource):
    w = Variable(START.astype("f4"), use_resource=use_resource)
    values = constant(np.float32([[1, 2], [3, -4], [0.5, 0.5]]))
    grad = IndexedSlices(values, constant([2, 0, 2]), constant([3, 2]))  # row 2 twice, row 1 never
    dense = np.array([[3, -4], [0, 0], [1.5, 2.5]])
    train_op = make().apply_gradients([(grad, w)])
    run = Interpreter(graph, check=True)
    run.run(global_variables_initializer())
    for expected in follow(formula, 5, lambda x: dense):
        run.run(train_op)
        found = run.run(w.read_value())
        np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], rtol=2e-5, atol=1e-6)
        np.testing.assert_array_equal(found[1], np.float32(START[1]))


def test_adam_moves_rows_that_a_later_gradient_does_not_name(graph):
    # Row 1 gets a gradient once, then coasts: TensorFlow's Adam decays all rows at every step.
    w, which = Variable(START.astype("f4")), placeholder("int32", [1])
    grad = IndexedSlices(constant(np.float32([[1, 2]])), which, constant([3, 2]))
    train_op = AdamOptimizer(0.1, 0.8, 0.95, 1e-3).apply_gradients([(grad, w)])
    run = Interpreter(graph)
    run.run(global_variables_initializer())
    given = iter([1, 0, 0])

    def dense(_):
        g = np.zeros((3, 2))
        g[next(given)] = [1, 2]
        return g

    for row, expected in zip([1, 0, 0], follow(adam(0.1, 0.8, 0.95, 1e-3), 3, dense), strict=True):
        run.run(train_op, {which: [row]})
        np.testing.assert_allclose(run.run(w), expected, rtol=2e-5)


@kinds
def test_adam_w_decays_the_rows_that_a_gradient_names(graph, use_resource):
    w, which = Variable(START.astype("f4"), use_resource=use_resource), placeholder("int32", [2])
    grad = IndexedSlices(constant(np.float32([[1, 2], [1, 2]])), which, constant([3, 2]))
    train_op = AdamWOptimizer(0.1, 0.8, 0.95, 1e-3, weight_decay=0.5).apply_gradients([(grad, w)])
    run = Interpreter(graph, check=True)
    run.run(global_variables_initializer())
    expected, m, v = START.copy(), np.zeros((3, 2)), np.zeros((3, 2))
    for t, rows in enumerate([[1, 1], [0, 2], [0, 0]], 1):  # a row that is named twice decays once
        g = np.zeros((3, 2))
        np.add.at(g, rows, [1, 2])
        expected[np.unique(rows)] *= 1 - 0.1 * 0.5
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        expected -= 0.1 * np.sqrt(1 - 0.95**t) / (1 - 0.8**t) * m / (np.sqrt(v) + 1e-3)
        run.run(train_op, {which: rows})
        np.testing.assert_allclose(run.run(w.read_value()), expected, rtol=2e-5)


@kinds
def test_a_decay_comes_after_the_gradient_is_known(graph, use_resource):
    w = Variable(np.float32([[2.0], [4.0]]), use_resource=use_resource)
    rows = w.sparse_read([1]) if use_resource else gather(w, [1])
    optimizer = AdamWOptimizer(0.5, 0.0, 0.0, 1e-30, weight_decay=1.0)
    ((grad, _),) = optimizer.compute_gradients(reduce_sum(square(rows)))
    run = Interpreter(graph, check=True)
    train_op = optimizer.apply_gradients([(grad, w)])
    run.run(global_variables_initializer())
    run.run(train_op)
    np.testing.assert_allclose(run.run(w.read_value()), [[2.0], [4.0 * 0.5 - 0.5]])
    np.testing.assert_allclose(run.run(optimizer.get_slot(w, "m")), [[0.0], [8.0]])


@kinds
def test_an_embedding_trains_by_rows(graph, use_resource):
    table = Variable(START.astype("f4"), use_resource=use_resource)
    looked_up = table.sparse_read([0, 2, 0]) if use_resource else gather(table, [0, 2, 0])
    loss = reduce_sum(looked_up)
    opt = GradientDescentOptimizer(0.5)
    ((grad, _),) = opt.compute_gradients(loss)
    assert isinstance(grad, IndexedSlices)
    run = Interpreter(graph, check=True)
    run.run(global_variables_initializer())
    run.run(opt.apply_gradients([(grad, table)]))
    np.testing.assert_allclose(run.run(table), START - 0.5 * np.array([[2, 2], [0, 0], [1, 1]]))


PICKED = {
    "boolean_mask": lambda w, row: boolean_mask(w, equal(range_(3), row)),
    "repeat": lambda w, row: repeat(w, cast(equal(range_(3), row), "int32"), axis=0),
    "sparse_segment_sum": lambda w, row: sparse_segment_sum(w, [row], [0]),
    "sparse_segment_mean": lambda w, row: sparse_segment_mean(w, [row], [0]),
    "sparse_segment_sqrt_n": lambda w, row: sparse_segment_sqrt_n(w, [row], [0]),
    "sparse_tensor_dense_matmul": lambda w, row: sparse_tensor_dense_matmul(
        SparseTensor(cast([[0, row]], "int64"), [1.0], [1, 3]), w
    ),
}


@kinds
@pytest.mark.parametrize("pick", PICKED.values(), ids=PICKED)
def test_rows_that_are_picked_without_a_lookup_have_a_whole_gradient(graph, pick, use_resource):
    # The others coast: only the gradient of a lookup leaves rows out, in TensorFlow as well.
    w, row = Variable(START.astype("f4"), use_resource=use_resource), placeholder("int32", [])
    loss = reduce_sum(pick(w, row) * np.float32([[1, 2]]))
    train_op = MomentumOptimizer(0.1, 0.5).minimize(loss)
    run = Interpreter(graph, check=True)
    run.run(global_variables_initializer())
    expected, velocity = START.copy(), np.zeros_like(START)
    for chosen in (1, 0, 2, 0):
        velocity *= 0.5
        velocity[chosen] += [1, 2]
        expected -= 0.1 * velocity
        run.run(train_op, {row: chosen})
        np.testing.assert_allclose(run.run(w.read_value()), expected, rtol=2e-5)


def test_settings_may_be_tensors_and_functions(graph):
    rate = placeholder("float32", [])
    w = Variable(np.float32([1, 1]))
    loss = reduce_sum(w)
    by_tensor = GradientDescentOptimizer(rate).minimize(loss)
    by_function = GradientDescentOptimizer(lambda: 0.25).minimize(loss)
    run = Interpreter(graph)
    run.run(w.initializer)
    run.run(by_tensor, {rate: 0.5})
    run.run(by_function)
    np.testing.assert_allclose(run.run(w), [0.25, 0.25])


def test_a_classifier_learns(graph):
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((64, 3)).astype("f4")
    wanted = (inputs @ np.float32([[1.0], [-2.0], [0.5]])).astype("f4")
    x, y = placeholder("float32", [None, 3]), placeholder("float32", [None, 1])
    w = Variable(np.zeros((3, 1), "f4"))
    loss = reduce_mean(square(matmul(x, w.value()) - y))
    step = get_or_create_global_step()
    train_op = AdamOptimizer(0.1).minimize(loss, global_step=step)
    run = Interpreter(graph)
    run.run(global_variables_initializer())
    for _ in range(200):
        run.run(train_op, {x: inputs, y: wanted})
    assert run.run(loss, {x: inputs, y: wanted}) < 1e-4
    assert run.run(step) == 200


# --- nodes --------------------------------------------------------------------------------------------------


def test_the_nodes_of_gradient_descent_have_tensorflows_names(graph):
    w = Variable(np.float32([1, 1]), name="w")
    loss = reduce_sum(w)
    before = len(graph)
    train_op = GradientDescentOptimizer(0.1).minimize(loss)
    new = [n.name for n in graph.nodes[before:] if not n.name.startswith("gradients/")]
    assert new == [
        "GradientDescent/learning_rate",
        "GradientDescent/update_w/ApplyGradientDescent",
        "GradientDescent",
    ]
    assert (train_op.name, train_op.type) == ("GradientDescent", "NoOp")
    assert graph.get_collection(GraphKeys.TRAIN_OP) == [train_op]


def test_the_nodes_of_adam_have_tensorflows_names(graph):
    w = Variable(np.float32([1, 1]), name="w")
    loss = reduce_sum(w)
    step = get_or_create_global_step()
    before = len(graph)
    train_op = AdamOptimizer(0.1).minimize(loss, global_step=step)
    new = [n.name for n in graph.nodes[before:] if not n.name.startswith("gradients/")]
    assert new == [
        *("beta1_power/initial_value", "beta1_power", "beta1_power/Assign", "beta1_power/read"),
        *("beta2_power/initial_value", "beta2_power", "beta2_power/Assign", "beta2_power/read"),
        *("w/Adam/Initializer/zeros", "w/Adam", "w/Adam/Assign", "w/Adam/read"),
        *("w/Adam_1/Initializer/zeros", "w/Adam_1", "w/Adam_1/Assign", "w/Adam_1/read"),
        *("Adam/learning_rate", "Adam/beta1", "Adam/beta2", "Adam/epsilon"),
        *(
            "Adam/update_w/ApplyAdam",
            "Adam/read",
            "Adam/mul",
            "Adam/Assign",
            "Adam/read_1",
            "Adam/mul_1",
            "Adam/Assign_1",
        ),
        "Adam/update",
        *("Adam/value", "Adam"),
    ]
    assert (train_op.name, train_op.type) == ("Adam", "AssignAdd")
    # The powers are read behind the updates: workers that train at once would else lose each other's steps.
    reads = [graph.get_operation_by_name(f"Adam/read{i}") for i in ("", "_1")]
    assert [r.control_inputs[0].name for r in reads] == ["Adam/update_w/ApplyAdam"] * 2


def test_updates_and_slots_stand_with_their_variables(graph):
    turns = iter(range(10))

    def setter(node):
        return f"/job:ps/task:{next(turns)}" if node.type == "VariableV2" else "/job:worker"

    with graph.device(setter):
        a = Variable(np.float32([1, 1]), name="a")
        b = Variable(np.float32([1, 1]), name="b")
        step = get_or_create_global_step()
        opt = MomentumOptimizer(0.1, 0.9)
        train_op = opt.minimize(reduce_sum(a * b), global_step=step)
    for v, task in ((a, 0), (b, 1)):
        beside = [
            opt.get_slot(v, "momentum").op,
            graph.get_operation_by_name(f"Momentum/update_{v.op.name}/ApplyMomentum"),
        ]
        for node in beside:
            assert node.device == v.device == f"/job:ps/task:{task}"
            assert v.op.name in node.colocation
    assert train_op.device == step.device == "/job:ps/task:2"
    assert graph.get_operation_by_name("Momentum/learning_rate").device == "/job:worker"


def test_the_global_step_counts_after_all_updates(graph):
    a, b = Variable(np.float32([1]), name="a"), Variable(np.float32([1]), name="b")
    step = get_or_create_global_step()
    train_op = GradientDescentOptimizer(0.1).minimize(reduce_sum(a * b), global_step=step)
    before, todo = set(), [train_op]
    while todo:
        node = todo.pop()
        before.add(node.name)
        todo.extend([*node.control_inputs, *(t.op for t in node.inputs)])
    assert {
        "GradientDescent/update_a/ApplyGradientDescent",
        "GradientDescent/update_b/ApplyGradientDescent",
    } <= before


@kinds
def test_slots(graph, use_resource):
    w = Variable(np.float32([1, 1]), name="w", use_resource=use_resource)
    opt = RMSPropOptimizer(0.1, momentum=0.5)
    opt.minimize(reduce_sum(w.value()))
    assert opt.get_slot_names() == ["momentum", "rms"]
    assert opt.get_slot(w, "rms").name == "w/RMSProp:0"
    assert opt.get_slot(w, "momentum").name == "w/RMSProp_1:0"
    assert opt.get_slot(w, "other") is None
    assert type(opt.get_slot(w, "rms")) is type(w)
    assert [v.name for v in opt.variables()] == ["w/RMSProp:0", "w/RMSProp_1:0"]
    assert opt.get_slot(w, "rms") not in graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
    slots = len(opt.variables())
    opt.minimize(reduce_sum(w.value()))  # a second time: the same slots
    assert len(opt.variables()) == slots


def test_a_slot_of_a_variable_of_unknown_shape(graph):
    w = Variable(np.float32([1, 2]), validate_shape=False)
    train_op = MomentumOptimizer(0.5, 0.9).minimize(reduce_sum(w.value()))
    run = Interpreter(graph)
    run.run(global_variables_initializer())
    run.run(train_op)
    np.testing.assert_allclose(run.run(w), [0.5, 1.5])


def test_a_slot_that_starts_elsewhere_of_a_variable_of_unknown_shape(graph):
    w = Variable(np.float32([1, 2]), validate_shape=False)
    train_op = AdagradOptimizer(0.5, 0.44).minimize(reduce_sum(w.value()))
    run = Interpreter(graph)
    run.run(global_variables_initializer())
    run.run(train_op)
    np.testing.assert_allclose(run.run(w), [1 - 0.5 / 1.2, 2 - 0.5 / 1.2], rtol=1e-6)


def test_the_loss_may_be_a_function(graph):
    w = Variable(np.float32([1, 2]))
    optimizer = GradientDescentOptimizer(0.5)
    train_op = optimizer.minimize(lambda: reduce_sum(w * 2.0))
    run = Interpreter(graph)
    run.run(global_variables_initializer())
    run.run(train_op)
    np.testing.assert_allclose(run.run(w), [0, 1])
    x = constant(3.0)
    ((gradient, of),) = optimizer.compute_gradients(lambda: x * x, [x])
    assert of is x and run.run(gradient) == 6.0
    with pytest.raises(NotImplementedError, match="Trying to update a Tensor"):
        optimizer.apply_gradients([(gradient, x)])


def test_variables_are_those_of_the_default_graph(graph):
    optimizer = AdamOptimizer()
    optimizer.minimize(reduce_sum(Variable([1.0], name="a")))
    with Graph().as_default():
        optimizer.minimize(reduce_sum(Variable([1.0], name="b")))
        names = ["b/Adam", "b/Adam_1", "beta1_power", "beta2_power"]
        assert [v.op.name for v in optimizer.variables()] == names
    assert "a/Adam" in [v.op.name for v in optimizer.variables()]


# --- arguments ----------------------------------------------------------------------------------------------


def test_only_the_listed_variables_change(graph):
    a, b = Variable(1.0), Variable(1.0)
    Variable(1.0, trainable=False)
    opt = GradientDescentOptimizer(0.5)
    assert [v for _, v in opt.compute_gradients(a * b)] == [a, b]
    train_op = opt.minimize(a * b, var_list=[b])
    again = opt.minimize(a * b, var_list={"b": b}.values())
    run = Interpreter(graph)
    run.run(global_variables_initializer())
    run.run(train_op)
    assert run.run([a, b]) == [1.0, 0.5]
    run.run(again)
    assert run.run([a, b]) == [1.0, 0.0]


def test_a_variable_that_the_loss_does_not_use_gets_none(graph):
    a, b = Variable(1.0), Variable(1.0)
    opt = GradientDescentOptimizer(0.5)
    (_, (none, _)) = opt.compute_gradients(a * 2.0)
    assert none is None
    opt.minimize(a * 2.0)
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        opt.minimize(a * 2.0, var_list=[b])


def test_a_constraint_holds_after_each_update(graph):
    def at_most_one(v):
        return v * 0.0 + 1.0

    w = Variable(5.0, constraint=at_most_one)
    train_op = GradientDescentOptimizer(0.1).minimize(w * 1.0)
    run = Interpreter(graph)
    run.run(w.initializer)
    run.run(train_op)
    assert run.run(w) == 1.0
    rows = IndexedSlices(constant([1.0]), constant([0]))
    v = Variable([1.0], constraint=at_most_one)
    with pytest.raises(RuntimeError, match="constraint"):
        GradientDescentOptimizer(0.1).apply_gradients([(rows, v)])


def test_gate_graph_waits_for_all_gradients(graph):
    a, b = Variable(1.0), Variable(1.0)
    pairs = GradientDescentOptimizer(0.1).compute_gradients(a * b, gate_gradients=Optimizer.GATE_GRAPH)
    waits = [set(g.op.control_inputs) | {g.op.inputs[0].op} for g, _ in pairs]
    assert waits[0] == waits[1]
    assert len(waits[0]) == 2


def test_grad_loss_weighs_the_loss(graph):
    w = Variable(np.float32([1, 1]))
    train_op = GradientDescentOptimizer(1.0).minimize(w * 2.0, grad_loss=constant([0.5, 0.25]))
    run = Interpreter(graph)
    run.run(w.initializer)
    run.run(train_op)
    np.testing.assert_allclose(run.run(w), [0.0, 0.5])


def test_gradients_may_be_changed_on_the_way(graph):
    w = Variable(np.float32([1, 1]))
    opt = GradientDescentOptimizer(1.0)
    pairs = [(g * 0.5, v) for g, v in opt.compute_gradients(reduce_sum(w * 2.0))]
    train_op = opt.apply_gradients(pairs)
    run = Interpreter(graph)
    run.run(w.initializer)
    run.run(train_op)
    np.testing.assert_allclose(run.run(w), [0, 0])


def test_a_subclass_in_tensorflows_style(graph):
    class Sign(Optimizer):
        def __init__(self):
            super().__init__(False, "Sign")

        def _apply_dense(self, grad, var):
            return var.assign_sub(grad * 0.5)

        def _apply_sparse(self, grad, var):
            return var.scatter_sub(grad)

    w = Variable([1.0, 2.0])
    table = Variable([1.0, 2.0])
    rows = IndexedSlices(constant([1.0]), constant([1]))
    train_op = Sign().apply_gradients([(constant([1.0, 1.0]), w), (rows, table)])
    run = Interpreter(graph)
    run.run(global_variables_initializer())
    run.run(train_op)
    assert run.run([w, table])[0].tolist() == [0.5, 1.5]
    assert run.run(table).tolist() == [1.0, 1.0]


def test_wrong_arguments(graph):
    w, opt = Variable([1.0]), GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match="Must specify the optimizer name"):
        GradientDescentOptimizer(0.1, name="")
    with pytest.raises(ValueError, match="initial_accumulator_value must be positive"):
        AdagradOptimizer(0.1, initial_accumulator_value=0.0)
    with pytest.raises(ValueError, match="No variables provided"):
        opt.apply_gradients([])
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        opt.apply_gradients([(None, w)])
    with pytest.raises(TypeError, match="can update only variables"):
        opt.apply_gradients([(constant([1.0]), "w")])
    with pytest.raises(TypeError, match="Gradient must be convertible"):
        opt.apply_gradients([(object(), w)])
    with pytest.raises(ValueError, match="gate_gradients must be one of"):
        opt.minimize(w * 1.0, gate_gradients=7)
    with pytest.raises(ValueError, match="No variables to optimize"):
        opt.minimize(w * 1.0, var_list=[])
    with pytest.raises(ValueError, match="Invalid type int32"):
        opt.minimize(constant(1))
    assert gradients(w * 1.0, w)[0] is not None
