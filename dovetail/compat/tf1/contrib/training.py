"""Training ops of `tf.contrib.training` and `tf.contrib.layers`: an optimizer's step with what usually goes with it.

Strategies for `replica_device_setter` are here under the names that TensorFlow 1 gave them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ....api.ops.debugging import check_numerics as checked
from ....graph.core.build import convert
from ....graph.core.default_graph import GraphKeys, control_dependencies, get_default_graph, name_scope
from ....graph.core.graph import Tensor
from ....graph.ops.array.identity_and_placeholders import group, identity
from ....graph.ops.array.shapes import shape
from ....graph.ops.math.clip import clip_by_global_norm, clip_by_norm, global_norm
from ....graph.ops.random.random import random_normal
from ....graph.tensors.indexed_slices import IndexedSlices, map_values
from ....graph.variables.store import trainable_variables
from ....interop.tensorboard import histogram, scalar
from ....placer.rules.replica_device_setter import GreedyLoadBalancingStrategy, RandomStrategy, byte_size_load_fn
from ....train.global_step import get_global_step, get_or_create_global_step
from ....train.optimizers.adagrad import AdagradOptimizer, RMSPropOptimizer
from ....train.optimizers.adam import AdamOptimizer
from ....train.optimizers.gradient_descent import FtrlOptimizer, GradientDescentOptimizer, MomentumOptimizer
from ....train.optimizers.optimizer import Optimizer
from .evaluation import (
    StopAfterNEvalsHook,
    SummaryAtEndHook,
    checkpoints_iterator,
    evaluate_once,
    evaluate_repeatedly,
    get_or_create_eval_step,
    wait_for_new_checkpoint,
)
from .hparams import HParams

Pairs = list[tuple[Any, Any]]
"""Gradients, each with its variable."""

USE_GLOBAL_STEP: Any = 0
"""Stands for the graph's global step, made where there is none."""

OPTIMIZERS: Mapping[str, Callable[[Any], Optimizer]] = {
    "Adagrad": AdagradOptimizer,
    "Adam": AdamOptimizer,
    "Ftrl": FtrlOptimizer,
    "Momentum": lambda rate: MomentumOptimizer(rate, momentum=0.9),
    "RMSProp": RMSPropOptimizer,
    "SGD": GradientDescentOptimizer,
}
"""What `optimize_loss` knows by name."""

SUMMARIES = ("learning_rate", "loss", "gradients", "gradient_norm", "global_gradient_norm")


def clip_gradient_norms(gradients_to_variables: Iterable[tuple[Any, Any]], max_norm: float) -> Pairs:
    """Each gradient by itself made no longer than `max_norm`."""
    return [
        (g if g is None else map_values(lambda v: clip_by_norm(v, max_norm), g), v) for g, v in gradients_to_variables
    ]


def multiply_gradients(grads_and_vars: Iterable[tuple[Any, Any]], gradient_multipliers: Mapping[Any, Any]) -> Pairs:
    """Gradients times what a mapping says for their variables, or the names of these.

    Raises:
        ValueError: a variable that is named there has no gradient; or there is nothing to multiply.
    """
    if not isinstance(gradient_multipliers, Mapping) or not gradient_multipliers:
        raise ValueError("`gradient_multipliers` must be a mapping from variables, or their names, to numbers")
    out: Pairs = []
    for g, v in grads_and_vars:
        factor = next((gradient_multipliers[k] for k in (v, v.op.name, v.name) if k in gradient_multipliers), None)
        if factor is not None:
            if g is None:
                raise ValueError(f"Requested multiple of `None` gradient of '{v.op.name}'.")
            g = map_values(partial(_times, factor), g)
        out.append((g, v))
    return out


def _times(factor: Any, values: Tensor) -> Tensor:
    found: Tensor = values * convert(factor, values.dtype.base)
    return found


def add_gradients_summaries(grads_and_vars: Iterable[tuple[Any, Any]]) -> list[Tensor]:
    """A histogram of each gradient, and its norm."""
    found = []
    for g, v in grads_and_vars:
        if g is not None:
            values = g.values if isinstance(g, IndexedSlices) else g
            found.append(histogram(v.op.name + "_gradient", values))
            found.append(scalar(v.op.name + "_gradient_norm", global_norm([values])))
    return found


