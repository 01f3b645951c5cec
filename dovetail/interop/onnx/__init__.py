"""`dt.onnx`: import and export of ONNX models.

`load` adds a model to the default graph, where it is placed, run and trained like any other nodes. `save` writes tensors of a graph,
and all nodes that they need, as a model. Both need the package onnx: `pip install 'dovetail[onnx]'`.

`loading`, `graph_builder`, `registry`, `messages` and `importers/` read; `saving`, `writing` and `exporters/` write; `correspondences` is
for both directions. Only the command `dovetail plan` imports this package, and programs do.
"""

from .loading import Model, load
from .saving import export, save

__all__ = ["Model", "export", "load", "save"]
