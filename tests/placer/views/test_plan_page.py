"""The page of a plan, as a file: whole, harmless, small, and saying what the plan says."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import page_plans
import pytest

import dovetail as dt
import dovetail.placer
from dovetail.placer.cost.static import work
from dovetail.placer.plan import Plan
from dovetail.placer.render.page import LIBRARY, SCRIPTS, packed
from dovetail.placer.render.text import short
from dovetail.placer.views import plan_page
from dovetail.placer.views.page_data import NARROW, PACES, contents
from dovetail.placer.views.plan_page import render_html, write_html

HOSTILE = "</script><img src=x onerror=alert(1)>"


def payload(plan, **more):
    """What a page holds of a plan, compressed."""
    return packed(*contents(plan, **more))


class Tags(HTMLParser):
    """The tags of a page, with their attributes, and the text of the scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.inside = [], {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.cdata_elem:
            tag, attributes = self.tags[-1]
            key = attributes.get("id", tag)
            self.inside[key] = self.inside.get(key, "") + data


def unpack(data):
    """The head of a payload, with its columns as arrays."""
    raw = gzip.decompress(data)
    size = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + size])
    assert (4 + size) % 8 == 0, "columns start where typed arrays may"
    for name, (kind, offset, count) in head.pop("columns").items():
        dtype = np.dtype(kind.lower()).newbyteorder("<")
        assert offset % 8 == 0
        head[name] = np.frombuffer(raw, dtype, count, 4 + size + offset).tolist()
    return head


def rows(counts, flat):
    """A flat column cut into one list per row."""
    ends = np.cumsum(counts)
    return [flat[end - count : end] for count, end in zip(counts, ends, strict=True)]


@pytest.fixture(scope="module")
def plan():
    return page_plans.training()


@pytest.fixture(scope="module")
def data(plan):
    return unpack(payload(plan))


def test_the_page_counts_a_copied_constant_for_each_device_as_the_tables_do():
    with dt.Graph().as_default():
        two = dt.constant(2.0)
        with dt.device("/job:worker/task:0"):
            there = dt.exp(two)
        with dt.device("/job:worker/task:1"):
            here = there * two
        plan = dt.place(here, {"worker": 2})
    assert "4 nodes on 2 devices" in str(plan) and "<title>Plan: 4 nodes on 2 devices" in render_html(plan)
    assert [d["nodes"] for d in unpack(payload(plan))["devices"]] == [r.nodes for r in plan.loads] == [2, 2]


def test_the_page_gives_the_work_of_one_sided_updates_to_the_device_that_runs_them_as_the_tables_do():
    with dt.Graph().as_default():
        with dt.device("/job:ps"):
            w = dt.get_variable("w", [100])
        with dt.device("/job:worker"):
            train = dt.train.GradientDescentOptimizer(0.1).minimize(dt.reduce_sum(w * w))
        plan = dt.place(train, {"ps": 1, "worker": 1})
    data = unpack(payload(plan))
    devices = {short(d["name"]): d for d in data["devices"]}
    ps, worker = devices["/job:ps/task:0/CPU:0"], devices["/job:worker/task:0/CPU:0"]
    ((variable, by),) = data["inPlace"]  # drawn where it lies; what changes it, where that runs
    assert data["names"][variable] == "w" and data["devices"][by] is worker
    assert data["devices"][data["place"][variable]] is ps
    (update,) = (i for i, name in enumerate(data["names"]) if name.endswith("ApplyGradientDescent"))
    assert data["devices"][data["device"][update]] is ps and data["devices"][data["place"][update]] is worker
    assert list(plan.moved_parts.values()) == [worker["name"]]
    assert (ps["flops"], ps["nodes"]) == (0, 0)
    assert worker["flops"] == work(plan.partitions[worker["name"]].nodes, plan.sizes.cost).flops > 0


