"""Warnings: each on a plan made to show it, and silent on one that is well."""

import re
from pathlib import Path

import numpy as np
import pytest
import two_servers
from two_servers import CLUSTER, PS0, PS1, W0, W1, model

import dovetail as dt
from dovetail.graph.core.source_location import SourceLine
from dovetail.placer import pipeline
from dovetail.placer.cluster.calibration import OVERHEADS, Calibration, Point
from dovetail.placer.cost.launches import KINDS
from dovetail.placer.pipeline import place
from dovetail.placer.render.text import time_text
from dovetail.placer.views.lint import CHECKS


def in_file(path):
    """A location in a file, as texts have it, without the line's number."""
    return str(SourceLine(path, 1)).removesuffix("1")


def kinds(plan):
    return [w.kind for w in plan.check()]


def test_a_good_plan_has_no_warnings():
    with dt.Graph().as_default() as g:
        made = []
        for i in range(2):
            with dt.device(f"/job:ps/task:{i}"):
                v = dt.Variable(np.zeros((200, 200), "float32"), name=f"v{i}")
            with dt.device(f"/job:worker/task:{i}"):
                made.append(dt.matmul(v, v))
    assert place(g, CLUSTER, fetches=made).check() == []


@pytest.mark.parametrize("far", [False, True])
def test_a_loop_that_crosses_in_every_iteration(far):
    with dt.Graph().as_default() as g, dt.device("/job:worker/task:0"):

        def body(i, x):
            with dt.device("/job:worker/task:1" if far else None):
                x = dt.add(x, x, name="double")
            return i + 1, x

        _, x = dt.while_loop(lambda i, x: i < 5, body, [0, dt.ones([4])], name="grow")
    found = [w for w in place(g, CLUSTER, fetches=x).check() if w.kind == "loop"]
    assert bool(found) == far
    for warning in found:  # x there, x back, and whether there is another iteration
        assert (warning.bytes, set(warning.devices)) == (33, {W0, W1})
        assert (
            "'grow/while_context' sends 3 messages (33 B) between /job:worker/task:0, /job:worker/task:1"
            in warning.text
        )
        assert {"grow/double", "grow/LoopCond"} <= set(warning.nodes)


def test_reading_a_variable_again_and_again():
    g, made = model(reads=2)
    found = [w for w in place(g, CLUSTER, fetches=made, shared_memory=False).check() if w.kind == "read-again"]
    assert [(w.nodes, w.bytes, w.devices) for w in found] == [
        (("v0",), 480_000, (PS0, W0)),
        (("v1",), 480_000, (PS1, W1)),
    ]
    assert "'v0' is read 4 times by /job:worker/task:0" in found[0].text and "468.8 KiB" in found[0].text
    assert (
        str(found[0]) == f"read-again: {found[0].text}" and f"\n  at {in_file(two_servers.__file__)}" in found[0].text
    )
    assert "\n  fix: Read it once (value = variable.read_value())" in found[0].text


def test_a_server_that_holds_most():
    g, made = model(balanced=False)
    (found,) = [w for w in place(g, CLUSTER, fetches=made).check() if w.kind == "uneven-bytes"]
    assert found.devices == (PS0,) and found.nodes == ("v0", "v1") and found.bytes == 160_000
    assert "stores 100% of the 312.5 KiB" in found.text


@pytest.mark.parametrize("pinned", [False, True])
def test_variables_that_a_search_has_put_on_one_server_are_no_finding(pinned):
    with dt.Graph().as_default() as g:
        read = []
        for i in range(2):
            with dt.device("/job:ps/task:0" if pinned else "/job:ps"):
                v = dt.Variable(np.zeros((200, 200), "float32"), use_resource=True, name=f"v{i}")
            with dt.device("/job:worker/task:0"):
                read.append(dt.matmul(v.read_value(), v.read_value()))

    def at_first(problem):
        return problem.group_allowed[problem.group].argmax(axis=1)

    found = [w for w in place(g, CLUSTER, fetches=read, strategy=at_first).check() if w.kind == "uneven-bytes"]
    assert [w.cure for w in found] == pinned * [
        "Balance by size, with device blocks or with replica_device_setter(ps_strategy=dt.train.BalancedStrategy(...))"
    ]


