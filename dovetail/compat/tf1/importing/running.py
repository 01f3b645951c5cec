"""Runs a program as Python does, with the finder in place from its first line on.

The program gets a Python process of its own, in place of this one: its arguments, exit code, tracebacks and `__main__` are Python's
work, not ours. That process, and every Python process that it starts, finds `startup/sitecustomize.py` by `PYTHONPATH`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

STARTUP = str(Path(__file__).parent / "startup")


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The same variables, with the finder's start-up file ahead on PYTHONPATH."""
    before = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and p != STARTUP]
    return {**env, "PYTHONPATH": os.pathsep.join([STARTUP, *before])}


def run(arguments: Sequence[str]) -> NoReturn:
    """Run `python ARGUMENTS` in place of this process: `train.py --flags`, or `-m module`, or `-c code`.

    Raises:
        SystemExit: this Python ignores PYTHONPATH or start-up files, by -E, -I or -S.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise SystemExit("dovetail.tf1 reaches the program by PYTHONPATH and `site`: leave out -E, -I and -S")
    sys.stdout.flush()
    sys.stderr.flush()
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    os.execve(sys.executable, [sys.executable, *options, *arguments], environment(os.environ))
