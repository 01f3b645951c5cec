"""Conversions of layer profiles into workloads of steps, checked against the costs counted by hand."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
PROFILE = """\
node1 -- Conv2d(3, 4) -- forward_compute_time=2.0, backward_compute_time=3.0, activation_size=24e6, parameter_size=100
node2 -- ReLU() -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=[12e6; 12e6], parameter_size=0
\tnode1 -- node2"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module("step_workloads")


def edges(workload: dict[str, object]) -> dict[tuple[int, int], float]:
    found = workload["edges"]
    assert isinstance(found, list)
    return {(e["sourceId"], e["destId"]): e["cost"] for e in found}


def test_a_layer_of_a_profile_is_a_node_and_in_training_one_for_its_gradients(bench: ModuleType) -> None:
    step = bench.converted(PROFILE, training=False)
    assert [(n["fpgaLatency"], n["size"]) for n in step["nodes"]] == [(0.002, 300), (0.001, 0)]
    assert edges(step) == {(0, 1): 0.001}  # half of 24 MB at 12 GB/s
    step = bench.converted(PROFILE, training=True)
    assert [n["fpgaLatency"] for n in step["nodes"]] == [0.002, 0.001, 0.003, 0.001]
    assert [n["colorClass"] for n in step["nodes"]] == [0, 1, 0, 1]
    assert edges(step) == {(0, 1): 0.001, (3, 2): 0.001, (1, 3): 0.001}


def test_layered_graphs_are_the_same_every_time(bench: ModuleType) -> None:
    step = bench.layered(4, 5, 2, 0.5, seed=1)
    assert step == bench.layered(4, 5, 2, 0.5, seed=1) != bench.layered(4, 5, 2, 0.5, seed=2)
    assert len(step["nodes"]) == 20 and len(step["edges"]) == 3 * 5 * 3
    assert all(e["destId"] // 5 == e["sourceId"] // 5 + 1 for e in step["edges"])
