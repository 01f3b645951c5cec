"""The stubs beside the modules that give names late: they are up to date, and type checkers find them in a clone."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("stubs", ROOT / "docs" / "stubs.py")
assert _spec is not None and _spec.loader is not None
stubs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stubs)

PATHS = """\
import dovetail.keras.layers
import dovetail.compat.v1 as tf
import dovetail.distribute.cluster_resolver as resolvers
from dovetail.keras import layers, models
from dovetail.keras.layers import Dense
from dovetail.nn import dynamic_rnn, relu
from dovetail.saved_model import tag_constants
from dovetail.train import AdamOptimizer

reveal_type(dovetail.keras.layers.Dense(3))
reveal_type(layers.Dense(3))
reveal_type(Dense(3))
reveal_type(tf.keras.layers.Dense(3))
reveal_type(models.Sequential())
reveal_type(resolvers.TFConfigClusterResolver())
reveal_type(AdamOptimizer(0.1))
reveal_type(relu(dovetail.constant(1.0)))
tag_constants.SERVED
layers.Dense("three")
layers.Dens(3)
tf.matmull
from dovetail.keras.layerz import Dense
"""

NAMES = """\
import dovetail as dt

reveal_type(dt.constant(1.0))
reveal_type(dt.place)
reveal_type(dt.train.AdamOptimizer(0.1))
reveal_type(dt.keras.layers.Dense(3))
reveal_type(dt.train.Supervisor())
dt.to_float(1)
dt.nn.dynamic_rnn
dt.matmull
dt.train.AdamOptimiser
dt.nn.relux
dt.Session(graf=1)
dt.keras.layers.Dense("three")
dt.train.AdamOptimizer("fast")
reveal_type(dt.mod(5, 3))
"""


@pytest.mark.parametrize("path", stubs.STUBS)
def test_a_stub_is_what_the_script_writes(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == stubs.stub(path), "run: python docs/stubs.py"


def test_a_stub_of_a_public_path_is_what_the_script_writes() -> None:
    wanted = stubs.public_path_stubs()
    there = {path: (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else "" for path in wanted}
    assert there == wanted, "run: python docs/stubs.py"
    folders = {
        path.parent for path in (ROOT / "dovetail").rglob("*.pyi") if not any(p.is_symlink() for p in path.parents)
    }
    known = {ROOT / path for path in (*wanted, *stubs.STUBS)}
    assert {path for folder in folders for path in folder.glob("*.pyi")} == known


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy, run in a clone, says of each program."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("programs")
    programs = {"names.py": NAMES, "paths.py": PATHS}
    for name, text in programs.items():
        (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--cache-dir", str(folder / "cache")]
    done = subprocess.run([*command, *(str(folder / n) for n in programs)], cwd=ROOT, capture_output=True, text=True)
    return {n: [s.partition(f"{n}:")[2] for s in done.stdout.splitlines() if f"{n}:" in s] for n in programs}


def revealed(lines: list[str]) -> list[str]:
    """The types that `reveal_type` has shown."""
    return [line.rpartition(" type is ")[2].strip('"') for line in lines if "Revealed type" in line]


def errors(lines: list[str]) -> list[int]:
    """The lines in which there are errors."""
    return sorted({int(line.partition(":")[0]) for line in lines if "error:" in line})


@pytest.mark.slow
def test_names_have_types_in_a_clone(said: dict[str, list[str]]) -> None:
    tensor, place, *rest = revealed(said["names.py"])
    assert [tensor, *rest] == [
        "dovetail.graph.core.graph.Tensor",
        "dovetail.train.optimizers.adam.AdamOptimizer",
        "dovetail.compat.tf1.keras.layers.core.Dense",
        "dovetail.compat.tf1.sessions.supervisor.Supervisor",
        "dovetail.graph.core.graph.Tensor",
    ]
    assert place.endswith("-> dovetail.placer.plan.Plan")
    assert errors(said["names.py"]) == [10, 11, 12, 13, 14, 15]


@pytest.mark.slow
def test_public_paths_have_types_in_a_clone(said: dict[str, list[str]]) -> None:
    assert revealed(said["paths.py"]) == [
        *["dovetail.compat.tf1.keras.layers.core.Dense"] * 4,
        "dovetail.compat.tf1.keras.model.Sequential",
        "dovetail.distribute.resolvers.cluster_resolver.TFConfigClusterResolver",
        "dovetail.train.optimizers.adam.AdamOptimizer",
        "dovetail.graph.core.graph.Tensor",
    ]
    assert errors(said["paths.py"]) == [18, 19, 20, 21, 22]
