"""The base class of optimizers that apply one update rule of `graph/ops/state/training.py`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ...graph.core.build import convert
from ...graph.core.graph import Tensor
from ...graph.core.shape import is_static
from ...graph.ops.array.creation import fill
from ...graph.ops.array.shapes import shape
from ...graph.ops.state.training import RULES, apply_update
from ...graph.variables.initializers import Constant, Initializer
from .optimizer import Optimizer, as_type


class RuleOptimizer(Optimizer):
    """An optimizer that applies one update rule. Its settings are numbers, scalar tensors, or functions that return one.

    Attributes:
        rule: name of the rule.
        slots: slot of the rule -> (name of the slot, initial value). The value is a number, the name of a setting, or an initializer class.
        scalars: scalar of the rule -> name of a setting.
        flags: attributes of the rule that differ from their defaults.
    """

    rule: str
    slots: Mapping[str, tuple[str, float | str | type[Initializer]]] = {}
    scalars: Mapping[str, str] = {}
    flags: Mapping[str, bool] = {}
    _slot_op_names: Mapping[str, str] = {}
    """Slot -> the suffix of its variables' names, if it is not the optimizer's name."""

    def __init__(self, use_locking: bool, name: str, **settings: Any) -> None:
        super().__init__(use_locking, name)
        for setting, value in settings.items():
            if isinstance(value, list | tuple | dict | Generator | str):
                text = f"{type(self).__name__}: {setting} must be a number, a scalar tensor or a function, not {value!r:.60}"
                instead = "Pass variables to minimize(loss, var_list=...); its default is all trainable variables"
                raise TypeError(f"{text}. {'Use float(...)' if isinstance(value, str) else instead}")
        self._settings = settings
        self._tensors: dict[str, Tensor] = {}

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for v in var_list:
            for slot, start in self.slots.values():
                value = self._settings[start] if isinstance(start, str) else start
                end = self._slot_op_names.get(slot, self._name)
                if value == 0:
                    self._zeros_slot(v, slot, end)
                elif not is_static(v.get_shape().dims_tuple) and not isinstance(value, type):
                    start_value = fill(shape(v.initialized_value()), convert(value, v.dtype.base))
                    self._get_or_make_slot(v, start_value, slot, end)
                else:
                    initializer = value() if isinstance(value, type) else Constant(value)
                    self._get_or_make_slot_with_initializer(v, initializer, v.get_shape(), v.dtype.base, slot, end)

    def _prepare(self) -> None:
        for name in self.scalars.values():
            setting = self._settings[name]
            self._tensors[name] = convert(setting() if callable(setting) else setting, name=name)

    def _variable_and_slots(self, variable: Any) -> list[Any]:
        """Returns the variable and its slots, in the rule's order."""
        return [variable, *(self.get_slot(variable, self.slots[slot][0]) for slot in RULES[self.rule].slots)]

    def _scalars(self, variable: Any) -> dict[str, Tensor]:
        """Returns the rule's scalars, in the variable's element type."""
        return {s: as_type(self._tensors[name], variable.dtype) for s, name in self.scalars.items()}

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        scalars = self._scalars(variable)
        return apply_update(
            self.rule, self._variable_and_slots(variable), gradient, scalars, indices=indices, flags=dict(self.flags)
        )


def not_negative(**settings: Any) -> None:
    """Raises ValueError for a setting that is a negative number."""
    for name, value in settings.items():
        if isinstance(value, (int, float)) and value < 0:
            raise ValueError(f"{name} {value} needs to be greater than or equal to zero")
