"""The build benchmark times the graphs that it names, and would notice if Dovetail recorded less."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def builder_module() -> Iterator[ModuleType]:
    """bench/_builder.py; its folder is on the path only while it loads."""
    sys.path.insert(0, str(BENCH))
    try:
        import _builder
    finally:
        sys.path.remove(str(BENCH))
    yield _builder
    for name in ("_builder", "_processes"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def builder(builder_module: ModuleType) -> Iterator[Any]:
    with builder_module.Builder("dovetail") as builder:
        assert not builder.missing
        yield builder


@pytest.mark.parametrize(
    ("graph", "nodes"),
    # What TensorFlow 2.21 counts for the same programs.
    [
        ("adds", 6),
        ("adds_on_devices", 6),
        ("numbers", 11),
        ("layers", 17),
        ("variables", 20),
        ("constants", 5),
    ],
)
def test_builds_the_nodes_that_tensorflow_builds(builder: Any, graph: str, nodes: int) -> None:
    built = builder.build(graph, 5, check=True)
    assert built.nodes == nodes


def test_says_why_a_graph_was_not_built(builder: Any) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'unheard of'"):
        builder.build("unheard of", 5)
    assert builder.build("adds", 5).nodes == 6  # and goes on


def test_check_notices_a_wrong_line_and_a_missing_block(builder_module: ModuleType) -> None:
    import dovetail as dt

    made_here = dt.Graph()
    with made_here.as_default():
        dt.constant(1.0)
    with pytest.raises(AssertionError, match="test_build.py"):
        builder_module.check(made_here, builder_module.GRAPHS["constants"])
    on_devices = builder_module.GRAPHS["adds_on_devices"](dt, 5)
    builder_module.check(on_devices, builder_module.GRAPHS["adds_on_devices"])
    on_devices.nodes[3].blocks = on_devices.nodes[4].blocks
    with pytest.raises(AssertionError, match="wanted /job:worker/task:2"):
        builder_module.check(on_devices, builder_module.GRAPHS["adds_on_devices"])


def test_an_interpreter_without_the_system_says_so(builder_module: ModuleType) -> None:
    if importlib.util.find_spec("tensorflow") is not None:
        pytest.skip("TensorFlow is installed")
    with builder_module.Builder("tensorflow") as peer:
        assert "tensorflow" in peer.missing
        assert peer.title == ""
        with pytest.raises(RuntimeError, match="No module named 'tensorflow'"):
            peer.build("adds", 5)
