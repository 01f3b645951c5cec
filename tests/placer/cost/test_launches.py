"""Times by a machine's profile: tables, fused kernels, processors that tasks share, and the profile in plans."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.placer.cluster.calibration import OVERHEADS, Calibration, Point
from dovetail.placer.cost.launches import KINDS, working_set
from dovetail.placer.plan import Plan
from dovetail.placer.search.from_graph import POLLED
from dovetail.placer.simulate import COALESCED
from dovetail.runtime.transport.event_loop import BUSY_POLL_S
from dovetail.runtime.worker.step_scheduler import NEXT_S


def profile(cores: int = 2, used: float = 1.0, shared: float = 0.0, **overheads: float) -> Calibration:
    """A machine that does 1e9 units of any work in a second, and has no overheads but these. Tasks share `shared` cores, or all."""
    points = (Point(1.0, 1e-9, used), Point(1e9, 1.0, used))
    named = {name.replace("_", " "): seconds for name, seconds in overheads.items()}
    costs = dict.fromkeys(OVERHEADS, 0.0) | named
    return Calibration(
        "made up", cores, "2026-01-02T03:04:05+00:00", "", dict.fromkeys(KINDS, points), costs, shared or cores
    )


def products(jobs: dict[str, int] | None, calibration: Calibration, tasks: int) -> Plan:
    """A product of 2e6 operations on each task, each 2 ms; the plan is of four."""
    with dt.Graph().as_default():
        x, ends = dt.placeholder(dt.float32, [100, 100]), []
        for i in range(4):
            with dt.device(f"/job:worker/task:{i % tasks}" if jobs else None):
                ends.append(dt.matmul(x, dt.placeholder(dt.float32, [100, 100])).op)
        return dt.place(ends, jobs, profile=calibration)


def test_interpolates_on_logarithmic_axes() -> None:
    points = (Point(10.0, 1e-3, 1.0), Point(1000.0, 1e-2, 2.0))
    found = Calibration("m", 2, "", "", {"stream": points}, dict.fromkeys(OVERHEADS, 0.0), 2.0)
    assert found.at("stream", 100.0) == (pytest.approx(1e-3 * 10**0.5), pytest.approx(2**0.5))
    assert found.at("stream", 5.0) == (pytest.approx(5e-4), 1.0)
    assert found.at("stream", 4000.0) == (pytest.approx(4e-2), 2.0)


def test_a_fused_kernel_is_one_launch_that_moves_only_what_leaves_it() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [1000])
        y = x
        for _ in range(5):
            y = y * 1.5 + 0.5
        plan = dt.place(y, profile=profile(launch=1e-3, call=1e-3))
    assert plan.simulate().makespan == pytest.approx(1e-3 + 8000e-9, rel=0.01)


def test_described_speeds_count_whatever_the_machine_was_measured_to_do() -> None:
    slow = profile(launch=1.0, transfer=1.0)
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:0"):
            x = dt.matmul(dt.placeholder(dt.float32, [100, 100]), dt.placeholder(dt.float32, [100, 100]))
        with dt.device("/job:worker/task:1"):
            y = dt.exp(x)
        described = [{"name": "cpu:0", "flops": 1e9, "bandwidth": 1e10}]
        plans = [dt.place(y, {"worker": 2}, devices={"worker": described}, profile=p) for p in (slow, "none")]
        assert plans[0].simulate() == plans[1].simulate() and "(by the described speeds)" in str(plans[0])
        mixed = dt.place(y, {"worker": 2}, devices={"/job:worker/task:0": described}, profile=slow)
    assert mixed.simulate().makespan > 1 and "by the profile of made up" in str(mixed)


def test_each_variable_that_a_step_reads_takes_time() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [1000])
        for i in range(3):
            x = x * dt.get_variable(f"v{i}", [1000])
        plan = dt.place(x, profile=profile(variable=1e-3))
    assert plan.simulate().makespan == pytest.approx(3e-3, rel=0.01)


@pytest.mark.parametrize(("columns", "reduced", "is_short"), [(8, True, True), (32, True, False), (8, False, False)])
def test_functions_in_rows_shorter_than_a_vector_take_longer(columns: int, reduced: bool, is_short: bool) -> None:
    fast = profile()
    kernels = dict.fromkeys(KINDS, (Point(1.0, 1e-15, 1.0), Point(1e9, 1e-6, 1.0)))
    kernels |= {"function": fast.kernels["function"], "function in short rows": (Point(1.0, 1e-6, 1.0),)}
    with dt.Graph().as_default():
        y = dt.tanh(dt.placeholder(dt.float32, [1000, columns]))
        y = y - dt.reduce_mean(y, 0, keepdims=True) if reduced else y * 2.0
        plan = dt.place(y, profile=replace(fast, kernels=kernels))
    times = 2 if reduced else 1  # before the reduction, and again behind it
    assert plan.simulate().makespan == pytest.approx(times * columns * (1e-3 if is_short else 1e-6), rel=0.01)


def test_rows_that_are_changed_move_once() -> None:
    slow = {**dict.fromkeys(KINDS, (Point(1.0, 1e-15, 1.0), Point(1e9, 1e-6, 1.0))), "walk": (Point(1.0, 1e-9, 1.0),)}
    with dt.Graph().as_default():
        table = dt.get_variable("table", [1000, 8])
        changes = dt.IndexedSlices(dt.placeholder(dt.float32, [100, 8]), dt.placeholder(dt.int32, [100]))
        changed = dt.train.GradientDescentOptimizer(0.1).apply_gradients([(changes, table)])
        plan = dt.place(changed, profile=replace(profile(), kernels=slow))
    assert plan.simulate().makespan == pytest.approx(2 * 100 * 8 * 4e-9, rel=0.01), "the changes, and the rows"


@pytest.mark.parametrize(("gap_s", "messages"), [(50e-6, 1), (150e-6, 3)])
def test_tensors_that_travel_in_one_message_are_handled_once(gap_s: float, messages: int) -> None:
    """A program sends three tensors to another task, so much work apart."""
    with dt.Graph().as_default():
        side = round((gap_s * 1e9 / 2) ** (1 / 3))
        x, ends = dt.placeholder(dt.float32, [side, side]), []
        for _ in range(3):
            with dt.device("/job:worker/task:0"):
                x = dt.matmul(x, x)
            ends.append(x)
        with dt.device("/job:worker/task:1"):
            y = dt.concat(ends, 0)
        plan = dt.place(y, {"worker": 2}, profile=profile(transfer=1e-2))
    assert plan.simulate().busy[1] == pytest.approx(messages * 0.5e-2, rel=0.05)


def caches(small: float, large: float) -> Calibration:
    """A machine whose small kernels read 1e12 bytes in a second where a step touches `small` bytes, and 1e9 where it touches `large`."""
    found = profile()
    walk = (Point(small, small / 1e12, 1.0), Point(large, large / 1e9, 1.0))
    fast = dict.fromkeys(KINDS, (Point(1.0, 1e-15, 1.0), Point(1e9, 1e-6, 1.0)))
    return replace(found, kernels={**fast, "walk": walk})


@pytest.mark.parametrize(("tasks", "matrices", "is_slow"), [(1, 1, False), (1, 8, True), (2, 1, False), (2, 4, True)])
def test_bytes_move_at_the_rate_of_the_cache_that_holds_what_a_machines_tasks_touch(
    tasks: int, matrices: int, is_slow: bool
) -> None:
    """Each task multiplies rows with matrices of 64 KiB, eight times in all."""
    with dt.Graph().as_default():
        ends = []
        for task in range(tasks):
            with dt.device(f"/job:worker/task:{task}"):
                weights = [dt.Variable(dt.zeros([128, 128])) for _ in range(matrices)]
                rows = [dt.placeholder(dt.float32, [1, 128]) for _ in range(8 // tasks)]
                ends += [dt.matmul(x, weights[i % matrices]).op for i, x in enumerate(rows)]
        plan = dt.place(ends, {"worker": tasks}, profile=caches(160 * 1024, 512 * 1024))
    seconds = plan.simulate().makespan * tasks
    assert seconds == pytest.approx(8 * 66e-6, rel=0.05) if is_slow else seconds < 2e-6


def test_a_table_counts_with_the_rows_that_are_looked_up() -> None:
    with dt.Graph().as_default():
        rows = dt.gather(dt.Variable(dt.zeros([100_000, 64])), dt.placeholder(dt.int64, [10]))
        plan = dt.place(rows * 2.0)
    (device,) = plan.partitions
    assert 10 * 256 <= working_set(plan.launches(device)) < 4 * 10 * 256


def test_a_native_region_costs_what_entering_it_takes() -> None:
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, [8, 8]), dt.Variable(dt.zeros([8, 8]))
        y = dt.matmul(dt.tanh(dt.matmul(x, w)), w)
        plan = dt.place(y, profile=profile(region=1e-3, call=1.0))
    assert plan.simulate().makespan == pytest.approx(1e-3, rel=0.01)


def test_a_kernel_of_several_functions_is_timed_before_it_is_compiled() -> None:
    with dt.Graph().as_default():
        x, g = dt.placeholder(dt.float32, [1, 28, 28, 6]), dt.placeholder(dt.float32, [1, 14, 14, 6])
        made = dt.gradients(dt.nn.max_pool(x, 2, 2, "VALID"), [x], grad_ys=g)
        plan = dt.place(dt.reduce_max(made[0]), profile=profile())
    assert plan.simulate().makespan >= 4 * 28 * 28 * 6 * 1e-9


def test_attention_that_a_rewrite_made_has_the_plans_batch() -> None:
    with dt.Graph().as_default():
        q = dt.placeholder(dt.float32, [None, 4, 16, 32])
        scores = dt.nn.softmax(dt.matmul(q, q, transpose_b=True) * 0.125)
        y = dt.reduce_sum(dt.matmul(scores, q) * 2.0)
        small, large = (dt.place(y, shapes={q: (n, 4, 16, 32)}, profile=profile()).simulate().makespan for n in (1, 64))
    assert large == pytest.approx(64 * small, rel=0.05)


@pytest.mark.parametrize(("tasks", "cores", "used", "shared", "seconds"), [
    (1, 2, 1.0, 2.0, 8e-3),  # one after the other
    (4, 4, 1.0, 4.0, 2e-3), (4, 2, 1.0, 2.0, 4e-3), (4, 2, 2.0, 2.0, 8e-3), (2, 4, 1.0, 4.0, 4e-3),
    (4, 2, 1.0, 1.0, 8e-3), (4, 2, 1.0, 1.25, 6.4e-3), (1, 2, 2.0, 1.0, 8e-3),  # tasks get fewer together than one task may use
])  # fmt: skip
def test_tasks_of_a_machine_share_its_cores(tasks: int, cores: int, used: float, shared: float, seconds: float) -> None:
    plan = products({"worker": tasks}, profile(cores, used, shared), tasks)
    assert plan.simulate().makespan == pytest.approx(seconds, rel=1e-6)


def test_the_client_waits_for_its_round_trip() -> None:
    one, several = profile(step=1e-3, remote_step=3e-3, task=1e-3), {"worker": 2}
    assert products(None, one, 1).simulate(client=True).makespan == pytest.approx(9e-3)
    assert products(several, one, 2).simulate(client=True).makespan == pytest.approx(4e-3 + 4e-3)


def test_a_transfer_takes_what_was_measured() -> None:
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:0"):
            x = dt.placeholder(dt.float32, [250]) * 2.0
        with dt.device("/job:worker/task:1"):
            y = x * 2.0
        plan = dt.place(y, {"worker": 2}, profile=profile(transfer=1e-3, shared_byte=1e-6, tcp_byte=1.0))
    assert plan.simulate().makespan == pytest.approx(2e-3 + 4e-6, rel=0.01)


@pytest.mark.parametrize(("side", "sent"), [(8, 1e-3), (1024, 7e-3)])
def test_a_task_that_touches_much_takes_longer_for_a_message(side: int, sent: float) -> None:
    """Half of the transfer's 2 ms if its caches hold what handles messages; else what a message costs a task that computes."""
    machine = replace(
        profile(transfer=2e-3, message=7e-3),
        kernels=dict.fromkeys(KINDS, (Point(1.0, 1e-15, 1.0), Point(1e9, 1e-6, 1.0))),
    )
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:0"):
            x = dt.matmul(dt.placeholder(dt.float32, [1, side]), dt.Variable(dt.zeros([side, side])))
            with dt.control_dependencies([x.op]):
                later = dt.placeholder(dt.float32, [8]) * 2.0
        with dt.device("/job:worker/task:1"):
            y = x[:, :8] * 2.0
        busy = dt.place([y, later], {"worker": 2}, profile=machine).simulate().busy
    assert busy == (pytest.approx(sent, rel=0.05), pytest.approx(1e-3, rel=0.05))


