"""Sessions on GPUs that are stand-ins: what is launched, copied and kept, and that the numbers are the CPU's.

Kernels run in Triton's interpreter, and as late as they may (`tests/codegen/fake_driver.py`).
"""

import gc
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from gpu_programs import agree, instructions, interpreted_gpus, ops, results_on

import dovetail as dt
from dovetail.codegen.backends.stretches import Stretch
from dovetail.codegen.cuda.array import DeviceArray
from dovetail.codegen.cuda.device import device
from dovetail.codegen.program import Call, Loop
from dovetail.codegen.update_loops import accumulation, update
from dovetail.graph.dtypes import as_dtype
from dovetail.graph.ops.training import RULES
from dovetail.runtime.in_process import InProcess


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    with interpreted_gpus(2) as made:
        yield made


RANDOM = np.random.default_rng(0)


def matrix(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


# --- devices ---------------------------------------------------------------------------------------------------------


def test_gpus_are_found_and_may_be_left_out(fake, monkeypatch):
    with dt.Session(graph=dt.Graph()) as session:
        found = session.list_devices()
    assert [str(d) for d in found if d.name.device_type == "GPU"] == [
        "/job:localhost/replica:0/task:0/device:GPU:0",
        "/job:localhost/replica:0/task:0/device:GPU:1",
    ]
    assert {d.memory_bytes for d in found if d.name.device_type == "GPU"} == {1 << 30}
    with dt.Session(graph=dt.Graph(), config=dt.ConfigProto(device_count={"GPU": 1})) as session:
        assert len(session.list_devices()) == 2
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "1")  # who asks for emulated ones gets no others
    with dt.Session(graph=dt.Graph()) as session:
        assert [(d.name.device_type, d.emulated) for d in session.list_devices()] == [("CPU", False), ("GPU", True)]


# --- programs --------------------------------------------------------------------------------------------------------


def test_a_small_step_launch_by_launch(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None, 8])
        w = dt.Variable(matrix(8, 4), name="w")
        y = dt.tanh(dt.matmul(x, w) + 1.0)
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        assert fake.copies() == [("to device", 128)]  # the initial value
        assert fake.launches() == []
        gpu = device(0)
        before, copies = gpu.pool.in_use, len(fake.copies())
        given = matrix(3, 8)
        value = session.run(y, {x: given})
        launches = fake.launches()
        assert [(x[1], x[2]) for x in launches] == [("matmul", (1, 1, 1))]  # what follows the product is in its kernel
        product = launches[0][4]
        weights = graph_variable(session, "w")
        assert product[1] == weights.pointer and product[3:] == (3, 4, 8)
        assert fake.copies()[copies:] == [("to device", 96), ("to host", 48)]
        assert [op for op in ops(session) if op not in ("VariableV2", "Identity", "Read")] == [
            "Assign", "NoOp", "ToDevice", "Fused", "ToHost",
        ]  # fmt: skip
        gpu.synchronize()
        assert gpu.pool.largest() == [(512, "w")]  # nothing of the step is left
        assert gpu.pool.in_use == before
        np.testing.assert_allclose(value, np.tanh(given @ np.asarray(weights) + 1), rtol=1e-5)


def graph_variable(session: dt.Session, name: str) -> Any:
    """What a variable holds."""
    target = session._target
    assert isinstance(target, InProcess)
    for state in target._worker._sessions.values():
        for _, found, resource in state.resources:
            if found == name:
                return resource._value
    raise KeyError(name)


