"""The written form of ops whose inputs or attributes differ from those of TensorFlow's op.

An attribute may become a constant, and a node may become a node of another op or several nodes. `import_graph_def` reads such nodes by
`node_mapping.COMPOSED`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.constant_value import static_value
from ..core.dtypes import DType, int32, string
from ..core.graph import Node, Tensor
from ..core.shape import is_static
from ..formats.values import MisfitError
from ..ops.state.training import RULES, update_op


@dataclass(frozen=True, slots=True)
class Form:
    """A node of TensorFlow.

    Attributes:
        op: TensorFlow's op.
        inputs: tensors of the graph, and outputs of parts that are written before the node.
        outputs: types of the outputs.
        attrs: the attributes, except those that are inferred from inputs and outputs.
        kept: attributes that only Dovetail has.
    """

    op: str
    inputs: tuple[Tensor | Part, ...]
    outputs: tuple[DType, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)


class Part(NamedTuple):
    """An output of a node that is a part of another node: the last part of its name, the node, and the number of the output."""

    name: str
    form: Form
    output: int = 0

    @property
    def dtype(self) -> DType:
        """The output's type."""
        return self.form.outputs[self.output]


def _constant(name: str, value: Any, dtype: DType = int32) -> Part:
    array = np.array(value.encode() if isinstance(value, str) else value, dtype.np)
    return Part(name, Form("Const", (), (dtype,), {"value": array}))


def _as_is(node: Node, inputs: tuple[Tensor | Part, ...], op: str | None = None, **attrs: Any) -> Form:
    return Form(op or node.type, inputs, tuple(t.dtype for t in node.outputs), attrs)


# --- constants for attributes -----------------------------------------------------------------------------------------


def _summary(tag: str) -> Callable[[Node], Form]:
    def write(node: Node) -> Form:
        most = {"max_images": node.attrs["max_images"]} if node.type == "ImageSummary" else {}
        return _as_is(node, (_constant(tag, node.attrs["tag"], string), *node.inputs), **most)

    return write


def _tensor_summary(node: Node) -> Form:
    tag, metadata = (_constant(k, node.attrs[k], string) for k in ("tag", "serialized_summary_metadata"))
    return _as_is(node, (tag, *node.inputs, metadata))


def _reduce_join(node: Node) -> Form:
    x, *given = node.inputs
    axes, attrs = node.attrs["axes"], {k: node.attrs[k] for k in ("keep_dims", "separator")}
    if given:
        return _as_is(node, (x, *given), **attrs)
    if axes is None and x.dims is None:
        raise MisfitError("the axes are not known")
    return _as_is(node, (x, _constant("axes", range(len(x.dims or ()))[::-1] if axes is None else axes)), **attrs)


def _string_split(node: Node) -> Form:
    x, *ends = node.inputs
    given: list[Tensor | Part] = [*ends] or [_constant("delimiter", node.attrs["delimiter"], string)]
    if not node.attrs["whole"]:
        return _as_is(node, (x, *given), skip_empty=node.attrs["skip_empty"])
    if node.attrs["skip_empty"]:
        raise MisfitError("skip_empty has no counterpart")
    return _as_is(node, (x, *given), "StringSplitV2", maxsplit=node.attrs["most"])


# --- other attributes -------------------------------------------------------------------------------------------------


def _patches(node: Node) -> Form:
    a = node.attrs
    if a["data_format"] != "NHWC" or a["padding"] == "EXPLICIT":
        raise MisfitError("TensorFlow's op supports only NHWC and no explicit padding")
    attrs = {"ksizes": a["ksizes"], "strides": a["strides"], "rates": a["dilations"], "padding": a["padding"]}
    return _as_is(node, tuple(node.inputs), **attrs)


def _sampler(node: Node) -> Form:
    """Without the weights of classes. Only the fixed unigram distribution has them, as an attribute."""
    true, weights = node.inputs
    attrs = dict(node.attrs)
    if node.type == "FixedUnigramCandidateSampler":
        counts = static_value(weights)
        if counts is None:
            raise MisfitError("unigrams must be constant")
        attrs["unigrams"] = tuple(counts.tolist())
    return _as_is(node, (true,), **attrs)


def _variable(node: Node) -> Form:
    """TensorFlow's reference variables have a fully defined or an unknown shape."""
    form = _as_is(node, (), **node.attrs)
    if is_static(node.attrs["shape"]):
        return form
    return Form(form.op, (), form.outputs, {**form.attrs, "shape": None}, {"shape": node.attrs["shape"]})


def _undilated(node: Node) -> Form:
    """TensorFlow's gradients of depthwise convolutions ignore dilations."""
    if any(d != 1 for d in node.attrs["dilations"]):
        raise MisfitError("dilations")
    return _as_is(node, tuple(node.inputs), **node.attrs)


# --- other ops --------------------------------------------------------------------------------------------------------


def _truncate(node: Node) -> Form:
    (x,) = node.inputs
    kind = (x.dtype.base,)
    size = Part("floor", Form("Floor", (Part("size", Form("Abs", (x,), kind)),), kind))
    return Form("Mul", (Part("sign", Form("Sign", (x,), kind)), size), kind)