def fan_out(transfer: float, shared: float, working: float) -> Plan:
    """A task gives a value to two others, which takes `transfer` seconds, and works on for `working` seconds; all else takes no time."""
    fast = profile(3, shared=shared, transfer=transfer)
    kernels = {k: (Point(1e6, working if k.startswith("product") else 1e-15, 1.0),) for k in KINDS}
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:0"):
            x = dt.placeholder(dt.float32, [250]) * 2.0
            with dt.control_dependencies([x.op]):
                ends = [dt.matmul(dt.placeholder(dt.float32, [1, 500]), dt.placeholder(dt.float32, [500, 1000])).op]
        for task in (1, 2):
            with dt.device(f"/job:worker/task:{task}"):
                ends.append((x * 2.0).op)
        return dt.place(ends, {"worker": 3}, profile=replace(fast, kernels=kernels))


@pytest.mark.parametrize(("shared", "received", "sent"), [(3.0, 2e-3, 3e-3), (1.0, 6e-3, 7e-3)])
def test_what_is_sent_and_received_keeps_both_ends_busy(shared: float, received: float, sent: float) -> None:
    """The sender pays half of each of two transfers of 2 ms before it works for 1 ms, and each receiver half of one."""
    found = fan_out(2e-3, shared, 1e-3).simulate()
    ends = {device: max(s.finish for s in found.spans if s.device == device) for device in range(3)}
    assert [ends[0], ends[1], ends[2]] == [pytest.approx(t, rel=0.01) for t in (sent, received, received)]


