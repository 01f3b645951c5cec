"""Plans: made without servers, printed as tables, explained node by node."""

import gzip
import sys
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import page_plans
import pytest
from hypothesis import given, strategies as st

import dovetail as dt
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.placer import simulate
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.cost.static import device_loads, state_bytes, traffic
from dovetail.placer.pipeline import place
from dovetail.placer.render.page import packed
from dovetail.placer.render.text import ROWS, WIDTH, filled, size_text, sum_texts, table, time_text, where
from dovetail.placer.serialize.write import plan_lines
from dovetail.placer.views import facts
from dovetail.placer.views.page_data import contents
from dovetail.placer.views.scope_tree import fold

PS0, PS1, W0 = (f"/job:{j}/replica:0/task:{t}/device:CPU:0" for j, t in (("ps", 0), ("ps", 1), ("worker", 0)))
GPU1 = "/job:worker/replica:0/task:0/device:GPU:1"
CLUSTER = {"ps": 2, "worker": 1}
GPUS = {"worker": ["cpu:0", "gpu:0", "gpu:1"]}


@pytest.fixture
def graph():
    with dt.Graph().as_default() as g:
        x = dt.placeholder("float32", [None, 4], name="x")
        with dt.device(dt.train.replica_device_setter(ps_tasks=2)), dt.name_scope("layer"):
            w = dt.Variable(np.zeros((3, 4), "float32"), name="w")
            b = dt.Variable(np.zeros(4, "float32"), name="b")
            with dt.device("/gpu:1"):
                y = dt.add(dt.multiply(dt.reduce_sum(w, name="sum"), x, name="scaled"), b, name="y")
        dt.negative(y, name="unused")
        yield g


def test_what_a_plan_says(graph):
    plan = place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS)
    assert plan.requested["layer/y"] == "/job:worker/device:GPU:1" and plan.requested["x"] == ""
    assert plan.placement["layer/w"] == PS0 and plan.placement["layer/b"] == PS1
    assert plan.placement["layer/y"] == GPU1 and "unused" in plan.placement
    assert set(plan.partitions) == {PS0, PS1, GPU1}
    assert {(c.name, c.source, c.destination, c.bytes) for c in plan.channels} == {
        ("layer/w/read:0", PS0, GPU1, 48),
        ("layer/b/read:0", PS1, GPU1, 16),
    }
    assert (plan.fetches, plan.targets, plan.feeds) == (("layer/y:0",), (), ("x:0",))
    assert plan.partitions[GPU1].feeds == ("x:0",) and plan.partitions[GPU1].fetches == ("layer/y:0",)
    assert plan.relaxations == () and plan.cost[GPU1].flops > 0
    assert repr(plan) == f"<dt.Plan of {len(graph)} nodes, 3 partitions, 2 channels>"


def test_without_fetches_all_nodes_run(graph):
    plan = place(graph, CLUSTER, devices=GPUS)
    run = {n.name for p in plan.partitions.values() for n in p.nodes}
    assert run == {n.name for n in graph.nodes} - {"x"}


def test_the_head_counts_as_the_tables_do_and_knows_what_is_fed():
    with dt.Graph().as_default():
        x, c = dt.placeholder(dt.float32, [256, 4], name="x"), dt.constant(2.0)
        with dt.device("/job:ps/task:0"):
            y = x * c
        with dt.device("/job:worker/task:0"):
            plan = dt.place(y + c, CLUSTER)
    nodes = sum(r.nodes for r in plan.loads)
    assert nodes > len({n for p in plan.partitions.values() for n in p.nodes})  # the constant runs on both
    text = " ".join(str(plan).split())
    assert f" {nodes} nodes on 2 devices of 2 tasks" in text and "; 1 feed (4.0 KiB per step)" in text
    assert "(uncalibrated: `dovetail calibrate` measures this machine)" in text


