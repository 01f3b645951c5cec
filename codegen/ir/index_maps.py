"""Index maps of one node: the axes of its tensors, and the axes that it reduces.

An `IndexMaps` numbers a node's axes (labels) and gives, for each tensor, the label of each dimension. A dimension of size 1 has no
label: a tensor without an axis is broadcast along it. From the index maps of single nodes, fusion finds whether several nodes share
one iteration space (`fusion/merge.py`).

If a size is not known before run time, the index maps assume that nothing is broadcast along it. A kernel's launcher checks this for
the real shapes. It also checks what is `assumed` of values that are known only at run time:

    the gradient of a broadcast     Sum(gradient, axes), Reshape(..., shape of x), with axes that BroadcastGradientArgs finds from
                                    the shapes of both operands: axes that are known to be broadcast are summed, the others are
                                    assumed not to be
    a computed shape                the result is assumed to have the sizes that its axes have elsewhere
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from ...graph.core.constant_value import static_dims, static_value
from ...graph.core.dtypes import DType, bfloat16, float16, float32, float64, int32, int64
from ...graph.core.graph import Node, Tensor
from ...graph.core.places import Places
from ...graph.core.shape import element_count
from ...graph.ops.nn.conv_geometry import layout
from .loop_nest import NotFusibleError
from .nodes import PASSED_ON
from .symbolic_shape import Size, SymbolicShapes
from .windows import WINDOW_OPS, taps_are_axes

REDUCTIONS = frozenset(("Sum", "Mean", "Prod", "Max", "Min", "Any", "All"))
OF_CLASSES = frozenset(("SparseSoftmaxCrossEntropyWithLogits", "InTopKV2"))
LAST_AXIS = OF_CLASSES | {"Softmax", "LogSoftmax", "SoftmaxCrossEntropyWithLogits"}
EXTREMES = frozenset(("ArgMax", "ArgMin"))
SCANS = frozenset(("Cumsum", "Cumprod"))
SCATTERS = frozenset(("UnsortedSegmentSum",))
LOOKUPS = frozenset(("GatherV2", "ResourceGather"))
"""Gathers of rows of a table, the first input, by the indices in the second."""
ADDED = (float32, float64, int32, int64)
"""Element types of rows that are added in memory: narrow ones would be rounded at each sum."""
RANDOM_OPS: dict[str, tuple[str, tuple[DType, ...]]] = {
    "UniformOfStream": ("uniform", (float32, float64, float16, bfloat16)),
    "NormalOfStream": ("normal", (float32,)),
}
"""Counter-based random op -> the kind of `random` that it is in a loop nest, and the element types that kernels compute. The references
of other types round in another way."""
_MOST_PARTS = 4  # of a concatenation that a kernel reads in place: each element tests all of them
VIEWS = PASSED_ON | {"ExpandDims", "Squeeze", "Reshape", "BroadcastTo"}

AxisMap: TypeAlias = "tuple[int | None, ...]"


@dataclass(frozen=True, slots=True)
class ShapeAssumption:
    """An assumption about the value of an input that holds sizes or axes.

    Attributes:
        tensor: the input, a vector of integers.
        labels: the labels of the tensor that it describes.
        over: None: the vector holds that tensor's sizes. Else it holds axes of that tensor, and all other axes have size 1.
    """

    tensor: Tensor
    labels: AxisMap
    over: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class IndexMaps:
    """A node's own axes, as labels.

    Attributes:
        inputs: for each input, a label per dimension (None: size 1); None for an input that holds no data (axes, a shape).
        outputs: the same for each output.
        reduced: labels that are reduced.
        sizes: static size of each label.
        is_view: the only output is a view of the first input.
        assumed: assumptions about inputs that hold no data.
        positions: the labels along which the node's rule takes positions, after its inputs; None: the only one.
        checked: inputs that must be positions along the only one of these; the node raises an error if they are not.
        row: for a node of LOOKUPS, the labels of a row's dimensions.
        scanned: for a running sum or product along the reduced label, whether it starts at the end.
        scattered: whether the node's result is a table to whose rows it adds; its output has the labels of a row.
        drawn: for a random node, the labels of its result; each number depends on its position in the result.
        moved: for an op that moves elements (`OpDef.places`), the places in the inputs that it moves, with labels.
        window: for a node of WINDOW_OPS, the labels that its loops have: of images, height, width, channels, of the taps along height
            and width, and of the filters of a channel; None: of size 1, or there is none.
        unknown: for labels without a static size, the symbolic sizes of their tensors (`symbolic_shape.py`).
    """

    inputs: tuple[AxisMap | None, ...]
    outputs: tuple[AxisMap, ...]
    reduced: frozenset[int]
    sizes: dict[int, int | None]
    is_view: bool = False
    assumed: tuple[ShapeAssumption, ...] = ()
    positions: AxisMap = ()
    checked: tuple[int, ...] = ()
    row: AxisMap | None = None
    drawn: AxisMap | None = None
    scanned: bool | None = None
    scattered: bool = False
    moved: tuple[Places, ...] = ()
    window: AxisMap | None = None
    unknown: Mapping[int, frozenset[Size]] = field(default_factory=dict)

    @property
    def before(self) -> tuple[int, ...]:
        """Inputs that must be computed before the kernel runs: checked inputs, and inputs read at other positions than their own."""
        return (1,) if self.scattered else self.checked if self.row is None else (0, 1)

    @property
    def is_masked(self) -> bool:
        """Whether the node moves elements, and its inputs have no element for some of its places."""
        return any(p.is_masked for places in self.moved[:1] for p in places)

    def data_of(self, node: Node) -> list[tuple[Tensor, AxisMap]]:
        """The node's inputs that hold data, with their labels."""
        return [(t, labels) for t, labels in zip(node.inputs, self.inputs, strict=True) if labels is not None]

    @property
    def space(self) -> frozenset[int]:
        """All labels."""
        return frozenset(self.sizes)

    def with_sizes(self, node: Node, sizes: SymbolicShapes) -> IndexMaps:
        """The index maps with the symbolic sizes of labels without a static size."""
        if None not in self.sizes.values():
            return self
        found: dict[int, set[Size]] = {}
        for t, labels in zip((*node.inputs, *node.outputs), (*self.inputs, *self.outputs), strict=True):
            dims = None if labels is None else sizes.dims(t)
            if labels is not None and dims is not None and len(dims) == len(labels):
                for label, size in zip(labels, dims, strict=True):
                    if label is not None and self.sizes[label] is None:
                        found.setdefault(label, set()).add(size)
        return replace(self, unknown={label: frozenset(of) for label, of in found.items()})