def test_variables_stay_and_are_updated_in_place(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        w = dt.Variable(np.ones((20, 5), np.float32), name="w")
        step = dt.assign_add(w, matrix(20, 5))
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        value = graph_variable(session, "w")
        assert type(value) is DeviceArray
        pointer = value.pointer
        del value
        session.run(step.op)
        session.run(step.op)
        assert graph_variable(session, "w").pointer == pointer
        held = graph_variable(session, "w")  # somebody holds the value: it must not change under them
        was = np.asarray(held).copy()
        session.run(step.op)
        assert graph_variable(session, "w").pointer != pointer
        np.testing.assert_array_equal(np.asarray(held), was)


def test_a_read_before_an_update_is_a_snapshot(fake):
    start = matrix(70)

    def build():
        v = dt.Variable(start, name="v")
        before = dt.identity(v)
        with dt.control_dependencies([before]):
            after = dt.assign_add(v, dt.ones([70]))
        return [before * 1.0, after], {}

    agree(build, 2)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: dt.train.GradientDescentOptimizer(0.05),
        lambda: dt.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
        lambda: dt.train.AdamOptimizer(0.01),
        lambda: dt.train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
        lambda: dt.train.AdagradOptimizer(0.05),
    ],
)
def test_training_gives_the_cpus_numbers(fake, optimizer):
    given, wanted = matrix(6, 10), matrix(6, 3)

    def build():
        x, y = dt.placeholder(dt.float32, [None, 10]), dt.placeholder(dt.float32, [None, 3])
        w1 = dt.Variable(0.3 * np.random.default_rng(1).standard_normal((10, 16)).astype(np.float32))
        w2 = dt.Variable(0.3 * np.random.default_rng(2).standard_normal((16, 3)).astype(np.float32))
        b = dt.Variable(np.zeros(16, np.float32))
        out = dt.matmul(dt.nn.relu(dt.matmul(x, w1) + b), w2)
        loss = dt.reduce_mean(dt.nn.softmax_cross_entropy_with_logits(labels=dt.nn.softmax(y), logits=out))
        return [loss, optimizer().minimize(loss), w1], {x: given, y: wanted}

    agree(build, 3)


def test_ops_without_a_kernel_run_on_the_host_and_say_so_in_the_program(fake):
    x = matrix(5, 5) - 9 * (1 - np.eye(5, dtype=np.float32))
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        given = dt.placeholder(dt.float32, [5, 5])
        out = dt.matrix_inverse(dt.exp(given)) * 2.0
    with dt.Session(graph=graph) as session:
        np.testing.assert_allclose(session.run(out, {given: x}), 2 * np.linalg.inv(np.exp(x)), rtol=1e-4, atol=1e-6)
        names = ops(session)
        assert "MatrixInverse (on the host)" in names and "Fused" in names
        assert [c[0] for c in fake.copies()] == ["to device", "to host", "to device", "to host"]


def test_small_whole_numbers_stay_with_the_host(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        n = dt.placeholder(dt.int32, [])
        out = (n + 1) * 2
    with dt.Session(graph=graph) as session:
        assert session.run(out, {n: 20}) == 42
    assert fake.copies() == [] and fake.launches() == []


def test_shapes_and_views_cost_nothing(fake):
    def build():
        x = dt.placeholder(dt.float32, [None, 6])
        y = dt.reshape(x, [-1, 3])
        return [y, dt.shape(y), dt.expand_dims(y, 0), dt.squeeze(dt.expand_dims(y, 1), [1])], {
            x: np.ones((4, 6), np.float32)
        }

    agree(build)


def test_loops_and_branches(fake):
    def build():
        x = dt.placeholder(dt.float32, [80])
        _, y = dt.while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, v * 1.5), [0, x])
        z = dt.cond(dt.reduce_sum(x) > 0.0, lambda: x + 1.0, lambda: x - 1.0)
        return [y, z], {x: np.linspace(0, 1, 80).astype(np.float32)}

    agree(build)


def test_batched_products_and_transposed_operands(fake):
    a, b = matrix(3, 5, 7), matrix(3, 7, 4)

    def build():
        x, y = dt.placeholder(dt.float32, [None, 5, 7]), dt.placeholder(dt.float32, [None, 7, 4])
        return [dt.matmul(x, y), dt.matmul(y, x, transpose_a=True, transpose_b=True)], {x: a, y: b}

    agree(build)


def test_narrow_floats(fake):
    def build():
        x = dt.placeholder(dt.float32, [40])
        h = dt.cast(x, dt.bfloat16)
        return [dt.cast(h * h, dt.float32)], {x: np.arange(40, dtype=np.float32)}

    mine, theirs = (results_on(where, build)[0] for where in ("/gpu:0", "/cpu:0"))
    np.testing.assert_allclose(mine[0][0], theirs[0][0], rtol=1e-2)


def test_no_elements(fake):
    def build():
        x = dt.placeholder(dt.float32, [None, 3])
        return [dt.exp(x) * 2.0, dt.reduce_sum(x, 0), dt.matmul(x, dt.ones([3, 2]))], {x: np.empty((0, 3), np.float32)}

    agree(build)


# --- between devices -------------------------------------------------------------------------------------------------