def only(plan, kind, **options):
    """The one warning of a kind."""
    (found,) = [w for w in plan.check(**options) if w.kind == kind]
    return found


def line(text):
    """The number of the one line of this file that holds a text."""
    (number,) = [
        i for i, code in enumerate(Path(__file__).read_text().splitlines(), 1) if text in code and "line(" not in code
    ]
    return number


def products(count, size=512, devices=True):
    """Independent products of matrices, all on the first worker."""
    x = dt.placeholder(dt.float32, [size, size], name="x")
    with dt.device("/job:worker/task:0" if devices else None):
        return [dt.matmul(x, x, name=f"product_{i}") for i in range(count)]


def test_idle_tasks_where_the_step_could_be_faster_with_them():
    with dt.Graph().as_default():
        made = products(4, devices=False)
        plan = place(None, {"worker": 3}, fetches=made)
        found = only(plan, "idle", fix=True)
        assert found.devices == (W1, W1.replace("task:1", "task:2")) and found.where.line == line("product_{i}")
        assert "/job:worker/task:1, /job:worker/task:2 are idle in this step" in found.what
        assert "could fall by at most 67%" in found.what
        assert found.cure == 'Distribute its nodes with strategy="auto", or with device blocks'
        assert dt.simulate(found.fixed).makespan < dt.simulate(plan).makespan and len(found.fixed.partitions) == 3
        assert plan.placement["product_3"] == W0  # the plan and its graph stay as they are
        assert only(place(None, {"worker": 3}, fetches=made), "idle").fixed is None


def test_an_idle_parameter_server_is_cured_by_the_setter():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [256, 512], name="x")
        with dt.device("/job:worker/task:0"):
            y = [dt.layers.dense(x, 512) for _ in range(2)]
        found = [w for w in place(None, {"ps": 1, "worker": 1}, fetches=y).check(fix=True) if w.kind == "idle"]
    assert [w.devices for w in found] == [(PS0,)]
    assert 'dt.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:0")' in found[0].cure
    assert {n for n, d in found[0].fixed.placement.items() if d == PS0} >= {
        "dense/kernel",
        "dense_1/kernel",
        "dense/bias",
    }


def test_what_a_search_left_idle_or_uneven_is_no_finding():
    with dt.Graph().as_default():
        made = products(2, devices=False)
        plan = place(None, {"worker": 3}, fetches=made, strategy="auto", budget_s=0.1)
        assert len(plan.partitions) < 3 and kinds(plan) == []
        one = made[0]  # a chain of one: no other device could make it faster, whatever placed it
        assert kinds(place(None, {"worker": 3}, fetches=one)) == []


def test_a_step_that_ends_before_a_message_has_come_leaves_no_task_idle():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [4, 4], name="x")
        made = dt.add_n([dt.reduce_sum(x + float(i)) for i in range(4)])
        plan = place(None, {"worker": 3}, fetches=made, profile="none")
        assert dt.simulate(plan).makespan < 50e-6 and kinds(plan) == []  # the bound alone leaves room for three tasks


def test_copies_of_what_is_read_in_place_count_as_memory():
    devices = {"worker": [{"name": "cpu:0", "memory": 1100 << 10}]}
    with dt.Graph().as_default():
        made = [dt.reduce_sum(dt.get_variable(f"v{i}", [64, 1024])) for i in range(8)]
        plan = dt.place(dt.add_n(made), {"worker": 2}, devices=devices, strategy="auto", profile="none")
    assert max(plan.simulate().peak) <= 1100 << 10 and "memory" not in kinds(plan)
    assert plan.report().best_single is None  # 2 MiB of variables fit no device
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:0"):
            held = [dt.get_variable(f"v{i}", [64, 1024]) for i in range(4)]
        with dt.device("/job:worker/task:1"):
            own = dt.get_variable("own", [64, 1024])
            y = dt.add_n([dt.reduce_sum(v) for v in (*held, own)])
        plan = dt.place(y, {"worker": 2}, devices=devices)
    assert any(c.direct for c in plan.channels)
    assert "/job:worker/task:1/CPU:0 is predicted to need 1.3 MiB at once" in only(plan, "memory").what


