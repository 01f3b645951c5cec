"""Cells of recurrent networks, TensorFlow 1's.

A cell is a function from (what comes in, its state) to (what goes out, its new state). Its variables are `kernel` and `bias` in a
variable scope of the cell's own; a cell that is called again uses them again. Sources of the formulas are named at each cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ....graph.core.build import convert
from ....graph.core.constant_value import static_value
from ....graph.core.dtypes import as_dtype
from ....graph.core.graph import Tensor
from ....graph.core.nest import flatten, pack
from ....graph.core.shape import TensorShape
from ....graph.ops.array.concat_stack import concat, split
from ....graph.ops.array.creation import zeros
from ....graph.ops.array.shapes import shape
from ....graph.ops.linalg.linalg import matmul
from ....graph.ops.math.clip import clip_by_value
from ....graph.ops.math.elementwise import sigmoid, tanh
from ....graph.ops.nn.dense import bias_add
from ....graph.variables.initializers import constant_initializer, zeros_initializer
from ....graph.variables.partitioned import PartitionedVariable, fixed_size_partitioner
from ....graph.variables.scope import get_variable, variable_scope

Activation = Callable[[Tensor], Tensor]


class LSTMStateTuple(NamedTuple):
    """State of an LSTM: what it remembers, and what it told last."""

    c: Any
    h: Any


class RNNCell:
    """What all cells can do. A cell of your own defines `state_size`, `output_size`, and `call(inputs, state)` or `__call__`.

    Args:
        trainable: whether optimizers change its variables. name: name of its variable scope; None: after the class.

    Attributes:
        state_size: size of the state's last axis, or a structure of sizes. output_size: the same of what goes out.
    """

    def __init__(self, trainable: bool = True, name: str | None = None, dtype: Any = None, **_: Any) -> None:
        self._trainable, self._name = trainable, name
        self._dtype = None if dtype is None else as_dtype(dtype)
        self._reuse: bool | None = None
        self._scope: Any = None  # the variable scope of the first call
        self._made: list[Any] = []

    @property
    def state_size(self) -> Any:
        """Size, or structure of sizes, of the state."""
        raise NotImplementedError("A cell must say its state_size")

    @property
    def output_size(self) -> Any:
        """Size, or structure of sizes, of what goes out."""
        raise NotImplementedError("A cell must say its output_size")

    @property
    def variables(self) -> list[Any]:
        """The cell's variables; none before the first call."""
        return list(getattr(self, "_made", ()))

    @property
    def weights(self) -> list[Any]:
        """The same."""
        return self.variables

    @property
    def trainable_variables(self) -> list[Any]:
        """Those that optimizers change."""
        return [v for v in self.variables if v.trainable] if getattr(self, "_trainable", True) else []

    @property
    def trainable_weights(self) -> list[Any]:
        """The same."""
        return self.trainable_variables

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """One step: what goes out, and the new state."""
        raise NotImplementedError("A cell must define call(inputs, state)")

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """One step.

        Args:
            inputs: `[batch, features]`. state: as of `zero_state`. scope: name of the variable scope, or one.

        Returns:
            What goes out, `[batch, output_size]`, and the new state.
        """
        with self._naming(scope):
            return self.call(inputs, state)

    @contextmanager
    def _naming(self, scope: Any) -> Iterator[None]:
        kept = getattr(self, "_scope", None)  # a subclass may not have called __init__
        if kept is not None:
            opened = variable_scope(kept, reuse=True, auxiliary_name_scope=False)
        elif scope is not None:
            opened = variable_scope(scope, reuse=getattr(self, "_reuse", None))
        else:
            wanted, default = getattr(self, "_name", None), _snake_case(type(self).__name__)
            reuse = getattr(self, "_reuse", None)
            opened = variable_scope(default if reuse and wanted is None else wanted, default, reuse=reuse)
        with opened as found:
            yield
        self._scope = found

    def _variable(
        self, name: str, dims: Sequence[int], like: Tensor, initializer: Any = None, shards: int | None = None
    ) -> Any:
        """A variable of the cell, whose value has the type of `like`; in so many parts."""
        partitioner = None if shards is None else fixed_size_partitioner(shards)
        found = get_variable(
            name, dims, like.dtype.base, initializer, trainable=self._trainable, partitioner=partitioner
        )
        in_parts = isinstance(found, PartitionedVariable)
        for part in found if in_parts else [found]:
            if all(part is not v for v in self._made):
                self._made.append(part)
        return convert(found) if in_parts else found

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Zeros in the structure of `state_size`, each `[batch_size, size]`.

        Args:
            batch_size: a number, or a scalar int32 tensor. dtype: a floating-point type.
        """
        sizes = [dims_of_size(s) for s in flatten(self.state_size)]
        return pack(self.state_size, [_zeros(batch_size, d, dtype) for d in sizes])

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> Any:
        """As `zero_state`, with batch size and type of `inputs` `[batch, ...]` where it is given; ValueError: it has others."""
        if inputs is not None:
            given = convert(inputs)
            known = static_value(batch_size) if isinstance(batch_size, Tensor) else batch_size
            if known is not None and (given.dims is None or known != given.dims[0]):
                raise ValueError(
                    f"batch size from input tensor is different from the input param. Input tensor: {given!r}, batch_size: {known}"
                )
            if dtype is not None and as_dtype(dtype).base is not given.dtype.base:
                raise ValueError(
                    f"dtype from input tensor is different from the input param. Input tensor: {given!r}, dtype: {as_dtype(dtype).name}"
                )
            batch_size, dtype = batch_of(given, 0), given.dtype.base
        if batch_size is None or dtype is None:
            raise ValueError("batch_size and dtype cannot be None while constructing initial state without inputs")
        return self.zero_state(batch_size, dtype)


def batch_of(tensor: Tensor, axis: int) -> Any:
    """Size of an axis: a number where it is known, else a tensor."""
    known = None if tensor.dims is None else tensor.dims[axis]
    return shape(tensor)[axis] if known is None else known


def _zeros(batch_size: Any, dims: list[int], dtype: Any) -> Tensor:
    found: Tensor = zeros([batch_size, *dims], as_dtype(dtype))
    if not isinstance(batch_size, Tensor):
        return found
    found.set_shape([None, *dims])
    return found


def dims_of_size(size: Any) -> list[int]:
    """The axes behind the batch that an entry of `state_size` means."""
    if not isinstance(size, TensorShape):
        return [int(size)]
    if not size.is_fully_defined():
        raise ValueError(f"A cell's state must have known sizes, not {size}")
    return [d for d in size.dims_tuple or () if d is not None]


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _features(inputs: Any) -> tuple[Tensor, int]:
    tensor = convert(inputs, name="inputs")
    if not tensor.dtype.is_floating:
        raise ValueError(f"RNN cell only supports floating point inputs, but saw dtype: {tensor.dtype.name}")
    if tensor.dims is None or len(tensor.dims) != 2 or tensor.dims[-1] is None:
        raise ValueError(f"A cell takes [batch, features] with a known number of features, not {tensor!r}")
    return tensor, tensor.dims[-1]


class _Simple(RNNCell):
    """A cell of so many units, whose state and output have that size."""

    def __init__(
        self, num_units: int, activation: Any = None, reuse: bool | None = None, name: str | None = None,
        dtype: Any = None, trainable: bool = True, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__(trainable, name, dtype)
        self._num_units, self._reuse = int(num_units), reuse
        self._activation: Activation = _activation(activation)

    @property
    def state_size(self) -> Any:
        return self._num_units

    @property
    def output_size(self) -> Any:
        return self._num_units

    def _affine(
        self, parts: Sequence[Tensor], units: int, kernel: Any = None, bias: Any = None, shards: int | None = None
    ) -> Tensor:
        """`concat(parts) @ kernel + bias`, the kernel in so many parts."""
        x = concat(parts, 1)
        assert x.dims is not None and x.dims[1] is not None
        weights = self._variable("kernel", [x.dims[1], units], x, kernel, shards)
        return bias_add(matmul(x, weights), self._variable("bias", [units], x, bias or zeros_initializer()))


def _activation(activation: Any) -> Activation:
    if isinstance(activation, str):
        from ..keras import activations

        activation = activations.get(activation)
    found: Activation = activation or tanh
    return found


class BasicRNNCell(_Simple):
    """The simplest cell: `h = activation([x, h] @ kernel + bias)` (Elman, 1990).

    Args:
        num_units: size of state and output. activation: a function, or the name of one; None: tanh.
        reuse: whether variables of that name are used again.

    >>> outputs, last = dt.nn.dynamic_rnn(dt.nn.rnn_cell.BasicRNNCell(32), x, dtype=dt.float32)
    """

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        x, _ = _features(inputs)
        h = self._activation(self._affine([x, convert(state)], self._num_units))
        return h, h


class GRUCell(_Simple):
    """A gated recurrent unit (Cho et al., https://arxiv.org/abs/1406.1078).

    `r, u = sigmoid([x, h] @ gates)`, `h' = u * h + (1 - u) * activation([x, r * h] @ candidate)`.

    Args:
        num_units, activation, reuse: as of `BasicRNNCell`. kernel_initializer: of both kernels; None: the scope's.
        bias_initializer: of both biases; None: ones for the gates, zeros for the candidate.
    """

    def __init__(
        self, num_units: int, activation: Any = None, reuse: bool | None = None, kernel_initializer: Any = None,
        bias_initializer: Any = None, name: str | None = None, dtype: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)
        self._kernel_initializer, self._bias_initializer = kernel_initializer, bias_initializer

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        (x, _), h = _features(inputs), convert(state)
        with variable_scope("gates"):
            bias = self._bias_initializer or constant_initializer(1.0)
            gates = self._affine([x, h], 2 * self._num_units, self._kernel_initializer, bias)
        r, u = split(sigmoid(gates), 2, axis=1)
        with variable_scope("candidate"):
            inner = self._affine([x, r * h], self._num_units, self._kernel_initializer, self._bias_initializer)
        new = u * h + (1 - u) * self._activation(inner)
        return new, new


class BasicLSTMCell(_Simple):
    """An LSTM without peepholes (Zaremba et al., https://arxiv.org/abs/1409.2329).

    `i, j, f, o = split([x, h] @ kernel + bias)`, `c' = c * sigmoid(f + forget_bias) + sigmoid(i) * activation(j)`,
    `h' = activation(c') * sigmoid(o)`.

    Args:
        num_units, activation, reuse: as of `BasicRNNCell`. forget_bias: added to the forget gate.
        state_is_tuple: whether the state is an `LSTMStateTuple`, or both parts beside each other in one tensor.
    """

    def __init__(
        self, num_units: int, forget_bias: float = 1.0, state_is_tuple: bool = True, activation: Any = None,
        reuse: bool | None = None, name: str | None = None, dtype: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)
        self._forget_bias, self._state_is_tuple = forget_bias, state_is_tuple

    @property
    def state_size(self) -> Any:
        units = self._num_units
        return LSTMStateTuple(units, units) if self._state_is_tuple else 2 * units

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        (x, _), (c, h) = _features(inputs), state if self._state_is_tuple else split(state, 2, axis=1)
        i, j, f, o = split(self._affine([x, convert(h)], 4 * self._num_units), 4, axis=1)
        new_c = c * sigmoid(f + self._forget_bias) + sigmoid(i) * self._activation(j)
        new_h = self._activation(new_c) * sigmoid(o)
        return new_h, LSTMStateTuple(new_c, new_h) if self._state_is_tuple else concat([new_c, new_h], 1)


class LSTMCell(_Simple):
    """An LSTM with peepholes, clipping and projection, each if it is asked for (Sak et al., 2014).

    Args:
        num_units, activation, reuse, forget_bias, state_is_tuple: as of `BasicLSTMCell`.
        use_peepholes: whether the gates see what the cell remembers.
        cell_clip: bound for what it remembers; None: none. initializer: of kernels; None: the scope's.
        num_proj: size that the output is projected to; None: none. proj_clip: bound for the projection.
        num_unit_shards, num_proj_shards: into how many parts the kernel, and that of the projection, are cut.
    """

    def __init__(
        self, num_units: int, use_peepholes: bool = False, cell_clip: float | None = None, initializer: Any = None,
        num_proj: int | None = None, proj_clip: float | None = None, num_unit_shards: int | None = None,
        num_proj_shards: int | None = None, forget_bias: float = 1.0, state_is_tuple: bool = True,
        activation: Any = None, reuse: bool | None = None, name: str | None = None, dtype: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)
        self._num_unit_shards, self._num_proj_shards = num_unit_shards, num_proj_shards
        self._use_peepholes, self._cell_clip, self._initializer = use_peepholes, cell_clip, initializer
        self._num_proj, self._proj_clip = num_proj, proj_clip
        self._forget_bias, self._state_is_tuple = forget_bias, state_is_tuple

    @property
    def state_size(self) -> Any:
        sizes = (self._num_units, self.output_size)
        return LSTMStateTuple(*sizes) if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        return self._num_proj or self._num_units

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        x, _ = _features(inputs)
        c, h = state if self._state_is_tuple else split(state, [self._num_units, self.output_size], axis=1)
        gates = self._affine([x, convert(h)], 4 * self._num_units, self._initializer, shards=self._num_unit_shards)
        i, j, f, o = split(gates, 4, axis=1)
        if self._use_peepholes:
            f = f + self._peephole("w_f_diag", x) * c
            i = i + self._peephole("w_i_diag", x) * c
        new_c = sigmoid(f + self._forget_bias) * c + sigmoid(i) * self._activation(j)
        new_c = _clipped(new_c, self._cell_clip)
        if self._use_peepholes:
            o = o + self._peephole("w_o_diag", x) * new_c
        new_h = sigmoid(o) * self._activation(new_c)
        if self._num_proj:
            with variable_scope("projection"):
                dims, shards = [self._num_units, self._num_proj], self._num_proj_shards
                kernel = self._variable("kernel", dims, x, self._initializer, shards)
                new_h = _clipped(matmul(new_h, kernel), self._proj_clip)
        return new_h, LSTMStateTuple(new_c, new_h) if self._state_is_tuple else concat([new_c, new_h], 1)

    def _peephole(self, name: str, like: Tensor) -> Any:
        return self._variable(name, [self._num_units], like, self._initializer)


def _clipped(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else clip_by_value(x, -bound, bound)


class MultiRNNCell(RNNCell):
    """Cells above each other: each takes what the one below gives out.

    Args:
        cells: the lowest first; each one an object of its own. state_is_tuple: whether the state is a tuple of the cells'
            states, or all beside each other in one tensor.

    Raises:
        ValueError: no cells. TypeError: not a list of them.
    """

    def __init__(self, cells: Sequence[RNNCell], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not isinstance(cells, (list, tuple)):
            raise TypeError(f"cells must be a list of cells, not {cells!r}")
        if not cells:
            raise ValueError("Must specify at least one cell for MultiRNNCell.")
        if not state_is_tuple and any(isinstance(c.state_size, (list, tuple)) for c in cells):
            raise ValueError("Some cells return tuples of states, but the flag state_is_tuple is not set.")
        self._cells, self._state_is_tuple = list(cells), state_is_tuple

    @property
    def state_size(self) -> Any:
        sizes = tuple(c.state_size for c in self._cells)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        return self._cells[-1].output_size

    @property
    def variables(self) -> list[Any]:
        """Those of the cells."""
        return [v for c in self._cells for v in c.variables]

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """A tuple of the cells' own."""
        if self._state_is_tuple:
            return tuple(c.zero_state(batch_size, dtype) for c in self._cells)
        return super().zero_state(batch_size, dtype)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        sizes = [c.state_size for c in self._cells]
        if self._state_is_tuple and (not isinstance(state, (list, tuple)) or len(state) != len(sizes)):
            raise ValueError(f"Expected state to be a tuple of length {len(sizes)}, but received: {state}")
        states = list(state) if self._state_is_tuple else split(state, sizes, axis=1)
        new = []
        for number, (cell, before) in enumerate(zip(self._cells, states, strict=True)):
            with variable_scope(f"cell_{number}"):
                inputs, after = cell(inputs, before)
            new.append(after)
        return inputs, tuple(new) if self._state_is_tuple else concat(new, 1)


__all__ = [
    "BasicLSTMCell",
    "BasicRNNCell",
    "GRUCell",
    "LSTMCell",
    "LSTMStateTuple",
    "MultiRNNCell",
    "RNNCell",
    "batch_of",
    "dims_of_size",
]