def test_between_gpus_of_a_task_tensors_do_not_pass_the_host(fake):
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [100])
        with dt.device("/gpu:0"):
            a = dt.exp(x)
        with dt.device("/gpu:1"):
            b = dt.sqrt(a)
        with dt.device("/cpu:0"):
            c = b + 1.0
    with dt.Session(graph=graph) as session:
        given = np.linspace(0, 2, 100).astype(np.float32)
        np.testing.assert_allclose(session.run(c, {x: given}), np.sqrt(np.exp(given)) + 1, rtol=1e-5)
        assert [c[0] for c in fake.copies()] == ["to device", "peer", "to host"]
        assert "ToHost" in ops(session) and "ToHost" not in ops(session, "CPU")


def test_sends_inside_loops(fake):
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [70])

        def body(i, v):
            with dt.device("/gpu:0"):
                w = v * 2.0
            with dt.device("/cpu:0"):
                return i + 1, w + 1.0

        with dt.device("/cpu:0"):
            _, out = dt.while_loop(lambda i, v: i < 3, body, [0, x])
    with dt.Session(graph=graph) as session:
        given = np.ones(70, np.float32)
        np.testing.assert_allclose(session.run(out, {x: given}), np.full(70, 15.0))
        loops = [i for i in instructions(session) if isinstance(i, Loop)]
        assert loops and any(isinstance(i, Call) and i.op == "ToHost" for i in (*loops[0].head, *loops[0].body))


# --- memory ----------------------------------------------------------------------------------------------------------


def test_many_steps_leak_nothing(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None])
        y = dt.reduce_sum(dt.exp(x) * x)
    with dt.Session(graph=graph) as session:
        for i in range(30):
            session.run(y, {x: np.ones(100 + i % 3, np.float32)})
        gpu = device(0)
        gpu.synchronize()
        assert gpu.pool.largest() == []
        assert gpu.pool.held < 20_000
    del session
    gc.collect()


def test_out_of_memory_names_nodes(fake, monkeypatch):
    monkeypatch.setenv("DOVETAIL_GPU_MEMORY", str(1 << 20))
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None])
        kept = dt.matmul(dt.reshape(x, [-1, 1]), dt.reshape(x, [1, -1]), name="outer")
    with dt.Session(graph=graph) as session:
        with pytest.raises(dt.errors.ResourceExhaustedError) as e:
            session.run(kept, {x: np.ones(1000, np.float32)})
        text = str(e.value)
        assert (
            "GPU:0 (Fake GPU) is out of memory" in text
            and "for outer" in text
            and "node 'outer' (MatMul), made at" in text
        )
        assert session.run(kept, {x: np.ones(10, np.float32)}).shape == (10, 10)  # the session goes on


# --- checks ----------------------------------------------------------------------------------------------------------


def test_check_compares_with_the_references(fake, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CHECK", "2")
    monkeypatch.setattr(FakeDriver, "_execute", lambda *args: None)  # kernels that do nothing
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None])
        y = dt.exp(x, name="e")
    with (
        dt.Session(graph=graph) as session,
        pytest.raises(dt.errors.InternalError, match="kernel of e differs from the reference"),
    ):
        session.run(y, {x: np.ones(100, np.float32)})


@pytest.mark.parametrize("rule", RULES)
def test_every_optimisers_rule_becomes_a_loop(rule):
    for flag in (False, True):
        loops = update(rule, as_dtype("float32"), tuple((name, flag) for name in sorted(RULES[rule].flags)))
        assert len(loops.stores) == 1 + len(RULES[rule].slots)
        assert len(loops.loads) == 2 + len(RULES[rule].slots) + len(RULES[rule].before) + len(RULES[rule].after)


def test_how_an_accumulation_is_written():
    assert str(accumulation("sub", as_dtype("float32"))) == (
        "loops over d0\n  v0: float32[d0] = load in0\n  v1: float32[d0] = load in1\n  v2: float32[d0] = sub v0 v1\n  store out0[d0] = v2"
    )


# --- graphs ----------------------------------------------------------------------------------------------------------


def trained(where: str, steps: int, fetched: bool = False) -> tuple[list[Any], list[Stretch]]:
    """Losses of a small model, and the stretches of its program."""
    with dt.Graph().as_default() as graph, dt.device(where):
        x = dt.placeholder(dt.float32, [None, 8])
        w = dt.Variable(np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), name="w")
        b = dt.Variable(np.zeros(4, np.float32), name="b")
        loss = dt.reduce_mean(dt.tanh(dt.matmul(x, w) + b) ** 2.0)
        train = dt.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        init = dt.global_variables_initializer()
    given = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    with dt.Session(graph=graph) as session:
        session.run(init)
        losses = [session.run([loss, train, *([w] if fetched else [])], {x: given + 0.01 * i}) for i in range(steps)]
        calls = instructions(session) if "gpu" in where else []
        return losses, [i.kernel for i in calls if isinstance(i, Call) and isinstance(i.kernel, Stretch)]