def test_a_search_sends_what_does_not_fit_as_a_copy_for_the_whole_step():
    devices = {"worker": [{"name": "cpu:0", "memory": 1400 << 10}]}
    with dt.Graph().as_default():
        y = dt.placeholder(dt.float32, [256, 256], name="x")
        for i in range(4):
            y = dt.matmul(y, dt.get_variable(f"w{i}", [256, 256]))
        plan = dt.place(y, {"worker": 2}, devices=devices, strategy="auto", budget_s=0.1, profile="none")
    assert len(plan.partitions) == 2 and not any(c.direct for c in plan.channels)
    assert max(plan.simulate().peak) <= 1400 << 10 and "memory" not in kinds(plan)
    assert plan.solution.lower_bound <= plan.solution.objective == plan.simulate().makespan


def test_an_idle_card():
    devices = {"worker": ["cpu:0", "gpu:0"]}
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [512, 512], name="x")
        with dt.device("/cpu:0"):
            y = dt.matmul(x, x)
        found = only(place(None, {"worker": 1}, fetches=y, devices=devices), "idle", fix=True)
        assert found.fixed.placement["MatMul"].endswith("GPU:0")
        assert "/job:worker/task:0/GPU:0 is idle while other devices of the task work" in found.what


def test_uneven_work():
    with dt.Graph().as_default():
        made = products(4)  # too much on one
        with dt.device("/job:worker/task:1"):
            small = dt.matmul(dt.ones([8, 8]), dt.ones([8, 8]))
        plan = place(None, {"worker": 2}, fetches=[*made, small])
        found = only(plan, "uneven-work", fix=True)
        assert found.devices == (W0,) and "1.1 Gflop per step, 2.0 times the mean of the 2 used devices" in found.what
        assert found.where.line == line("product_{i}") and found.nodes == ("product_0",)
        assert (
            found.cure.startswith(f"Remove the device block at {in_file(__file__)}") and 'strategy="auto"' in found.cure
        )
        assert dt.simulate(found.fixed).makespan < 0.6 * dt.simulate(plan).makespan


def test_state_that_a_search_put_together_is_no_finding():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [4096, 512], name="x")
        w = [dt.get_variable(f"w{i}", [512, 512]) for i in range(2)]
        y = dt.matmul(dt.nn.relu(dt.matmul(x, w[0])), w[1])

        def variables_first(problem):
            return np.where(np.bincount(problem.group, problem.memory)[problem.group] > 0, 0, 1)

        plan = dt.place(y, {"worker": 4}, strategy=variables_first, shared_memory=False)
        assert {c.name for c in plan.channels} == {w[0].value().name, w[1].value().name}
        assert "uneven-bytes" not in kinds(plan)


def test_a_constant_that_is_sent_in_each_step():
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            c = dt.constant(np.zeros(1 << 16, "float32"), name="c")
        with dt.device("/job:worker/task:0"):
            y = dt.negative(c)
        found = only(place(None, CLUSTER, fetches=y), "constant-sent", fix=True)
        assert (found.nodes, found.bytes) == (("c",), 1 << 18)
        assert "0 B instead of 256.0 KiB between tasks" in found.result and found.fixed.channels == []


