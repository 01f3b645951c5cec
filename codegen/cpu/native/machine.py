"""Instructions that the compiled loops of the launch table need and Numba lacks: atomic counters, calls through addresses.

Numba's calling convention on CPUs and its view of an array (`address_of_array`) are relied on here and in `launches`, nowhere else.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...vecmath.intrinsics import inner, instructions
from ...vecmath.memory import element

_BYTE, _INT, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Call a function of LLVM, of the C library, of Python or of Numba."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _place(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


# Functions of Python and of the C library; addresses are integers.
release_gil = types.ExternalFunction("PyEval_SaveThread", types.intp())
take_gil = types.ExternalFunction("PyEval_RestoreThread", types.void(types.intp))
read_bytes = types.ExternalFunction("read", types.intp(types.int32, types.intp, types.intp))
write_bytes = types.ExternalFunction("write", types.intp(types.int32, types.intp, types.intp))
give_way = types.ExternalFunction("sched_yield", types.int32())
sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@instructions(lambda counters, place, by: types.int64(counters, types.intp, types.int64))
def count_up(context, builder, args, counters, place, by):
    """Atomically add to a counter; returns its previous value."""
    return builder.atomic_rmw("add", element(context, builder, counters, *args[:2]), args[2], "seq_cst")


@instructions(lambda counters, place: types.int64(counters, types.intp))
def count_now(context, builder, args, counters, place):
    """A counter as it is at this moment."""
    return builder.load_atomic(element(context, builder, counters, *args), "seq_cst", 8)


@inner(error_model="numpy")
def take(counters, place, is_first, count):
    """The next of `count` numbers that no thread has taken, from the front (`is_first`) or from the back; -1: none is left."""
    taken = count_up(counters, place, 1 if is_first else 1 << 32)
    front, back = taken & 0xFFFFFFFF, taken >> 32
    if front + back >= count:
        return -1
    return front if is_first else count - 1 - back


@instructions(lambda kernel, words, low, high: types.int64(*[types.intp] * 4))
def call_kernel(context, builder, args, kernel, words, low, high):
    """Call the kernel at an address (`vecmath.launched`) as Numba does: kernel(result*, error**, words, low, high). 0: success."""
    passed = [*[cgutils.alloca_once(builder, _BYTE.as_pointer()) for _ in range(2)], *args[1:]]
    kind = ir.FunctionType(_INT, [x.type for x in passed])
    return builder.sext(builder.call(_place(builder, args[0], kind), passed), _WORD)


@instructions(lambda words, at: types.int64(words, types.intp))
def address_of_element(context, builder, args, words, at):
    """The address of an element of a vector."""
    return builder.ptrtoint(element(context, builder, words, *args), _WORD)


@instructions(lambda arrays, number: types.int64(types.intp, types.intp))
def address_of_array(context, builder, args, arrays, number):
    """Where the memory of an array begins, which is element `number` of the tuple at address `arrays`; 0: it is no array.

    The thread holds the GIL. Numba itself tells where it is: the fifth word of what it sees of an array, of up to 64 axes.
    """
    item = _call(builder, "PyTuple_GetItem", _BYTE.as_pointer(), [_place(builder, args[0], _BYTE), args[1]])
    words = cgutils.alloca_once(builder, _WORD, size=5 + 2 * 64)
    failed = _call(builder, "numba_adapt_ndarray", _INT, [item, builder.bitcast(words, _BYTE.as_pointer())])
    address = builder.load(builder.gep(words, [_WORD(4)]))
    return builder.select(builder.icmp_signed("==", failed, _INT(0)), address, _WORD(0))
