"""The op and attributes of a node of TensorFlow in Dovetail. `import_graph_def` calls this module for every node.

Most ops have the same name. An older op may be a newer op with another name (`NEWER`). A few, such as `ResizeBilinear`, are functions
that make several nodes (`COMPOSED`). Some attributes are derived from the node that computes an input (`DERIVED`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.build import constant, convert, make
from ..core.constant_value import static_value
from ..core.dtypes import string
from ..core.graph import Tensor
from ..core.hooks import hooks
from ..core.opdef import OpDef, registered
from ..formats.protos import message
from ..formats.record_format import unpacked
from ..formats.values import MisfitError, default_of, read_attr
from ..ops.array import diagonal as ops, space_depth
from ..ops.array.gather import gather
from ..ops.array.shapes import shape
from ..ops.math import arithmetic
from ..ops.nn import resize as resizing
from ..ops.nn.normalization import local_response_normalization
from ..ops.state.training import RULES, update_op
from .export_graph_def import EXTRA, OTHERWISE, OWN
from .read_forms import FUNCTIONS
from .signatures import REQUIRED, signatures

NEWER = {
    "Add": "AddV2", "BatchMatMul": "BatchMatMulV2", "FusedBatchNorm": "FusedBatchNormV3", "FusedBatchNormV2": "FusedBatchNormV3",
    "Inv": "Reciprocal", "Variable": "VariableV2",
}  # fmt: skip
"""Older op -> the newer op that is equal except for its name."""

_HARMLESS = frozenset(("use_cudnn_on_gpu", "validate_indices", "allowed_devices", "incompatible_shape_error", "debug_name",
                       "grad_a", "grad_b", "grad_x", "grad_y", "experimental_debug_info", "use_locking", "Truncate", "bad_color",
                       "index_type", "use_inter_op_parallelism", "swap_memory", "TI", "container"))  # fmt: skip
"""Attributes that do not affect the result of a node."""

Inputs = Sequence[Tensor]
_FLAGS = {
    update_op(rule.name, is_ref=is_ref, is_sparse=is_sparse): frozenset(rule.flags)
    for rule in RULES.values()
    for is_ref in (False, True)
    for is_sparse in (False, True)
}
"""Op of an optimizer's update -> its attributes."""


class UnsupportedError(ValueError):
    """The op of a node is not supported."""


def op_of(proto: Any) -> str:
    """The op of a node in Dovetail, or a key of `COMPOSED`. UnsupportedError if there is none."""
    op: str = proto.op
    known = registered()
    if op.startswith(OWN) and op.removeprefix(OWN) in known:
        return op.removeprefix(OWN)
    if op == "Add" and proto.attr["T"].type == string.enum:
        return "StringJoin"
    op = NEWER.get(op, op)
    if op not in COMPOSED and (op not in known or op in OTHERWISE):
        raise UnsupportedError(op)
    return op


def attrs_of(proto: Any, definition: OpDef, inputs: Inputs) -> dict[str, Any]:
    """The attributes of a node. MisfitError if one is missing, or has a value that is not supported."""
    extra = _own_attrs(proto)
    if proto.op.startswith(OWN):
        return extra
    signature = signatures().get(proto.op) or signatures()[definition.name]
    takes = accepted(definition)
    attrs = {}
    for name, (kind, default) in signature.attrs.items():
        wanted = takes is None or name in takes
        if not wanted and (name in signature.inferred or name in _HARMLESS):
            continue
        if takes is None and (
            name in _HARMLESS or (name in signature.inferred and kind in ("int", "type") and name in "TNU")
        ):
            continue
        if name in proto.attr:
            value = read_attr(proto.attr[name], kind)
        elif default is not REQUIRED:
            value = default_of(kind, default)
        else:
            raise MisfitError(f"attribute {name} is missing")
        if wanted:
            attrs[name] = value
        elif default is REQUIRED or value != default_of(kind, default):
            raise MisfitError(f"attribute {name}={value!r} is not supported")
    attrs |= extra
    for name in (takes or frozenset()) - attrs.keys():
        if name not in DERIVED:
            raise MisfitError(f"TensorFlow's {proto.op} has no {name}")
        attrs[name] = DERIVED[name](inputs)
    return attrs


