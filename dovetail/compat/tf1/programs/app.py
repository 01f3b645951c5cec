"""Programs: `dt.app.run`, under TensorFlow 1's name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import flags


def run(main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Read the flags, call `main(argv)` with what is no flag, and exit with what it returns.

    Args:
        main: a function; None: `main` of the program. argv: the command line; None: that of the process.
    """
    rest = flags.FLAGS(argv)
    absl = sys.modules.get("absl.flags")  # TensorFlow's flags are those of absl: a program may define some there
    if absl is not None and not absl.FLAGS.is_parsed():
        rest = absl.FLAGS(rest, known_only=True)
    if main is None:
        main = sys.modules["__main__"].main
    sys.exit(main(rest))


__all__ = ["flags", "run"]
