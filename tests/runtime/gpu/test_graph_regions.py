"""Steps on GPUs that repeat: what they hold in memory, how they are checked, and when they become graphs of launches.

Kernels run in Triton's interpreter, and as late as they may (`tests/gpu/gpu_backends.py`).
"""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from gpu_programs import graph_variable, instructions, ops, variable_state

import dovetail as dt
from dovetail.codegen.fusion.optimizer_loops import accumulation, update
from dovetail.codegen.gpu.driver.device import NotCapturableError, capture, device
from dovetail.codegen.gpu.graph_regions import GraphRegion
from dovetail.codegen.gpu.variables import mutable_values
from dovetail.codegen.ir.program import Call
from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.ops.state.training import RULES
from dovetail.graph.resources.variable import VariableState

pytestmark = pytest.mark.gpu

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
        assert gpu.pool.reserved < 20_000
    del session
    gc.collect()


def test_out_of_memory_names_nodes(fake):
    fake.leave(1 << 20)
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None])
        kept = dt.matmul(dt.reshape(x, [-1, 1]), dt.reshape(x, [1, -1]), name="outer")
    with dt.Session(graph=graph) as session:
        with pytest.raises(dt.errors.ResourceExhaustedError) as e:
            session.run(kept, {x: np.ones(1000, np.float32)})
        text = str(e.value)
        assert (
            f"GPU:0 ({device(0).name}) is out of memory" in text
            and "for outer" in text
            and "node 'outer' (MatMul), created at" in text
        )
        assert session.run(kept, {x: np.ones(10, np.float32)}).shape == (10, 10)  # the session goes on


# --- checks ----------------------------------------------------------------------------------------------------------


def test_check_compares_with_the_references(fake, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CHECK", "2")
    fake.strict.interprets = False  # kernels do nothing
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


def trained(where: str, steps: int, fetched: bool = False) -> tuple[list[Any], list[GraphRegion]]:
    """Losses of a small model, and the regions of its program."""
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
        return losses, [i.kernel for i in calls if isinstance(i, Call) and isinstance(i.kernel, GraphRegion)]


def test_a_step_that_repeats_becomes_a_graph(fake):
    losses, regions = trained("/gpu:0", 7)
    reference, _ = trained("/cpu:0", 7)
    np.testing.assert_allclose([v[0] for v in losses], [v[0] for v in reference], rtol=1e-5)
    (region,) = regions
    assert region.replays == 5
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
    losses, regions = trained("/gpu:0", 8, fetched=True)
    reference, _ = trained("/cpu:0", 8, fetched=True)
    for mine, theirs in zip(losses, reference, strict=True):
        np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-5)
    assert [s.replays for s in regions] == [0]  # the value that is fetched is held while the update runs
    assert list(regions[0]._captured.values()) == [None]


def test_an_error_inside_a_stretch_names_its_node(fake):
    fake.leave(1 << 20)
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None, 1])
        y = dt.matmul(x, x, transpose_b=True, name="outer")
        for _ in range(4):
            y = dt.matmul(y, y)
    with (
        dt.Session(graph=graph) as session,
        pytest.raises(dt.errors.ResourceExhaustedError, match=r"node 'outer' \(MatMul\), created at"),
    ):
        session.run(y, {x: np.ones((1000, 1), np.float32)})


