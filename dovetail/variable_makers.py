"""Warnings about variables that several compiled functions share: which function created a variable, and who wanted it otherwise.

The function that is traced first creates the variable, with its device and initializer. With `share_with`, this may be a function that
only reads the variable. The device and the initializer of the other function then have no effect:

    predict: get_variable("w", [2, 1])                                     traced first: no device, the default initializer
    train:   with dt.device("/job:ps"): get_variable("w", ..., zeros)      gets that variable, with a warning

Only the function that owns the shared graph warns. The others may read a variable in a device block, which then places the read op.

Variables are shared by name. A layer without a name creates new variables, which were never trained. A warning says so if another
function has trainable variables of the same shape.
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
"""In the name of a variable: the scope of a layer that the program did not name."""


@dataclass(frozen=True)
class _Maker:
    function: str
    has_initializer: bool


class VariableMakers:
    """The functions that created the variables of one graph."""

    def __init__(self) -> None:
        self._of: dict[Any, _Maker] = {}
        self._warned: set[str] = (
            set()
        )  # functions that got a warning about variables which they may have meant to share

    def note(self, variable: Any, function: str, is_owner: bool, initializer: Any) -> None:
        """Record that a trace got a variable. Warn, once per variable, if another function created it otherwise than the owner wants.

        Args:
            variable: the result of `get_variable`.
            function: name of the function that is being traced.
            is_owner: whether this function owns the graph.
            initializer: the initializer that this trace gave. None: the default.
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
        """Warn, once per function, if a layer without a name creates a variable with the shape and dtype of another function's."""
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
    """The dtypes and shapes of the arguments of the first trace, for which layers created their variables."""

    def __init__(self) -> None:
        self._function = ""
        self._known: dict[str, str] = {}  # by name

    def note(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Record the arguments of a trace. Only the first call has an effect."""
        if not self._function:
            self._function, self._known = function, _described(arguments)

    def explain(self, error: Exception, function: str, arguments: Mapping[str, Any]) -> None:
        """Add notes to an error: which argument is float64, if an operand is, and which arguments differ from those of the first trace."""
        wide = [name for name, t in arguments.items() if isinstance(t, Tensor) and t.dtype is float64]
        if wide and " float64 (" in str(
            error
        ):  # an operand is float64; other errors that contain "float64" list the allowed dtypes
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
