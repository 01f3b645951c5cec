"""Partitions in messages: what comes out runs like what went in; what was tampered with is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, strategies as st

import dovetail.graph.ops.all  # noqa: F401
from dovetail.codegen.ir.partition import PartitionGraph, RecvTensor, SendTensor
from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Graph
from dovetail.graph.variables.variable import Variable
from dovetail.placer.cluster.spec import local_devices
from dovetail.runtime.worker.registration import Registration, pack_partitions, unpack_partitions
from dovetail.runtime.worker.worker import Worker

TASK = "/job:a/replica:0/task:0"
HERE, THERE = f"{TASK}/device:CPU:0", "/job:b/replica:0/task:0/device:CPU:0"

THERE_TASK = "/job:b/replica:0/task:0"


def partition() -> PartitionGraph:
    """Takes x from the client and y from elsewhere; sends x * y away; gives x * y + v."""
    with Graph().as_default():
        x, y = placeholder("float32", [2], name="x"), placeholder("float32", [None], name="y")
        v = Variable(10.0, name="v")
        xy = x * y
        z = xy + v
    nodes = [v.op, v.initial_value.op, v.initializer, xy.op, v.value().op, z.op]
    steps = (RecvTensor(0, y, THERE), *nodes, SendTensor(1, xy, THERE), SendTensor(2, None, THERE))
    return PartitionGraph(HERE, steps, (("x:0", x),), (("add:0", z), ("v:0", v.op.outputs[0])))


def run(u: PartitionGraph) -> tuple[Any, list[tuple[str, int, Any]]]:
    pushed: list[tuple[str, int, Any]] = []
    worker = Worker(
        TASK,
        local_devices(TASK),
        push=lambda task, step, values: pushed.extend((task, *v) for v in values.items()),
    )
    worker.register(Registration("p", "s", (u,), seed=1))
    outcomes: list[Any] = []
    worker.deliver(7, {0: np.array([3, 4], np.float32)})  # before the step is announced
    worker.start(7, "p", {"x:0": np.array([1, 2], np.float32)}, outcomes.append)
    (outcome,) = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return outcome, pushed


@pytest.mark.parametrize("travelled", [False, True])
def test_a_unit_runs_the_same_here_and_after_a_journey(travelled: bool) -> None:
    u = partition()
    if travelled:
        (u,) = unpack_partitions(pack_partitions([u]))
    outcome, pushed = run(u)
    np.testing.assert_array_equal(outcome["add:0"], [13, 18])
    assert outcome["v:0"] == 10
    (first, second) = pushed
    assert first[:2] == (THERE_TASK, 1) and first[2].tolist() == [3, 8]
    assert second == (THERE_TASK, 2, None)


POSTED = [[1, 2, 3, 4, 5], 1, "", "v", "v", "VariableV2", "here"]


def described() -> Any:
    return msgpack.unpackb(pack_partitions([partition()]), use_list=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["steps"].append(["n", 999]), "IndexError"),
        (lambda d: d["steps"].append(["n", -1]), "number is expected"),
        (lambda d: d["steps"].append(["x", 0]), "unknown step"),
        (lambda d: d["steps"].insert(0, d["steps"].pop()), "OK"),
        (lambda d: d["steps"].insert(0, d["steps"][-3]), "before it exists"),
        (lambda d: d["steps"].reverse(), "before it exists"),
        (lambda d: d["steps"].append(["s", "one", None, THERE, None, None]), "number is expected"),
        (lambda d: d["steps"].append(["s", 1, None, THERE]), "not enough values"),
        (lambda d: d["steps"].append(["s", 1, None, THERE, None, "bfloat16"]), "cannot travel as bfloat16"),
        (lambda d: d["steps"].append(["r", 7, None, THERE, None, None, 0]), "is no published variable"),
        (lambda d: d["steps"].append(["r", 7, None, THERE, None, POSTED, 1]), "is no published variable"),
        (lambda d: d["steps"].append(["r", 7, None, THERE, None, POSTED, None]), "either read or reached"),
        (lambda d: d["fetches"].append(["q:0", [0, 9]]), "IndexError"),
        (lambda d: d.pop("device"), "KeyError"),
        (lambda d: d.update(graph=b"rubbish"), "alformed"),
        (lambda d: d.update(device=5), "text is expected"),
    ],
)
def test_a_tampered_unit_is_refused(change: Any, says: str) -> None:
    d = described()
    change(d[0])
    data = msgpack.packb(d)
    if says == "OK":  # an empty message may be sent at any time
        unpack_partitions(data)
        return
    with pytest.raises(InvalidArgumentError, match=says):
        unpack_partitions(data)


@given(st.binary(max_size=200))
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        unpack_partitions(b"\xff" + data)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_one_changed_byte_is_refused_or_harmless(at: int, value: int) -> None:
    data = bytearray(PACKED)
    data[at % len(data)] = value
    with contextlib.suppress(InvalidArgumentError):
        unpack_partitions(bytes(data))


PACKED = pack_partitions([partition()])


def test_constants_are_not_shared_with_the_sender() -> None:
    with Graph().as_default():
        c = constant([1.0, 2.0])
        u = PartitionGraph(HERE, (c.op,), (), (("Const:0", c),))
    (u,) = unpack_partitions(pack_partitions([u]))
    assert run(u)[0]["Const:0"].tolist() == [1, 2]