def index_maps_of(node: Node) -> IndexMaps:
    """A node's index maps.

    Raises:
        NotFusibleError: its axes are not known before run time.
    """
    computed = _unbroadcast_pattern(node)
    if computed is not None:
        return computed
    if node.type in WINDOW_OPS:
        return _window_pattern(node)
    for t in (*node.inputs, *node.outputs):
        if t.dims is None:
            raise NotFusibleError(f"the rank of {t.name} is not known")
        if 0 in t.dims:
            raise NotFusibleError("it has no elements")
    if node.opdef.places is not None:
        return _moved_pattern(node, node.opdef.places(node))
    if node.type in REDUCTIONS:
        return _reduction_pattern(node)
    return _PATTERNS.get(node.type, _elementwise_pattern)(node)


def _sizes(labels: AxisMap, dims: tuple[int | None, ...]) -> dict[int, int | None]:
    return {x: d for x, d in zip(labels, dims, strict=True) if x is not None}


def _numbered(dims: tuple[int | None, ...]) -> AxisMap:
    """A label per dimension that is not 1: the dimension's index."""
    return tuple(None if d == 1 else i for i, d in enumerate(dims))


def _check_ones(dims: tuple[int | None, ...], labels: AxisMap) -> None:
    """Raise NotFusibleError unless the dimensions of size 1 are those without a label."""
    if any((d == 1) != (x is None) for d, x in zip(dims, labels, strict=True)):
        raise NotFusibleError("a size is not known")


