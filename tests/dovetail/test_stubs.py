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

PROGRAM = """\
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
"""


@pytest.mark.parametrize("path", stubs.STUBS)
def test_a_stub_is_what_the_script_writes(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == stubs.stub(path), "run: python docs/stubs.py"


@pytest.mark.slow
def test_names_have_types_in_a_clone(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(tmp_path / "program.py")], cwd=ROOT, capture_output=True, text=True)
    said = [line.partition("program.py:")[2] for line in done.stdout.splitlines() if "program.py:" in line]
    revealed = [line for line in said if "Revealed type" in line]
    assert [line.rpartition(" type is ")[2] for line in (revealed[0], *revealed[2:])] == [
        '"dovetail.graph.core.graph.Tensor"',
        '"dovetail.train.optimizers.adam.AdamOptimizer"',
        '"dovetail.compat.tf1.keras.layers.core.Dense"',
        '"dovetail.compat.tf1.sessions.supervisor.Supervisor"',
    ]
    assert revealed[1].endswith('-> dovetail.placer.plan.Plan"')
    assert sorted({int(line.partition(":")[0]) for line in said if "error:" in line}) == [10, 11, 12, 13, 14, 15]
