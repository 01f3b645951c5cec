"""Results that go to other tasks are written where those can read them: see `codegen/lower/sends.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.codegen import pipeline
from dovetail.codegen.compilation import Pass
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.ir.program import REFERENCE, Call, Instruction, Loop, Program, Recv, Send, Work
from dovetail.codegen.lower.sends import find_last_sends
from dovetail.codegen.options import without
from dovetail.codegen.pipeline import compile_partition
from dovetail.graph.resources import shared_storage
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.prune import needed
from dovetail.runtime.master.lowering import lower_partitions
from dovetail.runtime.shared_memory.pool import Pool
from dovetail.runtime.shared_memory.segment import Mapper, is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="this system has no memory files")

A, B = (f"/job:{job}/replica:0/task:0/device:CPU:0" for job in "ab")
SQUARE = np.arange(256 * 256, dtype=np.float32).reshape(256, 256) / 65536


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    made = Pool(64 << 20)
    made.is_read = True
    monkeypatch.setattr(shared_storage, "_used", [made])
    yield made
    made.close()


def program_of(destination: str) -> Program:
    """A product on a, which `destination` takes; and another one, which stays."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(A):
            x = tf.placeholder(tf.float32, [None, None])
            sent = tf.matmul(x, x, name="sent")
            kept = tf.matmul(sent, x, name="kept")
        with tf.device(destination):
            y = tf.negative(sent)
    cut = partition(needed(graph, [y, kept], feeds=[x]), lambda n: n.device, fetches=[y, kept], feeds=[x])
    graph_of_a = next(u for u in lower_partitions(cut, graph) if u.device == A)
    backend = NumbaBackend(compile_first=True, threads=1)
    with without("native regions"):
        return compile_partition(graph_of_a, backend, lambda node: pytest.fail("no op here has state"))


def test_a_program_tells_which_of_its_slots_go_to_other_tasks() -> None:
    program = program_of(B)
    (send,) = [i for i in program.instructions if isinstance(i, Send)]
    assert program.sent == {send.slot}
    assert program_of(A.replace("CPU:0", "CPU:1")).sent == frozenset()


def test_passes_run_only_where_a_partition_has_something_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, names = pipeline.cpu_passes(), ("saves in chunks", "send buffers", "last sends")
    ran: list[str] = []

    def noted(each: Pass) -> Pass:
        return replace(each, run=lambda c: (ran.append(each.name), each.run(c))[1])

    monkeypatch.setattr(pipeline, "passes_of", lambda backend: [noted(each) for each in passes])
    program_of(A.replace("CPU:0", "CPU:1"))
    assert ran == [each.name for each in passes if each.name not in (*names, "native regions")]
    ran.clear()
    program_of(B)
    assert ran == [each.name for each in passes if each.name not in ("saves in chunks", "native regions")]


def run(program: Program) -> dict[str, Any]:
    """What the calls of a program make, by node."""
    slots = list(program.slots)
    for _, slot in program.feeds:
        slots[slot] = SQUARE
    for step in program.instructions:
        if isinstance(step, Call):
            (slots[step.outputs[0]],) = (step.kernel(*[slots[i] for i in step.inputs]),)
    return {step.node: slots[step.outputs[0]] for step in program.instructions if isinstance(step, Call)}


def test_what_is_sent_is_written_where_it_is_lent_from_and_what_stays_is_not(pool: Pool) -> None:
    made = run(program_of(B))
    sent, kept = made["sent"], made["kept"]
    np.testing.assert_allclose(sent, SQUARE @ SQUARE, rtol=1e-4)
    np.testing.assert_allclose(kept, SQUARE @ SQUARE @ SQUARE, rtol=1e-4)
    assert pool.holds(sent)
    assert not pool.holds(kept)
    assert not sent.flags.writeable  # it may be lent for longer than the step lasts
    assert kept.flags.writeable
    before = pool.bytes
    reference = pool.lend(sent, os.getpid())
    assert reference is not None
    there = np.ndarray(sent.shape, sent.dtype, Mapper().borrow(reference, sent.nbytes))
    assert there.ctypes.data != sent.ctypes.data  # another mapping of the same memory ...
    np.testing.assert_array_equal(there, sent)
    assert pool.bytes == before  # ... which nothing was copied to


def test_the_memory_comes_back_when_nobody_holds_the_result(pool: Pool) -> None:
    program = program_of(B)
    run(program)
    after_one = pool.bytes
    for _ in range(40):
        run(program)
    assert pool.bytes == after_one


@pytest.mark.parametrize("why", ["nobody reads", "no room", "no memory is shared"])
def test_where_nobody_can_read_it_any_memory_will_do(why: str, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "nobody reads":
        pool.is_read = False
    elif why == "no room":
        pool.limit = 0
    else:
        monkeypatch.setattr(shared_storage, "_used", [])
    sent = run(program_of(B))["sent"]
    np.testing.assert_allclose(sent, SQUARE @ SQUARE, rtol=1e-4)
    assert not pool.holds(sent)
    assert sent.flags.writeable


def test_a_send_knows_whether_another_one_for_its_task_follows_before_a_pause() -> None:
    def last(*instructions: Instruction) -> list[bool]:
        program = find_last_sends(Program(A, instructions, (None,) * 9, (), ()))
        return [not i.more for i in program.instructions if isinstance(i, Send)]

    def send(channel: int, task: str = "b") -> Send:
        return Send(channel, 0, f"/job:{task}/replica:0/task:0/device:CPU:{channel}", ())

    def call(tensor: Any) -> Call:
        return Call(Work(tensor.op, REFERENCE), (0,), (0,), (), tensor.op.name, tensor.op.type, ("program.py", 7))

    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [])
        total, anything = x + x, tf.py_func(lambda x: x, [x], tf.float32)
    assert last(send(0), send(1), send(2, "c"), send(3)) == [False, False, True, True]
    assert last(send(0), call(total), send(1)) == [False, True]
    assert last(send(0), Recv(7, 1, B), send(1)) == [True, True]
    assert last(send(0), call(anything), send(1)) == [True, True]
    loop = Loop("loop", (), (), (send(1), send(2)), 0, (send(3),), (), (), ())
    assert last(send(0), loop, send(4)) == [True, True]
    assert [i.more for i in (*loop.head, *loop.body) if isinstance(i, Send)] == [True, False, False]