def _elementwise_pattern(node: Node) -> IndexMaps:
    dims = node.outputs[0].dims or ()
    labels = _numbered(dims)
    inputs: list[AxisMap | None] = []
    assumed: list[ShapeAssumption] = []
    for i, t in enumerate(node.inputs):
        if node.type == "BroadcastTo" and i == 1:
            inputs.append(None)
            assumed.append(ShapeAssumption(t, labels))
            continue
        own = t.dims or ()
        at = len(dims) - len(own)
        if node.type == "Select" and i == 0 and len(own) != len(dims):
            raise NotFusibleError("its condition selects whole rows")
        if node.type == "BiasAdd" and i == 1 and node.attrs["data_format"] == "NCHW":
            at = 1
        inputs.append(tuple(None if d == 1 else labels[at + j] for j, d in enumerate(own)))
        _check_ones(own, inputs[-1] or ())
    last = labels[-2:] if node.type == "MatrixBandPart" else ()
    is_view, sizes = node.type in VIEWS, _sizes(labels, dims)
    return IndexMaps(tuple(inputs), (labels,), frozenset(), sizes, is_view, tuple(assumed), last)


def _reduction_pattern(node: Node) -> IndexMaps:
    dims = node.inputs[0].dims or ()
    labels = _numbered(dims)
    keep = bool(node.attrs.get("keep_dims", False))
    if node.type in REDUCTIONS or node.type in EXTREMES:
        axes = static_value(node.inputs[1])
        if axes is None:
            raise NotFusibleError("its axes are not known before the graph runs")
        over = {int(a) % max(len(dims), 1) for a in np.asarray(axes).ravel()}
    elif node.type == "L2Loss":
        over = set(range(len(dims)))
    elif node.type == "BiasAddGrad":
        over = set(range(len(dims))) - {1 if node.attrs["data_format"] == "NCHW" else len(dims) - 1}
    else:
        over = {len(dims) - 1}
    reduced = frozenset(i for i in over if labels[i] is not None)
    if not reduced:
        raise NotFusibleError("it reduces axes of size 1 only")
    kept = tuple(None if i in over else x for i, x in enumerate(labels) if keep or i not in over)
    inputs: tuple[AxisMap | None, ...] = (labels, *(None for _ in node.inputs[1:]))
    outputs: tuple[AxisMap, ...] = (kept,)
    if node.type in ("Softmax", "LogSoftmax"):
        outputs = (labels,)
    elif node.type == "SoftmaxCrossEntropyWithLogits":
        if node.inputs[1].dims != dims:
            raise NotFusibleError("the shapes of logits and labels are not known to be equal")
        inputs, outputs = (labels, labels), (kept, labels)
    elif node.type in OF_CLASSES:
        if node.inputs[1].dims != dims[:-1]:
            raise NotFusibleError("the shapes of logits and labels are not known to fit")
        inputs, outputs = (labels, kept, ())[: len(node.inputs)], (kept, labels)[: len(node.outputs)]
    positions = tuple(reduced) if node.type in EXTREMES | OF_CLASSES else ()
    checked = (1,) if node.type.startswith("Sparse") else ()
    return IndexMaps(inputs, outputs, reduced, _sizes(labels, dims), positions=positions, checked=checked)


def _one_hot_pattern(node: Node) -> IndexMaps:
    dims, indices = node.outputs[0].dims or (), node.inputs[0].dims or ()
    at = node.attrs["axis"] % len(dims)
    if dims[at] is None or dims[at] == 1:
        raise NotFusibleError("the number of classes is not known" if dims[at] is None else "there is one class")
    labels = _numbered(dims)
    own = (*labels[:at], *labels[at + 1 :])
    _check_ones(indices, own)
    return IndexMaps((own, None, (), ()), (labels,), frozenset(), _sizes(labels, dims), positions=(at,))


def _lookup_pattern(node: Node) -> IndexMaps:
    table, rows, *axis = node.inputs
    if table.dtype.is_ref:
        raise NotFusibleError("it takes a reference to a variable")
    along = static_value(axis[0]) if axis else 0
    if axis and node.attrs["batch_dims"] or along is None or int(along) != 0:
        raise NotFusibleError("it gathers along another axis than the first")
    dims, places = node.outputs[0].dims or (), rows.dims or ()
    if rows.op.type == "Const" and element_count(places) == 1:
        raise NotFusibleError("it gathers one row, whose index is constant")
    if not any(d != 1 for d in dims):
        raise NotFusibleError("it gathers one element")
    labels = _numbered(dims)
    own, row = labels[: len(places)], labels[len(places) :]
    _check_ones(places, own)
    return IndexMaps((None, own, *(None for _ in axis)), (labels,), frozenset(), _sizes(labels, dims), row=row)