def node_from_tensorflow(op: str, inputs: Inputs, attrs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The op for an op of TensorFlow, and its attributes from `AttrValue`s. ValueError if it is unknown or becomes several nodes."""
    proto = message("NodeDef")(op=op)
    for name, value in attrs.items():
        proto.attr[name].ParseFromString(value.SerializeToString())
    try:
        found = op_of(proto)
    except UnsupportedError:
        found = op
    if found in COMPOSED or found not in registered():
        raise ValueError(f"Op type not registered '{op}': there is no such op")
    return found, attrs_of(proto, registered()[found], inputs)


@functools.cache
def accepted(definition: OpDef) -> frozenset[str] | None:
    """The names of the attributes of an op. None if they are those of TensorFlow's op."""
    if definition.name in _FLAGS:
        return _FLAGS[definition.name]
    names = set(definition.internal_attrs)
    if definition.reference is not None:
        for p in inspect.signature(definition.reference).parameters.values():
            if p.kind is p.VAR_KEYWORD:
                return None
            if p.kind is p.KEYWORD_ONLY:
                names.add(p.name)
    return frozenset(names)


def _own_attrs(proto: Any) -> dict[str, Any]:
    """The attributes that `export_graph_def` packs into the attribute `_dovetail`."""
    if EXTRA not in proto.attr:
        return {}
    try:
        found = unpacked(proto.attr[EXTRA].s)
    except Exception as e:  # the bytes may cause any error in msgpack
        raise MisfitError(f"attribute {EXTRA} is malformed: {e}") from None
    if not isinstance(found, dict):
        raise MisfitError(f"attribute {EXTRA} is malformed")
    return found


# --- attributes that are derived from inputs --------------------------------------------------------------------------


def _made_by(inputs: Inputs, op: str) -> Mapping[str, Any]:
    """The attributes of the node that makes the first input, behind identities and control-flow nodes."""
    node = inputs[0].op
    while node.type in ("Identity", "Enter", "Switch", "Merge") and node.inputs:
        node = node.inputs[0].op
    if not node.type.startswith(op):
        raise MisfitError(f"no attribute says which {op} '{inputs[0].name}' comes from")
    return node.attrs


def _shape_of_state(inputs: Inputs) -> Any:
    if not inputs:
        raise MisfitError("attribute shape is missing")
    node = inputs[0].op
    return node.attrs.get("shape") if node.type in ("VarHandleOp", "VariableV2") else None


DERIVED: dict[str, Callable[[Inputs], Any]] = {
    "shape": _shape_of_state,  # the variable's shape for AssignVariableOp, None for Enters and stacks
    "shapes": lambda inputs: _made_by(inputs, "")["shapes"],  # of a queue's elements
    "element_shape": lambda inputs: _made_by(inputs, "TensorArray").get("element_shape"),
    "key_dtype": lambda inputs: _made_by(inputs, "HashTable")["key_dtype"],
    "value_dtype": lambda inputs: _made_by(inputs, "HashTable")["value_dtype"],
    "min_after_dequeue": lambda inputs: 0,
    "seed": lambda inputs: 0,
    "separator": lambda inputs: "",  # for Add of strings
    "seed2": lambda inputs: 0,
}


# --- ops that become several nodes ------------------------------------------------------------------------------------


def _static(tensor: Tensor, what: str) -> Any:
    value = static_value(tensor)
    if value is None:
        raise MisfitError(f"{what} must be a constant")
    return value


def _text(tensor: Tensor, what: str) -> str:
    value = np.asarray(_static(tensor, what)).item()
    return value.decode() if isinstance(value, bytes) else str(value)


def _texts(tensor: Tensor, what: str) -> tuple[str, ...]:
    return tuple(v.decode() if isinstance(v, bytes) else str(v) for v in np.asarray(_static(tensor, what)).ravel())


def _resize(function: str) -> Callable[..., Any]:
    def resize(a: dict[str, Any], image: Tensor, size: Tensor) -> Any:
        if a.get("half_pixel_centers"):
            raise MisfitError("half_pixel_centers=True is not supported")
        return getattr(resizing, function)(image, size, a["align_corners"])

    return resize


def _blocks(function: str) -> Callable[..., Any]:
    def rearrange(a: dict[str, Any], image: Tensor) -> Any:
        return getattr(space_depth, function)(image, a["block_size"], data_format=a["data_format"])

    return rearrange


def _batch_blocks(function: str) -> Callable[..., Any]:
    def rearrange(a: dict[str, Any], x: Tensor, block: Tensor, edges: Tensor) -> Any:
        return getattr(space_depth, function)(x, _static(block, "the block's shape"), _static(edges, "the edges"))

    return rearrange


def _restore(a: dict[str, Any], prefix: Tensor, names: Tensor, slices: Tensor) -> Any:
    keys = _texts(names, "names of tensors")
    attrs = {
        "tensor_names": keys,
        "shape_and_slices": _texts(slices, "slices"),
        "dtypes": a["dtypes"],
        "shapes": (None,) * len(keys),
    }
    return list(make("RestoreV2", [prefix], attrs).outputs)


def _save(a: dict[str, Any], prefix: Tensor, names: Tensor, slices: Tensor, *tensors: Tensor) -> Any:
    attrs = {
        "tensor_names": _texts(names, "names of tensors"), "shape_and_slices": _texts(slices, "slices"), "shard": 0, "num_shards": 1,
    }  # fmt: skip
    described = make("SaveV2", [prefix, *tensors], attrs).outputs[0]
    return make("MergeV2Checkpoints", [prefix, described])


def _summary(op: str) -> Callable[..., Any]:
    def summary(a: dict[str, Any], tag: Tensor, value: Tensor) -> Any:
        kept = {k: v for k, v in a.items() if k in (accepted(registered()[op]) or ())}
        return make(op, [value], kept | {"tag": _text(tag, "the tag")}).outputs[0]

    return summary


def _diagonal(function: str, edges: int) -> Callable[..., Any]:
    """`MatrixDiagV3` and similar ops, for the main diagonal."""

    def diagonal(a: dict[str, Any], *tensors: Tensor) -> Any:
        k = np.asarray(_static(tensors[edges], "k"))
        others = [np.asarray(_static(t, "sizes and padding")).item() for t in tensors[edges + 1 :]]
        if k.any() or others not in ([], [0], [0.0], [-1, -1, 0], [-1, -1, 0.0]):
            raise MisfitError("only whole main diagonals are supported")
        return getattr(ops, function)(*tensors[:edges])

    return diagonal


def _string_split(a: dict[str, Any], x: Tensor, ends: Tensor) -> Any:
    known = static_value(ends)
    whole = "maxsplit" in a
    split = {"skip_empty": a.get("skip_empty", False), "whole": whole, "most": a.get("maxsplit", -1)}
    delimiter = "" if known is None else bytes(known.item()).decode()
    return list(make("StringSplit", [x] if known is not None else [x, ends], {"delimiter": delimiter, **split}).outputs)


def _reduce_join(a: dict[str, Any], x: Tensor, axes: Tensor) -> Any:
    known = static_value(axes)
    attrs = {"axes": None if known is None else tuple(known.ravel().tolist()), "separator": a["separator"]}
    return make("ReduceJoin", [x] if known is not None else [x, axes], attrs | {"keep_dims": a["keep_dims"]}).outputs[0]


def _patches(a: dict[str, Any], images: Tensor) -> Any:
    attrs = {"ksizes": a["ksizes"], "strides": a["strides"], "dilations": a["rates"], "data_format": "NHWC"}
    attrs |= {"padding": a["padding"], "explicit_paddings": ()}
    return make("ExtractImagePatches", [images], attrs).outputs[0]


def _sampler(op: str) -> Callable[..., Any]:
    def sample(a: dict[str, Any], true: Tensor) -> Any:
        attrs = {k: a[k] for k in ("num_true", "num_sampled", "unique", "range_max", "seed", "seed2")}
        weights = np.zeros(0, np.float32)
        if op == "FixedUnigramCandidateSampler":
            if a["vocab_file"] or (a["num_shards"], a["shard"]) != (1, 0):
                raise MisfitError("a vocab_file and shards are not supported: give unigrams")
            counts = np.asarray(a["unigrams"], np.float64) ** a["distortion"]
            weights = np.concatenate([np.zeros(a["num_reserved_ids"]), counts]).astype(np.float32)
        return list(make(op, [true, convert(weights)], attrs).outputs)

    return sample


def _tensor_summary(a: dict[str, Any], tag: Tensor, value: Tensor, metadata: Tensor) -> Any:
    attrs = {"tag": _text(tag, "the tag"), "serialized_summary_metadata": bytes(_static(metadata, "metadata").item())}
    return make("TensorSummaryV2", [value], attrs).outputs[0]


def _ftrl(op: str) -> Callable[..., Any]:
    """The op for a learning rate power of -1/2, or the one for any power."""

    def update(a: dict[str, Any], *tensors: Tensor) -> Any:
        *others, power = tensors
        known = static_value(power)
        if known is not None and known.item() == -0.5:
            made = make(op, others)
        else:
            made = make(f"{op}V2", [*others, constant(0.0, power.dtype), power])
        if a["multiply_linear_by_lr"]:
            raise MisfitError("attribute multiply_linear_by_lr=True is not supported")
        return made.outputs[0] if made.outputs else made

    return update


COMPOSED: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    **{op: _ftrl(op) for op in ("ApplyFtrl", "ResourceApplyFtrl", "ResourceSparseApplyFtrl", "SparseApplyFtrl")},
    "BatchToSpaceND": _batch_blocks("batch_to_space_nd"),
    "DepthToSpace": _blocks("depth_to_space"),
    "Div": lambda a, x, y: arithmetic.truncatediv(x, y) if x.dtype.is_integer else arithmetic.real_divide(x, y),
    "ExtractImagePatches": _patches,
    "FixedUnigramCandidateSampler": _sampler("FixedUnigramCandidateSampler"),
    "Gather": lambda a, params, indices: gather(params, indices),
    "HistogramSummary": _summary("HistogramSummary"),
    "ImageSummary": _summary("ImageSummary"),
    "LRN": lambda a, x: local_response_normalization(x, a["depth_radius"], a["bias"], a["alpha"], a["beta"]),
    "LogUniformCandidateSampler": _sampler("LogUniformCandidateSampler"),
    "MatrixDiagPartV2": _diagonal("matrix_diag_part", 1),
    "MatrixDiagPartV3": _diagonal("matrix_diag_part", 1),
    "MatrixDiagV2": _diagonal("matrix_diag", 1),
    "MatrixDiagV3": _diagonal("matrix_diag", 1),
    "MatrixSetDiagV2": _diagonal("matrix_set_diag", 2),
    "MatrixSetDiagV3": _diagonal("matrix_set_diag", 2),
    "ReciprocalGrad": lambda a, y, dy: arithmetic.reciprocal_gradient(y, dy),
    "ReduceJoin": _reduce_join,
    "ResizeArea": _resize("resize_area"),
    "ResizeBicubic": _resize("resize_bicubic"),
    "ResizeBilinear": _resize("resize_bilinear"),
    "ResizeNearestNeighbor": _resize("resize_nearest_neighbor"),
    "RestoreV2": _restore,
    "SaveV2": _save,
    "ScalarSummary": _summary("ScalarSummary"),
    "RsqrtGrad": lambda a, y, dy: arithmetic.rsqrt_gradient(y, dy),
    "ShapeN": lambda a, *tensors: [shape(t, out_type=a["out_type"]) for t in tensors],
    "SigmoidGrad": lambda a, y, dy: dy * y * (1.0 - y),
    "SpaceToBatchND": _batch_blocks("space_to_batch_nd"),
    "SpaceToDepth": _blocks("space_to_depth"),
    "StackV2": lambda a, size: make("StackV2", [], {"elem_type": a["elem_type"]}).outputs[0],
    "StringSplit": _string_split,
    "StringSplitV2": _string_split,
    "SqrtGrad": lambda a, y, dy: arithmetic.sqrt_gradient(y, dy),
    "TanhGrad": lambda a, y, dy: dy * (1.0 - y * y),
    "TensorSummaryV2": _tensor_summary,
    "UniformCandidateSampler": _sampler("UniformCandidateSampler"),
}
"""TensorFlow's op -> a function of its attributes and inputs that returns an output, a list of outputs, or a node."""


def composed_attrs(proto: Any) -> dict[str, Any]:
    """All attributes of a node of TensorFlow that becomes several nodes."""
    return {
        name: read_attr(proto.attr[name], kind) if name in proto.attr else default_of(kind, default)
        for name, (kind, default) in signatures()[proto.op].attrs.items()
        if name in proto.attr or default is not REQUIRED
    }


hooks.node_from_tensorflow = node_from_tensorflow
