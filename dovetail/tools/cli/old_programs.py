"""`dovetail tf1`: run a program that imports TensorFlow 1."""

from __future__ import annotations

import typer

from .common import errors_explained

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Arguments after the program's name go to the program."""


def tf1(context: typer.Context) -> None:
    """Run a TensorFlow 1 program as it is: `import tensorflow` gives Dovetail.

    `dovetail tf1 train.py --flags` does all else as `python train.py --flags`.
    `-m module` and `-c code` work as with Python. Python processes that the program starts find Dovetail, too.
    """
    with errors_explained():
        from ...compat.tf1.importing import run  # loads the finder of TensorFlow's modules

        run(context.args)
