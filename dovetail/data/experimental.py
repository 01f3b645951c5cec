"""`dt.data.experimental`: iterator positions in checkpoints; transformations for `Dataset.apply`."""

from __future__ import annotations

from typing import Any

from ..graph.core.default_graph import GraphKeys
from .checks import AUTOTUNE
from .iterator import Iterator
from .options import DistributeOptions, OptimizationOptions, StatsOptions, ThreadingOptions
from .transformations import (
    Counter,
    bucket_by_sequence_length,
    choose_from_datasets,
    copy_to_device,
    enumerate_dataset,
    get_single_element,
    group_by_window,
    ignore_errors,
    map_and_batch,
    parallel_interleave,
    prefetch_to_device,
    sample_from_datasets,
    scan,
    shuffle_and_repeat,
    take_while,
    unbatch,
)


def make_saveable_from_iterator(iterator: Iterator) -> Any:
    """Save the position of an iterator in checkpoints. Returns the variable with the position.

    The position becomes a global variable: `global_variables_initializer` initializes it, each `Saver` without a list of variables saves
    it, and after a restore the iterator continues at the saved position. With several clients, call this only on the chief, whose
    checkpoints have only the chief's position.
    """
    position = iterator.position
    graph = position.graph
    local = graph.get_collection_ref(GraphKeys.LOCAL_VARIABLES)
    local[:] = [v for v in local if v is not position]
    if position not in graph.get_collection(GraphKeys.GLOBAL_VARIABLES):
        graph.add_to_collection(GraphKeys.GLOBAL_VARIABLES, position)
    return position


__all__ = [
    "AUTOTUNE",
    "Counter",
    "DistributeOptions",
    "OptimizationOptions",
    "StatsOptions",
    "ThreadingOptions",
    "bucket_by_sequence_length",
    "choose_from_datasets",
    "copy_to_device",
    "enumerate_dataset",
    "get_single_element",
    "group_by_window",
    "ignore_errors",
    "make_saveable_from_iterator",
    "map_and_batch",
    "parallel_interleave",
    "prefetch_to_device",
    "sample_from_datasets",
    "scan",
    "shuffle_and_repeat",
    "take_while",
    "unbatch",
]
