"""`dt.keras.optimizers`: how weights follow their gradients, under Keras' names and with Keras' defaults.

They are `dt.train` optimizers, so they also do `minimize` and `apply_gradients` in any graph, and work under every strategy. An
update is one op where there is a rule for it (`graph/ops/state/training.py`). The learning rate is a variable, which callbacks change, or a
schedule of `iterations`, the variable that counts the updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ....graph.core.build import convert
from ....graph.core.dtypes import float32
from ....graph.core.graph import Node, Tensor
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.ops.math.arithmetic import absolute, maximum, power, sqrt, square
from ....graph.ops.state.training import apply_update
from ....graph.tensors.indexed_slices import IndexedSlices
from ....train.optimizers.optimizer import Optimizer as _Optimizer, as_type
from . import schedules
from .optimizer import Clipping, Common, Optimizer
from .registry import Registry


class SGD(Optimizer):
    """Gradient descent: `w -= lr * g`; with momentum `m = momentum * m - lr * g; w += m`, or Nesterov's form of it.

    >>> model.compile(dt.keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        **kwargs: Unpack[Common],
    ) -> None:
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be in [0, 1], not {momentum}")
        super().__init__(learning_rate, name, settings={"momentum": momentum, "nesterov": nesterov}, **kwargs)
        self._slots_at = {"momentum": 0.0} if momentum else {}

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        rate = self._scalar("lr", variable)
        if not self._settings["momentum"]:
            return apply_update("GradientDescent", [variable], gradient, {"alpha": rate}, indices=indices)
        slot, momentum = self.get_slot(variable, "momentum"), self._scalar("momentum", variable)
        flags = {"use_nesterov": bool(self._settings["nesterov"])}
        scalars = {"lr": rate, "momentum": momentum}
        return apply_update("KerasMomentum", [variable, slot], gradient, scalars, indices=indices, flags=flags)


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); with `amsgrad` the largest mean square so far divides (Reddi et al., 2018)."""

    _slots_at = {"m": 0.0, "v": 0.0}
    _rule = "Adam"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        **kwargs: Unpack[Common],
    ) -> None:
        settings = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "amsgrad": amsgrad}
        super().__init__(learning_rate, name, settings=settings, **kwargs)
        if amsgrad:
            self._slots_at = {**self._slots_at, "vhat": 0.0}

    def _scalars(self, variable: Any) -> dict[str, Tensor]:
        beta1, beta2, step = (self._scalar(n, variable) for n in ("beta_1", "beta_2", "step"))
        return {
            "beta1_power": power(beta1, step), "beta2_power": power(beta2, step), "lr": self._scalar("lr", variable),
            "beta1": beta1, "beta2": beta2, "epsilon": self._scalar("epsilon", variable),
        }  # fmt: skip

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        places = [variable, self.get_slot(variable, "m"), self.get_slot(variable, "v")]
        scalars = self._scalars(variable)
        if not self._settings.get("amsgrad"):
            return apply_update(self._rule, places, gradient, scalars, indices=indices)
        grad = _dense(variable, gradient, indices)
        m = places[1].value() + (grad - places[1].value()) * (1.0 - scalars["beta1"])
        v = places[2].value() + (square(grad) - places[2].value()) * (1.0 - scalars["beta2"])
        largest = self.get_slot(variable, "vhat")
        vhat = maximum(largest.value(), v)
        alpha = scalars["lr"] * sqrt(1.0 - scalars["beta2_power"]) / (1.0 - scalars["beta1_power"])
        step = m * alpha / (sqrt(vhat) + scalars["epsilon"])
        return _changes([(places[1], m), (places[2], v), (largest, vhat)], variable, step)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    Every row of a table decays at each step, whichever were looked up, as in Keras 3.
    """

    _rule = "AdamW"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "AdamW",
        **kwargs: Unpack[Clipping],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, name, weight_decay=weight_decay, **kwargs)
        self._decays_itself = not amsgrad

    def _scalars(self, variable: Any) -> dict[str, Tensor]:
        found = super()._scalars(variable)
        return {**found, "weight_decay": as_type(convert(self.weight_decay or 0.0, float32), variable.dtype)}


