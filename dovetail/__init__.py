"""Dovetail: build a dataflow graph, see where each part will run and why, and run it across processes.

The names are TensorFlow 1's, so an old program starts with `import dovetail as tf`. The engine lives in four
parts, each of which knows only those after it: `runtime` runs plans, `placer` and `codegen` make them,
`graph` says what a graph is.
"""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout the parts lie beside this folder, not inside it, and Python started there finds this folder
# before any installed Dovetail. Without the next lines `import dovetail` in a clone would see a package
# without its parts, even after a plain `pip install .`; with them a checkout needs no install at all. An
# installed package has no pyproject.toml beside it and keeps its own path.
_beside = Path(__file__).resolve().parent.parent
if (_beside / "pyproject.toml").is_file():
    __path__.append(str(_beside))
del _beside