def tower(colocate):
    """A model whose layers alternate between two workers, with its gradients."""
    h = dt.placeholder(dt.float32, [256, 512], name="x")
    for i in range(4):
        with dt.device(f"/job:worker/task:{i % 2}"):
            h = dt.nn.relu(dt.matmul(h, dt.get_variable(f"w{i}", [512, 512], use_resource=True)))
    optimizer = dt.train.GradientDescentOptimizer(0.1)
    return optimizer.minimize(dt.reduce_mean(h), colocate_gradients_with_ops=colocate)


def test_gradients_all_on_one_worker_and_the_plan_with_them_beside_their_ops():
    with dt.Graph().as_default():
        plan = place(None, {"worker": 2}, targets=tower(False))
        found = only(plan, "gradients", fix=True)
    with dt.Graph().as_default():
        beside = place(None, {"worker": 2}, targets=tower(True))
    assert "nodes of the gradients run on /job:worker/task:0/CPU:0, but" in found.what
    assert found.cure == "Pass `colocate_gradients_with_ops=True` to that call"
    assert found.where.line == line("optimizer.minimize(")
    assert {n: d for n, d in found.fixed.placement.items() if "_grad/" in n} == {
        n: d for n, d in beside.placement.items() if "_grad/" in n
    }
    assert [(t.source, t.destination, t.bytes) for t in found.fixed.traffic] == [
        (t.source, t.destination, t.bytes) for t in beside.traffic
    ]
    assert dt.simulate(found.fixed).makespan < dt.simulate(plan).makespan
    assert "gradients" not in kinds(beside) and "gradients" not in kinds(found.fixed)


def test_the_sum_of_a_shared_variable_s_gradients_goes_with_them_out_of_the_block_of_their_call():
    with dt.Graph().as_default():
        x, losses = dt.placeholder(dt.float32, [512, 512], name="x"), []
        with dt.device("/job:ps"):
            w = dt.get_variable("w", [512, 512])
        for i in range(2):
            with dt.device(f"/job:worker/task:{i}"):
                losses.append(dt.reduce_mean(dt.tanh(dt.matmul(dt.tanh(dt.matmul(x, w)), w))))
        with dt.device("/job:worker/task:0"):
            train = dt.train.GradientDescentOptimizer(0.1).minimize(dt.add_n(losses))
        found = only(place(None, {"ps": 1, "worker": 2}, targets=train), "gradients", fix=True)
    assert found.fixed is not None and found.result.startswith("Result: predicted step time")
    towers = {d for n, d in found.fixed.placement.items() if "MatMul" in n and "_grad/" in n}
    assert len(towers) == 2 and found.fixed.placement["gradients/AddN"] in towers


def test_gradients_beside_a_model_on_one_worker_are_well():
    with dt.Graph().as_default(), dt.device(dt.train.replica_device_setter(ps_tasks=2)):
        h = dt.placeholder(dt.float32, [256, 512], name="x")
        for i in range(2):
            h = dt.nn.relu(dt.matmul(h, dt.get_variable(f"w{i}", [512, 512])))
        train = dt.train.GradientDescentOptimizer(0.1).minimize(dt.reduce_mean(h))
        assert "gradients" not in kinds(place(None, CLUSTER, targets=train))


def test_a_plan_slower_than_one_device_says_so_first():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [4, 4], name="x")
        for i in range(6):
            with dt.device(f"/job:worker/task:{i % 2}"):
                x = dt.negative(x, name=f"step_{i}")  # to and fro
        plan = place(None, {"worker": 2}, fetches=x)
        found = only(plan, "slower-than-one", fix=True)
        assert found.where.line == line("# to and fro") - 1 and len(found.fixed.partitions) == 1
        alone = dt.simulate(found.fixed).makespan
        assert alone < dt.simulate(plan).makespan / 10
        _, best = plan.report().best_single
        assert (
            best == pytest.approx(alone, rel=1e-9) and time_text(best) in found.what and time_text(best) in found.result
        )
        assert "nothing runs on /job:worker/task:1" in " ".join(str(found.fixed).split()) and "nothing runs" not in str(
            plan
        )
        told = " ".join(str(plan).split())
        assert f", slower than one device: {time_text(best)} with all nodes on /job:" in told
        assert "slower than one device" in str(plan.report()).splitlines()[0]
        assert "slower" not in str(found.fixed) and kinds(found.fixed) == []