def test_lines_end_between_amounts_and_lists_keep_their_devices_whole():
    for length in range(60, 100):
        lines = filled(f"{'x' * length} (≥ 1.0 KiB per step), 3.5 µs").splitlines()
        assert (
            not any(line.endswith(("1.0", "KiB", "per", "≥", "3.5")) for line in lines)
            and max(map(len, lines)) <= WIDTH
        )
    a, b = "/job:ps/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0"
    one, other = where(Counter({a: 8, b: 6})), where(Counter({a.replace("ps", "p" * 40): 8, b: 6, "c": 1}))
    assert one == "/job:ps/task:0/CPU:0 (8), /job:worker/task:0/CPU:0 (6)" and other.endswith(
        "CPU:0 (8) and 2 devices more"
    )
    text = table(("scope", "nodes", "where"), [("s" * 90, "14", one)], whole=2)
    assert one in text and "sss...sss" in text and max(map(len, text.splitlines())) <= WIDTH


def test_what_other_libraries_call_it(graph):
    plan = place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS)
    with pytest.raises(AttributeError, match=r"no attribute 'show': use print\(plan\)"):
        plan.show()
    with pytest.raises(AttributeError, match="did you mean report"):
        plan.reports()
    with pytest.raises(AttributeError, match=r"no attribute 'step': use minimize\(loss\)"):
        dt.train.AdamOptimizer().step()
    with dt.Graph().as_default():
        plan = dt.place(dt.nn.relu(dt.placeholder(dt.float32, [None, 4])), CLUSTER)
    assert str(plan.at(8).report()) == str(plan.at(batch=8).report())
    assert str(plan.scale(8)) == str(plan.scale([8]))


def test_the_head_counts_devices_that_only_hold_variables():
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            w = dt.Variable(np.ones((2, 2), np.float32), name="w")
        with dt.device("/job:worker/task:0"):
            y = dt.matmul(w, w)
        plan = dt.place(y, CLUSTER)
    text = " ".join(str(plan).split())
    assert "1 node and 1 variable on 2 devices of 2 tasks; 1 channel" in text
    assert "/job:ps/task:0/CPU:0 0 1 16 B 0" in text


def test_updates_in_shared_memory_are_counted_and_shown_where_the_variables_are():
    with dt.Graph().as_default():
        with dt.device(dt.train.replica_device_setter(ps_tasks=2)):
            x = dt.placeholder("float32", [32, 10], name="x")
            w, b = dt.get_variable("w", [10, 1]), dt.get_variable("b", [1])
            loss = dt.reduce_mean(dt.square(dt.matmul(x, w) + b))
            train = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
        plan = dt.place([loss, train], CLUSTER)
        apart = dt.place([loss, train], CLUSTER, shared_memory=False)
    text = " ".join(str(plan).split())
    assert "; no channels, 2 one-sided updates (44 B per step); 1 feed" in text
    assert "; shared memory is assumed (dt.place with shared_memory=False assumes none)" in text
    assert "w 1 /job:ps/task:0/CPU:0 (run by /job:worker/task:0)" in text
    assert "b 2 /job:ps/task:1/CPU:0 (run by /job:worker/task:0)" in text
    (descent,) = (line for line in str(plan).splitlines() if line.startswith("GradientDescent "))
    assert "/job:ps/task:0/CPU:0 (2), /job:ps/task:1/CPU:0 (2)" in descent and "run by" not in descent
    assert "one-sided" not in str(apart) and "run by" not in str(apart)


