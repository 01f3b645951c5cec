"""Dovetail agrees with TensorFlow on recorded programs, and the comparison can tell when it does not."""

import copy
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

import dovetail as tf

_spec = importlib.util.spec_from_file_location("conformance_tf", Path(__file__).with_name("tf.py"))
assert _spec is not None and _spec.loader is not None
conformance = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = conformance  # dataclasses look themselves up there
_spec.loader.exec_module(conformance)

DATA = Path(os.environ.get("DOVETAIL_CONFORMANCE", conformance.DATA))


def _recorded():
    if not DATA.is_file():
        reason = f"no recorded programs at {DATA}; set DOVETAIL_CONFORMANCE to such a file"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    pairs = json.loads(DATA.read_text())
    return [pytest.param(p, id=str(p["program"].get("seed", i))) for i, p in enumerate(pairs)]


@pytest.mark.filterwarnings("ignore:.*merge_devices")
@pytest.mark.parametrize("pair", _recorded())
def test_agrees_with_tensorflow(pair):
    if {s["op"] for s in pair["program"]["steps"]} & {"while", "cond"} and not hasattr(tf, "while_loop"):
        pytest.skip("the program has control flow, which is not built yet")
    assert conformance.check(pair) == []


PROGRAM = {
    "cluster": {"ps": 1, "worker": 1}, "cpus": 2, "master": ["worker", 0], "soft": False, "fetch": [],
    "steps": [
        {"op": "device", "spec": "/job:ps"},
        {"op": "variable", "name": "v", "resource": False},
        {"op": "exit"},
        {"op": "placeholder", "name": "p"},
        {"op": "add", "name": "a", "a": "v", "b": "p"},
        {"op": "device", "spec": "/job:worker/cpu:1"},
        {"op": "add", "name": "b", "a": "v", "b": "p"},
        {"op": "exit"},
    ],
}  # fmt: skip


def test_the_answer_to_a_small_program():
    said = conformance.answer(PROGRAM)
    assert said["requested"]["v/read"] == "/job:ps"
    assert said["placement"]["a"] == "/job:worker/replica:0/task:0/device:CPU:0"
    worker = "/job:worker/replica:0/task:0/device:CPU"
    assert said["transfers"] == {
        "deliveries": [f"feed(p:0) -> {worker}:1", f"v/read -> {worker}:0", f"v/read -> {worker}:1"],
        "cross_task": 1,
    }


@pytest.mark.parametrize(
    ("where", "change", "told"),
    [
        ("requested", {"a": "/cpu:0"}, "requested of a"),
        ("placement", {"b": "/job:ps/replica:0/task:0/device:CPU:0"}, "placement of b"),
        ("transfers", {"deliveries": []}, "delivery too many"),
        ("transfers", {"cross_task": 2}, "messages between tasks"),
        ("roles", {"a": {"op": "x"}}, "role of a.op"),
    ],
)
def test_a_difference_is_told(where, change, told):
    said = conformance.answer(PROGRAM)
    assert conformance.compare(said, said) == []
    expected = copy.deepcopy(said)
    expected[where].update(change)
    assert any(told in d for d in conformance.compare(said, expected))


def test_errors_are_compared_by_kind_and_node():
    bad = copy.deepcopy(PROGRAM)
    bad["steps"][5]["spec"] = "/job:moon"
    said = conformance.answer(bad)
    text = "Cannot assign a device for operation b: {{node b}} was explicitly assigned to /job:moon but"
    there = {"phase": "place", "class": "InvalidArgumentError", "message": text}
    assert conformance.compare(said, {**said, "error": there}) == []
    elsewhere = {**there, "message": text.replace("operation b", "operation a")}
    assert conformance.compare(said, {**said, "error": elsewhere}) == ["error at b instead of a"]
    another = {
        **there,
        "message": "Cannot colocate nodes {{colocation_node a}} and {{colocation_node b}}: ...",
    }
    assert "conflicting colocation" in conformance.compare(said, {**said, "error": another})[0]
    assert conformance.compare(said, {**said, "error": None})[0].startswith("error: [place] unknown or impossible")


def test_the_command_counts(tmp_path, capsys):
    said = conformance.answer(PROGRAM)
    wrong = {**said, "placement": {**said["placement"], "a": "nowhere"}}
    file = tmp_path / "programs.json"
    file.write_text(json.dumps([{"program": PROGRAM, "result": r} for r in (said, wrong, said)]))
    assert conformance.main([str(file)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("1 (seed None): placement of a: ") and out[-1] == "agree 2 of 3"
