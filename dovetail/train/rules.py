"""Optimizers that are a rule of `graph/ops/training.py` with its settings and slots, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..graph.build import convert
from ..graph.node import Tensor
from ..graph.ops.training import RULES, apply_update
from .optimizer import Optimizer, as_type


class RuleOptimizer(Optimizer):
    """An optimizer that is one rule.

    A subclass says its `rule`, and how slots and scalars are called: `slots`, slot of the rule -> (name, where it starts);
    `scalars`, scalar of the rule -> setting.
    """

    rule: str
    slots: Mapping[str, tuple[str, Any]] = {}
    scalars: Mapping[str, str] = {}

    def __init__(self, use_locking: bool, name: str, **settings: Any) -> None:
        super().__init__(use_locking, name)
        self._settings = settings
        self._tensors: dict[str, Tensor] = {}

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        from ..graph.initializers import constant_initializer

        for v in var_list:
            for slot, start in self.slots.values():
                value = self._settings[start] if isinstance(start, str) else start
                if value == 0:
                    self._zeros_slot(v, slot, self._name)
                else:
                    self._get_or_make_slot_with_initializer(
                        v, constant_initializer(value), v.get_shape(), v.dtype.base, slot, self._name
                    )

    def _prepare(self) -> None:
        for name in self.scalars.values():
            setting = self._settings[name]
            self._tensors[name] = convert(setting() if callable(setting) else setting, name=name)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        kept = [self.get_slot(variable, self.slots[slot][0]) for slot in RULES[self.rule].slots]
        scalars = {s: as_type(self._tensors[name], variable.dtype) for s, name in self.scalars.items()}
        return apply_update(self.rule, [variable, *kept], gradient, scalars, indices=indices)


def not_negative(**settings: Any) -> None:
    """ValueError for a setting that is a number below zero."""
    for name, value in settings.items():
        if isinstance(value, (int, float)) and value < 0:
            raise ValueError(f"{name} {value} needs to be greater than or equal to zero")