def test_the_head_says_which_channels_are_one_sided_reads():
    with dt.Graph().as_default():
        made = []
        for i in range(2):
            with dt.device("/job:ps/task:0"):
                v = dt.Variable(np.ones(100, "float32"), name=f"v{i}")
                sent = dt.negative(v)
            with dt.device("/job:worker/task:0/cpu:0"):
                made += [dt.tanh(v), dt.tanh(sent)]
        with dt.device("/job:worker/task:0/gpu:0"):
            passed = dt.tanh(made[0])
        heads = [
            " ".join(str(dt.place(fetches, CLUSTER, devices={"worker": ["cpu:0", "gpu:0"]})).split())
            for fetches in (made[0], [made[0], made[2]], made, [made[0], passed])
        ]
    ends = (
        "; 1 channel between tasks (400 B per step), as a one-sided read;",
        "; 2 channels between tasks (800 B per step), all as one-sided reads;",
        "; 4 channels between tasks (1.6 KiB per step), 2 of these as one-sided reads;",
        "; 2 channels, 1 of them between tasks (400 B per step), as a one-sided read;",
    )
    for head, end in zip(heads, ends, strict=True):
        assert end in head, head


def test_the_head_says_what_a_search_has_proven_about_more_tasks():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [64, 64], name="x")
        y = dt.matmul(dt.matmul(x, x), x)
        plan = dt.place(y, {"worker": 2}, strategy="auto", budget_s=0.1)
        by_rules = dt.place(y, {"worker": 2})
    proven = replace(plan, solution=replace(plan.solution, objective=1e-3, lower_bound=1e-3))
    head = " ".join(str(proven).split())
    assert "; nothing runs on /job:worker/task:1 (one task is fastest: no plan can take less than 1 ms)" in head
    bounded = replace(plan, solution=replace(plan.solution, objective=1e-3, lower_bound=5e-4))
    assert "/job:worker/task:1 (no plan can take less than 500 µs)" in " ".join(str(bounded).split())
    unknown = replace(plan, solution=replace(plan.solution, lower_bound=0.0))
    for silent in (unknown, by_rules):
        assert " ".join(str(silent).split("device  ")[0].split()).endswith("nothing runs on /job:worker/task:1")


def test_the_table(graph):
    text = str(place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].startswith("Plan: predicted step time ≥ ")
    assert lines[1] == "largest transfers: layer/w/read:0 (48 B), layer/b/read:0 (16 B)"
    assert lines[2].startswith("8 nodes on 3 devices of 3 tasks; 2 channels between tasks (64 B per step)")
    assert "/job:ps/task:0/CPU:0 2 1 48 B 0" in lines
    assert "/job:worker/task:0/GPU:1 4 0 0 B ≥ 20" in lines
    assert "/job:ps/task:0/CPU:0 -> /job:worker/task:0/GPU:1 1 0 48 B" in lines
    assert "layer/w/read 1 /job:ps/task:0/CPU:0" in lines
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_head_begins_with_the_predicted_time_and_what_it_rests_on():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 8])
        with dt.device("/job:worker/task:1"):
            y = dt.tanh(x)
        plan = dt.place(y, {"ps": 1, "worker": 2})
        speeds = {"worker": [{"name": "cpu:0", "flops": 1e9, "bandwidth": 1e9}]}
        described = dt.place(y, {"ps": 1, "worker": 2}, devices=speeds, shapes={x: (4, 8)})
        nothing = dt.place(x, {"ps": 1, "worker": 2})
    least = time_text(plan.simulate().makespan)
    first = f"Plan: predicted step time ≥ {least} (uncalibrated: `dovetail calibrate` measures this machine)"
    lines = str(plan).splitlines()
    assert lines[0] == first and lines[1].startswith("1 node on 1 device of 1 task; no channels")
    known = time_text(described.simulate().makespan)
    assert str(described).splitlines()[0] == f"Plan: predicted step time {known} (by the described speeds)"
    assert str(nothing).startswith("Plan: 0 nodes on 0 devices")


def test_the_head_names_the_values_of_which_most_bytes_cross():
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            wide, narrow = (dt.random_uniform([4, n], name=name) for n, name in ((9, "wide"), (2, "narrow")))
        sums = []
        for task in range(2):
            with dt.device(f"/job:worker/task:{task}"):
                sums += [dt.reduce_sum(wide), dt.reduce_sum(narrow)] if task else [dt.reduce_sum(wide)]
        plan = dt.place(sums, {"ps": 1, "worker": 2})
    assert "largest transfers: wide:0 (144 B to each of 2 devices), narrow:0 (32 B)" in str(plan).splitlines()


