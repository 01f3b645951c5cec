"""`dt.keras`: models of layers, under Keras' names.

A model builds its steps as a graph, and runs them in a session, in this process or in a cluster: what it is made in the scope of a
distribution strategy decides.
"""

from . import (
    activations,
    backend,
    callbacks,
    constraints,
    initializers,
    layers,
    losses,
    metrics,
    models,
    optimizers,
    regularizers,
    utils,
)
from .layers.inputs import Input
from .model import Model, Sequential

__all__ = [
    "Input",
    "Model",
    "Sequential",
    "activations",
    "backend",
    "callbacks",
    "constraints",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "regularizers",
    "utils",
]
