"""Arguments of kernels; loads and stores of elements of their arrays; conversions of float16 and bfloat16, which are stored as their bits.

Inputs and outputs of a kernel never overlap, but LLVM cannot know it, and beyond a few arrays it gives up checking and does not
vectorise. So each access says which array it belongs to (alias.scope) and which ones it cannot touch (noalias). Nor is there
Numba's wrap-around of negative indices. `number` is the array's index among the kernel's arrays.

float16 and bfloat16 are kept as their 16 bits and computed in float32. To float32 every number is exact; back, ties go to the even one.
Only arithmetic that all machines have is used (F. Giesen, "Half to float done quic" and "Float to half", public domain), and where there
is one the instruction that rounds to float16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core.errors import RequireLiteralValue

from .intrinsics import bits32, f32, f64, fabs, i32, inner, instructions, of_bits32, select

_MOST_ARRAYS = 64


def element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """The address of an element of a vector of this type, as LLVM has it."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _literal(number: Any) -> Any:
    """The type of an argument that must be a literal."""
    if not isinstance(number, types.IntegerLiteral):
        raise RequireLiteralValue("a number must be a literal")
    return number


def _words_at(builder: Any, address: Any, at: Any) -> Any:
    """The address of word `at` of those at an address."""
    return builder.gep(builder.inttoptr(address, ir.IntType(64).as_pointer()), [at])


@instructions(lambda words, at: types.int64(words, types.intp))
def word(context, builder, values, words, at):
    """Word `at` of those at an address."""
    return builder.load(_words_at(builder, *values))


@instructions(
    lambda words, at, count: types.UniTuple(types.int64, _literal(count).literal_value)(words, types.intp, count)
)
def some_words(context, builder, values, words, at, count):
    """So many words (a literal), from word `at` on, as a tuple."""
    first, number = _words_at(builder, *values[:2]), count.literal_value
    loaded = [builder.load(builder.gep(first, [context.get_constant(types.intp, i)])) for i in range(number)]
    return context.make_tuple(builder, types.UniTuple(types.int64, number), loaded)


@instructions(lambda words, at, kind: types.Array(kind.dtype, 1, "C")(words, types.intp, kind))
def vector(context, builder, values, words, at, kind):
    """The vector of this type whose address is word `at`; the next word is the number of its elements."""
    begin, size = (
        builder.load(_words_at(builder, values[0], builder.add(values[1], context.get_constant(types.intp, i))))
        for i in (0, 1)
    )
    made = context.make_array(types.Array(kind.dtype, 1, "C"))(context, builder)
    step = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    data = builder.inttoptr(begin, made.data.type)
    context.populate_array(made, data=data, shape=[size], strides=[step], itemsize=step, meminfo=None)
    return made._getvalue()


def _mark(builder: Any, instruction: Any, number: int) -> None:
    if number >= _MOST_ARRAYS:
        return  # LLVM then takes it that the access may touch any array
    module = builder.module
    domain = module.add_metadata(["dovetail"])
    scopes = [module.add_metadata([f"array {i}", domain]) for i in range(_MOST_ARRAYS)]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[number]]))
    instruction.set_metadata("noalias", module.add_metadata([s for i, s in enumerate(scopes) if i != number]))


@instructions(lambda array, number, index: array.dtype(array, _literal(number), types.intp))
def load(context, builder, values, array, number, index):
    """Element `index` of a contiguous vector that is the kernel's array `number` (a literal)."""
    value = builder.load(element(context, builder, array, values[0], values[2]))
    _mark(builder, value, number.literal_value)
    return context.data_model_manager[array.dtype].from_data(builder, value)


@instructions(lambda array, number, index, value: types.void(array, _literal(number), types.intp, array.dtype))
def store(context, builder, values, array, number, index, value):
    """Put a value into element `index` of a contiguous vector that is the kernel's array `number` (a literal)."""
    data = context.data_model_manager[array.dtype].as_data(builder, values[3])
    stored = builder.store(data, element(context, builder, array, values[0], values[2]))
    _mark(builder, stored, number.literal_value)
    return context.get_dummy_value()


# --- narrow floats ---------------------------------------------------------------------------------------------------


@inner(forceinline=True)
def from_bfloat16(x):
    """The float32 whose upper half these bits are."""
    return of_bits32(i32(i32(x) << i32(16)))


@inner(forceinline=True)
def to_bfloat16(x):
    """The bits of the nearest bfloat16."""
    bits = bits32(x)
    rounded = i32(i32(bits + i32(0x7FFF)) + i32(i32(bits >> i32(16)) & i32(1)))
    return np.uint16(i32(select(x != x, i32(0x7FC00000), rounded) >> i32(16)) & i32(0xFFFF))


@inner(forceinline=True)
def from_float16(x):
    """The float32 that is the float16 of these bits."""
    bits = i32(x)
    magnitude = i32(i32(bits & i32(0x7FFF)) << i32(13))
    # The exponents' biases are that far apart; denormals come right.
    number = bits32(of_bits32(magnitude) * f32(2.0**112))
    number = select(magnitude >= i32(0x0F800000), i32(magnitude | i32(0x7F800000)), number)  # infinities and NaN
    return of_bits32(i32(number | i32(i32(bits & i32(0x8000)) << i32(16))))


@inner(forceinline=True)
def towards_odd(x):
    """The odd one of the two float32 next to a float64. Rounded to float16, it gives what x itself would (round to odd)."""
    near = f32(x)
    bits = bits32(near)
    bits = select(fabs(f64(near)) > fabs(x), i32(bits - i32(1)), bits)
    return of_bits32(select(f64(near) == x, bits, i32(bits | i32(1))))


@inner(forceinline=True)
def to_float16_by_integers(x):
    """The bits of the nearest float16."""
    bits = bits32(x)
    magnitude = i32(bits & i32(0x7FFFFFFF))
    odd = i32(i32(magnitude >> i32(13)) & i32(1))
    normal = i32(i32(i32(magnitude - i32(0x38000000)) + i32(0x0FFF)) + odd) >> i32(13)
    small = i32(bits32(of_bits32(magnitude) + f32(0.5)) - i32(0x3F000000))  # 0.5 has the float16's smallest step
    made = select(magnitude < i32(0x38800000), small, i32(normal))
    made = select(magnitude >= i32(0x47800000), i32(0x7C00), made)
    made = select(magnitude > i32(0x7F800000), i32(0x7E00), made)
    return np.uint16(i32(made | i32(i32(bits >> i32(16)) & i32(0x8000))))


@instructions(lambda x: types.uint16(x) if x == types.float32 else None)
def _truncated(context, builder, values, *_):
    """As `to_float16_by_integers`."""
    return builder.bitcast(builder.fptrunc(values[0], ir.HalfType()), ir.IntType(16))


to_float16 = _truncated if get_host_cpu_features().get("f16c", False) else to_float16_by_integers
