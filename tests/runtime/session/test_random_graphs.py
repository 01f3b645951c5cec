"""Any graph gives the same numbers however it is placed: random graphs, random placements, real processes.

The reference evaluator, which knows nothing of devices, says what is right. Graphs hold variables that are read and updated at
random points, random numbers, control edges, several outputs, feeds of placeholders and of intermediate tensors.

What runs is what `dt.place` shows for the cluster's description, instruction by instruction.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_programs import Program, programs
from reference_interpreter import Interpreter
from same_plan import assert_placed_alike, assert_transfers_are_planned

import dovetail as tf


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with tf.LocalCluster(JOBS, device_count={"CPU": 2}, emulate_gpus={"b": 1}) as cluster:
        yield cluster.target("a")


JOBS = {"a": 1, "b": 1, "c": 1}
DEVICES = {
    "a": ["cpu:0", "cpu:1"],
    "b": ["cpu:0", "cpu:1", {"name": "gpu:0", "emulated": True}],
    "c": ["cpu:0", "cpu:1"],
}


def check(program: Program, target: str) -> None:
    reference = Interpreter(program.graph, check=True)
    reference.run(program.init)
    config = tf.ConfigProto(isolate_session_state=True)
    with tf.Session(target, graph=program.graph, config=config) as session:
        session.run(program.init)
        for fetches, feeds in program.steps:
            expected = reference.run(fetches, feeds)
            for name, ours, right in zip(fetches, session.run(fetches, feeds), expected, strict=True):
                np.testing.assert_array_equal(ours, right, err_msg=str(name))
            if target:
                assert_placed_alike(session.last_plan, JOBS, devices=DEVICES)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_any_placement_over_three_processes_gives_the_reference_s_numbers(target: str, program: Program) -> None:
    check(program, target)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_one_process_gives_the_reference_s_numbers(program: Program) -> None:
    for node in program.graph.nodes:
        if node.device:
            node._set_device("/device:CPU:0")
    check(program, "")


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_a_trace_has_exactly_the_transfers_of_the_plan(target: str, program: Program) -> None:
    with tf.Session(target, graph=program.graph, config=tf.ConfigProto(isolate_session_state=True)) as session:
        session.run(program.init)
        for fetches, feeds in program.steps:
            metadata = tf.RunMetadata()
            session.run(fetches, feeds, tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), metadata)
            if metadata.trace is not None:  # else all that is fetched is fed, and nothing runs
                assert_transfers_are_planned(metadata.trace)
                assert_placed_alike(metadata.trace.plan, JOBS, devices=DEVICES)