@pytest.mark.parametrize("working", [1e-3, 1e-4])
def test_a_task_that_works_on_sends_before(working: float) -> None:
    found = fan_out(1e-5, 3.0, working).simulate()
    assert [(t.start, t.finish) for t in found.transfers] == [pytest.approx((0.0, 5e-6), abs=1e-8)] * 2


@pytest.mark.parametrize(("cores", "there", "back"), [(2, 2.5e-5, 3.5e-5), (1, 3e-5, 6e-5)])
def test_a_task_that_waits_is_woken_unless_it_polls(cores: int, there: float, back: float) -> None:
    """A task that has sent something polls for an answer where no other task needs its core."""
    kernels = {k: (Point(1.0, 1e-15, 1.0),) for k in KINDS}
    machine = replace(profile(cores, transfer=1e-5, wake=2e-5), kernels=kernels)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [8])
        for task in (0, 1, 0):
            with dt.device(f"/job:worker/task:{task}"):
                x = x * 2.0
        found = dt.place(x, {"worker": 2}, profile=machine).simulate()
    assert [t.finish for t in found.transfers] == [pytest.approx(there, rel=0.01), pytest.approx(back, rel=0.01)]


def test_polling_and_coalescing_are_what_the_runtime_does() -> None:
    assert (POLLED, COALESCED) == (BUSY_POLL_S, NEXT_S)