def create_train_op(
    total_loss: Tensor,
    optimizer: Any,
    global_step: Any = USE_GLOBAL_STEP,
    update_ops: Iterable[Any] | None = None,
    variables_to_train: Sequence[Any] | None = None,
    transform_grads_fn: Callable[[Pairs], Pairs] | None = None,
    summarize_gradients: bool = False,
    gate_gradients: int = Optimizer.GATE_OP,
    aggregation_method: int | None = None,
    colocate_gradients_with_ops: bool = False,
    check_numerics: bool = True,
) -> Tensor:
    """A tensor that makes a step of training when it is fetched, and is the loss.

    Args:
        total_loss: the loss. optimizer: an optimizer.
        global_step: counts the steps; `USE_GLOBAL_STEP`: the graph's own; None: no count.
        update_ops: what runs before the loss; None: the collection `UPDATE_OPS`.
        variables_to_train: None: all that are trainable.
        transform_grads_fn: makes other pairs of the pairs of gradients and variables.
        summarize_gradients: add summaries of the gradients.
        gate_gradients, aggregation_method, colocate_gradients_with_ops: as of `Optimizer.minimize`.
        check_numerics: end the step with an error when the loss is not a number.

    Returns:
        a scalar, which joins the collection `TRAIN_OP`.

    Raises:
        ValueError: no variable to train has a gradient.

    >>> train_op = dt.contrib.training.create_train_op(loss, dt.train.AdamOptimizer(1e-3))
    """
    graph = get_default_graph()
    if global_step is USE_GLOBAL_STEP:
        global_step = get_or_create_global_step()
    updates = _updates(update_ops)
    if updates:
        total_loss = _behind([group(*updates, name="update_barrier")], total_loss)
    pairs = optimizer.compute_gradients(
        total_loss, trainable_variables() if variables_to_train is None else list(variables_to_train),
        gate_gradients=gate_gradients, aggregation_method=aggregation_method,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
    )  # fmt: skip
    if transform_grads_fn is not None:
        pairs = transform_grads_fn(pairs)
    if summarize_gradients:
        with name_scope("summarize_grads"):
            add_gradients_summaries(pairs)
    applied = optimizer.apply_gradients(pairs, global_step=global_step)
    with name_scope("train_op"):
        if check_numerics:
            total_loss = checked(total_loss, "LossTensor is inf or nan")
        train_op = _behind([applied], total_loss)
    if train_op not in graph.get_collection_ref(GraphKeys.TRAIN_OP):
        graph.add_to_collection(GraphKeys.TRAIN_OP, train_op)
    return train_op


