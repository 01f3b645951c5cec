"""`import dovetail` is cheap, and finds its parts in a checkout as well as when installed."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail

ROOT = Path(__file__).resolve().parents[2]

# Each is slow to import or needs hardware: it loads when it is used, not when Dovetail is imported.
LOADED_WHEN_USED = ["triton", "numba", "cuda", "networkx", "scipy", "zmq", "rich", "typer"]


# Parts of Dovetail that many programs never need, or that a client of a cluster does not.
LARGE_PARTS = [
    "codegen.lower.lower",
    "codegen.passes.rewrite",
    "runtime.worker.worker",
    "contrib",
    "estimator",
    "feature_column",
    "keras",
]


def run_python(code: str, cwd: Path) -> str:
    """Run `code` in a fresh interpreter with `cwd` first on its path; return what it printed."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = json.loads(run_python("import dovetail, json, sys; print(json.dumps(list(sys.modules)))", ROOT))
    assert "dovetail" in loaded
    assert {module.partition(".")[0] for module in loaded}.isdisjoint(LOADED_WHEN_USED)
    assert {f"dovetail.{part}" for part in LARGE_PARTS}.isdisjoint(loaded)
    assert "importlib.metadata" not in loaded  # it loads the standard library's mail package


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_as_before_when_dovetail_is_imported(collects: bool) -> None:
    switch = "enable" if collects else "disable"
    assert run_python(f"import gc; gc.{switch}(); import dovetail; print(gc.isenabled())", ROOT).strip() == str(
        collects
    )


@pytest.mark.parametrize("part", ["graph", "placer", "codegen", "runtime"])
def test_a_checkout_finds_its_parts_beside_it(part: str) -> None:
    printed = run_python(f"import dovetail.{part} as part; print(part.__file__)", ROOT)
    assert Path(printed.strip()) == ROOT / part / "__init__.py"


def test_only_a_checkout_looks_beside_itself(tmp_path: Path) -> None:
    """In site-packages, `dovetail.x` must never mean somebody else's top-level package x."""
    shutil.copytree(ROOT / "dovetail", tmp_path / "dovetail", ignore=shutil.ignore_patterns("__pycache__"))
    # Only the lines up to the public names: those need the parts, which are not copied.
    source = (ROOT / "dovetail" / "__init__.py").read_text(encoding="utf-8")
    head = source[: source.index("del _beside")] + "del _beside\n"
    (tmp_path / "dovetail" / "__init__.py").write_text(head, encoding="utf-8")
    code = "import dovetail; print(len(dovetail.__path__))"
    assert run_python(code, tmp_path).strip() == "1"
    (tmp_path / "pyproject.toml").touch()
    assert run_python(code, tmp_path).strip() == "2"


def test_version_is_a_release_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", dovetail.__version__)
