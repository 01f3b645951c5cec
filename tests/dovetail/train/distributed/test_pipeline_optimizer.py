"""Training in a pipeline gives what training on whole batches gives, in the order of its schedule, and keeps less under 1f1b."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail as dt

DEVICES = ["/cpu:0", "/cpu:1", "/cpu:2"]
RNG = np.random.default_rng(3)
X = RNG.standard_normal((24, 5)).astype(np.float32)
Y = RNG.standard_normal((24, 2)).astype(np.float32)


def weights(name: str, *shape: int) -> dt.Variable:
    values = np.random.default_rng(len(name) + sum(shape)).standard_normal(shape).astype(np.float32)
    return dt.Variable(values * 0.4, name=name)


def model(devices: list[str], width: int = 6, batch: int | None = None) -> tuple[Any, Any, Any]:
    """A layer on each device, with a weight that the first and the last share, and a value that skips a stage."""
    x, y = dt.placeholder(dt.float32, [batch, 5], name="x"), dt.placeholder(dt.float32, [batch, 2], name="y")
    h = skipped = x
    for i, device in enumerate(devices):
        with dt.device(device), dt.name_scope(f"layer_{i}"):
            if i == 0:
                shared = weights("shared", width)
            h = dt.tanh(dt.matmul(h, weights("w", int(h.shape[1]), width)) + shared)
            if i == 0:
                skipped = h
    with dt.device(devices[-1]):
        out = dt.matmul(h * skipped + shared, weights("out", width, 2))
    return x, y, dt.reduce_mean(dt.square(out - y), name="loss")


def trained(
    optimizer: Any, target: str = "", devices: list[str] = DEVICES, steps: int = 4, **options: Any
) -> list[Any]:
    """Losses and the variables after some steps; with options, in a pipeline."""
    with dt.Graph().as_default() as graph:
        x, y, loss = model(devices)
        if options:
            optimizer = dt.train.PipelineOptimizer(optimizer, [x, y], **options)
        step = dt.train.get_or_create_global_step()
        train_op = optimizer.minimize(loss, global_step=step)
        fetched = optimizer.loss if options else loss
        config = dt.ConfigProto(device_count={"CPU": 3})
        with dt.Session(target, graph=graph, config=config) as session:
            session.run(dt.global_variables_initializer())
            losses = [session.run([fetched, train_op], {x: X, y: Y})[0] for _ in range(steps)]
            return [*losses, *session.run([v.value() for v in dt.global_variables()])]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 4, 6])
def test_it_trains_as_the_whole_batch_does(schedule: str, micro_batches: int) -> None:
    expected = trained(dt.train.GradientDescentOptimizer(0.3))
    found = trained(dt.train.GradientDescentOptimizer(0.3), schedule=schedule, micro_batches=micro_batches)
    assert_same(found, expected)


def test_the_wrapped_optimizer_keeps_its_slots() -> None:
    expected = trained(dt.train.AdamOptimizer(0.01))
    assert_same(trained(dt.train.AdamOptimizer(0.01), micro_batches=3), expected)


@pytest.mark.slow
def test_on_two_processes() -> None:
    expected = trained(dt.train.MomentumOptimizer(0.1, 0.9), devices=DEVICES[:2])
    with dt.LocalCluster({"worker": 2}, start_timeout_s=120.0) as cluster:
        tasks = [f"/job:worker/task:{i}" for i in range(2)]
        for schedule in ("gpipe", "1f1b"):
            optimizer = dt.train.MomentumOptimizer(0.1, 0.9)
            assert_same(
                trained(optimizer, cluster.target("worker"), tasks, schedule=schedule, micro_batches=4), expected
            )


def test_a_sum_and_rows_of_an_embedding() -> None:
    def run(pipelined: bool) -> list[Any]:
        with dt.Graph().as_default():
            ids, y = dt.placeholder(dt.int32, [None]), dt.placeholder(dt.float32, [None, 3])
            with dt.device("/cpu:0"):
                table = weights("table", 7, 4)
                rows = dt.nn.embedding_lookup(table, ids)
            with dt.device("/cpu:1"):
                loss = dt.reduce_sum(dt.square(dt.matmul(rows, weights("w", 4, 3)) - y))
            optimizer: Any = dt.train.AdagradOptimizer(0.1)
            if pipelined:
                optimizer = dt.train.PipelineOptimizer(optimizer, [ids, y], 2, reduction="sum")
            train_op = optimizer.minimize(loss)
            with dt.Session(config=dt.ConfigProto(device_count={"CPU": 2})) as session:
                session.run(dt.global_variables_initializer())
                for _ in range(3):
                    session.run(train_op, {ids: [1, 5, 1, 0], y: Y[:4, [0, 1, 0]]})
                return list(session.run([v.value() for v in dt.trainable_variables()]))

    assert_same(run(True), run(False))


def built(schedule: str, micro_batches: int, width: int = 6, batch: int | None = 24) -> tuple[Any, Any]:
    """A pipeline, and the plan of its step."""
    x, y, loss = model(DEVICES, width, batch)
    optimizer = dt.train.PipelineOptimizer(dt.train.GradientDescentOptimizer(0.1), [x, y], micro_batches, schedule)
    train_op = optimizer.minimize(loss)
    devices = {"localhost": [{"name": f"cpu:{i}", "flops": 1e9, "bandwidth": 1e9} for i in range(3)]}
    return optimizer.pipeline, dt.place(None, {"localhost": 1}, devices=devices, targets=train_op)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_each_device_runs_its_passes_in_the_schedules_order(schedule: str) -> None:
    with dt.Graph().as_default():
        pipeline, plan = built(schedule, 4)
        for stage, passes in enumerate(pipeline.passes):
            (part,) = (p for p in plan.partitions.values() if p.device.endswith(f"CPU:{stage}"))
            scopes = [
                n.name.split("/")[1] for n in part.nodes if n.name.startswith("pipeline/") and n.name.count("/") > 1
            ]
            scopes = [s for s in scopes if s[:2] in ("F_", "B_")]
            # One pass ends before the next begins.
            turns = [s for i, s in enumerate(scopes) if i == 0 or scopes[i - 1] != s]
            assert turns == [f"{p.kind}_{stage}_{p.micro_batch}" for p in passes]


def test_1f1b_keeps_fewer_activations_than_gpipe() -> None:
    peaks = {}
    for schedule in ("gpipe", "1f1b"):
        with dt.Graph().as_default():
            pipeline, plan = built(schedule, 8, width=64, batch=1024)
            peaks[schedule] = dt.simulate(plan).peak
            assert pipeline.held == ((8, 8, 8) if schedule == "gpipe" else (3, 2, 1))
            evaluation = plan.report()
            assert evaluation.pipeline is not None and 0 < evaluation.pipeline.bubble < 1
            assert f"{schedule} pipeline" in str(evaluation)
    assert all(a < b for a, b in zip(peaks["1f1b"], peaks["gpipe"], strict=True))


def test_a_plan_gives_the_stages() -> None:
    with dt.Graph().as_default():
        x, y, loss = model(["", "", ""], width=64, batch=24)
        plan = dt.place(
            None,
            {"worker": 2},
            fetches=loss,
            strategy=lambda problem: (np.arange(problem.nodes) > problem.nodes // 2).astype(int),
        )
        devices = sorted({plan.placement[n.name] for n in plan.graph.nodes})
        optimizer = dt.train.PipelineOptimizer(dt.train.GradientDescentOptimizer(0.1), [x, y], 2, plan=plan)
        optimizer.minimize(loss)
        assert optimizer.pipeline is not None and sorted(optimizer.pipeline.stages) == devices
        assert all(v.device == plan.placement[v.op.name] for v in dt.trainable_variables())


def test_micro_batches_draw_different_random_numbers() -> None:
    with dt.Graph().as_default():
        dt.set_random_seed(5)
        x = dt.placeholder(dt.float32, [None, 100], name="x")
        kept = dt.nn.dropout(x * weights("w", 100), rate=0.5)
        optimizer = dt.train.PipelineOptimizer(dt.train.GradientDescentOptimizer(0.1), [x], 2)
        optimizer.minimize(dt.reduce_mean(kept))
        drawn = [n.outputs[0] for n in dt.get_default_graph().nodes if n.type == "RandomUniform" and "/F_0_" in n.name]
        with dt.Session() as session:
            session.run(dt.global_variables_initializer())
            first, second = session.run(drawn, {x: np.ones((8, 100), np.float32)})
        assert first.shape == second.shape == (4, 100) and not np.array_equal(first, second)


def test_devices_that_values_come_back_to_make_no_stages() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 2], name="x")
        with dt.device("/cpu:0"):
            a = dt.tanh(x * weights("w", 2), name="a")
        with dt.device("/cpu:1"):
            b = dt.exp(a, name="b")
        with dt.device("/cpu:0"):
            loss = dt.reduce_mean(b * 2.0, name="c")
        optimizer = dt.train.PipelineOptimizer(dt.train.GradientDescentOptimizer(0.1), [x], 2)
        with pytest.raises(ValueError, match=r"circle of 2 devices(.|\n)*'b' on /device:CPU:1 takes from 'a'"):
            optimizer.minimize(loss)


def test_what_only_fits_the_whole_batch_is_named() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [8, 2], name="x")
        loss = dt.reduce_mean(dt.reshape(x * weights("w", 2), [16], name="flat"))
        optimizer = dt.train.PipelineOptimizer(dt.train.GradientDescentOptimizer(0.1), [x], 2)
        with pytest.raises(ValueError, match=r"'flat' \(Reshape\), created at .*, does not fit a micro-batch(.|\n)*-1"):
            optimizer.minimize(loss)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schedule": "2f2b"}, "no pipeline schedule '2f2b'"), ({"micro_batches": 0}, "at least 1"), ({"inputs": []}, "inputs="),
        ({"reduction": "max"}, "'mean' or the 'sum'"),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    with dt.Graph().as_default(), pytest.raises(ValueError, match=says):
        x = dt.placeholder(dt.float32, [None, 2])
        dt.train.PipelineOptimizer(
            dt.train.GradientDescentOptimizer(0.1), **{"inputs": [x], "micro_batches": 2, **options}
        )


def test_losses_that_are_no_scalar_or_do_not_depend_on_the_batch_and_batches_that_do_not_divide() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [9, 2], name="x")
        w = weights("w", 2)
        descent = dt.train.GradientDescentOptimizer(0.1)
        with pytest.raises(ValueError, match="must be a scalar"):
            dt.train.PipelineOptimizer(descent, [x], 3).minimize(x * w)
        with pytest.raises(ValueError, match="does not depend on the inputs"):
            dt.train.PipelineOptimizer(descent, [x], 3).minimize(dt.reduce_sum(w * 1.0))
        with pytest.raises(ValueError, match="A batch of 9 cannot be divided into 2"):
            dt.train.PipelineOptimizer(descent, [x], 2).minimize(dt.reduce_sum(x * w))
