"""`dt.config.experimental`: switches of the process, as TensorFlow names them."""

from __future__ import annotations

import os


def enable_op_determinism() -> None:
    """Make a seeded program give the same bits in every run, from here on.

    Steps that sessions prepare from now on have every kernel compiled before it first runs, on all tasks that take part, and no kernel
    is chosen by measuring. So the first step waits for the compiler. Random ops need a seed: `dt.set_random_seed`, or one of their own.
    What it covers is told under "The same bits in every run" in docs/concepts/kernels.md. It sets DOVETAIL_DETERMINISTIC, so processes that
    this one starts follow it, too.
    """
    os.environ["DOVETAIL_DETERMINISTIC"] = "1"


__all__ = ["enable_op_determinism"]
