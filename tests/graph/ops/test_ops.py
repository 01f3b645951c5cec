"""Every op does what NumPy says, has the type and shape that its rule infers, and the gradient that
differences show.

The rows stand in cases_*.py; op_table.py says what is checked of each.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from op_table import OpCase, ScriptCase, check_gradient, check_values, run_script

import dovetail.graph.ops.all  # noqa: F401  (defines every op)
from dovetail.graph.core.opdef import Trait, registered

HERE = Path(__file__).parent
MODULES = [importlib.import_module(p.stem) for p in sorted(HERE.glob("cases_*.py"))]
ROWS = [row for module in MODULES for row in module.CASES]
CASES = [row for row in ROWS if isinstance(row, OpCase)]
SCRIPTS = [row for row in ROWS if isinstance(row, ScriptCase)]

# Ops without a row, each with the reason.
EXEMPT = {op: reason for module in MODULES for op, reason in getattr(module, "EXEMPT", {}).items()}


def _value_params() -> list[Any]:
    return [
        pytest.param(case, dtype, knowledge, id=f"{_name(case)}-{dtype}-{knowledge}")
        for case in CASES
        for dtype in case.dtypes
        for knowledge in ("all", *(case.unknown if dtype == case.dtypes[0] else ()))
    ]


def _gradient_params() -> list[Any]:
    return [
        pytest.param(case, knowledge, id=f"{_name(case)}-{knowledge}")
        for case in CASES
        if case.grad
        for knowledge in ("all", *case.unknown)
    ]


def _name(case: OpCase) -> str:
    return f"{case.op}-{case.label}" if case.label else case.op


@pytest.mark.parametrize(("case", "dtype", "knowledge"), _value_params())
def test_values(case: OpCase, dtype: str, knowledge: str) -> None:
    check_values(case, dtype, knowledge)


@pytest.mark.parametrize(("case", "knowledge"), _gradient_params())
def test_gradient(case: OpCase, knowledge: str) -> None:
    check_gradient(case, knowledge)


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda c: c.label or "-".join(c.ops))
def test_script(case: ScriptCase) -> None:
    run_script(case)


def test_every_op_has_a_row() -> None:
    # Asked in a fresh interpreter: other tests define ops of their own in this one.
    ask = "from dovetail.graph.ops import all; from dovetail.graph.core.opdef import registered; print(*registered())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ops = subprocess.run(
        [sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    covered = {c.op for c in CASES} | {op for s in SCRIPTS for op in s.ops}
    missing = sorted(set(ops) - covered - set(EXEMPT))
    assert len(ops) > 200
    assert not missing, f"ops without a row in tests/graph/ops/cases_*.py: {', '.join(missing)}"


def test_exemptions_are_needed() -> None:
    covered = {c.op for c in CASES} | {op for s in SCRIPTS for op in s.ops}
    assert all(reason.strip() for reason in EXEMPT.values())
    assert all((HERE.parents[1] / reason).is_file() for reason in EXEMPT.values() if reason.endswith(".py"))
    assert sorted(set(EXEMPT) - (set(registered()) - covered)) == []


def test_every_differentiable_op_has_a_gradient_row() -> None:
    """A rule that no row differentiates is a rule that nobody has checked."""
    checked = {c.op for c in CASES if c.grad} | {op for s in SCRIPTS for op in s.ops} | set(EXEMPT)
    rules = {name for name, op in registered().items() if op.gradient is not None and Trait.STATEFUL not in op.traits}
    missing = sorted(rules - checked)
    assert not missing, f"ops with a gradient rule that no row checks: {', '.join(missing)}"
