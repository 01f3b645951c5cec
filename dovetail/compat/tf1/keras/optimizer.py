"""What Keras' optimizers share: their settings, their count of updates, the learning rate, clipping, weight decay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np

from ....graph.core.build import convert
from ....graph.core.default_graph import get_default_graph
from ....graph.core.dtypes import float32, int64
from ....graph.core.graph import Node, Tensor
from ....graph.ops.math.cast import cast
from ....graph.ops.math.clip import clip_by_global_norm, clip_by_norm, clip_by_value
from ....graph.tensors.indexed_slices import map_values
from ....graph.variables.variable import Variable, VariableAggregation
from ....train.optimizers.optimizer import Optimizer as _Optimizer, as_type
from . import schedules
from .backend import copies, set_value
from .registry import Configured


class Clipping(TypedDict, total=False):
    """What every optimizer takes beside its own settings: see `Optimizer`."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    lr: Any


class Common(Clipping, total=False):
    """The same, and what all but those that decay weights in their own way take."""

    weight_decay: float | None


class Optimizer(_Optimizer, Configured):
    """Base of the optimizers.

    A subclass says its slots (`_slots_at`: name -> where they start) and its update (`_apply`).

    Args:
        learning_rate: a number, or a schedule of `keras.optimizers.schedules`.
        weight_decay: share of a weight, times the learning rate, that each update takes off it first; None: none.
        clipnorm: L2 norm down to which each gradient is scaled.
        clipvalue: limit of each of its numbers.
        global_clipnorm: L2 norm down to which all gradients together are scaled.
        name: its name, and that of its nodes.
        lr: the learning rate under its old name.
        settings: the numbers of the rule.
    """

    _slots_at: dict[str, Any] = {}

    def __init__(
        self,
        learning_rate: Any,
        name: str,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        lr: Any = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(False, name)
        self.name = name
        self._rate: Any = learning_rate if lr is None else lr
        if isinstance(self._rate, dict):
            self._rate = schedules.deserialize(self._rate)
        self._settings: dict[str, Any] = dict(settings or {})
        self.weight_decay, self.clipnorm, self.clipvalue, self.global_clipnorm = (
            weight_decay, clipnorm, clipvalue, global_clipnorm,
        )  # fmt: skip
        self._rate_variable: Any = None
        self._iterations: Any = None
        self._now: dict[str, Tensor] = {}

    def minimize(  # type: ignore[override]  # Keras has `var_list` second
        self,
        loss: Tensor | Callable[[], Tensor],
        var_list: Any = None,
        grad_loss: Any = None,
        name: str | None = None,
        global_step: Any = None,
        **kwargs: Any,
    ) -> Node:
        """As of `dt.train.Optimizer`, in Keras' order of arguments.

        Args:
            loss: a tensor, or a function without arguments that builds it.
            var_list: variables to change, or a function that gives them, which is called after that of the loss; None: the trainable ones.
        """
        loss = loss() if callable(loss) else loss
        chosen = var_list() if callable(var_list) else var_list
        return super().minimize(loss, global_step, chosen, name=name, grad_loss=grad_loss, **kwargs)

    # --- its own variables --------------------------------------------------------------------------------------------

    @property
    def iterations(self) -> Any:
        """The variable that counts updates."""
        if self._iterations is None:
            self._iterations = self._make("iterations", 0, int64)
        return self._iterations

    @property
    def learning_rate(self) -> Any:
        """The variable that holds the learning rate, or the schedule. Assigning a number sets the variable."""
        if isinstance(self._rate, schedules.LearningRateSchedule):
            return self._rate
        if self._rate_variable is None:
            rate = self._rate() if callable(self._rate) else self._rate
            self._rate_variable = self._make("learning_rate", rate, float32)
        return self._rate_variable

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if isinstance(value, schedules.LearningRateSchedule) or self._rate_variable is None:
            self._rate = value
            return
        if isinstance(self._rate, schedules.LearningRateSchedule):
            raise TypeError("The learning rate follows a schedule, and cannot be set")
        set_value(self._rate_variable, np.float32(value))

    lr = learning_rate

    def _make(self, name: str, value: Any, dtype: Any) -> Any:
        with get_default_graph().init_scope(), get_default_graph().name_scope(None):
            return Variable(
                initial_value=lambda: convert(value, dtype), name=f"{self._name}/{name}", trainable=False, use_resource=True,
                dtype=dtype, aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
            )  # fmt: skip

    def build(self, var_list: Sequence[Any]) -> None:
        """Make the variables that training these will need."""
        _ = self.iterations, self.learning_rate
        strategy = next((v.distribute_strategy for v in var_list if hasattr(v, "distribute_strategy")), None)
        wanted = [c for v in var_list for c in copies(v)]
        if strategy is None:
            self._create_slots(wanted)
            return
        with strategy.scope(), strategy.extended._plain_variables():
            self._create_slots(wanted)

    def variables(self) -> list[Any]:
        """All its variables: the count of updates, the learning rate, the slots."""
        own = [v for v in (self._iterations, self._rate_variable) if v is not None]
        return [*own, *super().variables()]

    # --- updating -----------------------------------------------------------------------------------------------------

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Node:
        """A node that changes each variable by its gradient: see `dt.train.Optimizer.apply_gradients`."""
        _ = self.iterations, self.learning_rate  # made in the scope of a strategy, for all copies
        return super().apply_gradients(list(grads_and_vars), global_step, name)

    def get_gradients(self, loss: Tensor, params: Sequence[Any]) -> list[Any]:
        """The gradients of a loss."""
        return [g for g, _ in self.compute_gradients(loss, var_list=list(params))]

    def _clipped(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        if self.clipvalue is None and self.clipnorm is None and self.global_clipnorm is None:
            return list(pairs)
        known = list({id(g): g for g, _ in pairs if g is not None}.values())
        done = list(known)
        if self.clipvalue is not None:
            limit = self.clipvalue
            done = [map_values(lambda x: clip_by_value(x, -limit, limit), g) for g in done]
        if self.clipnorm is not None:
            done = [map_values(lambda x: clip_by_norm(x, self.clipnorm), g) for g in done]
        if self.global_clipnorm is not None:
            done, _ = clip_by_global_norm(done, self.global_clipnorm)
        by_id = {id(g): c for g, c in zip(known, done, strict=True)}
        return [(None if g is None else by_id[id(g)], v) for g, v in pairs]

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        from ....graph.variables.initializers import constant_initializer

        for v in var_list:
            for slot, start in self._slots_at.items():
                if self._settings.get(start, start) == 0.0:
                    self._zeros_slot(v, slot, self._name)
                else:
                    value = self._settings.get(start, start)
                    self._get_or_make_slot_with_initializer(
                        v, constant_initializer(value), v.get_shape(), v.dtype.base, slot, self._name
                    )

    def _prepare(self) -> None:
        rate = self.learning_rate
        step = self.iterations.value()
        value = rate(step) if isinstance(rate, schedules.LearningRateSchedule) else rate.value()
        self._now = {"lr": value, "step": cast(step + 1, float32)}

    def _scalar(self, name: str, variable: Any) -> Tensor:
        """A setting (or `lr`, `step`), in the variable's type."""
        found = self._now.get(name)
        value = convert(self._settings[name], float32) if found is None else found
        return as_type(value, variable.dtype)

    def _finish(self, update_ops: Sequence[Node], name_scope: str) -> Node:
        with self.iterations.graph.control_dependencies(update_ops):
            counted = self.iterations.assign_add(1, read_value=False)
        return super()._finish([*update_ops, counted], name_scope)

    def _update(self, grad: Any, variable: Any) -> Any:
        if self.weight_decay and not self._decays_itself:
            share = 1.0 - self._scalar("lr", variable) * self.weight_decay
            shrunk = variable.assign(variable.value() * share, read_value=False)
            with variable.graph.control_dependencies([shrunk]):
                return super()._update(grad, variable)
        return super()._update(grad, variable)

    _decays_itself = False

    # --- config -------------------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal optimizer."""
        rate = self._rate
        if isinstance(rate, schedules.LearningRateSchedule):
            rate = schedules.serialize(rate)
        elif self._rate_variable is not None:
            from .backend import get_value

            rate = float(get_value(self._rate_variable))
        common = {
            "weight_decay": self.weight_decay, "clipnorm": self.clipnorm, "clipvalue": self.clipvalue,
            "global_clipnorm": self.global_clipnorm,
        }  # fmt: skip
        given = {k: v for k, v in common.items() if v is not None}
        return {"name": self.name, "learning_rate": rate, **self._settings, **given}
