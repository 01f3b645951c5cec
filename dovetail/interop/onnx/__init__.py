"""`dt.onnx`: models in ONNX's format, in and out.

`load` puts a model into the default graph, where it is placed, run and trained like any other. `save` writes tensors of a graph,
and all that they need, as a model. Both need the package onnx: `pip install 'dovetail[onnx]'`.
"""

from .loading import Model, load
from .saving import export, save

__all__ = ["Model", "export", "load", "save"]