def _join(node: Node) -> Form:
    """TensorFlow's op joins strings of one shape, and scalars. Two strings of other shapes are written as Add, which broadcasts."""
    dims = [t.dims for t in node.inputs if t.dims != ()]
    if len(dims) < 2 or (all(d == dims[0] for d in dims) and is_static(dims[0])):
        return _as_is(node, tuple(node.inputs), **node.attrs)
    if len(node.inputs) != 2 or node.attrs["separator"]:
        if all(d is None or dims[0] is None or len(d) == len(dims[0]) for d in dims):
            return _as_is(node, tuple(node.inputs), **node.attrs)
        raise MisfitError("texts of several ranks")
    return _as_is(node, tuple(node.inputs), "Add")


def _cross_entropy(node: Node) -> Form:
    """TensorFlow's op takes matrices. Tensors of other ranks are reshaped to matrices, and the results are reshaped back."""
    logits, labels = node.inputs
    dims = logits.dims
    if dims is None:
        return _as_is(node, (logits, labels))  # correct for matrices
    if len(dims) == 2:
        return _as_is(node, (logits, labels))
    if node.type == "SoftmaxCrossEntropyWithLogits" and (labels.dims is None or len(labels.dims) != len(dims)):
        raise MisfitError("labels of another rank")
    kind, axes = (logits.dtype.base,), len(dims) - 1
    shape = Part("shape", Form("Shape", (logits,), (int32,)))
    lengths = [Part(f"{n}_axes", Form("Slice", (shape, _constant(f"{n}_begin", [b]), _constant(f"{n}_size", [s])), (int32,)))
               for n, b, s in (("outer", 0, axes), ("classes", axes, 1))]  # fmt: skip
    every = _constant("rows", [-1])
    joined = Form("ConcatV2", (every, lengths[1], _constant("axis", 0)), (int32,))
    rows = Part("rows_and_classes", joined)
    flat = Part("logits", Form("Reshape", (logits, rows), kind))
    sparse = node.type == "SparseSoftmaxCrossEntropyWithLogits"
    wanted = Part("labels", Form("Reshape", (labels, every if sparse else rows), (labels.dtype.base,)))
    both = Form(node.type, (flat, wanted), kind * 2)
    loss = Part("loss", Form("Reshape", (Part("flat", both, 0), lengths[0]), kind))
    backprop = Part("backprop", Form("Reshape", (Part("flat", both, 1), shape), kind))
    return Form("IdentityN", (loss, backprop), kind * 2)


def _update_of_rows(node: Node) -> Form:
    """TensorFlow's op updates a row once for each occurrence of its index, Dovetail's once with the sum of its gradients."""
    op = node.type
    is_descent = op.endswith("SparseApplyGradientDescent")
    if is_descent:  # both are the same sum
        var, alpha, delta, named = node.inputs
        step = Part("step", Form("Mul", (delta, alpha), (delta.dtype.base,)))
        return _as_is(node, (var, named, step), "ResourceScatterSub" if op.startswith("Resource") else "ScatterSub")
    grad, indices = _ROWS_OF[op]
    inputs: list[Tensor | Part] = list(_ftrl(node).inputs if op.endswith("Ftrl") else node.inputs)
    given = node.inputs[indices]
    unique = Form("Unique", (given,), (given.dtype.base, int32), {"out_idx": int32})
    rows, places = Part("rows", unique, 0), Part("rows", unique, 1)
    count = Part("count", Form("Size", (rows,), (int32,)))
    value = node.inputs[grad]
    inputs[grad] = Part("sums", Form("UnsortedSegmentSum", (value, places, count), (value.dtype.base,)))
    inputs[indices] = rows
    return _as_is(node, tuple(inputs), **node.attrs)


def _ftrl(node: Node) -> Form:
    """With the learning rate power as an input, which is constant in Dovetail's op."""
    return _as_is(node, (*node.inputs, _constant("lr_power", -0.5, node.inputs[-1].dtype.base)), **node.attrs)


_ROWS_OF: dict[str, tuple[int, int]] = {}
"""Op of an update -> the numbers of its inputs with the gradient's rows and their indices."""
for _rule in RULES.values():
    _at = 1 + len(_rule.slots) + len(_rule.before)
    for _is_ref in (False, True):
        _ROWS_OF[update_op(_rule.name, is_ref=_is_ref, is_sparse=True)] = (_at, _at + 1)

FORMS: dict[str, Callable[[Node], Form]] = {
    "DepthwiseConv2dNativeBackpropFilter": _undilated,
    "DepthwiseConv2dNativeBackpropInput": _undilated,
    "ExtractImagePatches": _patches,
    "FixedUnigramCandidateSampler": _sampler,
    "HistogramSummary": _summary("tag"),
    "ImageSummary": _summary("tag"),
    "LogUniformCandidateSampler": _sampler,
    "ReduceJoin": _reduce_join,
    "ScalarSummary": _summary("tags"),
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _cross_entropy,
    "StackV2": lambda node: _as_is(node, (_constant("max_size", -1),), **node.attrs),
    "StringJoin": _join,
    "StringSplit": _string_split,
    "TensorSummaryV2": _tensor_summary,
    "Trunc": _truncate,
    "UniformCandidateSampler": _sampler,
    "VariableV2": _variable,
    **dict.fromkeys(("ApplyFtrl", "ResourceApplyFtrl"), _ftrl),
    **dict.fromkeys(_ROWS_OF, _update_of_rows),
}
"""Op -> function that returns the written form of a node. MisfitError if TensorFlow has no such node."""


def form_of(node: Node) -> Form:
    """The written form of a node. MisfitError if TensorFlow has no such node."""
    if node.type in FORMS:
        return FORMS[node.type](node)
    return _as_is(node, tuple(node.inputs), **node.attrs)
