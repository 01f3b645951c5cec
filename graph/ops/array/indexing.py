"""`tensor[key]`: indexing with ints, slices, ellipses, new axes, scalar tensors and boolean masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.build import apply, constant, convert
from ...core.dtypes import bool_, int32, int64
from ...core.graph import Tensor
from ...core.operators import operators
from ...core.shape import Dimension
from ..math.cast import cast
from ..math.static_operands import INDEX_TYPES, op_scope
from .concat_stack import packed
from .dynamic_partition import boolean_mask
from .slicing import MASKS


def _number(value: Any, key: Any) -> Any:
    """An index or end of a slice: an int, or an integer scalar tensor."""
    if isinstance(value, Dimension):
        value = value.value
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"A bool is not an index: {key!r}")
    if isinstance(value, (int, np.integer)):
        return int(value)
    if not isinstance(value, Tensor) and hasattr(value, "_as_tensor"):
        value = value._as_tensor()
    if isinstance(value, Tensor) and value.dtype.base.is_integer and value.dims in ((), None):
        if value.dtype.base in INDEX_TYPES:
            return value
        return cast(value, int64 if value.dtype.size > 2 else int32)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu":
        return int(value)
    raise TypeError(
        "Ints, slices, ..., None (dt.newaxis), integer scalar tensors and boolean masks can index a tensor, "
        f"not {key!r}; use dt.gather or dt.gather_nd for lists of indices"
    )


def _is_mask(key: Any) -> bool:
    return (isinstance(key, Tensor) and key.dtype.base is bool_) or (isinstance(key, np.ndarray) and key.dtype == bool)


def getitem(tensor: Any, key: Any) -> Tensor:
    """`tensor[key]`, with NumPy's semantics.

    Args:
        tensor: a tensor.
        key: ints, slices, `...` and None, where integer scalar tensors may stand for ints; or one boolean mask.

    Raises:
        TypeError: another kind of index.
        ValueError: an index is out of bounds, there are too many indices, or a step is 0.
    """
    if _is_mask(key):
        return boolean_mask(tensor, key)
    begin: list[Any] = []
    end: list[Any] = []
    strides: list[Any] = []
    masks = dict.fromkeys(MASKS, 0)
    for i, spec in enumerate(key if isinstance(key, tuple) else (key,)):
        first: Any = 0
        last: Any = 0
        step: Any = 1
        bit = 1 << i
        if isinstance(spec, slice):
            if spec.start is None:
                masks["begin_mask"] |= bit
            else:
                first = _number(spec.start, key)
            if spec.stop is None:
                masks["end_mask"] |= bit
            else:
                last = _number(spec.stop, key)
            if spec.step is not None:
                step = _number(spec.step, key)
        elif spec is Ellipsis:
            masks["ellipsis_mask"] |= bit
        elif spec is None:
            masks["new_axis_mask"] |= bit
        else:
            first = _number(spec, key)
            last = first + 1
            masks["shrink_axis_mask"] |= bit
        begin.append(first)
        end.append(last)
        strides.append(step)
    with op_scope(None, "strided_slice", tensor, begin, end, strides) as scope:
        x = convert(tensor)
        vectors = _vectors(begin, end, strides)
        return apply("StridedSlice", (x, *vectors), masks, scope)


def _vectors(*lists: list[Any]) -> list[Tensor]:
    """Begin, end and strides as vectors, named `stack`, `stack_1`, `stack_2` as in TensorFlow. All are int64 if any index is."""
    wide = any(isinstance(v, Tensor) and v.dtype.base is int64 for values in lists for v in values)
    out: list[Tensor] = []
    for values in lists:
        tensors = [v for v in values if isinstance(v, Tensor)]
        if not tensors:
            out.append(constant(np.array(values, np.int64 if wide else np.int32), name="stack"))
            continue
        if wide:
            values = [cast(v, int64) if isinstance(v, Tensor) else v for v in values]
        out.append(packed(values, int64 if wide else int32, "stack"))
    return out


operators["getitem"] = getitem
newaxis = None
