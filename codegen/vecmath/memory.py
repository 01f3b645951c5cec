"""Elements of a kernel's arrays.

Inputs and outputs of a kernel never overlap, but LLVM cannot know it, and beyond a few arrays it gives up checking and does not
vectorise. So each access says which array it belongs to (alias.scope) and which ones it cannot touch (noalias). Nor is there
Numba's wrap-around of negative indices. `number` is the array's index among the kernel's arrays.
"""

# mypy: ignore-errors
# The functions below are compiled by Numba: their types are Numba's to infer, per call.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

_MOST_ARRAYS = 64
_LITERAL = "the array's number must be a literal"


def _element(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return cgutils.gep(builder, data, index)


def _mark(builder: Any, instruction: Any, number: int) -> None:
    if number >= _MOST_ARRAYS:
        return  # LLVM then takes it that the access may touch any array
    module = builder.module
    domain = module.add_metadata(["dovetail"])
    scopes = [module.add_metadata([f"array {i}", domain]) for i in range(_MOST_ARRAYS)]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[number]]))
    instruction.set_metadata("noalias", module.add_metadata([s for i, s in enumerate(scopes) if i != number]))


@intrinsic
def load(typing_context, array, number, index):
    """Element `index` of a contiguous vector that is the kernel's array `number` (a literal)."""
    if not isinstance(number, types.IntegerLiteral):
        raise RequireLiteralValue(_LITERAL)

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        value = builder.load(_element(context, builder, array, args[0], args[2]))
        _mark(builder, value, number.literal_value)
        return context.data_model_manager[array.dtype].from_data(builder, value)

    return array.dtype(array, number, types.intp), emit


@intrinsic
def store(typing_context, array, number, index, value):
    """Put a value into element `index` of a contiguous vector that is the kernel's array `number` (a literal)."""
    if not isinstance(number, types.IntegerLiteral):
        raise RequireLiteralValue(_LITERAL)

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        data = context.data_model_manager[array.dtype].as_data(builder, args[3])
        _mark(builder, builder.store(data, _element(context, builder, array, args[0], args[2])), number.literal_value)
        return context.get_dummy_value()

    return types.void(array, number, types.intp, array.dtype), emit
