"""The examples in the documentation: found, run, compared with what the page says, written anew on request.

A page's Python and shell blocks are run in order, in one folder and one process per page. A Python block that begins with `import`
starts a new program: a new file, a new graph, new names. Its file is called `program.py`, or as the text says before it: "Save this as
`train.py`". The ```text block that follows a block, if there is one, is what the block
prints, and behind that the last lines of the traceback if it raises. In it, `...` stands for anything. A Python block without a
text block must neither print nor raise; the commands of a shell block without one must succeed.

A block whose first line is a comment that is a file's name (`# train.py`) is written to that file, and not run. A command of a
shell block that ends in `&` goes on in the background until the page ends. `localhost:2222` is another, free port. `NOT_RUN` says
which commands are not run, and why.

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
import multiprocessing
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "program.py"  # the file that texts name, where the page does not say how it is called
LIMIT_S = 290  # for all examples of one page: only what hangs takes so long
WIDTH = 110  # of the output that a page shows
FAILED = re.compile(r"\(exit status \d+\)\n\Z")  # how what a block prints ends whose command failed

NOT_RUN = {
    r"make ": "a target of the Makefile; test_commands_exist looks for it",
    r"pip install |python3 -m venv ": "installs packages; tests/test_packaging.py installs the wheel",
    r"dovetail demo": "run by tests/dovetail/tools/demo",
    r"\.venv/bin/python ": "runs these tests",
    r"kubectl |dovetail \w+ --on k8s ": "needs a Kubernetes cluster",
    r"ray |dovetail \w+ --on ray ": "needs Ray",
    r"(sbatch|srun) |dovetail \w+ --on slurm ": "needs Slurm",
    r"scp |.*# on |.*zmq://10\.": "needs other machines",
}
"""Pattern of the beginning of a command -> why the tests do not run it."""

_SAVED_AS = re.compile(r"\b[Ss]ave\s+(?:this|the\s+program)\s+as\s+`([\w-]+\.py)`")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A block that runs, or makes a file: its code, what the page says it prints, and where both stand in the page's text."""

    language: str  # python, sh, or the name of the file that it makes
    code: str
    shown: str
    line: int
    span: tuple[int, int] | None  # of the text block's content; None when there is no text block
    file: str = PROGRAM  # of the program that it begins


def examples(page: str) -> list[Example]:
    """The blocks of a page that run or make a file, in order."""
    found: list[Example] = []
    blocks = list(_FENCED.finditer(page))
    for before, block, after in zip([None, *blocks], blocks, [*blocks, None][1:], strict=False):
        named = re.match(r"# ([\w-]+\.\w+)$", block[2], re.MULTILINE)
        if block[1] not in ("python", "sh") and not named:
            continue
        follows = after is not None and after[1] == "text" and not page[block.end() : after.start()].strip()
        span = after.span(2) if after is not None and follows else None
        shown = page[span[0] : span[1]] if span else ""
        line = page.count("\n", 0, block.start()) + 2
        saved = _SAVED_AS.search(page, before.end() if before is not None else 0, block.start())
        file = saved[1] if saved else PROGRAM
        found.append(Example(named[1] if named else block[1], block[2], shown, line, span, file))
    return found


def shell_lines(page: str) -> list[str]:
    """The commands of a page's shell blocks."""
    return [line for e in examples(page) if e.language == "sh" for line in commands(e.code)]


def commands(block: str) -> list[str]:
    """The lines of a shell block; one that ends in a backslash goes on in the next."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def reason_not_to_run(command: str) -> str | None:
    """Why a command is not run; None: it is."""
    command = re.sub(r"^(\w+=\S+ )+", "", command)
    return next((reason for start, reason in NOT_RUN.items() if re.match(start, command)), None)


def links(page: str) -> list[str]:
    """The targets of a page's links, without those in code."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCED.sub("", page))
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def matches(example: Example, printed: str) -> bool:
    """Whether an example prints what its page says."""
    if example.language == "sh" and example.span is None:
        return FAILED.search(printed) is None
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
            input=json.dumps([(e.language, e.code, e.file) for e in found]),
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