def test_a_step_that_repeats_becomes_a_graph(fake):
    losses, stretches = trained("/gpu:0", 7)
    wanted, _ = trained("/cpu:0", 7)
    np.testing.assert_allclose([v[0] for v in losses], [v[0] for v in wanted], rtol=1e-5)
    (stretch,) = stretches
    assert stretch.replays == 5
    kinds = [x[0] for x in fake.log if x[0] in ("begin capture", "end capture", "launch", "graph launch")]
    captured = kinds.index("end capture") - kinds.index("begin capture") - 1
    assert captured >= 5
    assert (
        kinds
        == ["launch"] * 2 * captured
        + ["begin capture"]
        + ["launch"] * captured
        + ["end capture"]
        + ["graph launch"] * 5
    )


def test_a_variable_that_somebody_holds_is_not_changed_by_a_graph(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        w = dt.Variable(np.ones(100, np.float32), name="w")
        steps = [
            dt.assign_add(v, dt.sin(v * 1.0)) for v in (w, *(dt.Variable(np.ones(100, np.float32)) for _ in range(3)))
        ]
        run = dt.group(*steps)
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        for _ in range(4):
            session.run(run)
        held = graph_variable(session, "w")
        was = np.asarray(held).copy()
        session.run(run)
        np.testing.assert_array_equal(np.asarray(held), was)
        expected = was + np.sin(was)
        np.testing.assert_allclose(np.asarray(graph_variable(session, "w")), expected, rtol=1e-5)
        session.run(run)
        np.testing.assert_allclose(session.run(w), expected + np.sin(expected), rtol=1e-5)


def test_results_of_a_graph_are_the_callers_own(fake):
    losses, stretches = trained("/gpu:0", 8, fetched=True)
    wanted, _ = trained("/cpu:0", 8, fetched=True)
    for mine, theirs in zip(losses, wanted, strict=True):
        np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-5)
    assert [s.replays for s in stretches] == [0]  # the value that is fetched is held while the update runs
    assert list(stretches[0]._captured.values()) == [None]


def test_an_error_inside_a_stretch_names_its_node(fake, monkeypatch):
    monkeypatch.setenv("DOVETAIL_GPU_MEMORY", str(1 << 20))
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None, 1])
        y = dt.matmul(x, x, transpose_b=True, name="outer")
        for _ in range(4):
            y = dt.matmul(y, y)
    with (
        dt.Session(graph=graph) as session,
        pytest.raises(dt.errors.ResourceExhaustedError, match=r"node 'outer' \(MatMul\), made at"),
    ):
        session.run(y, {x: np.ones((1000, 1), np.float32)})


def test_graphs_can_be_turned_off(fake, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CUDA_GRAPHS", "0")
    _, stretches = trained("/gpu:0", 3)
    assert stretches == [] and not any(x[0] == "graph launch" for x in fake.log)


# --- images ----------------------------------------------------------------------------------------------------------

IMAGES, FILTERS, DEEP = matrix(2, 9, 8, 3), matrix(3, 3, 3, 4), matrix(3, 3, 3, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: dt.nn.conv2d(x, dt.constant(FILTERS), strides=[1, 2, 2, 1], padding="SAME"),
        lambda x: dt.nn.depthwise_conv2d(x, dt.constant(DEEP), strides=[1, 1, 1, 1], padding="VALID"),
        lambda x: dt.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
        lambda x: dt.nn.avg_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"),
    ],
    ids=["conv2d", "depthwise", "max_pool", "avg_pool"],
)
def test_images_and_their_gradients(fake, make):
    def build():
        x = dt.placeholder(dt.float32, [None, 9, 8, 3])
        y = make(x)
        return [y, *dt.gradients(dt.reduce_sum(y * y), [x])], {x: IMAGES}

    agree(build)
    assert len(fake.launches()) >= 3  # none of it on the host
    assert [c[0] for c in fake.copies()].count("to host") == 2


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64])
def test_the_filters_gradient(fake, dtype):
    def build():
        x, w = dt.placeholder(dtype, [None, 9, 8, 3]), dt.placeholder(dtype, FILTERS.shape)
        y = dt.nn.conv2d(x, w, strides=[1, 1, 1, 1], padding="SAME") + 1.0
        return dt.gradients(dt.reduce_sum(y * y), [w]), {x: IMAGES.astype(dtype.np), w: FILTERS.astype(dtype.np)}

    agree(build)
    assert [c[0] for c in fake.copies()].count("to host") == 1


