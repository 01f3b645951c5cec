"""Cells around other cells: dropout, residuals, devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....graph.core.default_graph import device as device_block
from ....graph.core.dtypes import as_dtype
from ....graph.core.graph import Tensor
from ....graph.core.nest import flatten, map_structure, pack
from ....graph.ops.math.elementwise import floor
from ....graph.ops.nn.dense import dropout
from ....graph.ops.random.random import random_uniform
from .cells import LSTMStateTuple, RNNCell, dims_of_size


class _Wrapper(RNNCell):
    """A cell around another one. It has no variable scope of its own."""

    def __init__(self, cell: RNNCell) -> None:
        if not hasattr(cell, "state_size") or not callable(cell):
            raise TypeError(f"The parameter cell must be a cell, not {cell!r}")
        super().__init__()
        self._cell = cell

    @property
    def wrapped_cell(self) -> RNNCell:
        """The inner cell."""
        return self._cell

    @property
    def state_size(self) -> Any:
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        return self._cell.output_size

    @property
    def variables(self) -> list[Any]:
        """Those of the inner cell."""
        return self._cell.variables

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The inner cell's."""
        return self._cell.zero_state(batch_size, dtype)


class DropoutWrapper(_Wrapper):
    """Dropout of what goes in, what goes out, and the state.

    Args:
        input_keep_prob, output_keep_prob, state_keep_prob: share of the elements that stay; numbers or scalar tensors. What an
            LSTM remembers (`c`) stays whole.
        variational_recurrent: the same elements in all steps (Gal & Ghahramani, https://arxiv.org/abs/1512.05287). It needs
            `dtype`, and `input_size` where what goes in is dropped.
        seed: for the draws.
    """

    def __init__(
        self, cell: RNNCell, input_keep_prob: Any = 1.0, output_keep_prob: Any = 1.0, state_keep_prob: Any = 1.0,
        variational_recurrent: bool = False, input_size: Any = None, dtype: Any = None, seed: int | None = None,
        dropout_state_filter_visitor: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__(cell)
        for name, prob in (("input", input_keep_prob), ("output", output_keep_prob), ("state", state_keep_prob)):
            if isinstance(prob, (int, float)) and not 0 <= prob <= 1:
                raise ValueError(f"Parameter {name}_keep_prob must be between 0 and 1: {prob}")
        if dropout_state_filter_visitor is not None:
            raise ValueError(
                "dropout_state_filter_visitor is not supported: all of the state but an LSTM's c is dropped"
            )
        self._input, self._output, self._state, self._seed = input_keep_prob, output_keep_prob, state_keep_prob, seed
        self._noise: dict[str, list[Tensor]] | None = None
        if variational_recurrent:
            if dtype is None:
                raise ValueError("When variational_recurrent=True, dtype must be provided")
            if _drops(input_keep_prob) and input_size is None:
                raise ValueError("When variational_recurrent=True and input_keep_prob < 1, input_size must be provided")
            sizes = {"input": input_size or 1, "output": cell.output_size, "state": cell.state_size}
            self._noise = {
                what: [random_uniform([1, *dims_of_size(s)], seed=seed, dtype=as_dtype(dtype)) for s in flatten(size)]
                for what, size in sizes.items()
            }

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """One step of the inner cell, with dropout around it."""
        out, new = self._cell(self._dropped("input", inputs, self._input), state, scope=scope)
        if _drops(self._state):
            leaves = flatten(self._dropped("state", new, self._state))
            keeps = flatten(_remembered(new))
            new = pack(new, [t if keep else d for t, d, keep in zip(flatten(new), leaves, keeps, strict=True)])
        return self._dropped("output", out, self._output), new

    def _dropped(self, what: str, values: Any, keep_prob: Any) -> Any:
        if not _drops(keep_prob):
            return values
        leaves = flatten(values)
        if self._noise is None:
            return pack(values, [dropout(x, keep_prob, seed=self._seed) for x in leaves])
        masks = [floor(keep_prob + n) for n in self._noise[what]]
        return pack(values, [x / keep_prob * m for x, m in zip(leaves, masks, strict=True)])


def _drops(keep_prob: Any) -> bool:
    return not isinstance(keep_prob, (int, float)) or keep_prob < 1


def _remembered(state: Any) -> Any:
    """The structure of a state with True where an LSTM's `c` stands."""
    if isinstance(state, LSTMStateTuple):
        return LSTMStateTuple(True, False)
    if isinstance(state, (list, tuple)):
        return pack(state, [leaf for part in state for leaf in flatten(_remembered(part))])
    return map_structure(lambda _: False, state)


class ResidualWrapper(_Wrapper):
    """What goes in is added to what goes out.

    Args:
        residual_fn: function of (what goes in, what goes out) in place of the sum.
    """

    def __init__(self, cell: RNNCell, residual_fn: Callable[[Any, Any], Any] | None = None, **_: Any) -> None:
        super().__init__(cell)
        self._residual = residual_fn or (lambda i, o: map_structure(lambda a, b: a + b, i, o))

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """One step of the inner cell, and the sum."""
        out, new = self._cell(inputs, state, scope=scope)
        return self._residual(inputs, out), new


class DeviceWrapper(_Wrapper):
    """A cell that runs on a device: `dt.device(device)` around its steps.

    >>> cells = [DeviceWrapper(BasicLSTMCell(256), f"/gpu:{i}") for i in range(4)]
    """

    def __init__(self, cell: RNNCell, device: Any, **_: Any) -> None:
        super().__init__(cell)
        self._device = device

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The inner cell's, on the device."""
        with device_block(self._device):
            return self._cell.zero_state(batch_size, dtype)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """One step of the inner cell on the device."""
        with device_block(self._device):
            return self._cell(inputs, state, scope=scope)


__all__ = ["DeviceWrapper", "DropoutWrapper", "ResidualWrapper"]
