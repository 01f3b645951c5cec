"""The notebooks: run as Jupyter would run them, compared with what they show, written anew on request.

A notebook's code cells run in order in one process of their own, where every warning is an error. What a cell
prints, and what its last expression shows of itself (`_repr_svg_`, else `_repr_html_`; `repr`), are its outputs: of what has a
still picture that is kept, not a page that is dated and runs scripts. A cell that raises ends the run.
No Jupyter is needed, and the outputs are the same on every machine.

    python tests/notebooks/notebooks.py --update notebooks/*.ipynb

runs notebooks and stores their outputs in them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600  # a busy machine compiles the loops of a search for minutes
SHOWN_AS = (("_repr_svg_", "image/svg+xml"), ("_repr_html_", "text/html"))
PAGES = "--pages"  # for the site: of what has a page and a still picture, the page


def read(path: Path) -> dict[str, Any]:
    """A notebook as JSON."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def written(notebook: dict[str, Any]) -> str:
    """The text of a notebook's file, in the form in which Jupyter writes it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: dict[str, Any], *, pages: bool = False) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, from a process of their own.

    Args:
        notebook: the notebook as JSON.
        pages: show plans as their interactive pages.

    Raises:
        RuntimeError: a cell raised, warned or wrote to stderr.
    """
    sources = json.dumps(["".join(cell["source"]) for cell in code_cells(notebook)])
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [sys.executable, "-W", "error", str(Path(__file__).resolve()), "--run", *([PAGES] if pages else [])],
            input=sources,
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "COLUMNS": "110",
                "DOVETAIL_LOG_LEVEL": "ERROR",
                "DOVETAIL_PROFILE": "none",
            },
            cwd=folder,
            timeout=LIMIT_S,
        )
    if ended.returncode or ended.stderr:
        raise RuntimeError(f"the notebook ended with status {ended.returncode}:\n{ended.stderr}")
    outputs: list[list[dict[str, Any]]] = json.loads(ended.stdout)
    return outputs


def _run_here(sources: list[str], shown_as: Iterable[tuple[str, str]]) -> list[list[dict[str, Any]]]:
    """Run cells in this process."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_outputs(source, number, names, shown_as) for number, source in enumerate(sources, 1)]


def _outputs(
    source: str, number: int, names: dict[str, Any], shown_as: Iterable[tuple[str, str]]
) -> list[dict[str, Any]]:
    file = f"cell {number}"  # what plans and errors name
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    body = ast.parse(source, file).body
    end = body[-1] if body else None
    last = end if isinstance(end, ast.Expr) else None
    if last is not None:
        body.pop()
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, type_ignores=[]), file, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        first = [(show, kind) for show, kind in shown_as if hasattr(value, show)][:1]
        data = {kind: _lines(getattr(value, show)()) for show, kind in first}
        data["text/plain"] = _lines(repr(value))
        shown = {"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}}
        outputs.append(shown)
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def update(path: Path) -> None:
    """Run a notebook and store what it shows."""
    notebook = read(path)
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), run(notebook), strict=True), 1):
        cell["outputs"], cell["execution_count"] = outputs, number
    path.write_text(written(notebook), encoding="utf-8")


def main(arguments: list[str]) -> None:
    """`--run`: cells as JSON in, outputs as JSON out. `--update NOTEBOOK...`: store outputs."""
    if arguments[:1] == ["--run"]:
        outputs = _run_here(json.load(sys.stdin), SHOWN_AS[::-1] if PAGES in arguments else SHOWN_AS)
        json.dump(outputs, sys.stdout)
    elif arguments[:1] == ["--update"] and arguments[1:]:
        for name in arguments[1:]:
            update(Path(name))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