def test_the_table_lists_what_was_given_up(graph):
    plan = place(graph, CLUSTER, allow_soft_placement=True)
    assert {r.node for r in plan.relaxations} >= {"layer/y", "layer/scaled"}
    assert "Relaxed requests: " in str(plan) and "'/job:worker/device:GPU:1'" in str(plan)
    assert max(map(len, str(plan).splitlines())) <= WIDTH


def test_explain(graph):
    plan = place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS)
    text = plan.explain("layer/w/read:0")
    assert text.startswith(f"layer/w/read -> {PS0}") and "test_plan.py:" in text
    assert "sent as layer/w/read:0 (48 B) /job:ps/task:0/CPU:0 -> /job:worker/task:0/GPU:1" in text
    assert plan.explain(graph.get_tensor_by_name("layer/y:0")) == plan.explain("layer/y")
    with pytest.raises(KeyError, match="nothing"):
        plan.explain("nothing")


def test_why_not(graph):
    plan = place(graph, CLUSTER, devices=GPUS)
    assert "'/job:ps/task:0' is required" in plan.why_not("layer/w", "/job:worker/gpu:0")
    assert plan.why_not("layer/w", "/job:ps/task:0").startswith("'layer/w' is on")
    assert "could be on" in plan.why_not("unused", "/job:ps/task:1")
    with pytest.raises(InvalidArgumentError, match="names several devices"):
        plan.why_not("unused", "/job:ps")
    with pytest.raises(InvalidArgumentError, match="names no device"):
        plan.why_not("unused", "/job:moon")


def test_all_nodes_on_a_device_whose_name_is_partial(graph):
    plan = place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS)
    assert list(plan.all_on("/job:ps/task:0").partitions) == [PS0]
    with pytest.raises(InvalidArgumentError, match=f"'/job:ps' names several devices of the cluster: {PS0}, "):
        plan.all_on("/job:ps")


def test_a_page_refuses_what_is_no_trace_and_no_plan(graph, tmp_path):
    plan, page = place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS), tmp_path / "page.html"
    for wrong in (3, dt.RunMetadata()):
        with pytest.raises(TypeError, match=r"measured must be the trace of a step \(run_metadata.trace\), not"):
            plan.to_html(page, measured=wrong)
    with pytest.raises(TypeError, match="before must be a plan, not 'old.plan'"):
        plan.to_html(page, before="old.plan")
    assert not page.exists()
    metadata = dt.RunMetadata()
    metadata.trace = plan.simulate()
    plan.to_html(page, measured=metadata)
    assert page.exists()


def test_errors_of_a_plan_show_the_users_frames_alone(graph, monkeypatch):
    plan = place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS)
    wrong = [
        lambda: plan.explain("nothing"),
        lambda: plan.why_not("unused", "/job:moon"),
        lambda: plan.all_on("/job:moon"),
        lambda: plan.at(batch=0),
        lambda: plan.diff(1),
        lambda: plan.simulate(costs=1),
        lambda: plan.simulate(client="no"),
        lambda: plan.report(contended="no"),
        lambda: plan.check(fix="no"),
        lambda: plan.at(batch=True),
        lambda: plan.to_html("no.html", measured=3),
        lambda: dt.place(graph, CLUSTER, budget_s=-1),
        lambda: dt.place(graph, CLUSTER, budget=1),
    ]
    for setting in ("user", "full"):
        monkeypatch.setenv("DOVETAIL_TRACEBACK", setting)
        for call in wrong:
            with pytest.raises(Exception) as e:
                call()
            files = {str(entry.path) for entry in e.traceback}
            if setting == "full":
                assert len(files) > 1 and __file__ in files
            else:
                assert files == {__file__}


