"""Ops that only programs of TensorFlow 1 use. They are defined when a program, or a graph that is read, first asks for one.

arrays                    rolls, grids, histograms, counts of equal elements
barriers, barrier_state   elements that are put together from components by key: the ops, and their rules
candidate_sampling        losses over a few sampled classes
encoded_sparse            sparse tensors as texts, for queues
hashing                   ids in vocabularies, crossed features
nn_functions              layers, losses, windows and moments
printing, python_functions   `Print`; Python functions as nodes
readers                   records of files whose names come from a queue
sequence_parsing          examples with sequences as tensors, JSON, tensors as bytes
sets                      set operations along the last axis

`define_all` is registered in `graph/core/hooks.py`: the registry calls it when it lacks a name, or is asked for all ops.

Only `compat` imports it.
"""

from functools import cache
from importlib import import_module

_MODULES = (
    "arrays",
    "barriers",
    "candidate_sampling",
    "encoded_sparse",
    "hashing",
    "printing",
    "python_functions",
    "readers",
    "sequence_parsing",
    "sets",
)


@cache
def define_all() -> None:
    """Define every op of this package and of `image`."""
    import_module("..image", __package__)
    for name in _MODULES:
        import_module(f"{__name__}.{name}")