def test_attention_that_is_spelled_out_is_one_kernel(fake):
    q, k, v = (matrix(2, 2, 20, 16) for _ in range(3))

    def build():
        given = [dt.placeholder(dt.float32, [2, 2, None, 16]) for _ in range(3)]
        scores = dt.matmul(given[0], given[1], transpose_b=True) / 4.0
        return [dt.matmul(dt.nn.softmax(scores), given[2])], dict(zip(given, (q, k, v), strict=True))

    agree(build)
    (launch,) = fake.launches()
    assert "attention" in launch[1]


# --- rows, random numbers --------------------------------------------------------------------------------------------

TABLE, PICKED = matrix(50, 6), np.array([[3, 49], [3, 0], [7, 7]])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: dt.cumsum(x, 1, exclusive=True),
        lambda x: dt.math.cumprod(x, 0, reverse=True),
        lambda x: dt.argmax(x, 1),
        lambda x: dt.argmin(x, 0, output_type=dt.int32),
        lambda x: dt.nn.top_k(x, 3)[0],
        lambda x: dt.cast(dt.nn.top_k(x, 3)[1], dt.float32),
        lambda x: dt.gather(x, dt.constant(PICKED), axis=0),
        lambda x: dt.gather(x, dt.constant([5, 1]), axis=1),
        lambda x: dt.math.unsorted_segment_sum(x, dt.constant(np.arange(50) % 7), 7),
        lambda x: dt.math.unsorted_segment_max(x, dt.constant(np.arange(50) % 7), 9),
        lambda x: dt.math.unsorted_segment_min(x, dt.constant(np.arange(50) % 7), 7),
        lambda x: dt.math.unsorted_segment_prod(x, dt.constant(np.arange(50) % 7), 7),
    ],
    ids=[
        "cumsum",
        "cumprod",
        "argmax",
        "argmin",
        "top_k",
        "places",
        "gather",
        "gather columns",
        "segment_sum",
        "segment_max",
        "segment_min",
        "segment_prod",
    ],
)
def test_rows(fake, make):
    def build():
        x = dt.placeholder(dt.float32, [None, 6])
        return [make(x)], {x: TABLE}

    agree(build)
    assert len(fake.launches()) >= 1  # none of it on the host
    assert [c[0] for c in fake.copies()].count("to host") == 1


@pytest.mark.parametrize("draw", [dt.random_uniform, dt.random_normal])
def test_random_numbers_are_the_cpus(fake, draw):
    def build():
        dt.set_random_seed(7)
        return [draw([40, 5], seed=3) * 1.0], {}

    agree(build, 2)
    assert [c[0] for c in fake.copies()] == ["to device", "to device", "to host"] * 2  # the stream's key and draw
    assert len(fake.launches()) == 2


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(-5, 1000, dt.int32), (-(1 << 62), 1 << 62, dt.int64), (3, 1 << 63, dt.uint64)]
)
def test_random_integers_are_the_cpus(fake, low, high, dtype):
    def build():
        dt.set_random_seed(7)
        bounds = (dt.constant(b, dtype) for b in (low, min(high, dtype.max)))
        return [dt.random_uniform([40, 5], *bounds, dtype=dtype, seed=3)], {}

    agree(build, 2)
    assert [c[0] for c in fake.copies()] == ["to host"] * 2
    assert len(fake.launches()) == 2


def test_few_random_integers_and_wrong_bounds_are_the_hosts(fake):
    def build():
        dt.set_random_seed(7)
        return [dt.random_uniform([8], 0, 9, dtype=dt.int32, seed=3)], {}

    agree(build)
    assert not fake.launches()
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        wrong = dt.random_uniform([100], dt.placeholder_with_default(9, []), 0, dtype=dt.int32)
    with dt.Session(graph=graph) as session, pytest.raises(dt.errors.InvalidArgumentError):
        session.run(wrong)


