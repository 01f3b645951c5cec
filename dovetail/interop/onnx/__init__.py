"""`dt.onnx`: import and export of ONNX models.

`load` adds a model to the default graph, where it is placed, run and trained like any other nodes. `save` writes tensors of a graph,
and all nodes that they need, as a model. Both need the package onnx: `pip install 'dovetail[onnx]'`.

- Import: `loading` (the function `load`), `graph_builder`, `registry` (the table of importers), `messages`, and `importers/`.
- Export: `saving` (the function `save`), `writing` (the table of exporters), and `exporters/`.
- `correspondences`: the ops that both tables share.

Programs and the command `dovetail plan` import this package.
"""

from .loading import Model, load
from .saving import export, save

__all__ = ["Model", "export", "load", "save"]