class RMSprop(Optimizer):
    """The gradient divided by a running root mean square of itself (Tieleman and Hinton, 2012)."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        name: str = "RMSprop",
        **kwargs: Unpack[Common],
    ) -> None:
        settings = {"rho": rho, "momentum": momentum, "epsilon": epsilon, "centered": centered}
        super().__init__(learning_rate, name, settings=settings, **kwargs)
        self._slots_at = {"rms": 0.0, "momentum_": 0.0, **({"mg": 0.0} if centered else {})}

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        names = ("mg", "rms", "momentum_") if self._settings["centered"] else ("rms", "momentum_")
        rule = "CenteredRMSProp" if self._settings["centered"] else "RMSProp"
        scalars = {n: self._scalar(n, variable) for n in ("lr", "rho", "momentum", "epsilon")}
        places = [variable, *(self.get_slot(variable, n) for n in names)]
        return apply_update(rule, places, gradient, scalars, indices=indices)


class Adagrad(Optimizer):
    """The gradient divided by the root of the sum of its squares so far (Duchi et al., 2011)."""

    _slots_at = {"accumulator": "initial_accumulator_value"}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str = "Adagrad",
        **kwargs: Unpack[Common],
    ) -> None:
        settings = {"initial_accumulator_value": initial_accumulator_value, "epsilon": epsilon}
        super().__init__(learning_rate, name, settings=settings, **kwargs)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        slot = self.get_slot(variable, "accumulator")
        grad = _dense(variable, gradient, indices)
        total = slot.value() + square(grad)
        step = self._scalar("lr", variable) * grad / sqrt(total + self._scalar("epsilon", variable))
        return _changes([(slot, total)], variable, step)


class Adadelta(Optimizer):
    """Steps scaled by the running root mean square of earlier steps (Zeiler, 2012)."""

    _slots_at = {"accum_grad": 0.0, "accum_var": 0.0}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        name: str = "Adadelta",
        **kwargs: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, name, settings={"rho": rho, "epsilon": epsilon}, **kwargs)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        places = [variable, self.get_slot(variable, "accum_grad"), self.get_slot(variable, "accum_var")]
        scalars = {n: self._scalar(n, variable) for n in ("lr", "rho", "epsilon")}
        return apply_update("Adadelta", places, _dense(variable, gradient, indices), scalars)


class Adamax(Optimizer):
    """Adam with the largest gradient so far in place of the root mean square (Kingma and Ba, 2015, section 7)."""

    _slots_at = {"m": 0.0, "u": 0.0}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Adamax",
        **kwargs: Unpack[Common],
    ) -> None:
        settings = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
        super().__init__(learning_rate, name, settings=settings, **kwargs)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        m, u = self.get_slot(variable, "m"), self.get_slot(variable, "u")
        beta1, beta2, step = (self._scalar(n, variable) for n in ("beta_1", "beta_2", "step"))
        grad = _dense(variable, gradient, indices)
        mean = m.value() + (grad - m.value()) * (1.0 - beta1)
        largest = maximum(beta2 * u.value(), absolute(grad))
        rate = self._scalar("lr", variable) / (1.0 - power(beta1, step))
        return _changes(
            [(m, mean), (u, largest)], variable, rate * mean / (largest + self._scalar("epsilon", variable))
        )


class Nadam(Adamax):
    """Adam with Nesterov's momentum (Dozat, 2016), whose momentum warms up."""

    _slots_at = {"m": 0.0, "v": 0.0}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Nadam",
        **kwargs: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name, **kwargs)
        self._product: Any = None

    @property
    def momentum_product(self) -> Any:
        """The variable that holds the product of all momenta so far."""
        if self._product is None:
            self._product = self._make("momentum_product", 1.0, float32)
        return self._product

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Node:
        """See `Optimizer.apply_gradients`."""
        _ = self.momentum_product
        return super().apply_gradients(grads_and_vars, global_step, name)

    def build(self, var_list: Sequence[Any]) -> None:
        """See `Optimizer.build`."""
        _ = self.momentum_product
        super().build(var_list)

    def variables(self) -> list[Any]:
        """See `Optimizer.variables`."""
        return [*super().variables(), *([] if self._product is None else [self._product])]

    def _prepare(self) -> None:
        super()._prepare()
        beta, step, decay = float(self._settings["beta_1"]), self._now["step"], convert(0.96, float32)
        now = beta * (1.0 - 0.5 * power(decay, step))
        then = beta * (1.0 - 0.5 * power(decay, step + 1.0))
        product = self.momentum_product.value() * now
        self._now.update(u_now=now, u_then=then, product=product)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        names = ("beta_1", "beta_2", "step", "u_now", "u_then", "product", "lr", "epsilon")
        beta1, beta2, step, now, then, product, rate, epsilon = (self._scalar(n, variable) for n in names)
        grad = _dense(variable, gradient, indices)
        mean = m.value() + (grad - m.value()) * (1.0 - beta1)
        squares = v.value() + (square(grad) - v.value()) * (1.0 - beta2)
        ahead = then * mean / (1.0 - product * then) + (1.0 - now) * grad / (1.0 - product)
        root = sqrt(squares / (1.0 - power(beta2, step))) + epsilon
        return _changes([(m, mean), (v, squares)], variable, ahead * rate / root)

    def _finish(self, update_ops: Sequence[Node], name_scope: str) -> Node:
        with self.iterations.graph.control_dependencies(update_ops):
            moved = self.momentum_product.assign(self._now["product"], read_value=False)
        return super()._finish([*update_ops, moved], name_scope)


def _dense(variable: Any, gradient: Tensor, indices: Tensor | None) -> Tensor:
    """A gradient of rows as one of the variable's shape."""
    if indices is None:
        return gradient
    return convert(IndexedSlices(gradient, indices, convert(variable.shape.as_list())))


def _changes(slots: Sequence[tuple[Any, Tensor]], variable: Any, step: Tensor) -> Node:
    """New values for slots, and a step for the variable, all made from what was there before."""
    made = [value.op for _, value in slots]
    with variable.graph.control_dependencies([*made, step.op]):
        nodes = [slot.assign(value, read_value=False) for slot, value in slots]
        nodes.append(variable.assign_sub(step, read_value=False))
    node: Node = group(*nodes)
    return node


_registry = Registry("optimizer", SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adamax, Nadam)
for _class in (SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adamax, Nadam):
    _registry.add(_class.__name__.lower(), _class)
serialize, deserialize = _registry.serialize, _registry.deserialize


def get(identifier: Any) -> Any:
    """The optimizer that is meant: by name, by config, or as it is; one of `dt.train` serves, too."""
    if isinstance(identifier, _Optimizer):
        return identifier
    return _registry.get(identifier)


__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Nadam",
    "Optimizer",
    "RMSprop",
    "deserialize",
    "get",
    "schedules",
    "serialize",
]