def test_what_depends_on_unknown_sizes_is_not_called_slow():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 4], name="x")
        for i in range(6):
            with dt.device(f"/job:worker/task:{i % 2}"):
                x = dt.negative(x)
        plan = place(None, {"worker": 2}, fetches=x)
        assert "slower-than-one" not in kinds(plan) and "slower" not in str(plan)


SLOW_LINK = """jobs: {ps: 1, worker: 2}
devices: {ps: [{name: cpu:0}], worker: [{name: cpu:0}]}
links: [{between: [/job:ps, /job:worker], latency: 1 ms, bandwidth: 10 MB/s}]
"""


@pytest.fixture
def slow_link(tmp_path):
    (tmp_path / "cluster.yaml").write_text(SLOW_LINK)
    return tmp_path / "cluster.yaml"


def test_a_variable_that_is_read_over_a_slow_link(slow_link):
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            v = dt.get_variable("v", [256, 256], use_resource=True)  # far away
        with dt.device("/job:worker/task:0"):
            y = dt.exp(v)
        plan = place(None, slow_link, fetches=y)
        found = only(plan, "slow-read", fix=True)
        assert "'v' is sent from /job:ps/task:0/CPU:0 to /job:worker/task:0/CPU:0 in each step: 256.0 KiB" in found.what
        assert found.cure == 'Place it where it is read, with dt.device("/job:worker/task:0")'
        assert found.where.line == line("# far away") and found.fixed.placement["v"] == W0
        assert found.fixed.channels == [] and "0 B instead of 256.0 KiB" in found.result
        with dt.device("/job:worker/task:1"):
            z = dt.exp(v)
        assert "slow-read" not in kinds(place(None, slow_link, fetches=[y, z]))  # no place is nearer to both


@pytest.mark.parametrize("is_open", [False, True])
def test_a_batch_too_small_for_the_link(slow_link, is_open):
    def build(batch):
        with dt.Graph().as_default(), dt.device(dt.train.replica_device_setter(ps_tasks=1)):
            x = dt.placeholder(dt.float32, [None if is_open else batch, 256], name="x")  # the batch
            w = dt.get_variable("w", [256, 256])
            train = dt.train.GradientDescentOptimizer(0.1).minimize(dt.reduce_mean(dt.nn.relu(dt.matmul(x, w))))
            return place(None, slow_link, targets=train, shapes={x: (batch, 256)})

    plan = build(32)
    found = only(plan, "small-batch", fix=True)
    assert found.nodes == ("x",) and found.where.line == line("# the batch")
    assert "A batch of 32 keeps /job:worker/task:0/CPU:0 busy for" in found.what
    assert "(512.0 KiB) takes 54.4 ms for any batch size" in found.what  # at 10 MB/s: variables, then gradients
    needed = int(found.cure.split(" at ")[1].split(" ")[0])
    assert needed % 32 == 0 and "small-batch" not in kinds(build(needed))
    assert "slow-read" not in kinds(plan)  # the other worker reads it, too
    if is_open:
        assert found.result.startswith("Result: predicted time for 32 examples ")
        assert dt.simulate(found.fixed).makespan / needed < dt.simulate(plan).makespan / 32 / 10
    else:
        assert found.fixed is None and found.result == "Not applied: the graph says how large a batch is"


