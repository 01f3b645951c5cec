"""What all metrics share: a metric is a few sums over all batches, and a function of them.

Under a distribution strategy each replica has sums of its own, and the value is that of all replicas together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ....distribute.context import get_replica_context
from ....graph.core.argument_names import explains_arguments
from ....graph.core.build import TensorLike, convert
from ....graph.core.default_graph import GraphKeys, get_default_graph
from ....graph.core.dtypes import DType, float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import zeros
from ....graph.ops.array.identity_and_placeholders import identity, no_op
from ....graph.ops.array.shapes import rank, squeeze
from ....graph.ops.math.arithmetic import div_no_nan as _divide, maximum, minimum
from ....graph.ops.math.cast import cast
from ....graph.variables.scope import variable_scope
from ....graph.variables.variable import Variable, VariableAggregation, VariableSynchronization
from .weights import broadcast_weights, of_rank, without_last

Metric = tuple[Tensor, Tensor]
"""(value so far, value after this step's batch was added)."""

Names = Sequence[str] | str | None
Build = Callable[..., tuple[Mapping[str, Tensor], Callable[..., Tensor]]]
"""A function of a metric's inputs, such as labels, predictions and weights: what this batch adds to each sum, by the sum's name, and the
function from the sums to the value."""


class PairMetric(Protocol):
    """A metric of labels and predictions."""

    def __call__(
        self,
        labels: TensorLike,
        predictions: TensorLike,
        weights: TensorLike | None = None,
        metrics_collections: Names = None,
        updates_collections: Names = None,
        name: str | None = None,
    ) -> Metric: ...


def metric(
    name: str | None,
    default_name: str,
    inputs: Sequence[Any],
    build: Build,
    metrics_collections: Names,
    updates_collections: Names,
    updated: Callable[..., Tensor] | None = None,
) -> Metric:
    """A metric.

    Args:
        inputs: labels, predictions, weights: what `build` is called with, as tensors; None stays None.
        metrics_collections, updates_collections: where the two tensors are put besides.
        updated: what the update gives, as a function of the sums; None: the value.
    """
    with variable_scope(name, default_name):
        given, value_of = build(*[None if x is None else convert(x) for x in inputs])
        totals = [_total(part, title) for title, part in given.items()]
        value = identity(_of_all_replicas(value_of, totals), name="value")
        added = [total.assign_add(part) for total, part in zip(totals, given.values(), strict=True)]
        update = identity((updated or value_of)(*added), name="update_op")
    _collect(metrics_collections, value)
    _collect(updates_collections, update)
    return value, update


def of_pairs(title: str, build: Build, doc: str) -> PairMetric:
    """A metric as a function of that name, with that docstring. `build` gets labels, predictions and weights."""

    def found(
        labels: TensorLike,
        predictions: TensorLike,
        weights: TensorLike | None = None,
        metrics_collections: Names = None,
        updates_collections: Names = None,
        name: str | None = None,
    ) -> Metric:
        return metric(name, title, (labels, predictions, weights), build, metrics_collections, updates_collections)

    found.__name__ = found.__qualname__ = title
    found.__doc__ = doc
    return explains_arguments(found)


def _total(part: Tensor, name: str) -> Any:
    """A local variable for the sum of a part, on the device where this client computes."""
    dims = part.dims
    if dims is None or None in dims:
        raise ValueError(f"A metric needs to know the shape of what it sums as {name!r}, not {part.shape}")
    graph = get_default_graph()
    anchor = no_op(name=f"{name}_place")  # a device function must not send what is this client's own to a server
    with graph.init_scope(), graph.colocate_with(anchor):
        return Variable(
            lambda: zeros(dims, part.dtype.base),
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
            name=name,
        )


def _of_all_replicas(value_of: Callable[..., Tensor], totals: Sequence[Any]) -> Tensor:
    """The function of the sums, each over all replicas."""
    context = get_replica_context()
    if context is None:
        return value_of(*[t.value() for t in totals])
    found: Tensor = context.merge_call(lambda strategy, *sums: value_of(*[s.value() for s in sums]), tuple(totals))
    return found


def _collect(collections: Names, tensor: Tensor) -> None:
    graph = get_default_graph()
    for name in [collections] if isinstance(collections, str) else collections or []:
        graph.add_to_collection(name, tensor)


# --- parts of sums ----------------------------------------------------------------------------------------------------


def aligned(labels: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and predictions of one rank, where one of them has a last axis of size 1 too many."""
    p, q = predictions.shape.rank, labels.shape.rank
    if p is None or q is None:
        least = minimum(rank(predictions), rank(labels))
        predictions, labels = without_last(predictions, least), without_last(labels, least)
    elif abs(p - q) == 1:
        longer = predictions if p > q else labels
        if longer.dims is not None and longer.dims[-1] in (1, None):
            if p > q:
                predictions = squeeze(predictions, [-1])
            else:
                labels = squeeze(labels, [-1])
    if not predictions.shape.is_compatible_with(labels.shape):
        raise ValueError(
            f"Predictions have shape {predictions.shape}, and labels {labels.shape}: they must be the same"
        )
    return labels, predictions


def spread(weights: TensorLike, values: Tensor) -> Tensor:
    """Weights, one for each of the values: a scalar weighs all, an axis of size 1 all along it. A last axis of size 1 may be left out,
    or be too many.

    Raises:
        ValueError: the weights have another rank, or another size.
    """
    return broadcast_weights(of_rank(cast(convert(weights), values.dtype.base), values), values)


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole; 0 where nothing was counted."""
    return _divide(part, maximum(whole, convert(0, dtype=whole.dtype.base)))


def as_float(x: Tensor, dtype: DType = float32) -> Tensor:
    """The tensor as floats."""
    found: Tensor = cast(x, dtype)
    return found


__all__ = ["Build", "Metric", "Names", "PairMetric", "aligned", "as_float", "metric", "of_pairs", "ratio", "spread"]