def _run_here(blocks: list[tuple[str, str, str]]) -> list[str]:
    """Run blocks in this process, and keep what each prints."""
    import dovetail as dt

    printed: list[str] = []
    names: dict[str, object] = {}
    source, program = "", PROGRAM
    with contextlib.ExitStack() as graph, Shell() as shell:
        for language, code, file in blocks:
            if language == "sh":
                printed.append(shell.run(code))
                continue
            if language != "python":
                Path(language).write_text(code, encoding="utf-8")
                printed.append("")
                continue
            if code.startswith("import "):
                graph.close()
                graph.enter_context(dt.Graph().as_default())
                names, source, program = {"__name__": "__main__"}, "", file
            padded = "\n" * source.count("\n") + code
            source += code
            linecache.cache[program] = (len(source), None, source.splitlines(keepends=True), program)
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                try:
                    exec(compile(padded, program, "exec"), names)
                except Exception as e:  # what an example shows may be an error
                    out.write("".join(traceback.format_exception_only(e)))
            printed.append(out.getvalue())
    return printed


class Shell:
    """Runs the shell blocks of a page in the current folder.

    `dovetail` starts in a fork of a process that has imported it, everything else in bash.
    """

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["dovetail.tools.cli"])
        self._behind: list[Any] = []  # processes in the background
        self._ports: dict[str, str] = {}  # as the page has them -> as they are

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._behind:
            process.terminate()
            process.join()

    def run(self, block: str) -> str:
        """What the commands of a block print, both streams, and how the first one that fails ended."""
        printed = ""
        for command in commands(block):
            if reason_not_to_run(command):
                continue
            text, status = self._run(re.sub(r"localhost:(\d+)", self._port, command))
            for shown, used in [*self._ports.items(), ("", f"{Path.cwd()}/")]:
                text = text.replace(used, shown)
            printed += text
            if status:
                return f"{printed}(exit status {status})\n"
        return printed

    def _port(self, found: re.Match[str]) -> str:
        if found[0] not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports[found[0]] = f"localhost:{free.getsockname()[1]}"
        return self._ports[found[0]]

    def _run(self, command: str) -> tuple[str, int]:
        words = shlex.split(command, comments=True)
        env = dict(w.split("=", 1) for w in _leading(words, lambda w: re.match(r"\w+=", w) is not None))
        words = words[len(env) :]
        behind = words[-1] == "&"
        if words[0] != "dovetail":
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            bash = ["bash", "-c", command]
            ended = subprocess.run(
                bash, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PATH": path}
            )
            return ended.stdout, ended.returncode
        into = words[words.index(">") + 1] if ">" in words else ""
        words = words[1 : words.index(">") if ">" in words else len(words) - behind]
        with tempfile.NamedTemporaryFile("r") as out:
            process = self._context.Process(
                target=_dovetail, args=(words, {**os.environ, **env}, Path.cwd(), out.name, into)
            )
            process.start()
            if behind:
                self._behind.append(process)
                while process.is_alive() and not Path(out.name).stat().st_size:
                    time.sleep(0.05)  # it has begun when it says so
                return out.read(), process.exitcode or 0
            process.join()
            return out.read(), process.exitcode or 0


def _leading(words: list[str], holds: Callable[[str], bool]) -> Iterator[str]:
    """The words up to the first for which it does not hold."""
    for word in words:
        if not holds(word):
            return
        yield word


def _dovetail(words: list[str], env: dict[str, str], folder: Path, out: str, into: str) -> None:
    """The command `dovetail` with these arguments, in a process of its own. What it prints goes to the file `out`; with `> into`, there."""
    os.chdir(folder)
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    errors = os.open(out, os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(into, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if into else errors, 1)
    os.dup2(errors, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = ["dovetail", *words]
    from dovetail.tools.cli import main

    main()


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