def test_graphs_can_be_turned_off(fake, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CUDA_GRAPHS", "0")
    _, regions = trained("/gpu:0", 3)
    assert regions == [] and not any(x[0] == "graph launch" for x in fake.log)


def stretches_of(session: dt.Session) -> list[GraphRegion]:
    return [i.kernel for i in instructions(session) if isinstance(i, Call) and isinstance(i.kernel, GraphRegion)]


def adam(where: str, steps: int, batch: int = 3) -> tuple[list[Any], list[GraphRegion]]:
    """Losses of a classifier that is fed and trained by Adam, whose powers of beta are assigned in each step."""
    with dt.Graph().as_default() as graph, dt.device(where):
        x, labels = dt.placeholder(dt.float32, [None, 8]), dt.placeholder(dt.int64, [None])
        w = dt.Variable(np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5), name="w")
        logits = dt.matmul(dt.tanh(x), w) + dt.Variable(np.zeros(5, np.float32), name="b")
        loss = dt.reduce_mean(dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        train = dt.train.AdamOptimizer(0.1).minimize(loss)
        init = dt.global_variables_initializer()
    given = np.linspace(-1, 1, 8 * batch, dtype=np.float32).reshape(batch, 8)
    with dt.Session(graph=graph) as session:
        session.run(init)
        feeds = [{x: given + 0.1 * i, labels: (np.arange(batch) + i) % 5} for i in range(steps)]
        return [session.run([loss, train], feed)[0] for feed in feeds], stretches_of(session) if "gpu" in where else []


def test_a_step_of_adam_is_a_graph_that_is_fed_and_fetched_without_copies_on_the_gpu(fake):
    losses, (region,) = adam("/gpu:0", 7)
    reference, _ = adam("/cpu:0", 7)
    np.testing.assert_allclose(losses, reference, rtol=1e-5)
    assert region.replays == 5
    since = max(i for i, x in enumerate(fake.log) if x[0] == "graph launch")
    before = max(i for i, x in enumerate(fake.log[:since]) if x[0] == "graph launch")
    assert [x[0] for x in fake.log[before:since]] == ["graph launch", "to host", "to device", "to device"]


def test_large_feeds_are_copied_beside_the_graph_that_still_runs(fake, monkeypatch):
    from dovetail.codegen.gpu import graph_regions
    from dovetail.codegen.gpu.driver import copies

    monkeypatch.setattr(copies, "GPU_SMALL_DOWNLOAD", 64)
    monkeypatch.setattr(copies, "GPU_SMALL_UPLOAD", 64)
    monkeypatch.setattr(graph_regions, "GPU_SMALL_DOWNLOAD", 2)  # and what is fetched is copied on the GPU first
    losses, (region,) = adam("/gpu:0", 8, batch=4)
    reference, _ = adam("/cpu:0", 8, batch=4)
    np.testing.assert_allclose(losses, reference, rtol=1e-5)
    assert region.replays == 6
    gpu = device(0)
    assert gpu.compute is gpu.main
    copied = [x for x in fake.log if x[0] == "wait" and x[1] == int(gpu.copy_in.handle)]
    assert copied  # the memory that is filled was read before


def test_whoever_watches_a_variable_is_told_of_each_change(fake):
    """A parameter server sends what has changed to the server that keeps a copy."""
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        w, rate = dt.Variable(np.ones((4, 4), np.float32), name="w"), dt.Variable(np.ones([], np.float32), name="rate")
        x = dt.placeholder(dt.float32, [])
        step = w * x
        for _ in range(5):
            step = dt.transpose(dt.cumsum(step, 1)) / 4.0
        train, assign = dt.assign_add(w, step).op, dt.assign(rate, x).op
        init = dt.global_variables_initializer()
    told: list[str] = []
    with dt.Session(graph=graph) as session:
        session.run(init)
        for name in ("w", "rate"):
            variable_state(session, name).on_change = lambda rows, name=name: told.append(name)
        for i in range(7):
            session.run(train, {x: 1.0})
            session.run(assign, {x: i})
            assert set(told) == {"w", "rate"}, f"in step {i}"
            told.clear()
        assert any(s.replays for s in stretches_of(session))


def test_a_graph_reads_what_was_assigned_to_a_variable(fake):
    def run(where: str) -> tuple[list[Any], list[int]]:
        with dt.Graph().as_default() as graph, dt.device(where):
            state = dt.Variable(np.linspace(0, 1, 20_000, dtype=np.float32), name="state")
            total = dt.Variable(np.zeros([], np.float32), name="total")
            x = state * 1.0
            for _ in range(4):
                x = dt.cumsum(dt.reverse(x, [0])) / 20_000.0
            after = dt.reduce_sum(x)
            with dt.control_dependencies([dt.assign_add(total, after)]):
                step = dt.assign(state, x).op
            init = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(init)
            values = []
            for _ in range(9):
                session.run(step)
            values.append(session.run(total))
            return values, [s.replays for s in stretches_of(session)] if "gpu" in where else []

    mine, replays = run("/gpu:0")
    theirs, _ = run("/cpu:0")
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    assert replays[0] >= 4


def test_threads_share_a_graph(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [4, 4])
        y = x
        for _ in range(5):
            y = dt.transpose(dt.cumsum(y, 1)) / 4.0
        count = dt.Variable(np.zeros((4, 4), np.float32))
        add = dt.assign_add(count, x)
        init = dt.global_variables_initializer()
    failed: list[BaseException] = []
    with dt.Session(graph=graph) as session:
        session.run(init)

        def work(k: int) -> None:
            try:
                for i in range(8):
                    given = reference = np.full((4, 4), k + i, np.float32)
                    for _ in range(5):
                        reference = np.cumsum(reference, 1).T / 4
                    np.testing.assert_allclose(session.run([y, add.op], {x: given})[0], reference, rtol=1e-6)
            except BaseException as e:
                failed.append(e)

        threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        np.testing.assert_array_equal(session.run(count), np.full((4, 4), 3 * 28 + 8 * 300, np.float32))
        before = sum(s.replays for s in stretches_of(session))
        assert before  # how many depends on when the threads meet
        for _ in range(13):
            session.run([y, add.op], {x: np.ones((4, 4), np.float32)})
        assert sum(s.replays for s in stretches_of(session)) == before + 13


def test_a_capture_waits_for_no_variable(fake):
    """Others have a variable's lock when they wait for the device, which the capturing thread has."""
    gpu, state = device(0), VariableState("v", as_dtype("float32"))
    state.move(np.ones(3, np.float32))
    others: list[str] = []

    def other() -> None:
        gpu.must_run("a copy to the host")  # this thread captures nothing
        others.append("ran")

    with state.lock, pytest.raises(NotCapturableError, match="'v', which another step changes"), gpu.lock, capture(gpu):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with mutable_values(gpu, [state]):
            pass
    assert others == ["ran"]
    with mutable_values(gpu, [state]) as (old, new):
        assert old == new


def test_graphs_are_given_up_where_memory_runs_out_and_named_where_it_still_does(fake):
    fake.leave(150_000)
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None])
        y = x
        for i in range(6):
            y = dt.cumsum(y, name=f"sum{i}")
    with dt.Session(graph=graph) as session:
        for _ in range(5):
            session.run(y, {x: np.ones(5000, np.float32)})
        (region,) = stretches_of(session)
        assert region.replays == 3
        gpu = device(0)
        kept = [(size, name) for size, name in gpu.pool.largest() if name.endswith(", kept by a graph")]
        # The place of what is fed, and two results: none of the steps between them needs more at once.
        assert [size for size, _ in kept] == [20_480] * 2, gpu.pool.largest()
        assert session.run(y, {x: np.ones(10_000, np.float32)})[-1] > 0
        assert region.replays == 3 and list(region._captured.values()) == [None]
        assert not gpu.pool.largest()
        for _ in range(4):
            session.run(y, {x: np.ones(5000, np.float32)})
        assert region.replays == 3  # not made again


