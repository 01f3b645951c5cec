"""The base class of optimizers, which computes gradients and applies them.

`minimize` calls `compute_gradients` and then `apply_gradients`. Each update is one node on its variable's device, so only the gradient
is sent there. Slots are colocated with their variable. The global step is incremented after all updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, Never, Self, TypeAlias

import numpy as np

from ...distribute.context import get_strategy, has_strategy
from ...graph.core.argument_names import check_arguments, no_attribute
from ...graph.core.build import convert
from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.core.dtypes import FLOATS, DType
from ...graph.core.graph import Node, Tensor
from ...graph.gradients.reverse import gradients
from ...graph.ops.array.identity_and_placeholders import group, identity
from ...graph.ops.math.cast import cast
from ...graph.ops.state.variables import assign_add, change_resource
from ...graph.tensors.indexed_slices import IndexedSlices, map_values
from ...graph.variables.partitioned import PartitionedVariable
from ...graph.variables.ref_and_resource import ResourceVariable
from ...graph.variables.store import trainable_variables
from ...graph.variables.variable import Variable
from .slot_creator import create_slot, create_slot_with_initializer, create_zeros_slot

Hyperparameter: TypeAlias = "float | np.generic | np.ndarray[Any, Any] | Tensor | Variable | Callable[[], Any]"
"""A setting of an optimizer: a number, a scalar tensor or variable, or a function that returns one."""
_INSTEAD = {
    "init": "minimize(loss), which creates the slots",
    "step": "minimize(loss), and run the node that it returns",
    "update": "apply_gradients(pairs of gradient and variable)",
    "zero_grad": "nothing: gradients do not accumulate from step to step",
}
"""Attribute of optimizers in other libraries -> its replacement in Dovetail."""


class Optimizer:
    """Base class of optimizers. `minimize` returns a node that trains.

    A subclass defines `_apply` and, if needed, `_create_slots`, `_prepare` (converts settings to tensors) and `_finish` (adds nodes after
    all updates). A subclass written for TensorFlow 1 may define `_apply_dense` and `_apply_sparse` instead of `_apply`.

    Args:
        use_locking: accepted without effect; updates are always atomic.
        name: name of its nodes and slots.

    Raises:
        ValueError: `name` is empty.
    """

    GATE_NONE = 0
    """Use each gradient as soon as it is computed."""
    GATE_OP = 1
    """Use the gradients of a node when all of that node's gradients are computed."""
    GATE_GRAPH = 2
    """Use gradients when all of them are computed."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raises TypeError for an unknown argument. The message names the one to use."""
        check_arguments(cls.__name__, cls.__init__, kwargs)
        return super().__new__(cls)

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise ValueError("Must specify the optimizer name")
        self._use_locking = use_locking
        self._name = name
        self._slots: dict[str, dict[Variable, Any]] = {}
        self._non_slot: dict[tuple[Any, str], Any] = {}

    def __repr__(self) -> str:
        return f"<dt.train.{type(self).__name__} '{self._name}'>"

    if not TYPE_CHECKING:  # to a type checker an unknown attribute is an error

        def __getattr__(self, name: str) -> Never:
            """Raises AttributeError. For an attribute of other libraries' optimizers, the message names its replacement."""
            raise no_attribute(self, name, _INSTEAD)

    def get_name(self) -> str:
        """The name of the optimizer."""
        return self._name

    # --- gradients and updates ------------------------------------------------------------------------------

    def minimize(
        self,
        loss: Tensor | Callable[[], Tensor],
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Node:
        """A node that computes the gradients of `loss`, and updates the variables with them.

        Args:
            loss: a tensor of floating type to minimize, or a function that returns one.
            global_step: an integer variable to increment after the update, or None.
            var_list: the variables to update; None: all trainable variables. A partitioned variable stands for its parts.
            gate_gradients: when gradients may be used: GATE_NONE, GATE_OP or GATE_GRAPH.
            aggregation_method: accepted without effect.
            colocate_gradients_with_ops: see `dt.gradients`.
            name: name of the node; None: the optimizer's name.
            grad_loss: gradient of the loss, of its shape; None: ones.

        Raises:
            ValueError: there are no variables, or the loss depends on none of them.

        >>> train_op = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
        """
        grads_and_vars = self.compute_gradients(
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        if all(g is None for g, _ in grads_and_vars):
            raise ValueError(
                "No gradients provided for any variable, check your graph for ops that do not support "
                f"gradients, between variables {[v.name for _, v in grads_and_vars]} and loss {loss!r}."
            )
        return self.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def compute_gradients(
        self,
        loss: Tensor | Callable[[], Tensor],
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Any, Any]]:
        """Returns pairs of gradient and variable, for `apply_gradients`.

        A gradient is a tensor, `IndexedSlices`, or None if the loss does not depend on the variable. The arguments and errors are those of
        `minimize`.
        """
        if gate_gradients not in (self.GATE_NONE, self.GATE_OP, self.GATE_GRAPH):
            raise ValueError(
                "gate_gradients must be one of: Optimizer.GATE_NONE, Optimizer.GATE_OP, "
                f"Optimizer.GATE_GRAPH. Not {gate_gradients}"
            )
        if callable(loss):
            loss = loss()
        _check_types([loss])
        if grad_loss is not None:
            _check_types([grad_loss])
        if var_list is None:
            with loss.graph.as_default():
                var_list = trainable_variables()
        variables = flatten_variables(var_list)
        if not variables:
            raise ValueError("No variables to optimize: create them first, with dt.get_variable or dt.Variable")
        found = gradients(
            loss,
            variables,
            grad_ys=grad_loss,
            gate_gradients=gate_gradients == self.GATE_OP,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        if gate_gradients == self.GATE_GRAPH:
            found = _gate_on_all(found)
        _check_types([v for g, v in zip(found, variables, strict=True) if g is not None])
        return list(zip(found, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Node:
        """A node that updates each variable with its gradient, and then increments `global_step`.

        Under a distribution strategy, the mean of all replicas' gradients is applied.

        Args:
            grads_and_vars: pairs as `compute_gradients` returns them; a variable whose gradient is None is not changed.
            global_step: an integer variable, or None.
            name: name of the node; None: the optimizer's name.

        Raises:
            TypeError: an element is not a pair of a gradient and a variable.
            ValueError: there are no gradients.
        """
        if has_strategy():
            node: Node = get_strategy().apply_gradients(self, grads_and_vars, global_step, name)
            return node
        return self._apply_locally(self._clipped(grads_and_vars), global_step, name)

    def _clipped(self, pairs: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        """Returns the gradients, clipped as the subclass requires. Under a strategy, they are those of all replicas together."""
        return pairs

    def _apply_locally(self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any, name: str | None) -> Node:
        given = [(_as_gradient(g), v) for g, v in grads_and_vars]
        if not given:
            raise ValueError("No variables provided.")
        for _, v in given:
            if isinstance(v, Tensor):
                raise NotImplementedError(f"Trying to update a Tensor {v!r}: gradients can update only variables")
            if not isinstance(v, Variable):
                raise TypeError(f"Gradients can update only variables, not {v!r}")
        pairs = [(g, v) for g, v in given if g is not None]
        if not pairs:
            raise ValueError(f"No gradients provided for any variable: {[v.name for _, v in given]}.")
        graph = pairs[0][1].graph
        with graph.as_default():
            with graph.init_scope():  # slots outlive the step
                self._create_slots([v for _, v in pairs])
            with graph.name_scope(name or self._name) as scope:
                self._prepare()
                updates = []
                for grad, variable in pairs:
                    with graph.name_scope("update_" + variable.op.name), graph.colocate_with(variable):
                        updates.append(_as_node(self._update(grad, variable)))
                if global_step is None:
                    train_op = self._finish(updates, scope)
                else:
                    with (
                        graph.control_dependencies([self._finish(updates, "update")]),
                        graph.colocate_with(global_step),
                    ):
                        train_op = _increment(global_step, scope)
        kept = graph.get_collection_ref(GraphKeys.TRAIN_OP)
        if train_op not in kept:
            kept.append(train_op)
        return train_op

    # --- what subclasses define -----------------------------------------------------------------------------

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        """Returns a node that updates the variable with a dense gradient or, if `indices` is given, with rows of one."""
        raise NotImplementedError

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        """Creates the missing slots of these variables."""

    def _prepare(self) -> None:
        """Converts settings to tensors, under the optimizer's name scope."""

    def _finish(self, update_ops: Sequence[Node], name_scope: str) -> Node:
        """Returns a node with the name `name_scope` that runs after all updates."""
        node: Node = group(*update_ops, name=name_scope)
        return node

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        return self._apply(var, grad, None)

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        return self._apply(var, grad.values, grad.indices)

    def _update(self, grad: Any, variable: Any) -> Any:
        if isinstance(grad, IndexedSlices):
            if variable.constraint is not None:
                raise RuntimeError(f"Cannot use a constraint function on a sparse variable ('{variable.name}').")
            return self._apply_sparse(grad, variable)
        update = self._apply_dense(grad, variable)
        if variable.constraint is None:
            return update
        with variable.graph.control_dependencies([_as_node(update)]):
            return variable.assign(variable.constraint(variable.read_value()))

    # --- slots ----------------------------------------------------------------------------------------------

    def get_slot_names(self) -> list[str]:
        """The names of slots, sorted."""
        return sorted(self._slots)

    def get_slot(self, var: Any, name: str) -> Any:
        """The slot `name` of a variable, or None."""
        return self._slots.get(name, {}).get(var)

    def variables(self) -> list[Any]:
        """All variables of the optimizer in the default graph, sorted by name: slots, and others such as `beta1_power`."""
        kept = [slot for slots in self._slots.values() for slot in slots.values()]
        graph = get_default_graph()
        return sorted((v for v in (*kept, *self._non_slot.values()) if v.graph is graph), key=lambda v: str(v.name))

    def _slot_dict(self, slot_name: str) -> dict[Variable, Any]:
        return self._slots.setdefault(slot_name, {})

    def _get_or_make_slot(self, var: Any, val: Tensor, slot_name: str, op_name: str) -> Any:
        slots = self._slot_dict(slot_name)
        if var not in slots:
            slots[var] = create_slot(var, val, op_name)
        return slots[var]

    def _get_or_make_slot_with_initializer(
        self, var: Any, initializer: Any, shape: Any, dtype: Any, slot_name: str, op_name: str
    ) -> Any:
        slots = self._slot_dict(slot_name)
        if var not in slots:
            slots[var] = create_slot_with_initializer(var, initializer, shape, dtype, op_name)
        return slots[var]

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        slots = self._slot_dict(slot_name)
        if var not in slots:
            slots[var] = create_zeros_slot(var, op_name)
        return slots[var]

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any) -> Any:
        """Returns a variable of the whole optimizer, one per graph, colocated with `colocate_with`."""
        key = (colocate_with.graph, name)
        if key not in self._non_slot:
            with colocate_with.graph.colocate_with(colocate_with):
                self._non_slot[key] = Variable(
                    initial_value,
                    name=name,
                    trainable=False,
                    use_resource=isinstance(colocate_with, ResourceVariable),
                )
        return self._non_slot[key]

    def _get_non_slot_variable(self, name: str, graph: Any = None) -> Any:
        return self._non_slot.get((graph or get_default_graph(), name))


class WrapperOptimizer(Optimizer):
    """Base of optimizers that wrap another one. The wrapped optimizer applies the gradients and owns the slots."""

    def __init__(self, opt: Optimizer, use_locking: bool, name: str) -> None:
        super().__init__(use_locking, name)
        self._opt = opt

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Node:
        """Apply gradients with the wrapped optimizer."""
        return self._opt.apply_gradients(grads_and_vars, global_step, name)

    def get_slot(self, var: Any, name: str) -> Any:
        """The wrapped optimizer's slot of that name."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Names of the wrapped optimizer's slots."""
        return self._opt.get_slot_names()

    def variables(self) -> list[Any]:
        """The wrapped optimizer's variables."""
        return self._opt.variables()


def as_type(tensor: Tensor, dtype: DType) -> Tensor:
    """Casts a tensor to an element type, unless it already has it."""
    if tensor.dtype.base is dtype.base:
        return tensor

    changed: Tensor = cast(tensor, dtype.base)
    return changed


def flatten_variables(var_list: Any) -> list[Any]:
    """Flattens lists, tuples and views of dictionaries' values. A partitioned variable is replaced by its parts."""
    if isinstance(var_list, (list, tuple, ValuesView, PartitionedVariable)):
        return [v for item in var_list for v in flatten_variables(item)]
    return [var_list]


def _check_types(tensors: Sequence[Any]) -> None:
    for t in tensors:
        if t.dtype.base not in FLOATS:
            raise ValueError(
                f"Invalid type {t.dtype.name} for {t.name}, expected: {', '.join(f.name for f in FLOATS)}."
            )


def _as_gradient(grad: Any) -> Any:
    if grad is None or isinstance(grad, IndexedSlices):
        return grad
    try:
        return convert(grad)
    except TypeError:
        raise TypeError(f"Gradient must be convertible to a Tensor or IndexedSlices, or None: {grad!r}") from None


def _gate_on_all(grads: Sequence[Any]) -> list[Any]:
    """Returns copies of the gradients, each of which waits for all gradients."""
    known = [g for g in grads if g is not None]
    if not known:
        return list(grads)
    with known[0].graph.control_dependencies([g.op for g in known]):
        return [None if g is None else map_values(identity, g) for g in grads]


def _increment(global_step: Any, name: str) -> Node:
    if isinstance(global_step, ResourceVariable):
        return change_resource("AssignAddVariableOp", global_step.handle, 1, name)
    return _as_node(assign_add(global_step, 1, name=name))


def _as_node(update: Any) -> Node:
    node: Node = update if isinstance(update, Node) else update.op
    return node
