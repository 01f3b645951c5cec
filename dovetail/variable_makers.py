"""Which trace of which compiled function made a variable, when another one wants it to be different.

Whichever function is traced first makes the variable, on its device and with its initializer. When one that only reads it comes first,
`share_with` loses what the other one asks for:

    predict: get_variable("w", [2, 1])                                     traced first: no device, the default initializer
    train:   with dt.device("/job:ps"): get_variable("w", ..., zeros)      finds that variable: a warning says what is lost

Only the function that owns the graph, which the others share, is warned. Another one may well read a variable inside a device block of
its own: the block then says where the reading op runs.

Variables are shared by name. A layer without a name makes new ones, which were never trained: a warning says so if another function has
trainable variables of the same shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .graph.core.default_graph import get_default_graph
from .graph.core.dtypes import float64
from .graph.core.graph import Tensor
from .graph.core.shape import text
from .graph.core.source_location import warn_caller
from .graph.variables.partitioned import PartitionedVariable

_UNNAMED = re.compile(r"/(?:dense|conv[123]d(?:_transpose)?|separable_conv[12]d|batch_normalization)(?:_\d+)?/")
"""In names of variables: the scope of a layer to which the program gave no name."""


@dataclass(frozen=True)
class _Maker:
    function: str
    has_initializer: bool


class VariableMakers:
    """The functions that made the variables of one graph."""

    def __init__(self) -> None:
        self._of: dict[Any, _Maker] = {}
        self._warned: set[str] = set()  # functions that made variables which they may have meant to share

    def note(self, variable: Any, function: str, is_owner: bool, initializer: Any) -> None:
        """A trace got a variable. Warns, once for each variable, when the owner finds one that another made differently.

        Args:
            variable: what `get_variable` returned.
            function: name of the function that is being traced.
            is_owner: whether it owns the graph.
            initializer: what this trace asks for; None: the default.
        """
        if variable not in self._of:
            self._warn_of_new(variable, function)
            self._of[variable] = _Maker(function, initializer is not None)
            return
        maker = self._of[variable]
        if not is_owner or maker.function == function:
            return
        self._of[variable] = _Maker(function, True)
        node = next(iter(variable)).op if isinstance(variable, PartitionedVariable) else variable.op
        block = get_default_graph().scopes.device
        made, lost = [], []
        if not node.device and block is not None and not block.clears:
            made.append("without a device")
            lost.append(f"the device block {block.describe()} at {block.source}")
        if initializer is not None and not maker.has_initializer:
            made.append("with the default initializer")
            lost.append("the initializer")
        if made:
            warn_caller(
                f"'{node.name}' was made by '{maker.function}' at {node.source}, {' and '.join(made)}: the first trace makes a variable. "
                f"Of '{function}', {' and '.join(lost)} have no effect on it. Call `{function}` or `{function}.plan` before "
                f"`{maker.function}`, or ask for the same in both"
            )

    def _warn_of_new(self, variable: Any, function: str) -> None:
        """Warn, once for each function, if a layer without a name makes a variable like one of another function."""
        is_whole = not isinstance(variable, PartitionedVariable)
        if function in self._warned or not is_whole or not variable.trainable or not _UNNAMED.search(variable.op.name):
            return
        like = (variable.shape.as_list(), variable.dtype.base)
        for other, maker in self._of.items():
            if isinstance(other, PartitionedVariable) or maker.function == function or not other.trainable:
                continue
            if (other.shape.as_list(), other.dtype.base) == like:
                self._warned.add(function)
                warn_caller(
                    f"'{function}' makes a new variable '{variable.op.name}', which it does not share: '{maker.function}' has "
                    f"'{other.op.name}' of the same shape. Variables are shared by name. Give the layer the same name in both, as in "
                    'dt.layers.dense(x, 10, name="logits")'
                )
                return


class FirstArguments:
    """The types and shapes of the arguments of the first trace: layers make their variables for them."""

    def __init__(self) -> None:
        self._function = ""
        self._known: dict[str, str] = {}  # by name

    def note(self, function: str, arguments: Mapping[str, Any]) -> None:
        """A trace was made. Only the first one counts."""
        if not self._function:
            self._function, self._known = function, _described(arguments)

    def explain(self, error: Exception, function: str, arguments: Mapping[str, Any]) -> None:
        """Note at an error which arguments are float64, if an operand is, and which differ from those of the first trace."""
        wide = [name for name, t in arguments.items() if isinstance(t, Tensor) and t.dtype is float64]
        if wide and " float64 (" in str(error):  # an operand of that type; other errors list all types
            wanted = "int64" if "must be int32 or int64" in str(error) else "float32"
            error.add_note(
                f"Argument `{wide[0]}` is float64, as NumPy makes arrays unless told otherwise: pass it .astype(np.{wanted})"
            )
        for name, now in _described(arguments).items():
            before = self._known.get(name, now)
            if now != before:
                of_another = "" if function == self._function else f", of '{self._function}',"
                error.add_note(f"Argument `{name}` is {now}; in the first call{of_another} it was {before}")


def _described(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{t.dtype.name} {text(t.dims)}" for name, t in arguments.items() if isinstance(t, Tensor)}
