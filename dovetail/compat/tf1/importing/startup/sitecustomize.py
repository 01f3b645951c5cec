"""Runs at the start of each Python process below `dovetail tf1`: lets `import tensorflow` find Dovetail.

It loads nothing: processes that never import TensorFlow pay only for this file. A `sitecustomize` of the machine's runs as well.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType


class FirstImport:
    """Stands in for the finder until a process imports `tensorflow`."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Put the finder in place and ask it."""
        if name.partition(".")[0] != "tensorflow":
            return None
        sys.meta_path.remove(cls)
        try:
            from dovetail.compat.tf1.importing.finder import (
                install,  # a program that does without TensorFlow need not load Dovetail
            )
        except ModuleNotFoundError as e:
            if e.name != "dovetail":
                raise
            return None  # a Python of another environment
        return install().find_spec(name)


def _customize() -> None:
    here = str(Path(__file__).parent)
    sys.path[:] = [p for p in sys.path if p != here]  # the program sees the path that it would have had
    sys.meta_path.insert(0, FirstImport)
    hidden = PathFinder.find_spec("sitecustomize")
    if hidden is not None and hidden.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(hidden)
        hidden.loader.exec_module(module)


if __name__ == "sitecustomize":
    _customize()
