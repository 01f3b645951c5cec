"""Every notebook runs from top to bottom without a warning, and shows what is stored in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from notebooks import ROOT, code_cells, read, run, written

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_KEYS = {
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
    "markdown": {"cell_type", "id", "metadata", "source"},
}


def test_there_are_notebooks() -> None:
    assert [p.name for p in NOTEBOOKS[:2]] == ["01-build-a-graph.ipynb", "02-read-a-plan.ipynb"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_shows_what_running_it_shows(path: Path) -> None:
    notebook = read(path)
    for cell, outputs in zip(code_cells(notebook), run(notebook), strict=True):
        told = f"{path.name}: run `python tests/notebooks/notebooks.py --update {path.relative_to(ROOT)}`"
        assert cell["outputs"] == outputs, f"{told}, and read what has changed\n{''.join(cell['source'])}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_clean(path: Path) -> None:
    notebook = read(path)
    assert path.read_text(encoding="utf-8") == written(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert set(cell) == CELL_KEYS[cell["cell_type"]] and cell["metadata"] == {}
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))  # run once, from top to bottom


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_has_a_picture(path: Path) -> None:
    outputs = [o for cell in code_cells(read(path)) for o in cell["outputs"]]
    assert any("<svg" in json.dumps(o) for o in outputs)


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import warnings; warnings.warn('old')", "UserWarning: old"),
        ("import sys; print('odd', file=sys.stderr)", "odd"),
    ],
)
def test_a_cell_that_fails_or_complains_is_found(cell: str, told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        run({"cells": [{"cell_type": "code", "source": [cell]}]})


def test_outputs_are_what_is_printed_and_what_the_last_expression_shows() -> None:
    cells = ["x = 1\nprint('a')\nx + 1", "x", "None"]
    printed, shown = run({"cells": [{"cell_type": "code", "source": [c]} for c in cells]})[0]
    assert printed == {"output_type": "stream", "name": "stdout", "text": ["a\n"]}
    assert shown["data"] == {"text/plain": ["2"]} and shown["execution_count"] == 1
