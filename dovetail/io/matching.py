"""File names that match a pattern, matched once."""

from __future__ import annotations

from ..graph.core.build import TensorLike
from ..graph.core.default_graph import GraphKeys
from ..graph.ops.io.files import matching_files
from ..graph.variables.variable import Variable


def match_filenames_once(pattern: TensorLike, name: str | None = None) -> Variable:
    """A local variable, string `[n]`, with the names of the client's files that match one or several patterns.

    The pattern is matched when local variables are initialised, so that every epoch has the same files.
    """
    return Variable(
        matching_files(pattern),
        trainable=False,
        validate_shape=False,
        collections=[GraphKeys.LOCAL_VARIABLES],
        name=name or "matching_filenames",
    )


__all__ = ["match_filenames_once"]