def test_a_transposed_product_has_times_of_its_own() -> None:
    slow = profile()
    slow = replace(
        slow, kernels={**slow.kernels, **{k: (Point(1.0, 5e-9, 1.0),) for k in KINDS if k.startswith("transposed")}}
    )
    with dt.Graph().as_default():
        x, g = dt.placeholder(dt.float32, [64, 100]), dt.placeholder(dt.float32, [64, 200])
        plain, transposed = dt.matmul(dt.placeholder(dt.float32, [100, 64]), g).op, dt.matmul(x, g, transpose_a=True).op
        seconds = [dt.place(y, profile=slow).simulate().makespan for y in (plain, transposed)]
    assert seconds[1] == pytest.approx(5 * seconds[0], rel=0.01)


def test_a_plan_names_its_profile_once_beside_the_predicted_time() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [100])
        for task in (0, 1, 0):
            with dt.device(f"/job:worker/task:{task}"):
                x = x * 2.0
        plan = dt.place(x, {"worker": 2}, profile=profile(transfer=1e-3))
    text = " ".join(str(plan).split())
    assert text.startswith("Plan: predicted step time 2 ms (by the profile of made up, 2 cores, measured 2026-01-02), ")
    assert text.count("profile") == 1 and "per step" in text  # the transfers' times rest on the same
    first = str(plan.report()).splitlines()[0]
    assert first.endswith("; placed by the rules; by the profile of made up, 2 cores, measured 2026-01-02")
    assert "profile" not in str(plan.report(costs=dt.Profile({}, (), 1.0, 1, {})))


