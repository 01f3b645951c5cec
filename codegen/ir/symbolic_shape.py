"""Symbolic shapes: sizes that are known only at run time, identified by their origin.

A batch has an unknown size when the graph is built, but most tensors of a training step have that size along some axis. Gradients use
it often: they ask whether an operand was broadcast, and for its shape. This analysis expresses each tensor's sizes as numbers and
products of *axes*. Axes are the sizes of placeholders and of tensors with no better information. Tensors computed from these have the
same axes, or products of them. So two shapes can be known to be equal for every run.

The op's own shape rule (`OpDef.infer`) relates output sizes to input sizes. It is probed with large distinct numbers for the unknown
sizes; if one of these comes out unchanged, that axis is the same. The values of computed shapes follow likewise: ops that move
elements are run on the elements' positions, and products are recorded.

All facts about a node's output hold if the node does not fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.constant_value import moved_inputs
from ...graph.core.dtypes import Array, DType, int32, int64
from ...graph.core.graph import Node, Tensor
from .nodes import PASSED_ON, new_node

_MOST_ELEMENTS = 16  # in a vector of sizes
_DEEPEST = 16  # nodes on the path from a computed shape to its sources
_FIRST_PROBE, _BETWEEN_PROBES = 1_000_000_007, 10_000_019
"""Numbers for unknown sizes: larger than any size that programs write down, and far from each other."""
_MOST_PROBES = 100  # so many fit into an int32
_ENDS = 2 * _FIRST_PROBE + _BETWEEN_PROBES * (_MOST_PROBES - 1)
"""The sum of the smallest and the largest probe: `_ENDS - probe` are the same numbers in reverse order."""
_ALIKE = PASSED_ON | {"BiasAdd", "Cast", "LogSoftmax", "OnesLike", "Softmax", "ZerosLike"}
"""Ops whose output has the shape of their first input."""
_VECTORS = frozenset(("BroadcastArgs", "Shape"))
"""Ops that make vectors of sizes, and nothing else."""
_LOSSES = frozenset(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"))
"""Ops that want labels of the shape that logits have, with or without the last axis."""
CONTROL_FLOW_OPS = frozenset(
    ("Enter", "RefEnter", "Exit", "NextIteration", "LoopCond", "Switch", "RefSwitch", "Merge", "RefMerge", "Placeholder", "NoOp",
     "ControlTrigger")
)  # fmt: skip
"""Ops of which nothing is said: what they give may be of another shape at each turn of a loop."""


@dataclass(frozen=True, slots=True)
class Product:
    """A size: a number times a product of axes, given by their sorted numbers."""

    factor: int
    axes: tuple[int, ...]


Size: TypeAlias = "int | Product"


def product(sizes: Iterable[Size]) -> Size:
    """The sizes multiplied."""
    factor = 1
    axes: list[int] = []
    for s in sizes:
        if isinstance(s, Product):
            factor *= s.factor
            axes += s.axes
        else:
            factor *= s
    return Product(factor, tuple(sorted(axes))) if axes and factor else factor


def quotient(a: Size, b: Size) -> Size | None:
    """The factor a / b, if it is known and neither is known to be 0."""
    mine, theirs = (s if isinstance(s, Product) else Product(s, ()) for s in (a, b))
    if not theirs.factor or mine.factor % theirs.factor:
        return None
    left = list(mine.axes)
    for axis in theirs.axes:
        if axis not in left:
            return None
        left.remove(axis)
    return product([mine.factor // theirs.factor, *(Product(1, (axis,)) for axis in left)])


class SymbolicShapes:
    """The symbolic shapes of the tensors of one partition. `makers`: the nodes that make tensors, where the analysis may use them."""

    def __init__(self, makers: Mapping[Tensor, Node]) -> None:
        self.makers = makers
        self.axes: list[tuple[Tensor, int]] = []  # by number: of which tensor, and which axis
        self._number: dict[tuple[Tensor, int], int] = {}
        self._same: dict[int, int] = {}  # axes that are the same as others, by number
        self._own: dict[Tensor, None] = {}  # tensors with only their static shapes known
        self._dims: dict[Tensor, tuple[Size, ...]] = {}
        self._values: dict[Tensor, Array | None] = {}
        self._met: dict[frozenset[Size], Product] = {}
        self._members: dict[Size, frozenset[Size]] = {}
        self._probes: dict[Size, int] = {}
        self._of_probe: dict[int, Size] = {}
        self.vectors: dict[tuple[DType, tuple[Size, ...]], Tensor] = {}
        """Tensors that hold sizes, in this type."""

    def dims(self, tensor: Tensor) -> tuple[Size, ...] | None:
        """A tensor's sizes; None when its rank is not known."""
        dims = tensor.dims
        if dims is None or None not in dims:
            return dims  # type: ignore[return-value]
        found = self._dims.get(tensor)
        if found is None:
            self._own[tensor] = None
            found = self._dims[tensor] = tuple([self._axis(tensor, i) if d is None else d for i, d in enumerate(dims)])
        return tuple(map(self._now, found)) if self._same else found

    def source_of(self, sizes: tuple[Size, ...]) -> Tensor | None:
        """Add a tensor of these sizes that no node of the partition computes from others, such as a placeholder."""
        return next((t for t in self._own if t not in self.makers and self.dims(t) == sizes), None)

    def _now(self, size: Size) -> Size:
        """A size in terms of one representative of each set of equal axes."""
        if isinstance(size, int) or self._same.keys().isdisjoint(size.axes):
            return size
        return Product(size.factor, tuple(sorted([self._same.get(a, a) for a in size.axes])))

    def _be_same(self, first: Sequence[Size], second: Sequence[Size]) -> None:
        """Record that sizes are equal from here on, because a node requires operands of equal size."""
        for a, b in zip(first, second, strict=False):
            a, b = self._now(a), self._now(b)
            if a != b and self._is_axis(a) and self._is_axis(b):
                ((old,), (new,)) = sorted((a.axes, b.axes), reverse=True)  # type: ignore[union-attr]
                self._same |= {axis: new for axis, to in self._same.items() if to == old} | {old: new}

    def _is_axis(self, size: Size) -> bool:
        """Whether it is the size of one axis that no two operands share."""
        return isinstance(size, Product) and size.factor == len(size.axes) == 1 and size not in self._members

    def _axis(self, tensor: Tensor, axis: int) -> Product:
        number = self._number.setdefault((tensor, axis), len(self.axes))
        if number == len(self.axes):
            self.axes.append((tensor, axis))
        return Product(1, (number,))

    def see(self, node: Node) -> None:
        """Add a node whose inputs have been added."""
        if node.opdef.name in _VECTORS or node.opdef.name == "Pack" and node.outputs[0].dtype in (int32, int64):
            value = self.value(node.outputs[0])
            held = () if value is None or value.ndim != 1 else tuple(value)
            if None not in held and any(isinstance(s, Product) for s in held):
                self.vectors.setdefault((node.outputs[0].dtype, held), node.outputs[0])
        unknown = [t for t in node.outputs if t.dims is not None and None in t.dims]
        if not unknown:
            return
        for t in unknown:
            found = self._made(node, t)
            if found is not None and len(found) == len(t.dims or ()):
                own = zip(found, t.dims or (), strict=True)
                sizes = [d if d is not None else self._axis(t, i) if s is None else s for i, (s, d) in enumerate(own)]
                self._dims[t] = tuple(sizes)

    def _made(self, node: Node, output: Tensor) -> Sequence[Size | None] | None:
        """The sizes of an output, as far as they follow from those of the inputs."""
        op = node.opdef
        if op.name in _ALIKE:
            return self.dims(node.inputs[0])
        if op.name in _LOSSES:
            logits, labels = self.dims(node.inputs[0]), self.dims(node.inputs[1])
            if logits is None or labels is None:
                return None
            self._be_same(logits, labels)
            return logits[: len(output.dims or ())]
        if op.scalar is not None:
            return self._met_dims(node, output)
        if op.name == "Reshape":
            return self.reshaped(node)
        return self._probed(node, output)

    # --- elementwise -----------------------------------------------------------------------------------------------

    def _met_dims(self, node: Node, output: Tensor) -> list[Size | None] | None:
        """The sizes of operands broadcast to each other."""
        rank = len(output.dims or ())
        sizes: list[set[Size]] = [set() for _ in range(rank)]
        for t in node.inputs:
            dims = self.dims(t)
            if dims is None:
                return None
            for at, size in zip(sizes[rank - len(dims) :], dims, strict=True):
                if size != 1:
                    at.add(size)
        return [self._meet(at, output, i) for i, at in enumerate(sizes)]

    def _meet(self, sizes: set[Size], output: Tensor, axis: int) -> Size:
        """The size of operands of these sizes broadcast to each other. None of the sizes is known to be 1."""
        if len(sizes) < 2:
            return next(iter(sizes), 1)
        members = self._members_of(sizes)
        found = self._met.get(members)
        if found is None:
            found = self._met[members] = self._axis(output, axis)
            self._members[found] = members
        return found

    def _members_of(self, sizes: Iterable[Size]) -> frozenset[Size]:
        return frozenset(member for s in sizes for member in self._members.get(s, (s,)))

    def _broadcast(self, a: Array, b: Array) -> Iterable[Size | None]:
        """What two vectors of sizes are broadcast to."""
        rank = max(len(a), len(b))
        for sizes in zip(*((*(1,) * (rank - len(v)), *v) for v in (a, b)), strict=True):
            left = {s for s in sizes if s != 1}
            if len(left) < 2:
                yield next(iter(left), 1)
            else:
                yield None if None in left else self._met.get(self._members_of(left))

    # --- by shape rules --------------------------------------------------------------------------------------------

    def _probed(self, node: Node, output: Tensor) -> list[Size | None] | None:
        """The result of an op's shape rule with probe numbers for the unknown sizes.

        The smaller of two probes is not always the smaller size. So a rule with several of them is asked again with their order
        reversed, and only what it gives both times is known.
        """
        if not node.inputs:
            return None
        probed: set[Size] = set()
        found = self._inferred(node, output, probed)
        if found is None or len(probed) < 2 or not any(isinstance(s, Product) for s in found):
            return found
        again = self._inferred(node, output, probed, reverse=True)
        return again and [a if a == b else None for a, b in zip(found, again, strict=True)]

    def _inferred(
        self, node: Node, output: Tensor, probed: set[Size], *, reverse: bool = False
    ) -> list[Size | None] | None:
        stand_ins = [self._stand_in(t, probed, reverse) for t in node.inputs]
        if all(mine is t for mine, t in zip(stand_ins, node.inputs, strict=True)):
            return None
        try:
            _, dims = node.opdef.infer(stand_ins, node.attrs)[output.value_index]
        except Exception:  # sizes that the rule requires to be equal or divisible
            return None
        if dims is None:
            return None
        return [None if d is None else self._of_probe.get(_ENDS - d if reverse else d) for d in dims]

    def _stand_in(self, tensor: Tensor, probed: set[Size], reverse: bool) -> Tensor:
        """A tensor with numbers for its unknown sizes, or for those that it holds; adds these sizes to `probed`."""
        dims = tensor.dims
        value: Array | None = None
        if dims is not None and None in dims:
            sizes = list(self.dims(tensor) or ())
        else:
            value = self.value(tensor) if tensor.dtype in (int32, int64) and tensor.op.opdef.name != "Const" else None
            if value is None or None in value:
                return tensor
            sizes = list(value.flat)
        unknown = {s for s in sizes if isinstance(s, Product)}
        if not unknown:
            return tensor
        probed |= unknown
        probes = [self._probe(s, reverse) for s in sizes]
        if value is None:
            attrs = {"dtype": tensor.dtype.base, "shape": tuple(probes)}
            return new_node("Placeholder", (), attrs, [(tensor.dtype, tuple(probes))], tensor.op).outputs[0]
        if None in probes:  # more unknown sizes than probe numbers
            return tensor
        numbers = np.array(probes, tensor.dtype.np).reshape(value.shape)
        return new_node("Const", (), {"value": numbers}, [(tensor.dtype, value.shape)], tensor.op).outputs[0]

    def _probe(self, size: Size, reverse: bool) -> int | None:
        """The probe number of a size; None if there are too many sizes."""
        if isinstance(size, int):
            return size
        found = self._probes.get(size)
        if found is None:
            if len(self._probes) == _MOST_PROBES:
                return None
            found = self._probes[size] = _FIRST_PROBE + _BETWEEN_PROBES * len(self._probes)
            self._of_probe[found] = size
        return _ENDS - found if reverse else found

    # --- values ----------------------------------------------------------------------------------------------------

    def value(self, tensor: Tensor, deepest: int = _DEEPEST) -> Array | None:
        """The value of a scalar or vector of sizes: `Size`s, None for unknown elements; None for other tensors."""
        try:
            found = self._values[tensor]
        except KeyError:
            node = self.makers.get(tensor)
            found = None if node is None or not deepest else self.value_of(node, tensor, deepest - 1)
            self._values[tensor] = found
        if found is None or not self._same:
            return found
        return _array([s if s is None else self._now(s) for s in found.flat], found.shape)

    def value_of(self, node: Node, tensor: Tensor, deepest: int = _DEEPEST) -> Array | None:
        """The same for an output of a node that is not in `makers` yet."""
        dims = tensor.dims
        if tensor.dtype not in (int32, int64) or dims is None or len(dims) > 1 or (dims or (1,))[0] is None:
            return None
        op = node.opdef.name
        if op == "Const":
            value = node.attrs["value"]
            return value.astype(object) if value.size <= _MOST_ELEMENTS else None
        if op in ("Shape", "Size"):
            sizes = self.dims(node.inputs[0])
            return None if sizes is None else _array(sizes if op == "Shape" else product(sizes))
        if op == "BroadcastArgs":
            a, b = (self.value(t, deepest) for t in node.inputs)
            return None if a is None or b is None else _array([*self._broadcast(a, b)])
        if op == "Cast":
            return self.value(node.inputs[0], deepest)
        moved = moved_inputs(node)
        if moved:
            return self._moved(node, moved, deepest)
        function = _ARITHMETIC.get(op)
        if function is not None or op == "Prod":
            values: list[Any] = [self.value(t, deepest) for t in node.inputs]
            if any(v is None for v in values):
                return None
            if function is None:
                return None if None in values[0] or tensor.dims != () else _array(product(values[0].flat))
            return np.asarray(np.frompyfunc(function, len(values), 1)(*values), object)
        return None

    def _moved(self, node: Node, moved: Sequence[int], deepest: int) -> Array | None:
        """The output of an op that only moves elements: the op is run on their positions."""
        elements: list[Any] = []
        given: list[Any] = []
        for i, t in enumerate(node.inputs):
            value = self.value(t, deepest)
            if value is None:
                return None
            if i in moved:
                given.append(np.arange(len(elements), len(elements) + value.size).reshape(value.shape))
                elements += value.flat
            elif all(type(v) is int for v in value.flat):
                given.append(value.astype(np.int64))
            else:
                return None
        try:
            assert node.opdef.reference is not None
            places = np.asarray(node.opdef.reference(*given, **node.opdef.kernel_attrs(node.attrs)))
        except Exception:  # reported at run time
            return None
        return _array([elements[i] for i in places.flat], places.shape)

    # --- reshapes --------------------------------------------------------------------------------------------------

    def reshaped(self, node: Node, *, surely: bool = False) -> tuple[Size | None, ...] | None:
        """The sizes that a Reshape gives its input; `surely`: None where it may fail."""
        x, wanted = self.dims(node.inputs[0]), self.value(node.inputs[1])
        if wanted is None or wanted.ndim != 1:
            return None
        sizes: list[Size | None] = list(wanted)
        if x is None or None in sizes:
            return None if surely else tuple([None if s == -1 else s for s in sizes])
        elements, known = product(x), product([s for s in sizes if s is not None and s != -1])
        if sizes.count(-1) == 1:
            if surely and not isinstance(known, int):
                return None  # it may be 0
            left = quotient(elements, known)
            if left is None and surely:
                return None
            sizes[sizes.index(-1)] = left
        elif surely and (elements != known or -1 in sizes):
            return None
        return tuple(sizes)


def _array(what: Any, shape: tuple[int, ...] | None = None) -> Array:
    if isinstance(what, int | Product):
        what, shape = [what], ()
    out = np.empty(len(what), object)
    out[:] = what
    return out if shape is None else out.reshape(shape)


def _times(a: Size | None, b: Size | None) -> Size | None:
    return None if a is None or b is None else product([a, b])


def _plus(a: Size | None, b: Size | None) -> Size | None:
    if type(a) is int and type(b) is int:
        return a + b
    return b if a == 0 else a if b == 0 else None


def _over(a: Size | None, b: Size | None) -> Size | None:
    return quotient(a, b) if a is not None and type(b) is int and b > 0 else None


_ARITHMETIC = {"Mul": _times, "AddV2": _plus, "FloorDiv": _over}