def _moved_pattern(node: Node, found: Sequence[Places | None] | None) -> IndexMaps:
    dims = node.outputs[0].dims or ()
    labels = _numbered(dims)
    known = [
        [replace(p, axis=None if p.axis is None else labels[p.axis]) for p in places]
        for places in found or ()
        if places is not None
    ]
    if found is None or len(known) < len(found) or any(t.dtype.is_ref for t in node.inputs):
        raise NotFusibleError("the elements that it moves are not known before the graph runs")
    if len(found) > _MOST_PARTS:
        raise NotFusibleError("it joins too many tensors")
    if any(places and places[-1].axis not in (None, max(_sizes(labels, dims), default=None)) for places in known):
        raise NotFusibleError("it moves the last axis: elements of its input would be read one by one")
    inputs = (*(None for _ in node.inputs[:2]), ()) if node.type == "PadV2" else (None,) * len(node.inputs)
    return IndexMaps(inputs, (labels,), frozenset(), _sizes(labels, dims), True, moved=tuple(map(tuple, known)))


def _window_pattern(node: Node) -> IndexMaps:
    op = WINDOW_OPS[node.type]
    window, _ = op.window(node)
    made = node.outputs[0].dims
    over = node.inputs[op.inputs.index("result")].dims if op.gives == "filter" else made
    if made is None or over is None or any(0 in (t.dims or ()) for t in (*node.inputs, *node.outputs)):
        raise NotFusibleError("its rank is not known, or it has no elements")
    # One letter for each axis: images, height, width, channels; taps along height (i) and width (j); the filters of a channel (m).
    axes = kept = layout(node.attrs).lower()
    size = dict(zip(axes, over, strict=True))
    if op.gives == "filter" or taps_are_axes(window):
        axes, size["i"], size["j"] = "ij" + axes, *window.taps
    if op.gives == "filter":
        axes, kept, size["c"], size["m"] = axes.replace("c", "cm"), "ijcm", *made[2:]
    label = {x: None if size[x] == 1 else number for number, x in enumerate(axes)}
    sizes = {number: size[x] for x, number in label.items() if number is not None}
    lies = tuple(label[x] for x in kept)
    told = [node.inputs[i] for i, what in enumerate(op.inputs) if what == "sizes"]
    return IndexMaps(
        (None,) * len(node.inputs), (lies,), frozenset(sizes).difference(lies), sizes,
        assumed=tuple(ShapeAssumption(t, lies) for t in told), window=tuple(label.get(x) for x in "nhwcijm"),
    )  # fmt: skip


def _scanned_pattern(node: Node) -> IndexMaps:
    dims = node.inputs[0].dims or ()
    axis = static_value(node.inputs[1])
    if axis is None:
        raise NotFusibleError("its axis is not known before the graph runs")
    labels = _numbered(dims)
    along = labels[int(axis) % len(dims)]
    if along is None:
        raise NotFusibleError("its axis has size 1")
    reverse, reduced = bool(node.attrs["reverse"]), frozenset([along])
    return IndexMaps((labels, None), (labels,), reduced, _sizes(labels, dims), scanned=reverse)


def _scattered_pattern(node: Node) -> IndexMaps:
    data, ids, _ = node.inputs
    if data.dtype not in ADDED:
        raise NotFusibleError(f"rows of {data.dtype.name} are not added in memory")
    dims, places = data.dims or (), ids.dims or ()
    labels = _numbered(dims)
    own = labels[: len(places)]
    if not any(x is not None for x in own):
        raise NotFusibleError("it adds one row")
    _check_ones(places, own)
    return IndexMaps((labels, own, None), (labels[len(places) :],), frozenset(), _sizes(labels, dims), scattered=True)


def _drawn_pattern(node: Node) -> IndexMaps:
    dims = node.outputs[0].dims or ()
    labels = _numbered(dims)
    assumed = (ShapeAssumption(node.inputs[0], labels),)
    return IndexMaps((None, (), ()), (labels,), frozenset(), _sizes(labels, dims), assumed=assumed, drawn=labels)