# --- boxes -----------------------------------------------------------------------------------------------------------

CUBE = matrix(6, 5, 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[1:5:2, ::-1, 3:],
        lambda x: x[..., 2, :],
        lambda x: x[:, None, -1],
        lambda x: dt.slice(x, [1, 0, 2], [3, -1, 4]),
        lambda x: dt.reverse(x, [0, 2]),
        lambda x: dt.pad(x, [[1, 0], [0, 2], [3, 3]]),
        lambda x: dt.roll(x, [2, -3, 9, 1], [0, 2, 1, -1]),
        lambda x: dt.concat([x, 2.0 * x[:, :2], x], 1),
        lambda x: dt.stack([x, x[:, ::-1] * 1.5], 2),
        lambda x: dt.add_n(dt.split(x, 4, axis=2)),
        lambda x: dt.split(x, [2, 3, 1], axis=0)[1],
        lambda x: dt.unstack(x, axis=1)[3],
    ],
    ids=[
        "strided",
        "picked",
        "new axis",
        "slice",
        "reverse",
        "pad",
        "roll",
        "concat",
        "stack",
        "split",
        "split_v",
        "unstack",
    ],
)
def test_boxes_and_their_gradients(fake, make):
    def build():
        x = dt.placeholder(dt.float32, [None, 5, 8])
        y = make(x)
        return [y, *dt.gradients(dt.reduce_sum(y * y), [x])], {x: CUBE}

    agree(build)
    assert [c[0] for c in fake.copies()].count("to host") == 2  # none of it on the host


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
def test_mirrored_padding(fake, mode):
    def build():
        x = dt.placeholder(dt.float32, [None, 5, 8])
        return [dt.pad(x, [[1, 5], [0, 4], [0, 0]], mode), dt.pad(x, [[0, 0], [2, 0], [1, 7]], mode)], {x: CUBE}

    agree(build)
    assert [c[0] for c in fake.copies()].count("to host") == 2  # none of it on the host


def test_a_traced_kernel_has_ended_when_its_time_has(fake: FakeDriver) -> None:
    x = dt.placeholder(dt.float32, [8, 8])
    with dt.device("/gpu:0"):
        product = dt.matmul(x, x, name="product")
        y = dt.exp(product, name="exp") + product
    with dt.Session() as session:
        session.run(y, {x: matrix(8, 8)})
        times: list[int] = []
        gpu = device(0)
        waits = gpu.synchronize
        gpu.synchronize = lambda: (waits(), times.append(time.perf_counter_ns()))[0]  # type: ignore[method-assign]
        try:
            metadata = dt.RunMetadata()
            session.run(y, {x: matrix(8, 8)}, dt.RunOptions(trace_level=dt.RunOptions.FULL_TRACE), metadata)
        finally:
            gpu.synchronize = waits  # type: ignore[method-assign]
    trace = metadata.trace
    assert trace is not None
    kernels = [k for k in trace.kernels if k.op != "ToDevice" and "GPU" in k.device and k.op != "ToHost"]
    assert {n for k in kernels for n in k.nodes or (k.node,)} >= {"product", "exp"}
    assert len(times) == len(kernels)


# --- sends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 40_000])
def test_what_is_sent_is_on_its_way_while_the_next_kernels_are_launched(fake, size):
    with dt.Graph().as_default() as graph:
        with dt.device("/gpu:0"):
            x = dt.placeholder(dt.float32, [None])
            sent = dt.cumsum(x)  # a kernel of its own
            after = dt.cumsum(sent, reverse=True)
        with dt.device("/cpu:0"):
            y = dt.sqrt(sent)
    given = np.ones(size, np.float32)
    with dt.Session(graph=graph) as session:
        values = session.run([y, after], {x: given})
        order = [op for op in ops(session) if op in ("Cumsum", "ToHost", "HasCome")]
    assert order == ["Cumsum", "ToHost", "Cumsum", "HasCome", "ToHost"]
    np.testing.assert_allclose(values[0], np.sqrt(np.cumsum(given)), rtol=1e-5)
    np.testing.assert_allclose(values[1], np.cumsum(np.cumsum(given)[::-1])[::-1], rtol=1e-4)
    queued = [x for x in fake.log if x[0] in ("launch", "to host")]
    first = next(i for i, x in enumerate(queued) if x[0] == "to host")
    assert any(x[0] == "launch" for x in queued[first:])  # launched while the copy was queued, not after it had come
