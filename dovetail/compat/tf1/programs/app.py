"""Programs: `dt.app.run`, under TensorFlow 1's name: that of absl-py, which ends the program with what `main` returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags as absl

from . import flags


def run(main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Read the flags, call `main(argv)` with what is no flag, and exit with what it returns.

    Arguments that look like flags and are not defined are passed on to `main`, as in TensorFlow.

    Args:
        main: a function; None: `main` of the program. argv: the command line; None: that of the process.
    """
    app.run(
        main or sys.modules["__main__"].main,
        argv=None if argv is None else list(argv),
        flags_parser=_parse_known,
    )
    raise SystemExit  # not reached: absl's run ends the program


def _parse_known(argv: list[str]) -> list[str]:
    """Read the flags that are defined; one with a wrong value ends the program with absl's message and exit status."""
    try:
        return flags.FLAGS(argv, known_only=True)
    except absl.Error as e:
        print(
            f"FATAL Flags parsing error:\n  {e}\nPass --helpshort or --helpfull to see help on flags.", file=sys.stderr
        )
        sys.exit(1)


__all__ = ["flags", "run"]