def _reshape_pattern(node: Node) -> IndexMaps:
    before, after = node.inputs[0].dims or (), node.outputs[0].dims or ()
    old, new = [d for d in before if d != 1], [d for d in after if d != 1]
    if len(old) != len(new) or any(a != b for a, b in zip(old, new, strict=True)) or old.count(None) > 1:
        raise NotFusibleError("it changes more than axes of size 1")

    def counted(dims: Iterable[int | None]) -> AxisMap:
        labels = iter(range(len(old)))
        return tuple(None if d == 1 else next(labels) for d in dims)

    made = counted(after)
    assumed = (ShapeAssumption(node.inputs[1], made),) if node.type == "Reshape" else ()
    inputs = (counted(before), *(None for _ in node.inputs[1:]))
    return IndexMaps(inputs, (made,), frozenset(), dict(enumerate(old)), True, assumed)


_PATTERNS: dict[str, Callable[[Node], IndexMaps]] = {
    "OneHot": _one_hot_pattern,
    **dict.fromkeys(LOOKUPS, _lookup_pattern),
    **dict.fromkeys(SCANS, _scanned_pattern),
    **dict.fromkeys(SCATTERS, _scattered_pattern),
    **dict.fromkeys(RANDOM_OPS, _drawn_pattern),
    **dict.fromkeys(LAST_AXIS | EXTREMES | {"L2Loss", "BiasAddGrad"}, _reduction_pattern),
    **dict.fromkeys(("Reshape", "ExpandDims", "Squeeze"), _reshape_pattern),
}


# --- gradients of broadcasts -----------------------------------------------------------------------------------------


def _unbroadcast(node: Node) -> tuple[tuple[int | None, ...], tuple[int | None, ...], Tensor, frozenset[int]] | None:
    """Of a `Sum` over the axes along which an operand was broadcast, if they are known only at run time: dims of the sum's input, dims
    of the operand, the vector with the operand's sizes, and the axes that are known to be broadcast.
    """
    if node.type != "Sum" or node.inputs[1].op.type != "BroadcastGradientArgs" or node.attrs.get("keep_dims", False):
        return None
    axes = node.inputs[1]
    mine = axes.op.outputs.index(axes)
    gradient, operand, other = node.inputs[0].dims, *(static_dims(axes.op.inputs[i]) for i in (mine, 1 - mine))
    if gradient is None or operand is None or other is None or 0 in gradient:
        return None
    if len(gradient) != max(len(operand), len(other)):
        return None
    own, theirs = ((1,) * (len(gradient) - len(dims)) + dims for dims in (operand, other))
    over = frozenset(i for i, (a, b) in enumerate(zip(own, theirs, strict=True)) if a == 1 and b != 1)
    over |= frozenset(range(len(gradient) - len(operand)))
    return gradient, operand, axes.op.inputs[mine], over


def _unbroadcast_pattern(node: Node) -> IndexMaps | None:
    """The index maps of one of the two nodes that undo a broadcast; None for other nodes."""
    if node.type == "Sum":
        found = _unbroadcast(node)
        if found is None:
            return None
        gradient, _, _, over = found
        labels = _numbered(gradient)
        made = tuple(x for i, x in enumerate(labels) if i not in over)
        reduced = frozenset(x for i, x in enumerate(labels) if i in over and x is not None)
        assumed = (ShapeAssumption(node.inputs[1], labels, over),)
        return IndexMaps((labels, None), (made,), reduced, _sizes(labels, gradient), not reduced, assumed)
    if node.type != "Reshape":
        return None
    found = _unbroadcast(node.inputs[0].op)
    if found is None or node.inputs[1] is not found[2]:
        return None
    gradient, operand, _, over = found
    labels = tuple(None if i in over else x for i, x in enumerate(_numbered(gradient)))
    taken = tuple(x for i, x in enumerate(labels) if i not in over)
    made = labels[len(gradient) - len(operand) :]
    if any(d == 1 and x is not None for d, x in zip(operand, made, strict=True)):
        return None  # a size that the gradient does not know yet is 1
    assumed = (ShapeAssumption(node.inputs[1], made),)
    return IndexMaps((taken, None), (made,), frozenset(), _sizes(labels, gradient), True, assumed)