def test_the_page_is_one_file_that_asks_for_nothing(plan, tmp_path):
    path = tmp_path / "plan.html"
    plan.to_html(path)
    page = path.read_text(encoding="utf-8")
    tags = Tags(page)
    assert not [(tag, a) for tag, a in tags.tags if a.keys() & {"src", "href", "action", "srcset", "data"}]
    assert not [(tag, a) for tag, a in tags.tags if tag in ("link", "iframe", "object", "embed", "base")]
    assert "@import" not in page and not re.search(r"url\((?!#)", tags.inside["style"])
    # The one address is the name of SVG, which nobody fetches.
    assert set(re.findall(r"https?://[^\s\"')]+", page)) == {"http://www.w3.org/2000/svg"}


def test_the_browser_is_told_to_run_nothing_else(plan):
    tags = Tags(render_html(plan))
    [policy] = [a["content"] for tag, a in tags.tags if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def hash_of(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == hash_of(tags.inside["script"])
    assert rules["style-src"] == hash_of(tags.inside["style"])
    assert not any(a.startswith("on") for _, attributes in tags.tags for a in attributes)


def test_every_file_of_the_page_is_used_and_licensed(plan):
    names = {f.name for f in (files(dovetail.placer) / "render" / "page_assets").iterdir()}
    assert names == {f"{s}.js" for s in SCRIPTS} | {LIBRARY, "page.html", "page.css", "dagre.LICENSE.txt"}
    page = render_html(plan)
    assert "Copyright (c) 2012-2014 Chris Pettitt" in page and "{{" not in page.partition("<script>")[0]


def test_what_users_wrote_ends_no_tag():
    with dt.Graph().as_default() as graph:
        # `name` refuses such names, but a scope that is entered again, or a graph that was saved, may bring them.
        v = dt.placeholder(dt.float32, [], name=f"{HOSTILE}/")
        dt.add(v, 1.0, name="--><b>&amp;{{data}}/")
    page = render_html(dt.place(graph, {"worker": 1}), title=HOSTILE)
    assert "<img" not in page and "<b>" not in page and "--><" not in page
    assert "<title>&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;</title>" in page
    assert [tag for tag, _ in Tags(page).tags].count("script") == 2
    assert unpack(base64.b64decode(Tags(page).inside["data"]))["names"][0] == HOSTILE


def test_nodes_and_their_decisions(plan, data):
    assert data["names"] == list(plan.placement)
    devices = [d["name"] for d in data["devices"]]
    runs = {n.name: i for p in plan.partitions.values() for i, n in enumerate(p.nodes, 1)}
    for i, name in enumerate(data["names"]):
        node, decision = plan.graph.get_operation_by_name(name), plan.decisions.decision(name)
        assert devices[data["device"][i]] == plan.placement[name]
        assert data["requests"][data["request"][i]] == plan.requested[name]
        assert data["ops"][data["op"][i]][0] == node.type
        assert data["rules"][data["rule"][i]] == decision.rule.text
        demand = data["demands"][data["demand"][i]]
        assert demand["required"] == decision.required
        assert [devices[d] for d in demand["candidates"]] == list(decision.candidates)
        against = {devices[d]: why for why, some in demand["refused"] for d in some}
        others = set(devices) - set(decision.candidates)
        assert {d: against.get(d, demand["otherwise"]) for d in others} == {
            r.device: r.reason for r in decision.rejected
        }
        file, line, code = data["lines"][data["line"][i]]
        assert (data["files"][file], line, code) == (node.source.file, node.source.line, node.source.text)
        assert data["runs"][i] == runs.get(name, 0)


def test_device_blocks_are_chains_up_to_one_that_clears():
    with dt.Graph().as_default() as graph:
        with dt.device("/job:ps"), dt.device("/task:1"), dt.device(lambda node: "/cpu:0"):
            dt.constant(1.0, name="a")
            with dt.device(None), dt.device("/job:worker"):
                dt.constant(1.0, name="b")
        dt.constant(1.0, name="c")
    data = unpack(payload(dt.place(graph, {"ps": 2, "worker": 1})))

    def chain(number):
        while number:
            words, line, number = data["blocks"][number - 1]
            yield words, data["lines"][line][2].startswith("with dt.device(")

    a, b, c = (list(chain(number)) for number in data["block"])
    assert a == [("function <lambda>", True), ("'/task:1'", True), ("'/job:ps'", True)]
    assert b == [("'/job:worker'", True), ("None (clears the blocks around it)", True)]
    assert c == []


def test_groups_edges_and_sizes(plan, data):
    groups = {name: {name} for name in data["names"]}
    for members in rows(data["groupSize"], data["groupMember"]):
        together = {data["names"][i] for i in members}
        groups |= dict.fromkeys(together, together)
    inputs = zip(data["inputBack"], data["inputIndex"], strict=True)
    inputs = rows(data["inputCount"], list(inputs))
    controls = rows(data["controlCount"], data["controlBack"])
    outputs = rows(data["outputCount"], data["outputValue"])
    for i, name in enumerate(data["names"]):
        node = plan.graph.get_operation_by_name(name)
        assert groups[name] == set(plan.decisions.decision(name).group)
        assert [f"{data['names'][i - back]}:{at}" for back, at in inputs[i]] == [t.name for t in node.inputs]
        assert [data["names"][i - back] for back in controls[i]] == [c.name for c in node.control_inputs]
        assert [data["values"][v][0].split()[0] for v in outputs[i]] == [t.dtype.name for t in node.outputs]
    held = {d["name"]: 0 for d in data["devices"]}
    for i, is_state in enumerate(data["isState"]):
        assert is_state or data["state"][i] == 0
        held[data["devices"][data["device"][i]]["name"]] += data["state"][i]
    assert {d: b for d, b in held.items() if b} == {
        load.device: load.variable_bytes for load in plan.loads if load.variable_bytes
    }


def test_channels_and_who_takes_them(plan, data):
    names, devices = data["names"], [d["name"] for d in data["devices"]]
    takers = rows(data["takerCount"], data["taker"])
    assert len(plan.channels) == len(takers) > 10
    for i, c in enumerate(plan.channels):
        node, output = names[data["channelNode"][i]], data["channelOutput"][i]
        assert (f"^{node}" if output < 0 else f"{node}:{output}") == c.name
        assert (devices[data["channelSource"][i]], devices[data["channelTarget"][i]]) == (
            c.source,
            c.destination,
        )
        assert data["channelBytes"][i] == c.bytes
        expected = {
            n.name
            for n in plan.partitions[c.destination].nodes
            if c.name in {t.name for t in n.inputs} | {f"^{x.name}" for x in n.control_inputs}
        }
        assert {names[t] for t in takers[i]} == expected != set()


def test_each_read_of_a_place_has_its_own_taker():
    with dt.Graph().as_default() as graph:
        with dt.device("/job:ps"):
            v = dt.Variable([1.0, 2.0], name="v")
            place = v.op.outputs[0]
        with dt.device("/job:worker"):
            dt.identity(place, name="first")
            dt.identity(place, name="second")
    plan = dt.place(graph, {"ps": 1, "worker": 1}, fetches=["first:0", "second:0"])
    data = unpack(payload(plan))
    assert [c.name for c in plan.channels] == ["v:0", "v:0"]
    taken = rows(data["takerCount"], data["taker"])
    assert [[data["names"][t] for t in row] for row in taken] == [["first"], ["second"]]


def test_relays_refer_to_the_channel_that_they_pass_on():
    with dt.Graph().as_default() as graph:
        with dt.device("/job:ps"):
            c = dt.constant(np.arange(500.0), name="c")  # too large to be copied instead
        for i in range(2):
            with dt.device(f"/job:worker/gpu:{i}"):
                dt.square(c, name=f"s{i}")
    cluster = {"ps": 1, "worker": 1}
    plan = dt.place(graph, cluster, targets=["s0", "s1"], devices={"worker": ["cpu:0", "gpu:0", "gpu:1"]})
    data = unpack(payload(plan))
    assert data["channelRelays"] == [0, 1] and [c.relays for c in plan.channels] == [None, 0]


def test_channels_of_a_loop_say_so():
    with dt.Graph().as_default() as graph:
        x = dt.constant([1.0, 2.0])

        def body(i, a):
            with dt.device("/job:worker/task:1"):
                return i + 1, a * 2.0

        with dt.device("/job:worker/task:0"):
            _, out = dt.while_loop(lambda i, a: i < 5, body, [dt.constant(0), x], name="grow")
    plan = dt.place(graph, {"worker": 2}, fetches=out)
    data = unpack(payload(plan))
    bodies = [c for c, loop in zip(plan.channels, data["channelLoop"], strict=True) if loop]
    assert any("grow/mul" in c.name for c in bodies), "the product crosses in every iteration"
    assert all(data["loops"][loop - 1].startswith("grow") for loop in data["channelLoop"] if loop)


@pytest.mark.parametrize("on", [False, True])
def test_what_crosses_in_another_form_says_so(on):
    with dt.Graph().as_default() as graph:
        with dt.device("/job:a"):
            x = dt.constant(1.0, name="x") * 1.0
            wide = dt.cast(x, dt.float64)
        with dt.device("/job:b"):
            y = dt.constant(1.0)
            for _ in range(8):
                y = dt.tanh(y)
            y, other = y + x, wide + 1.0
    plan = dt.place(
        graph, {"a": 1, "b": 1}, fetches=[y, other], enable_bfloat16_sendrecv=on, enable_recv_scheduling=on
    )  # fmt: skip
    how = dict(zip([c.name for c in plan.channels], unpack(payload(plan))["channelHow"], strict=True))
    assert (how.pop(x.name), how.pop(wide.name)) == (NARROW if on else 0, 0)
    assert bool(how) == on and all(h == PACES for h in how.values())


def test_overruled_requests_and_warnings_are_told():
    with dt.Graph().as_default() as graph, dt.device("/job:worker/gpu:3"):
        dt.constant(1.0, name="c")
    plan = dt.place(graph, {"worker": 1}, devices={"worker": ["cpu:0", "gpu:0"]}, allow_soft_placement=True)
    data = unpack(payload(plan))
    [(node, requested, reason)] = data["relaxations"]
    assert data["names"][node] == "c" and requested == "/job:worker/device:GPU:3"
    assert reason == plan.relaxations[0].reason
    dropped = data["demands"][data["demand"][node]]["dropped"]
    assert dropped and (dropped,) == plan.decisions.decision("c").overruled
    assert [text for text, _ in data["warnings"]] == [w.text for w in plan.check()]


def test_the_same_plan_gives_the_same_page(plan):
    assert render_html(plan) == render_html(plan)


def test_a_kept_plan_gives_the_same_columns(plan, data, tmp_path):
    plan.save(tmp_path / "plan.txt")
    again = unpack(payload(Plan.load(tmp_path / "plan.txt")))
    for name in (
        "names",
        "devices",
        "requests",
        "demands",
        "device",
        "rule",
        "blocks",
        "inputBack",
        "taker",
        "state",
    ):
        assert again[name] == data[name], name
    assert [line[:2] for line in again["lines"]] == [line[:2] for line in data["lines"]]


def test_kernels_and_why_nodes_are_in_none(plan):
    data = unpack(payload(plan, kernels=plan.kernels))
    devices = [d["name"] for d in data["devices"]]
    kernels = rows(data["kernelSize"], data["kernelMember"])
    found = [
        (devices[d], tuple(data["names"][i] for i in inside), *amounts)
        for d, inside, *amounts in zip(
            data["kernelDevice"], kernels, data["kernelRead"], data["kernelWritten"], data["kernelFlops"], strict=True
        )
    ]
    assert found == [
        (
            d,
            tuple(dict.fromkeys(n for n in k.nodes if n in plan.placement)),
            k.bytes_read,
            k.bytes_written,
            int(k.flops),
        )
        for d in plan.partitions
        for k in (*plan.kernels(d).kernels, *plan.kernels(d).own)
    ]
    reasons = {n: r for d in plan.partitions for n, r in plan.kernels(d).reasons.items() if r and n in plan.placement}
    told = {n: data["reasons"][r - 1] for n, r in zip(data["names"], data["reason"], strict=True) if r}
    assert told == reasons != {}


def test_initializers_are_known_where_nothing_is_asked_for():
    with dt.Graph().as_default() as graph:
        v = dt.Variable(dt.zeros([3]) + 1.0, name="v")
        other = dt.Variable([2.0], name="other", use_resource=True)
        y = dt.add(v, other, name="y")
        v.assign(y, name="used")
        dt.global_variables_initializer()
    whole, asked = (unpack(payload(dt.place(graph, {"worker": 1}, fetches=f))) for f in (None, "y:0"))
    hidden = {n for n, is_one in zip(whole["names"], whole["isInitializer"], strict=True) if is_one}
    assert {"v/Assign", "other/Assign", "init", "zeros"} <= hidden
    assert not hidden & {"v", "other", "y", "used"} and not any("ead" in n for n in hidden)
    assert not any(asked["isInitializer"])


def test_attributes_are_told(data):
    of = dict(zip(data["names"], data["attrs"], strict=True))
    told = {name: dict(data["attrTexts"][at - 1]) for name, at in of.items() if at}
    assert told["tower_0/MatMul"]["transpose_a"] == "False" and told["tower_0/images"]["dtype"] == "float32"


def test_another_plan_stands_beside():
    before, after = page_plans.training(), page_plans.training()
    assert not before.diff(after)
    nodes = before.decisions
    after = dt.place(
        before.graph, {"ps": 2, "worker": 3}, devices={"/job:worker/task:1": ["gpu:0"]}, fetches=before.fetches, targets=before.targets
    )  # fmt: skip
    changes, data = before.diff(after), unpack(payload(after, before=before))
    devices = data["before"]["devices"]
    was = [devices[d - 1] if d else None for d in data["was"]]
    assert was == [short(before.placement[n]) if n in before.placement else None for n in data["names"]] and len(nodes)
    assert data["before"]["moved"] == len(changes.moved) > 0
    amounts = {title: [row[:3] for row in found] for title, found in data["before"]["amounts"]}
    assert amounts["Bytes per step"] == [[short(c.what), c.before, c.after] for c in changes.traffic]


def test_a_notebook_shows_the_page_itself(plan):
    [(tag, frame)] = Tags(plan._repr_html_()).tags
    assert tag == "iframe" and frame["srcdoc"] == render_html(plan, kernels=plan.kernels)


def test_an_empty_plan_has_a_page():
    plan = dt.place(dt.Graph(), {"worker": 1})
    assert unpack(payload(plan))["names"] == [] and "<title>Plan: 0 nodes on 0 devices" in render_html(plan)


def test_a_file_that_cannot_be_written_is_an_os_error(plan, tmp_path):
    with pytest.raises(OSError, match="no-such"):
        write_html(plan, tmp_path / "no-such" / "plan.html")


@pytest.mark.slow
def test_a_hundred_thousand_nodes_of_all_names_fit():
    """Names that compress badly, in scopes of all depths: the worst that users write."""
    random = np.random.default_rng(0)
    with dt.Graph().as_default() as graph:
        t = dt.constant(1.0)
        for i in range(1000):
            words = ["".join(random.choice(list("abcdefghijklmnop"), 12)) for _ in range(3)]
            with dt.device(f"/job:worker/task:{i % 4}"), dt.name_scope("/".join(words)):
                for _ in range(100):
                    t = dt.add(t, t, name="".join(random.choice(list("abcdefghijklmnop"), 16)))
    page = render_html(dt.place(graph, {"worker": 4}, fetches=t))
    assert len(page) < 15e6


def test_a_page_says_what_is_left_out_of_it(monkeypatch):
    plan = page_plans.training()

    def head(**more):
        page = render_html(plan, kernels=plan.kernels, **more)
        return unpack(base64.b64decode(Tags(page).inside["data"]))

    assert head()["leftOut"] == {} and head()["charts"]
    monkeypatch.setattr(plan_page, "PREDICTED", 10)
    monkeypatch.setattr(plan_page, "COMPILED", 10)
    found = head()
    assert list(found["leftOut"]) == ["timeline", "kernels"] and not found["charts"] and "kernelSize" not in found
    assert all("plan.to_html(path, complete=True)" in text for text in found["leftOut"].values())
    whole = head(complete=True)
    assert whole["leftOut"] == {} and whole["charts"] and whole["kernelSize"]
