"""Sessions on GPUs that are stand-ins: what is launched, copied and kept, and that the numbers are the CPU's.

Kernels run in Triton's interpreter, and as late as they may (`tests/gpu/gpu_backends.py`).
"""

import re
import time

import numpy as np
import pytest
from gpu_backends import RecordedDriver
from gpu_programs import agree, graph_variable, instructions, matrix, ops, results_on

import dovetail as dt
from dovetail.codegen.gpu.driver.array import DeviceArray
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.ir.program import Call, Loop
from dovetail.runtime.worker.registration import device_fields, device_from_fields

pytestmark = pytest.mark.gpu

# --- devices ---------------------------------------------------------------------------------------------------------


def test_gpus_are_found_and_may_be_left_out(two_gpus, monkeypatch):
    assert two_gpus.strict, "a stand-in, whose GPUs are known"
    with dt.Session(graph=dt.Graph()) as session:
        found = session.list_devices()
    assert [str(d) for d in found if d.name.device_type == "GPU"] == [
        "/job:localhost/replica:0/task:0/device:GPU:0",
        "/job:localhost/replica:0/task:0/device:GPU:1",
    ]
    assert {(d.memory_bytes, d.model) for d in found if d.name.device_type == "GPU"} == {(1 << 30, "H100")}
    assert [device_from_fields(device_fields(d)) for d in found] == list(found), "as a task tells the master"
    with dt.Session(graph=dt.Graph(), config=dt.ConfigProto(device_count={"GPU": 1})) as session:
        assert len(session.list_devices()) == 2
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "1")  # who asks for emulated ones gets no others
    with dt.Session(graph=dt.Graph()) as session:
        assert [(d.name.device_type, d.emulated) for d in session.list_devices()] == [("CPU", False), ("GPU", True)]


# --- programs --------------------------------------------------------------------------------------------------------


def test_the_log_of_passes_says_which_schedule_runs(fake, monkeypatch, caplog):
    monkeypatch.setenv("DOVETAIL_PASSES", "1")
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None, 128])
        y = dt.nn.softmax(x, name="shares")
    with dt.Session(graph=graph) as session:
        session.run(y, {x: matrix(3, 128)})
    assert re.search(
        r"shares for n0=3, n1=128.*: tiles of \d+x128, whole rows, \d+ warps?, of \d+ candidates", caplog.text
    )


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
    given, expected = matrix(6, 10), matrix(6, 3)

    def build():
        x, y = dt.placeholder(dt.float32, [None, 10]), dt.placeholder(dt.float32, [None, 3])
        w1 = dt.Variable(0.3 * np.random.default_rng(1).standard_normal((10, 16)).astype(np.float32))
        w2 = dt.Variable(0.3 * np.random.default_rng(2).standard_normal((16, 3)).astype(np.float32))
        b = dt.Variable(np.zeros(16, np.float32))
        out = dt.matmul(dt.nn.relu(dt.matmul(x, w1) + b), w2)
        loss = dt.reduce_mean(dt.nn.softmax_cross_entropy_with_logits(labels=dt.nn.softmax(y), logits=out))
        return [loss, optimizer().minimize(loss), w1], {x: given, y: expected}

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


def test_between_gpus_of_a_task_tensors_do_not_pass_the_host(two_gpus):
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
        assert [c[0] for c in two_gpus.copies()] == ["to device", "peer", "to host"]
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


def test_a_traced_kernel_has_ended_when_its_time_has(fake: RecordedDriver) -> None:
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