def test_a_batch_is_as_large_as_it_must_be_and_no_cure_where_work_does_not_follow_from_it(slow_link):
    with dt.Graph().as_default(), dt.device(dt.train.replica_device_setter(ps_tasks=1)):
        x = dt.placeholder(dt.float32, [None, 256], name="x")
        w = [dt.get_variable(f"w{i}", [256, 256]) for i in range(2)]
        train = dt.train.GradientDescentOptimizer(0.1).minimize(dt.reduce_mean(dt.nn.relu(x @ w[0]) @ w[1]))
        plan = place(None, slow_link, targets=train, shapes={x: (4, 256)})
        found = only(plan, "small-batch", fix=True)
        needed = int(found.cure.split(" at ")[1].split(" ")[0])
        sent, step = sum(c.bytes for c in plan.channels) / 10e6, found.fixed.simulate()
        # Kernels do not take half of the time for half of the rows. The server, which works longer, does not work on the batch.
        assert sent < step.busy[step.devices.index(W0)] < 2 * sent and found.fixed.sizes.given["x:0"] == (needed, 256)
        assert "keeps /job:worker/task:0/CPU:0 busy" in found.what
    with dt.Graph().as_default(), dt.device("/job:worker/task:0"):
        with dt.device("/job:ps/task:0"):
            table = dt.get_variable("table", [2000, 256])
        ids = dt.placeholder(dt.int32, [4], name="ids")
        y = dt.reduce_sum(table) + dt.reduce_sum(dt.gather(table, ids))
        assert "small-batch" not in kinds(place(None, slow_link, fetches=y))
        z = dt.matmul(dt.placeholder(dt.float32, [4, 2000], name="batch"), table)
        told = only(place(None, slow_link, fetches=z), "small-batch")
        assert "sending its variables in each step" in told.what and " rows or more computation" in told.cure


def test_a_gpu_that_is_not_used_is_told_as_such():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [2048, 2048], name="x")
        with dt.device("/cpu:0"):
            y = dt.matmul(x, x)
        plan = place(None, {"worker": 1}, fetches=y, devices={"worker": ["cpu:0", "gpu:0"]})
    slower = only(plan, "slower-than-one", fix=True)
    assert slower.cure == 'Place the nodes there, with dt.device("/job:worker/task:0/GPU:0")'
    assert set(slower.fixed.partitions) == {"/job:worker/replica:0/task:0/device:GPU:0"}
    assert re.search(r"could fall by at most 99\.\d%\.", only(plan, "idle").text)


def test_figures_of_loops_are_marked():
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:1"):
            w = dt.get_variable("w", [512, 512])

        def body(h):
            with dt.device("/job:worker/task:1"):
                return dt.tanh(h @ w)

        with dt.device("/job:worker/task:0"):
            y = dt.while_loop(lambda h: dt.reduce_sum(h) < 9.0, body, [dt.ones([32, 512])])
        plan = place(None, {"worker": 2}, fetches=y)
    assert re.search(r"^/job:worker/task:1/CPU:0 .* ≥ 16.9 M$", str(plan), re.MULTILINE)
    found = only(plan, "uneven-work", fix=True)
    assert " does ≥ 16.9 Mflop per step" in found.what and "This counts the iterations of loops as 1." in found.text
    assert re.search(r"predicted step time ≥ .* instead of ≥ .*, 0 B instead of ≥ .* between tasks", found.result)


def test_a_server_that_works_more_since_it_stores_more_has_one_warning():
    with dt.Graph().as_default(), dt.device(dt.train.replica_device_setter(ps_tasks=2)):
        x = dt.placeholder(dt.float32, [None, 512], name="x")
        w, b = dt.get_variable("w", [512, 1024]), dt.get_variable("b", [1024])
        loss = dt.reduce_mean(dt.nn.relu(x @ w + b))
        plan = place(None, CLUSTER, targets=dt.train.AdamOptimizer().minimize(loss))
    assert "uneven-bytes" in kinds(plan) and "uneven-work" not in kinds(plan)