def test_to_networkx(graph):
    plan = place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS)
    g = plan.to_networkx()
    assert g.nodes["layer/y"] == {"op": "AddV2", "device": GPU1, "requested": "/job:worker/device:GPU:1"}
    (edge,) = g.get_edge_data("layer/b/read", "layer/y").values()
    assert edge == {"name": "layer/b/read:0", "control": False, "crosses": True}
    assert "x" not in g  # it is fed


# --- what a cluster may be given as -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "devices", "master", "expected"),
    [
        (None, None, None, ["/job:localhost/task:0/CPU:0"]),
        ({"worker": 2}, None, None, ["/job:worker/task:0/CPU:0", "/job:worker/task:1/CPU:0"]),
        ({"a": ["x:1"], "worker": 1}, None, None, ["/job:worker/task:0/CPU:0", "/job:a/task:0/CPU:0"]),
        ({"b": 1, "a": {3: "x:1"}}, None, None, ["/job:a/task:3/CPU:0", "/job:b/task:0/CPU:0"]),
        ({"ps": 1, "chief": 1, "worker": 1}, {"ps": ["GPU:1"]}, "job:ps",
         ["/job:ps/task:0/GPU:1", "/job:chief/task:0/CPU:0", "/job:worker/task:0/CPU:0"]),
        ({"ps": 1, "chief": 1}, None, None, ["/job:chief/task:0/CPU:0", "/job:ps/task:0/CPU:0"]),
    ],
)  # fmt: skip
def test_clusters(jobs, devices, master, expected):
    found = make_cluster(jobs, devices, master)
    short = [str(d.name).replace("/replica:0", "").replace("device:", "") for d in found.devices]
    assert short == expected


def test_a_cluster_spec_and_a_live_cluster(graph):
    spec = dt.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]})
    live = make_cluster(spec, GPUS)
    assert place(graph, spec, devices=GPUS).placement == place(graph, live).placement


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"devices": {"moon": ["cpu:0"]}}, ValueError, "moon"),
        ({"devices": {"ps": ["cpu"]}}, InvalidArgumentError, "'cpu' of job 'ps' names no device"),
        ({"master": "/job:worker/task:7"}, InvalidArgumentError, "is no task of the cluster"),
        ({"strategy": "magic"}, ValueError, "rules"),
        ({"fetches": "nothing:0"}, KeyError, "nothing"),
        ({"feeds": 3}, TypeError, "3"),
        ({"devices": "gpu"}, TypeError, "`devices` must be jobs or tasks with their devices, such as .* not 'gpu'"),
        ({"profile": 3}, TypeError, "profile must be the path of a machine's profile, a Calibration or 'none', not 3"),
    ],
)
def test_bad_arguments(graph, arguments, error, told):
    with pytest.raises(error, match=told):
        place(graph, CLUSTER, **{"devices": GPUS, **arguments})


# --- sums and tables --------------------------------------------------------------------------------------


def test_loads_and_traffic(graph):
    plan = place(graph, CLUSTER, fetches="layer/y:0", devices=GPUS)
    held = [(plan.decisions.device_of(n), n) for n in plan.decisions]
    loads = {r.device: r for r in device_loads(plan.partitions, held)}
    assert (loads[PS0].variables, loads[PS0].variable_bytes, loads[PS0].exact) == (1, 48, True)
    assert [(t.source, t.tensors, t.control, t.bytes) for t in traffic(plan.channels)] == [
        (PS0, 1, 0, 48),
        (PS1, 1, 0, 16),
    ]


def test_unknown_sizes_are_lower_bounds():
    with dt.Graph().as_default():
        v = dt.Variable(dt.placeholder("float32", [None, 3]), validate_shape=False)
        assert state_bytes(v.op)[1] is False
        assert state_bytes(dt.Variable(np.zeros((2, 3), "float64"), use_resource=True).op) == (48, True)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes(count, text):
    assert size_text(count) == text and size_text(count, exact=False) == "≥ " + text


