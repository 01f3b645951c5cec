"""The examples in the documentation: found, run, compared with what the page says, written anew on request.

A page's Python blocks are run in order, in one process per page. A block that begins with `import` starts a
new program: a new file, a new graph, new names. The ```text block that follows a Python block, if there is
one, is what the block prints, and behind that the last lines of the traceback if it raises. In it, `...`
stands for anything. A block without a text block must neither print nor raise.

Pages that no longer tell the truth are mended by

    python tests/docs/examples.py --update README.md docs/*.md docs/*/*.md

which rewrites those text blocks that do not match, and leaves the others, with their `...`, as they are.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "program.py"  # the file that error texts name
LIMIT_S = 120  # for all examples of one page
WIDTH = 110  # of the output that a page shows

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """One Python block: its code, what the page says it prints, and where both stand in the page's text."""

    code: str
    shown: str
    line: int
    span: tuple[int, int] | None  # of the text block's content; None when there is no text block


def examples(page: str) -> list[Example]:
    """The Python blocks of a page, in order."""
    found: list[Example] = []
    blocks = list(_FENCED.finditer(page))
    for block, after in zip(blocks, [*blocks, None][1:], strict=True):
        if block[1] != "python":
            continue
        follows = after is not None and after[1] == "text" and not page[block.end() : after.start()].strip()
        span = after.span(2) if after is not None and follows else None
        shown = page[span[0] : span[1]] if span else ""
        found.append(Example(block[2], shown, page.count("\n", 0, block.start()) + 2, span))
    return found


def shell_lines(page: str) -> list[str]:
    """The lines of a page's shell blocks, without comments."""
    lines = [line for block in _FENCED.finditer(page) if block[1] == "sh" for line in block[2].splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


def links(page: str) -> list[str]:
    """The targets of a page's links, without those in code."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCED.sub("", page))
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def matches(example: Example, printed: str) -> bool:
    """Whether an example prints what its page says."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(example.shown, printed, flags)


def run(found: list[Example]) -> list[str]:
    """What each example prints, from a process of their own.

    Raises:
        RuntimeError: the process ended early, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--run"]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "110", "DOVETAIL_PROFILE": "none"}
        ended = subprocess.run(
            command,
            input=json.dumps([e.code for e in found]),
            capture_output=True,
            text=True,
            env=env,
            cwd=folder,
            timeout=LIMIT_S,
        )
    if ended.returncode:
        raise RuntimeError(f"the examples' process ended with status {ended.returncode}: {ended.stderr}")
    printed: list[str] = json.loads(ended.stdout)
    return printed


def _run_here(codes: list[str]) -> list[str]:
    """Run blocks in this process, and keep what each prints."""
    import dovetail as dt

    printed: list[str] = []
    names: dict[str, object] = {}
    source = ""
    with contextlib.ExitStack() as graph:
        for code in codes:
            if code.startswith("import "):
                graph.close()
                graph.enter_context(dt.Graph().as_default())
                names, source = {"__name__": "__main__"}, ""
            padded = "\n" * source.count("\n") + code
            source += code
            linecache.cache[PROGRAM] = (len(source), None, source.splitlines(keepends=True), PROGRAM)
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                try:
                    exec(compile(padded, PROGRAM, "exec"), names)
                except Exception as e:  # what an example shows may be an error
                    out.write("".join(traceback.format_exception_only(e)))
            printed.append(out.getvalue())
    return printed


def update(path: Path) -> int:
    """Rewrite the text blocks of a page that do not match; how many."""
    page = path.read_text(encoding="utf-8")
    found = examples(page)
    wrong = [(e, o) for e, o in zip(found, run(found), strict=True) if not matches(e, o)]
    for example, printed in reversed(wrong):
        if example.span is None:
            raise SystemExit(f"{path}:{example.line}: prints, but has no text block:\n{printed}")
        if max(map(len, example.shown.splitlines()), default=WIDTH) <= WIDTH:
            printed = wrapped(printed)
        page = page[: example.span[0]] + printed.rstrip("\n") + "\n" + page[example.span[1] :]
    path.write_text(page, encoding="utf-8")
    return len(wrong)


def wrapped(text: str) -> str:
    """Long lines broken, as on a page that needs no sideways scrolling."""
    how = {"break_long_words": False, "break_on_hyphens": False}
    lines = [(line, " " * (len(line) - len(line.lstrip()) + 4)) for line in text.splitlines()]
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent=indent, **how) for line, indent in lines)


def main(arguments: list[str]) -> None:
    """`--run`: blocks as JSON in, what they print as JSON out. `--update PAGE...`: mend pages."""
    if arguments[:1] == ["--run"]:
        printed = _run_here(json.load(sys.stdin))
        json.dump(printed, sys.stdout)
    elif arguments[:1] == ["--update"]:
        for name in arguments[1:]:
            print(f"{name}: {update(Path(name))} rewritten")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