def test_the_node_with_most_work_is_that_of_the_given_sizes():
    with dt.Graph().as_default(), dt.device("/job:worker/task:0"):
        x = dt.placeholder(dt.float32, [None, 64], name="x")
        batched = [dt.matmul(x, dt.ones([64, 64]), name=f"batched{i}") for i in range(2)]
        fixed = dt.matmul(dt.ones([64, 64]), dt.ones([64, 64]), name="fixed")
        plan = dt.place([*batched, fixed], {"worker": 2}, devices={"worker": [{"name": "cpu:0", "flops": 1e6}]})
    assert only(plan, "idle").nodes == ("fixed",) and "This counts unknown sizes as 1." in only(plan, "idle").text
    sized = only(plan.at(batch=4096), "idle")
    assert sized.nodes == ("batched0",) and "could fall by at most" in sized.text and "unknown" not in sized.text


def test_a_change_that_makes_a_step_slower_is_no_gain(slow_link):
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            w = dt.get_variable("w", [256, 256])
        losses = []
        for task in range(2):
            with dt.device(f"/job:worker/task:{task}"):
                losses.append(dt.reduce_mean(dt.nn.relu(dt.placeholder(dt.float32, [64, 256], name=f"x{task}") @ w)))
        train = dt.train.GradientDescentOptimizer(0.1).minimize(dt.add_n(losses))
        plan = place(None, slow_link, targets=train)
        found = only(plan, "gradients", fix=True)
        slower = dt.simulate(found.fixed).makespan > dt.simulate(plan).makespan  # each worker sends a gradient of w
        assert slower and found.result.startswith("No gain: predicted step time ")


def test_a_changed_plan_is_predicted_as_the_plan_was(monkeypatch):
    points = (Point(1.0, 1e-9, 1.0), Point(1e9, 1.0, 1.0))
    machine = Calibration("m", 2, "", "", dict.fromkeys(KINDS, points), dict.fromkeys(OVERHEADS, 1e-6), 2.0)
    monkeypatch.setattr(pipeline, "own", lambda: machine)  # this machine's profile
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [64, 64])
        for i in range(4):
            with dt.device(f"/job:worker/task:{i % 2}"):
                x = dt.tanh(x @ x)
        found = only(dt.place(x, {"worker": 2}, profile="none"), "slower-than-one", fix=True)
        assert found.fixed.cluster.calibration is None
        assert found.result.split(" time ")[1].split(" instead")[0] in found.what