def test_sizes_of_one_sum_add_up_as_they_are_written():
    assert sum_texts(2 << 20, 1536 << 10, 512 << 10) == ["2.0 MiB", "1.5 MiB", "512.0 KiB"]
    assert sum_texts(1280 << 10, 400 << 10, 880 << 10) == ["1280.0 KiB", "400.0 KiB", "880.0 KiB"]
    assert sum_texts(4_000_000, 1 << 20, 4_000_000 - (1 << 20)) == ["3.8 MiB", "1.0 MiB", "2.8 MiB"]
    assert sum_texts(1_000_001, 1_000_000, 1) == ["1000001 B", "1000000 B", "1 B"]


def test_a_variable_is_one_row_and_parts_are_opened_while_they_fit():
    placed = [(f"big/part{i}/n{j}", "de"[j % 2]) for i in "abc" for j in range(50)]
    placed += [("small/n", "d"), ("v", "d"), ("v/read", "d"), ("v/Assign", "e")]
    rows = fold(placed, 6)
    assert [(r.label, len(r.nodes)) for r in rows] == [
        ("big/parta/n*", 50), ("big/partb/n*", 50), ("big/partc/n*", 50), ("v", 3), ("small/n", 1),
    ]  # fmt: skip
    assert [r.label for r in fold(placed, 4)] == ["big/", "v", "small/n"]


def test_what_is_in_one_place_is_opened_only_in_a_short_table():
    placed = [(f"s{k}/a/n{i}", "d") for k in "uvwxyz" for i in range(2)]
    assert [r.label for r in fold(placed, 24)][:2] == ["su/a/n0", "su/a/n1"]
    many = [(f"{k}{m}/a{k}/n{i}", "d") for k in "uvwxyz" for m in "pqrst" for i in range(2)]
    assert len(fold(many, 24)) == 30 and {len(r.nodes) for r in fold(many, 24)} == {2}


def test_families_and_leftovers_fold():
    placed = [(f"net/layer_{i}/x", "d") for i in range(40)] + [(f"net/{n}", "e") for n in ("a", "b")]
    placed += [(f"add_{i}", "d") for i in range(30)]
    rows = {r.label: len(r.nodes) for r in fold(placed, 24)}
    assert rows == {"net/layer*": 40, "add*": 30, "net/a": 1, "net/b": 1}
    rows = {r.label: len(r.nodes) for r in fold(placed, 2)}
    assert rows == {"net/": 42, "add*": 30}


@given(
    st.lists(
        st.tuples(st.from_regex(r"[ab](_?[0-9])?(/[ab](_?[0-9])?){0,4}", fullmatch=True), st.sampled_from("de")),
        unique_by=lambda pair: pair[0],
    ),
    st.integers(1, 30),
)
def test_folding_loses_and_doubles_nothing(placed, rows):
    found = fold(placed, rows)
    assert sorted(n for r in found for n in r.nodes) == sorted(placed)
    assert len({r.label for r in found}) == len(found)
    assert len(found) <= max(rows, len(fold(placed, 0)))


def test_a_large_plan_prints_short():
    with dt.Graph().as_default() as g:
        for i in range(400):
            word = "".join("abcdefghij"[int(d)] for d in f"{i:03d}")
            name = f"a_scope_with_{'quite_' * 9}a_long_name_{word}"
            with dt.name_scope(name), dt.device(f"/job:worker/task:{i % 32}"):
                x = dt.constant(1.0)
                for _ in range(5):
                    x = dt.negative(x)
                with dt.device(f"/job:worker/task:{(i + 1) % 32}"):
                    dt.negative(x)
    text = str(place(g, {"worker": 32}))
    assert len(text.splitlines()) < 3 * (ROWS + 5)
    assert "... and 376 more with 2632 nodes" in text and "... and 8 more" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_constant_that_several_devices_have_is_one_row():
    rows = fold([("c", "a"), ("c", "b"), ("x", "a")], 10)
    assert [(r.label, len(r.nodes)) for r in rows] == [("c", 2), ("x", 1)]


