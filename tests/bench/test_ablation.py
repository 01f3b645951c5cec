"""The ablation names parts that exist, and a program without a part computes the same."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from dovetail.codegen.cpu.backend import FAMILIES, NumbaBackend  # noqa: E402
from dovetail.codegen.options import is_enabled  # noqa: E402
from dovetail.codegen.pipeline import passes_of  # noqa: E402

BENCH = Path(__file__).resolve().parents[2] / "bench"
MODULES = ("_convolutions", "_harness", "_models", "ablation")


@pytest.fixture
def bench() -> Iterator[Any]:
    """bench/ablation.py; its folder is on the path only while it loads."""
    sys.path.insert(0, str(BENCH))
    try:
        import ablation

        yield ablation
    finally:
        sys.path.remove(str(BENCH))
        for name in MODULES:
            sys.modules.pop(name, None)


def test_parts_are_passes_and_families(bench: Any) -> None:
    names = {p.name for p in passes_of(NumbaBackend())} | set(FAMILIES)
    named = {name for name, (switch, _) in bench.PARTS.items() if getattr(switch, "func", None) is bench.disabled}
    assert named <= names
    for name, (switch, _) in bench.PARTS.items():
        with switch():
            assert is_enabled(name) == (name not in named)
        assert is_enabled(name)


def test_each_part_is_recorded_and_saves_a_tenth_somewhere(bench: Any) -> None:
    rows = json.loads((BENCH / "results" / "ablation.json").read_text(encoding="utf-8"))["rows"]
    best = {
        part: min((r["ratio"] for r in rows if r["peer_name"] == f"without {part}"), default=1.0)
        for part in bench.PARTS
    }
    assert set(FAMILIES) <= set(best)
    assert [part for part, ratio in best.items() if ratio > 0.9] == []


@pytest.mark.parametrize("part", ["loops over windows", "windows fused with neighbours", "native regions", "fusion"])
def test_a_program_without_a_part_computes_the_same(bench: Any, part: str) -> None:
    def made() -> Any:
        return bench.function(lambda dt, x: dt.nn.max_pool(dt.tanh(x) + 1.0, 2, 2, "SAME"), bench.numbers(2, 5, 5, 3))()

    with bench.PARTS[part][0]():
        plain = made()
    np.testing.assert_allclose(made(), plain, rtol=1e-5)


def test_each_mechanism_of_the_runtime_has_a_recorded_gain() -> None:
    """Of 5 % in some program: else it would have to go."""
    names = 'import _switches; print("\\n".join(_switches.MECHANISMS))'
    found = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True, cwd=BENCH).stdout
    gains = dict.fromkeys(found.splitlines(), 0.0)
    for row in json.loads((BENCH / "results" / "runtime_ablation.json").read_text("utf-8"))["rows"]:
        mechanism = row["name"].partition(": ")[2]
        gains[mechanism] = max(gains[mechanism], row["peer"] / row["dovetail"])
    assert [name for name, gain in gains.items() if gain < 1.05] == ["nothing"]


def test_mechanisms_of_the_runtime_are_there_to_be_turned_off() -> None:
    """In a process of its own, which goes without all of them."""
    program = "from _switches import MECHANISMS; [off() for off in MECHANISMS.values() if callable(off)]"
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": f"{BENCH}:{BENCH.parent}"}
    )


def test_parts_of_the_search_are_there_to_be_turned_off() -> None:
    """In a process of its own, which goes without all of them."""
    program = (
        "from unittest.mock import patch; from _search_ablation import PARTS, SEARCH; "
        "[patch(f'{SEARCH}.{where}', what).start() for part in PARTS.values() for where, what in part.items()]"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": f"{BENCH}:{BENCH.parent}"}
    )
