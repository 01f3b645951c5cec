"""Optimizers that consist of one rule of `graph/ops/state/training.py` with its settings and slots."""

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
    """An optimizer that applies one rule.

    A subclass defines the `rule`; `slots`: slot of the rule -> (name, initial value: a number, a setting, or a type of initializer);
    `scalars`: scalar of the rule -> setting; `flags`: attributes of the rule that differ from its defaults. Settings are numbers, scalar
    tensors, or functions that return one.
    """

    rule: str
    slots: Mapping[str, tuple[str, float | str | type[Initializer]]] = {}
    scalars: Mapping[str, str] = {}
    flags: Mapping[str, bool] = {}
    _slot_op_names: Mapping[str, str] = {}
    """Slot -> the end of its variables' names, where that is not the optimizer's."""

    def __init__(self, use_locking: bool, name: str, **settings: Any) -> None:
        super().__init__(use_locking, name)
        for setting, value in settings.items():
            if isinstance(value, list | tuple | dict | Generator):
                raise TypeError(
                    f"{type(self).__name__}: {setting} must be a number, a scalar tensor or a function, not {value!r:.60}. Variables are "
                    "given to minimize(loss, var_list=...), whose default are all trainable ones"
                )
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

    def _places(self, variable: Any) -> list[Any]:
        """The variable and its slots, in the rule's order."""
        return [variable, *(self.get_slot(variable, self.slots[slot][0]) for slot in RULES[self.rule].slots)]

    def _scalars(self, variable: Any) -> dict[str, Tensor]:
        """The rule's scalars, in the variable's type."""
        return {s: as_type(self._tensors[name], variable.dtype) for s, name in self.scalars.items()}

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        scalars = self._scalars(variable)
        return apply_update(
            self.rule, self._places(variable), gradient, scalars, indices=indices, flags=dict(self.flags)
        )


def not_negative(**settings: Any) -> None:
    """Raise a ValueError for a setting that is a number below zero."""
    for name, value in settings.items():
        if isinstance(value, (int, float)) and value < 0:
            raise ValueError(f"{name} {value} needs to be greater than or equal to zero")