def lines_run(function):
    """How many lines of Python a call runs, those of comprehensions once for each turn; and what it gives."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = function()
    finally:
        sys.settrace(before)
    return count, result


def test_twice_the_devices_are_twice_the_work():
    """Placing, partitioning and showing a plan takes time that is linear in its devices."""
    work, sizes = [], []
    for tasks in (20, 40):
        made = page_plans.fleet(tasks)  # warms all caches up
        steps, plan = lines_run(lambda made=made: place(made.graph, made.cluster))
        assert len(plan.partitions) == 4 * tasks + 2 and plan.placement == made.placement
        page, data = lines_run(lambda plan=plan: packed(*contents(plan)))
        saved, lines = lines_run(lambda plan=plan: list(plan_lines(plan)))
        printed, _ = lines_run(lambda plan=plan: str(plan))
        explained, _ = lines_run(lambda plan=plan: plan.explain("tower_0_0/MatMul"))
        drawn, _ = lines_run(lambda plan=plan: plan.to_svg(graphviz=False))
        dotted, _ = lines_run(lambda plan=plan: plan.to_dot())
        work.append([steps, page, saved, printed, explained, drawn, dotted])
        sizes.append([len(gzip.decompress(data)), sum(map(len, lines))])
    assert (np.divide(*work[::-1]) < 2.1).all(), work
    assert (np.divide(*sizes[::-1]) < 2.1).all(), sizes


def chain(nodes, tasks, each):
    """A plan of a chain that changes device at every node, on devices of which most do nothing."""
    with dt.Graph().as_default() as g:
        x = dt.ones([8, 8])
        while len(g.nodes) < nodes:
            with dt.device(f"/job:w/task:{len(g.nodes) % tasks}/cpu:0"):
                x = dt.tanh(x)
    return place(g, {"w": tasks}, devices={"w": [f"cpu:{i}" for i in range(each)]})


def test_predictions_take_no_memory_for_each_node_on_each_device():
    nodes, peaks = 3000, []
    for each in (5, 500):
        plan = chain(nodes, 4, each)
        tracemalloc.start()
        plan.report()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 3 * nodes * 4 * 500, peaks  # bytes; a number for each would take 8


def test_the_text_of_a_large_plan_is_made_of_little(monkeypatch):
    """The time on one device is that of a plan for it, which is not made; and nothing is computed for rows that are not shown."""
    plan, again = (chain(90, 30, 1) for _ in range(2))
    for module in (facts, simulate):
        monkeypatch.setattr(module, "LAUNCHED", 0)
    device, seconds = facts.Facts(plan).slower_than
    assert seconds == pytest.approx(plan.all_on(device).simulate().makespan)
    monkeypatch.setattr(dt.Plan, "all_on", None)
    monkeypatch.setattr(facts, "plan_timeline", None)
    text = str(again)
    assert "slower than one device: " + time_text(seconds) in " ".join(text.split()) and "... and 6 more" in text
    assert "cost" not in vars(again)  # of all devices


def test_refusals_name_all_devices_when_asked_for():
    plan = page_plans.fleet(3)
    decision = plan.decisions.decision("tower_1_2/MatMul")
    everything = {str(d.name) for d in plan.cluster.devices}
    assert {*decision.candidates, *(r.device for r in decision.rejected)} == everything
    assert {r.reason for r in decision.rejected} == {"'/job:worker/task:1/device:GPU:2' is required"}
    assert sum(len(d.candidates) + len(d.refused) for d in plan.decisions.reasons.demands) < 2 * len(everything)


def test_a_step_that_runs_nothing_has_a_plan_and_no_predicted_time():
    with dt.Graph().as_default():
        y = dt.placeholder(dt.float32, [4]) + 1.0
        plan = dt.place(y, {"worker": 1}, feeds={y: np.zeros(4, np.float32)})
    assert str(plan).startswith("Plan: 0 nodes")
    with pytest.raises(InvalidArgumentError, match="runs no node, as all that it fetches is fed"):
        plan.simulate()
