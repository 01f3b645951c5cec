"""What `compile` says: losses, weights and metrics of each output; and what comes of them for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....graph.core.build import convert
from ....graph.core.graph import Node, Tensor
from ....graph.ops.array.shapes import size
from ....graph.ops.math.arithmetic import div_no_nan, multiply
from ....graph.ops.math.cast import cast
from ....graph.ops.math.reduce import reduce_mean, reduce_sum
from . import losses, metrics
from .losses import Loss, weights_for
from .metrics import Mean, Metric


class Compiled:
    """Losses and metrics, one list per output.

    Args:
        loss, loss_weights, metrics, weighted_metrics: as of `Model.compile`: for all outputs, or in a list or dictionary by output.
    """

    def __init__(self, loss: Any, loss_weights: Any, metrics_: Any, weighted_metrics: Any) -> None:
        self.given = loss, loss_weights, metrics_, weighted_metrics
        self.names: list[str] = []
        self.losses: list[Any] = []
        self.weights: list[float] = []
        self.metrics: list[list[tuple[Metric, bool]]] = []
        self.total: Mean | None = None
        self.parts: list[Mean] = []

    @property
    def ready(self) -> bool:
        """Whether `prepare` was called."""
        return self.total is not None

    def prepare(self, names: Sequence[str], outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Find out what each output gets.

        Args:
            names: of the outputs. outputs, targets: tensors like those that will come; targets may be [].

        Raises:
            ValueError: something is said for an output that is not there.
        """
        if self.ready:
            return
        loss, loss_weights, found, weighted = self.given
        self.names = list(names)
        self.losses = [_loss(x) for x in self._by_output(loss, "loss", everybody=True)]
        self.weights = [1.0 if w is None else float(w) for w in self._by_output(loss_weights, "loss_weights")]
        plain = self._by_output(found, "metrics", several=True)
        heavy = self._by_output(weighted, "weighted_metrics", several=True)
        for i, output in enumerate(outputs):
            target = targets[i] if i < len(targets) else None
            made = [(_metric(m, self.losses[i], output, target), False) for m in _listed(plain[i])]
            made += [(_metric(m, self.losses[i], output, target), True) for m in _listed(heavy[i])]
            self.metrics.append(made)
        self.total = Mean("loss")
        several = len(self.names) > 1
        self.parts = [Mean(f"{n}_loss") for n, x in zip(self.names, self.losses, strict=True) if x] if several else []

    def _by_output(self, given: Any, what: str, everybody: bool = False, several: bool = False) -> list[Any]:
        count = len(self.names)
        if isinstance(given, Mapping):
            unknown = sorted(set(given) - set(self.names))
            if unknown:
                raise ValueError(f"`{what}` names {unknown}, and the outputs are {self.names}")
            return [given.get(n) for n in self.names]
        if isinstance(given, (list, tuple)) and (count > 1 or (not several and given)):
            if len(given) == count:
                return list(given)
            if not several:
                raise ValueError(f"`{what}` has {len(given)} entries for {count} outputs")
            return [list(given)] * count
        return [given] * count if count == 1 or everybody or several else [given, *[None] * (count - 1)]

    def labelled(self) -> dict[str, Metric]:
        """All metrics by the names that logs have."""
        found: dict[str, Metric] = {}
        if self.total is not None:
            found["loss"] = self.total
        for part in self.parts:
            found[part.name] = part
        for name, made in zip(self.names, self.metrics, strict=True):
            for metric, _ in made:
                label = f"{name}_{metric.name}" if len(self.names) > 1 else metric.name
                found[label if label not in found else f"{label}_{sum(k.startswith(label) for k in found)}"] = metric
        return found

    def batch(
        self,
        targets: Sequence[Tensor],
        outputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        real: Tensor | None,
        masks: Sequence[Tensor | None],
        count: Tensor,
        rows: Tensor,
        of_rows: Sequence[Any],
        of_weights: Sequence[Any],
        replicas: int,
    ) -> tuple[Tensor, list[Node]]:
        """What a replica minimises for its rows of a batch, and the nodes that tell the metrics.

        Args:
            weights: of the samples, one tensor, or one per output, or none.
            real: 1 for each row that counts, 0 for one that fills up; None: all count.
            masks: of the outputs' steps.
            count: how many rows of the replica's count. rows: rows of the whole batch, over the number of replicas.
            of_rows: what layers add to the loss for a row, in the mean of the replica's rows.
            of_weights: what regularizes weights.
        """
        assert self.total is not None
        nodes, parts = [], iter(self.parts)
        objective, told = convert(0.0), convert(0.0)
        for i, (output, loss) in enumerate(zip(outputs, self.losses, strict=True)):
            weight = weights[min(i, len(weights) - 1)] if weights else None
            if loss is not None:
                if i >= len(targets):
                    raise ValueError(f"There is no target for the output '{self.names[i]}': give y")
                total, of_all, is_sum = _summed(loss, targets[i], output, weight, real, masks[i], count)
                share = total * float(replicas) if is_sum else div_no_nan(total, rows)
                mine = of_all * float(replicas) if is_sum else div_no_nan(of_all, count)
                if self.parts:
                    nodes.append(next(parts).update_state(mine, count))
                objective, told = objective + share * self.weights[i], told + mine * self.weights[i]
            for metric, is_weighted in self.metrics[i]:
                factors = [w for w in (weight if is_weighted else None, real, masks[i]) if w is not None]
                nodes.append(metric.update_state(targets[i], output, sample_weight=_product(factors, output)))
        for extra in of_rows:
            mine = cast(extra, told.dtype)
            objective, told = objective + (mine if count is rows else mine * div_no_nan(count, rows)), told + mine
        for extra in of_weights:
            objective, told = objective + cast(extra, objective.dtype), told + cast(extra, told.dtype)
        nodes.append(self.total.update_state(told, count))
        return objective, nodes