def test_a_counter_that_stays_with_the_host_is_read_anew_by_each_run_of_a_graph(fake):
    def run(where: str) -> tuple[Any, list[int]]:
        with dt.Graph().as_default() as graph, dt.device(where):
            count = dt.train.get_or_create_global_step()
            w = dt.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), name="w")
            loss = dt.reduce_sum(dt.tanh(dt.matmul(w, w, transpose_b=True)))
            rate = 0.1 / (1.0 + dt.cast(count, dt.float32))
            train = dt.train.MomentumOptimizer(rate, 0.9).minimize(loss, global_step=count)
            init = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(init)
            for _ in range(9):
                session.run(train)
            return session.run([w, count]), [s.replays for s in stretches_of(session)] if "gpu" in where else []

    (mine, count), replays = run("/gpu:0")
    (theirs, _), _ = run("/cpu:0")
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert count == 9 and replays == [7]


def test_draws_before_a_stretch_leave_feeds_to_it(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None, 6])
        w = dt.Variable(np.linspace(-1, 1, 36, dtype=np.float32).reshape(6, 6), name="w")
        loss = dt.reduce_sum(dt.tanh(dt.matmul(dt.nn.dropout(dt.matmul(x, w), 0.5, seed=3), w)))
        train = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        losses = [session.run([loss, train], {x: np.ones((3, 6), np.float32)})[0] for _ in range(6)]
        (region,) = stretches_of(session)
        assert region.replays == 4 and len(set(losses)) == 6
        assert ops(session).count("ToDevice") == 0


def test_a_gpu_that_has_failed_is_said_to_be_lost_at_once_and_for_good(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        w = dt.Variable(np.ones((4, 4), np.float32), name="w")
        step = w
        for _ in range(5):
            step = dt.transpose(dt.cumsum(step, 1))
        loss, train = dt.reduce_sum(step), dt.assign_add(w, step).op
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        for _ in range(4):
            session.run([loss, train])
        fake.strict.fail(700)
        for _ in range(3):
            with pytest.raises(
                dt.errors.InternalError, match="CUDA_ERROR_ILLEGAL_ADDRESS.*cannot use the GPU any more"
            ):
                session.run([loss, train])
        with pytest.raises(dt.errors.InternalError, match="Start the process again"):
            session.run(w)
        fake.strict.fail(0)
