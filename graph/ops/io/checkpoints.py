"""The ops that write and read checkpoints, on the task that has the variables.

`ReadTogether` reads several variables of a task atomically. `SaveV2` writes its inputs as one shard and returns the shard's description.
`MergeV2Checkpoints` writes the manifest of a checkpoint from the descriptions of its shards. `RestoreV2` reads slices. All names but the
first are TensorFlow's. Tensor names and slices are attributes here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.dtypes import Array, DType, as_dtype, resource, string, text_array
from ...core.errors import OpError, PermissionDeniedError, UnknownError, invalid
from ...core.graph import Tensor
from ...core.interpreter_state import collector_paused
from ...core.opdef import ANY, Attrs, Cost, Output, Trait, define, define_on_host, nbytes, tuple_attr, typed_attr
from ...core.settings import setting
from ...core.shape import Dims, as_dims
from ...formats.checkpoints import CheckpointReader, write_manifest, write_shard
from ...resources.chunked_snapshot import ChunkedSnapshot
from ...resources.resource_manager import Context
from ...resources.variable import VariableState, read_together
from ..state.queues import need_scalar
from ..state.variables import type_and_dims


def _path(context: Context, prefix: Array) -> str:
    try:
        path = prefix.item().decode()
    except UnicodeDecodeError:
        path = ""
    if not path or "\0" in path:
        raise invalid(f"{prefix.item()!r} is not a name for a checkpoint", context.node_name)
    allowed = setting("DOVETAIL_CHECKPOINT_DIR")
    if allowed and not Path(path).resolve().is_relative_to(Path(allowed).resolve()):
        raise PermissionDeniedError(
            context.node_name,
            None,
            f"Checkpoint '{path}' is outside {allowed}, the only permitted folder (DOVETAIL_CHECKPOINT_DIR)",
        )
    return str(path)


def _infer_read_together(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not inputs:
        raise ValueError("there are no variables")
    return [type_and_dims(t) for t in inputs]


def _read_together(context: Context, *states: VariableState) -> Any:
    values = read_together(states)
    return values[0] if len(values) == 1 else tuple(values)


def _infer_save(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    prefix, *tensors = inputs
    need_scalar(prefix, (string,), "the prefix")
    tuple_attr(attrs, "tensor_names", str, len(tensors))
    tuple_attr(attrs, "shape_and_slices", str, len(tensors))
    if any(t.dtype.base is resource for t in tensors):
        raise TypeError("values can be saved, handles cannot")
    if not 0 <= typed_attr(attrs, "shard", int) < typed_attr(attrs, "num_shards", int):
        raise ValueError("attribute shard must be in [0, num_shards)")
    return [(string, ())]


@collector_paused()
def _save(
    context: Context,
    prefix: Array,
    *values: Array | ChunkedSnapshot,
    tensor_names: tuple[str, ...],
    shape_and_slices: tuple[str, ...],
    shard: int,
    num_shards: int,
) -> Array:
    path = _path(context, prefix)
    given = [v if isinstance(v, ChunkedSnapshot) else np.asarray(v) for v in values]
    tensors = [
        (name, spec, as_dtype(v.dtype), v) for name, spec, v in zip(tensor_names, shape_and_slices, given, strict=True)
    ]
    try:
        described = write_shard(path, shard, num_shards, tensors, lambda: context.resources.steps_started)
    except OSError as e:
        raise UnknownError.of(f"Checkpoint '{path}' cannot be written: {e}") from None
    return text_array([json.dumps(described).encode()], ())


def _infer_merge(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    for t in inputs:
        need_scalar(t, (string,), "an input")
    if len(inputs) < 2:
        raise ValueError("there are no shards")
    return []


@collector_paused()
def _merge(context: Context, prefix: Array, *described: Array) -> tuple[()]:
    path = _path(context, prefix)
    try:
        write_manifest(path, [json.loads(d.item()) for d in described])
    except OSError as e:
        raise UnknownError.of(f"Checkpoint '{path}' cannot be written: {e}") from None
    return ()


def _infer_restore(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (prefix,) = inputs
    need_scalar(prefix, (string,), "the prefix")
    names = tuple_attr(attrs, "tensor_names", str)
    tuple_attr(attrs, "shape_and_slices", str, len(names))
    dtypes, shapes = tuple_attr(attrs, "dtypes", DType, len(names)), attrs.get("shapes")
    if not isinstance(shapes, tuple) or len(shapes) != len(names):
        raise TypeError("attribute shapes must have one shape per name")
    return [(d, as_dims(s)) for d, s in zip(dtypes, shapes, strict=True)]


@collector_paused()
def _restore(
    context: Context,
    prefix: Array,
    *,
    tensor_names: tuple[str, ...],
    shape_and_slices: tuple[str, ...],
    dtypes: tuple[DType, ...],
    shapes: tuple[Dims, ...],
) -> Any:
    reader = CheckpointReader(_path(context, prefix))
    known = reader.get_variable_to_dtype_map()
    out, wrong = [], []
    for name, spec, dtype in zip(tensor_names, shape_and_slices, dtypes, strict=True):
        try:
            value = reader.region(name, spec)
            if known[name] is not dtype:
                raise invalid(f"'{name}' holds {known[name].name}, not {dtype.name}")
            out.append(value)
        except OpError as e:
            wrong.append(e)
    if wrong:  # one error for all of them, of the class of the first
        raise type(wrong[0])(None, None, "\n".join(e.message for e in wrong))
    return out[0] if len(out) == 1 else tuple(out)


define(
    "ReadTogether",
    _infer_read_together,
    _read_together,
    cost=lambda node: Cost(0.0, sum(nbytes(t) for t in node.outputs)),
    traits=Trait.STATEFUL,
    ref_inputs=range(ANY),
)
for _name, _infer, _reference in (
    ("SaveV2", _infer_save, _save),
    ("MergeV2Checkpoints", _infer_merge, _merge),
    ("RestoreV2", _infer_restore, _restore),
):
    define_on_host(_name, _infer, _reference)
