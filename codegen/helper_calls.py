"""What compiled helpers need of the machine: counters that all threads see, a pause, and calls of functions known by address."""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from __future__ import annotations

from platform import machine
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FEW, MOST = 64, 256  # words of a call: as many are always passed, which is no harm to who takes fewer


def _place(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


@intrinsic
def add(typing_context, array, place, number):
    """Add to a number at once for all threads; what it was before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _place(context, builder, array, *args[:2]), args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), emit


@intrinsic
def look(typing_context, array, place):
    """A number as it is at this moment."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_place(context, builder, array, *args), "seq_cst", 8)

    return types.int64(array, types.intp), emit


@intrinsic
def pause(typing_context):
    """Let the core rest for a moment, as those do that wait for another one."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = ir.IntType(32)
        name, given = {"x86_64": ("llvm.x86.sse2.pause", []), "aarch64": ("llvm.aarch64.hint", [number(1)])}[machine()]
        kind = ir.FunctionType(ir.VoidType(), [number] * len(given))
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)
        return context.get_dummy_value()

    return types.void(), emit


def _call(count: int) -> Any:
    @intrinsic
    def call(typing_context, function, words):
        """Call a compiled kernel with these words, as Numba's functions are called by each other; what it tells, 0: no error."""

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word, byte = ir.IntType(64), ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.IntType(32), [byte.as_pointer(), byte.as_pointer(), *[word] * count])
            data = context.make_array(words)(context, builder, args[1]).data
            given = [builder.load(builder.gep(data, [ir.Constant(word, i)])) for i in range(count)]
            results = [builder.alloca(byte) for _ in range(2)]  # nothing, and an error's text
            told = builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*results, *given])
            return builder.sext(told, word)

        return types.int64(types.int64, words), emit

    return call


call_few, call_many = _call(FEW), _call(MOST)