def optimize_loss(
    loss: Tensor,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    clip_gradients: float | Callable[[Pairs], Pairs] | None = None,
    learning_rate_decay_fn: Callable[[Any, Any], Any] | None = None,
    update_ops: Iterable[Any] | None = None,
    variables: Sequence[Any] | None = None,
    name: str | None = None,
    summaries: Sequence[str] | None = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Tensor:
    """A tensor that makes a step of training when it is fetched, and is the loss.

    Args:
        loss: a scalar.
        global_step: counts the steps; None: the graph's own, if it has one.
        learning_rate: a number or scalar; None: the optimizer knows it.
        optimizer: the name of one of `OPTIMIZERS`, a class, an optimizer, or a function of the learning rate (or of nothing).
        gradient_noise_scale: how much normal noise is added to the gradients.
        gradient_multipliers: as of `multiply_gradients`.
        clip_gradients: the largest global norm of the gradients; or a function of the pairs.
        learning_rate_decay_fn: function of the learning rate and the global step.
        update_ops: what runs before the loss; None: the collection `UPDATE_OPS`.
        variables: what is trained; None: all that are trainable.
        summaries: some of "learning_rate", "loss", "gradients", "gradient_norm", "global_gradient_norm"; None: all but those of
            single gradients.
        increment_global_step: whether the step counts.

    Raises:
        ValueError: the optimizer, a summary or the learning rate is not such as is said above; no variable has a gradient.
    """
    wanted = ("loss", "learning_rate", "global_gradient_norm") if summaries is None else tuple(summaries)
    unknown = [s for s in wanted if s not in SUMMARIES]
    if unknown:
        raise ValueError(f"Summaries should be one of [{', '.join(SUMMARIES)}], you provided {', '.join(unknown)}.")
    loss = convert(loss)
    step = get_global_step() if global_step is None else global_step
    with name_scope(name or "OptimizeLoss"):
        updates = _updates(update_ops)
        if updates:
            loss = _behind(updates, loss)
        rate = None if learning_rate is None else convert(learning_rate)
        if learning_rate_decay_fn is not None:
            if rate is None or step is None:
                raise ValueError("learning_rate and global_step are required for learning_rate_decay_fn.")
            rate = learning_rate_decay_fn(rate, step)
        if rate is not None and "learning_rate" in wanted:
            scalar("learning_rate", rate)
        chosen = _optimizer(optimizer, rate)
        pairs = chosen.compute_gradients(
            loss, trainable_variables() if variables is None else list(variables),
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )  # fmt: skip
        if gradient_noise_scale is not None:
            pairs = [(_noisy(g, gradient_noise_scale), v) for g, v in pairs]
        if gradient_multipliers is not None:
            pairs = multiply_gradients(pairs, gradient_multipliers)
        if "global_gradient_norm" in wanted or "gradient_norm" in wanted:
            scalar("global_norm/gradient_norm", global_norm([g for g, _ in pairs if g is not None]))
        if callable(clip_gradients):
            pairs = clip_gradients(pairs)
        elif clip_gradients is not None:
            clipped, _ = clip_by_global_norm([g for g, _ in pairs], clip_gradients)
            pairs = [(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)]
            if "global_gradient_norm" in wanted or "gradient_norm" in wanted:
                scalar("global_norm/clipped_gradient_norm", global_norm([g for g, _ in pairs if g is not None]))
        if "loss" in wanted:
            scalar("loss", loss)
        if "gradients" in wanted or "gradient_norm" in wanted:
            add_gradients_summaries(pairs)
        applied = chosen.apply_gradients(pairs, global_step=step if increment_global_step else None)
        return _behind([applied], loss)


def _updates(given: Iterable[Any] | None) -> list[Any]:
    """What runs before the loss: what is given, or the collection `UPDATE_OPS`, each once."""
    return list(dict.fromkeys(get_default_graph().get_collection(GraphKeys.UPDATE_OPS) if given is None else given))


def _behind(ops: Sequence[Any], loss: Tensor) -> Tensor:
    """The loss, once these have run."""
    with control_dependencies(ops):
        found: Tensor = identity(loss)
    return found


def _optimizer(given: Any, rate: Any) -> Any:
    """The optimizer that was asked for."""
    if isinstance(given, str):
        if given not in OPTIMIZERS:
            raise ValueError(f"Optimizer name should be one of [{', '.join(OPTIMIZERS)}], you provided {given}.")
        if rate is None:
            raise ValueError("Learning rate is None, but should be specified if optimizer is a string.")
        return OPTIMIZERS[given](rate)
    if isinstance(given, type) or callable(given):
        return given() if rate is None else given(rate)
    if not hasattr(given, "apply_gradients"):
        raise ValueError(
            f"Unrecognized optimizer: should be string, subclass of Optimizer, or function. Got {given!r}."
        )
    return given


def _noisy(gradient: Any, scale: float) -> Any:
    if gradient is None:
        return None
    return map_values(lambda v: v + random_normal(shape(v), dtype=v.dtype.base) * scale, gradient)


__all__ = [
    "GreedyLoadBalancingStrategy",
    "HParams",
    "RandomStrategy",
    "StopAfterNEvalsHook",
    "SummaryAtEndHook",
    "add_gradients_summaries",
    "byte_size_load_fn",
    "checkpoints_iterator",
    "clip_gradient_norms",
    "create_train_op",
    "evaluate_once",
    "evaluate_repeatedly",
    "get_or_create_eval_step",
    "multiply_gradients",
    "optimize_loss",
    "wait_for_new_checkpoint",
]
