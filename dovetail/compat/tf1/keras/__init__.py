"""`dt.keras`: models of layers, under Keras' names.

A model builds its steps as a graph, and runs them in a session, in this process or in a cluster: what it is made in the scope of a
distribution strategy decides.

- `model`, `models`, `network`, `layers`: models and layers.
- `training`, `steps`, `stepping`, `compiled`, `coordinated`, `data`: `fit` and its like.
- `optimizer`, `optimizers`, `schedules`, `losses`, `metrics`, `activations`, `initializers`, `regularizers`, `constraints`: what Keras
  has by these names.
- `callback`, `callbacks`, `watching`, `writing`, `progress`, `backup`: what happens beside training.
- `backend`, `registry`, `saving`, `summary`, `utils`: sessions and names, configs, files, texts, helpers.

Only `layers` and `rnn` of `compat.tf1` import it, and programs do.
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