def test_a_plan_keeps_its_profile(tmp_path: Path) -> None:
    plan = products({"worker": 2}, profile(), 2)
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.cluster.calibration == profile()
    assert loaded.simulate().makespan == plan.simulate().makespan


def test_a_search_predicts_the_time_of_its_plan() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [100, 100])
        y = dt.add_n([dt.matmul(x, dt.placeholder(dt.float32, [100, 100])) for _ in range(4)])
        plan = dt.place(y, {"worker": 2}, strategy="auto", budget_s=0.1, profile=profile(launch=1e-5))
    assert plan.solution is not None
    assert plan.solution.objective == plan.simulate().makespan


def test_this_machines_profile_is_used_unless_it_is_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("DOVETAIL_PROFILE")
    with dt.Graph().as_default():
        y = dt.ones([2]) + 1.0
        assert dt.place(y).cluster.calibration is None
        profile().save()
        assert dt.place(y).cluster.calibration == profile()
        assert dt.place(y, profile="none").cluster.calibration is None
        with dt.Session() as session:
            assert session.plan(y).cluster.calibration == profile()
        elsewhere = {"jobs": {"worker": 1}, "devices": {"worker": [{"name": "cpu:0", "flops": 1e9}]}}
        described = dt.place(y, {"worker": 1}, devices=elsewhere["devices"]).cluster
        assert not any(map(described.is_calibrated, described.devices))
        profile().save().write_text("{}")
        assert dt.place(y).cluster.calibration is None  # damaged
        profile().save()
        monkeypatch.setenv("DOVETAIL_PROFILE", "none")
        assert dt.place(y).cluster.calibration is None


@pytest.mark.parametrize("damage", [
    lambda d: d.pop("kernels"), lambda d: d["overheads"].pop("step"), lambda d: d["kernels"].update(stream=[[2, 1, 1], [1, 1, 1]]),
    lambda d: d["overheads"].update(step=-1), lambda d: d.update(shared=3), lambda d: d.update({"dovetail calibration": 99}),
])  # fmt: skip
def test_refuses_a_damaged_file(tmp_path: Path, damage: Callable[[dict[str, object]], object]) -> None:
    data = json.loads(profile().to_text())
    damage(data)
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(dt.errors.InvalidArgumentError, match=r"p\.json: .*measure anew with `dovetail calibrate`"):
        Calibration.load(tmp_path / "p.json")


def wide(used: float, shared: float) -> Plan:
    """Ten products of 2 ms that keep `used` cores busy, eight of them on the first of two tasks of a machine, and their training."""
    with dt.Graph().as_default():
        x, ends = dt.placeholder(dt.float32, [100, 100]), []
        for i in range(10):
            with dt.device(f"/job:worker/task:{i // 8}"):
                ends.append(dt.matmul(x, dt.placeholder(dt.float32, [100, 100])))
        with dt.device("/job:worker/task:0"):
            weight = dt.get_variable("w", [10])
            train = dt.train.GradientDescentOptimizer(0.1).minimize(dt.reduce_sum(weight * weight))
        return dt.place([*ends, train], {"worker": 2}, profile=profile(4, used, shared))


@pytest.mark.parametrize(("used", "shared", "gains"), [(1.0, 4.0, True), (2.0, 2.0, False)])
def test_what_tasks_that_share_cores_cannot_gain_is_not_advised(used: float, shared: float, gains: bool) -> None:
    plan = wide(used, shared)
    report, found = plan.report(), [w for w in plan.check() if w.kind == "uneven-work"]
    assert (report.hint is not None) == gains
    assert [f"{report.gap:.0%}" in w.what for w in found] == [True] * gains
    assert report.lower_bound <= report.objective
    assert report.hint is None or report.hint.seconds == pytest.approx(10e-3, rel=0.01)


def test_transfers_that_do_not_wait_for_each_other_keep_no_more_cores_busy() -> None:
    machine = profile(1, transfer=1e-3, shared_byte=1e-9)
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:0"):
            sent = [dt.placeholder(dt.float32, [1000]) * float(i) for i in range(2, 6)]
            with dt.control_dependencies([t.op for t in sent]):
                work = dt.matmul(dt.placeholder(dt.float32, [100, 100]), dt.placeholder(dt.float32, [100, 100]))
        with dt.device("/job:worker/task:1"):
            ends = [t * 2.0 for t in sent]
        plan = dt.place([work, *ends], {"worker": 2}, profile=machine)
    assert plan.simulate(contended=False).makespan <= plan.simulate().makespan