def test_one_worker_of_a_between_graph_program():
    with dt.Graph().as_default():
        with dt.device(dt.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:1")):
            w = dt.get_variable("w", [64, 64])
            b = dt.get_variable("b", [64, 64])
            y = dt.matmul(w, b)
        plan = place(None, {"ps": 2, "worker": 3}, fetches=y, master="/job:worker/task:1")
        assert "the step of one worker, /job:worker/task:1; " in " ".join(str(plan).split())
        assert "idle" not in kinds(plan)  # the other workers run their own
        assert "one worker's" not in str(place(None, {"ps": 2, "worker": 2}, fetches=w))
    with dt.Graph().as_default():
        for i in range(2):  # in one graph
            with dt.device(dt.train.replica_device_setter(ps_tasks=2, worker_device=f"/job:worker/task:{i}")):
                y = dt.negative(dt.get_variable(f"v{i}", [4]))
        assert "one worker's" not in str(place(None, {"ps": 2, "worker": 2}))


def test_a_block_that_overrides_a_setter():
    with dt.Graph().as_default():
        with dt.device(dt.train.replica_device_setter(ps_tasks=2)):  # the setter  # noqa: SIM117
            with dt.device("/job:worker/task:0"):  # overrides it
                a, b = dt.get_variable("a", [300, 300]), dt.get_variable("b", [300, 300])
                y = dt.matmul(a, b)
        plan = place(None, CLUSTER, fetches=y)
        found = only(plan, "setter-overridden", fix=True)
        assert found.what == (
            "'a', 'b' (703.1 KiB) are on /job:worker/task:0/CPU:0, not on a parameter server: the device block '/job:worker/task:0' at "
            f"{in_file(__file__)}{line('# overrides it')} is inside the block function replica_device_setter at "
            f"{in_file(__file__)}{line('# the setter')}, "
            "and overrides it"
        )
        assert found.where.line == line("# overrides it")
        assert {found.fixed.placement[n] for n in "ab"} == {PS0, PS1} and "setter-overridden" not in kinds(found.fixed)
    with dt.Graph().as_default():  # a block may choose among the setter's servers
        with dt.device(dt.train.replica_device_setter(ps_tasks=2)), dt.device("/job:ps/task:1"):
            y = dt.identity(dt.get_variable("a", [300, 300]))
        assert "setter-overridden" not in kinds(place(None, CLUSTER, fetches=y))
    with dt.Graph().as_default():  # the other way round it is well; so is a part of a name that says no job
        with (
            dt.device("/job:worker/task:0"),
            dt.device(dt.train.replica_device_setter(ps_tasks=2)),
            dt.device("/cpu:0"),
        ):
            y = dt.matmul(dt.get_variable("a", [300, 300]), dt.get_variable("b", [300, 300]))
        assert "setter-overridden" not in kinds(place(None, CLUSTER, fetches=y))


@pytest.mark.parametrize("balanced", [False, True])
def test_servers_that_are_as_even_as_can_be_are_not_to_be_balanced(balanced):
    strategy = dt.train.BalancedStrategy(2) if balanced else None
    with dt.Graph().as_default(), dt.device(dt.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)):
        read = [dt.reduce_sum(dt.get_variable(f"v{i}", [n, 128])) for i, n in enumerate([300, 10, 300, 10])]
        plan = place(None, CLUSTER, fetches=read)
        if balanced:
            assert "uneven-bytes" not in kinds(plan)
        else:
            found = only(plan, "uneven-bytes", fix=True)
            assert "97% of the 310.0 KiB" in found.what and "BalancedStrategy" in found.cure
            assert max(r.variable_bytes for r in found.fixed.loads) == 310 * 128 * 4
    with dt.Graph().as_default(), dt.device(dt.train.replica_device_setter(ps_tasks=2)):
        read = [dt.reduce_sum(dt.get_variable(f"v{i}", [n, 128])) for i, n in enumerate([300, 10, 10])]
        assert "uneven-bytes" not in kinds(place(None, CLUSTER, fetches=read))  # no other order is better


def test_one_variable_that_is_most_of_a_server_is_to_be_cut():
    with dt.Graph().as_default(), dt.device(dt.train.replica_device_setter(ps_tasks=2)):
        read = [dt.reduce_sum(dt.get_variable(f"v{i}", [n, 128])) for i, n in enumerate([4096, 10])]
        found = only(place(None, CLUSTER, fetches=read), "uneven-bytes", fix=True)
        assert "Partition 'v0' (2.0 MiB), with a partitioner" in found.cure
        assert found.result == "Not applied: a variable is partitioned where the program creates it"


def test_values_that_do_not_fit_at_one_moment():
    devices = {"worker": [{"name": "cpu:0", "memory": 5 << 20}]}
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [512, 512], name="x")
        made = [dt.exp(x, name=f"made_{i}") for i in range(6)]
        with dt.control_dependencies([m.op for m in made]):
            late = dt.add_n([dt.reduce_sum(m) for m in made])
        found = only(place(None, {"worker": 2}, fetches=late, devices=devices), "memory", fix=True)
        assert (
            "/job:worker/task:0/CPU:0 is predicted to need 6.0 MiB at once for values and state, but has 5.0 MiB"
            in found.what
        )
        assert len(found.fixed.partitions) == 2 and "memory" not in kinds(found.fixed)


def test_every_kind_of_warning_is_in_the_documentation():
    told = (Path(dt.__file__).resolve().parents[1] / "docs" / "guides" / "plans.md").read_text()
    assert [kind for kind in CHECKS if f"| `{kind}` |" not in told] == []


def test_the_dearest_comes_first():
    g, made = model(balanced=False, reads=2)
    sizes = [w.bytes for w in place(g, CLUSTER, fetches=made, shared_memory=False).check()]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) > 2
