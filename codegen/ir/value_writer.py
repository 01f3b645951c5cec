"""Writes the values of a loop nest as lines of source text; the emitters for CPUs (Numba) and for GPUs (Triton) extend it.

Each value is computed once, where it is first needed, and has a name from there on. Subclasses give the expression of a value and the
order of the loops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable

from .loop_nest import LoopNest, Value

OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
    "xor": "^", "bitand": "&", "bitor": "|", "bitxor": "^", "quotient": "//",
}  # fmt: skip
"""Operations that both dialects write as Python does."""


class ValueWriter(ABC):
    """The lines of a kernel's body.

    Attributes:
        lines: those so far. depth: the indentation of the next one.
        prefix: of the names of values. known: value -> its name in the current scope.
    """

    def __init__(self, loops: LoopNest) -> None:
        self.loops = loops
        self.lines: list[str] = []
        self.depth = 0
        self.prefix = "v"
        self.known: dict[int, str] = {}

    @abstractmethod
    def constant(self, v: Value) -> str:
        """A constant, with its type."""

    @abstractmethod
    def expression(self, number: int) -> str:
        """The expression of a value."""

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.depth + text)

    def nest(self, headers: Iterable[str], body: Callable[[], None]) -> None:
        """Write nested loops around `body`. The values that it computes are not known after them."""
        before, depth = dict(self.known), self.depth
        for header in headers:
            self.line(header)
            self.depth += 1
        body()
        self.known, self.depth = before, depth

    def value(self, number: int) -> str:
        """The name of a value. Emits its computation, with its operands, unless it is known."""
        known = self.known.get(number)
        if known is not None:
            return known
        v = self.loops.values[number]
        if v.op == "constant":
            return self.constant(v)
        assert v.op != "reduce", "a reduction is known before it is used"
        text = self.expression(number)
        name = self.known[number] = f"{self.prefix}{number}"
        self.line(f"{name} = {text}")
        return name

    def not_known(self, roots: Iterable[int], op: str, besides: Container[int] = ()) -> list[int]:
        """The unknown values with operation `op` that the roots depend on, without those in `besides`."""

        def is_known(i: int) -> bool:
            return i in self.known or i in besides or self.loops.values[i].op == "reduce"

        found = self.loops.backward_slice(roots, is_known)
        return [i for i in found if self.loops.values[i].op == op and not is_known(i)]