def _summed(
    loss: Any,
    target: Tensor,
    output: Tensor,
    weight: Tensor | None,
    real: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
) -> tuple[Tensor, Tensor, bool]:
    """The sum over rows of a loss, for the objective and for the logs, and whether a sum is what was asked for."""
    is_sum = isinstance(loss, Loss) and loss.reduction == "sum"
    if isinstance(loss, Loss) and loss.reduction == "none":
        raise ValueError("A loss with reduction='none' gives no number to minimise")
    each = loss.call(target, output) if isinstance(loss, Loss) else convert(loss(target, output))
    if each.shape.rank == 0:
        return each * count, each * count, False
    if mask is not None:
        kept = cast(mask, each.dtype)
        each = multiply(each, kept * (cast(size(kept), each.dtype) / reduce_sum(kept)))
    for factor in (weight, real):
        if factor is not None:
            each = multiply(each, weights_for(each, factor))
    rank = each.shape.rank or 1
    if rank > 1:
        each = (reduce_sum if is_sum else reduce_mean)(each, list(range(1, rank)))
    total = reduce_sum(each)
    return total, total, is_sum


def _product(factors: Sequence[Tensor], output: Tensor) -> Tensor | None:
    if not factors:
        return None
    ranked = sorted(
        (f if f.dtype.is_floating else cast(f, output.dtype.base) for f in factors), key=lambda f: -(f.shape.rank or 0)
    )
    found = ranked[0]
    for factor in ranked[1:]:
        found = multiply(found, weights_for(found, factor))
    return found


def _is_column(target: Tensor | None) -> bool:
    return target is not None and target.shape.as_list()[-1] == 1


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else ([] if given is None else [given])


def _loss(given: Any) -> Any:
    return losses.get(given)


def _metric(given: Any, loss: Any, output: Tensor, target: Tensor | None) -> Metric:
    """A metric; `accuracy` and `crossentropy` are those that fit the output."""
    if given not in ("accuracy", "acc", "crossentropy", "ce"):
        found: Metric = metrics.get(given)
        return found
    name = str(given)
    kind = "accuracy" if name in ("accuracy", "acc") else "crossentropy"
    last = output.shape.as_list()[-1] if output.shape.rank else None
    same = target is not None and target.shape.rank == output.shape.rank
    function = getattr(loss, "fn", loss)
    found_fn: Any
    if last == 1 or function is losses.binary_crossentropy:
        found_fn = metrics.binary_accuracy if kind == "accuracy" else losses.binary_crossentropy
    elif function is losses.sparse_categorical_crossentropy or (
        function is not losses.categorical_crossentropy and (not same or _is_column(target))
    ):
        found_fn = metrics.sparse_categorical_accuracy if kind == "accuracy" else losses.sparse_categorical_crossentropy
    else:
        found_fn = metrics.categorical_accuracy if kind == "accuracy" else losses.categorical_crossentropy
    return metrics.MeanMetricWrapper(found_fn, name)


__all__ = ["Compiled"]
