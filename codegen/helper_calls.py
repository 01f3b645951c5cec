"""How a compiled kernel gets help from other threads without Python.

A Python thread that is woken for a kernel begins 60 to 140 microseconds later: it is woken, waits for the interpreter's lock until its
caller has let go of it, is woken again, and unpacks the arguments. One that sleeps in compiled code begins after 20.

Helpers and callers meet at a *board*, one array of a process. It has a bell, on which helpers sleep, and some desks. A caller takes a
desk that is free, lays down there what is to be called (`put_up`), opens it and rings. A helper who finds a desk open goes inside, gets
a number of his own, and calls the function with it. The caller works, too, and closes the desk when no unit of work is left.

Nobody waits for a helper who has not begun a unit. He may still be inside when the caller has left, so all that he looks at before he
takes a unit lies on the desk: the counters, and arguments that do not count as references to their arrays. A desk is taken again only
when nobody is inside, and a helper stays only if it is still the same job that is open (each has a number of its own).

The bell is a futex of Linux (Drepper, "Futexes are tricky", 2011). On other systems Python threads help (`threads`).
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from __future__ import annotations

import sys
from platform import machine
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .threads import FINISHED, LINE, MOST_THREADS

_FUTEX = {"x86_64": 202, "aarch64": 98}  # the system call's number
THERE_ARE_BELLS = sys.platform == "linux" and machine() in _FUTEX

BELL, JOBS, DESKS = (
    0,
    LINE,
    2 * LINE,
)  # places on the board: what helpers sleep on, how many jobs there were, the first desk
# Places on a desk. Those that change while helpers look have a line of the cache each.
TAKEN, OPEN, INSIDE, NUMBERS = (
    0,
    LINE,
    2 * LINE,
    3 * LINE,
)  # whether a caller has it, the job's number or 0, helpers, those given out
FUNCTION, THREADS = 4 * LINE, 4 * LINE + 1
COUNTERS = 5 * LINE
ARGUMENTS = COUNTERS + (MOST_THREADS + 1) * LINE
_MOST_WORDS = 40 * LINE
DESK = ARGUMENTS + _MOST_WORDS
COUNT = 4  # desks: so many kernels of one process can have help at the same time
BOARD = DESKS + COUNT * DESK
_WAIT, _WAKE = 128, 129  # futex operations, for threads of one process
_LOOKS = 20_000  # at how many units are finished, some 50 microseconds
_NAP_US = 50


def _at(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [place])


@intrinsic
def add(typing_context, array, place, number):
    """Add to a number at once for all threads; what it was before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _at(context, builder, array, *args[:2]), args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), emit


@intrinsic
def exchange(typing_context, array, place, number):
    """Set a number at once for all threads; what it was before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", _at(context, builder, array, *args[:2]), args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), emit


@intrinsic
def look(typing_context, array, place):
    """A number as it is at this moment."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_at(context, builder, array, *args), "seq_cst", 8)

    return types.int64(array, types.intp), emit


def _system_call(builder: Any, *words: Any) -> None:
    if not THERE_ARE_BELLS:  # and no board: nobody comes here
        return
    words = (_FUTEX[machine()], *words)
    word = ir.IntType(64)
    call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(word, [word], var_arg=True), "syscall")
    builder.call(call, [w if isinstance(w, ir.Value) else word(w) for w in words])


@intrinsic
def sleep_on(typing_context, board, place, seen):
    """Sleep until somebody rings, unless that number (its lower 32 bits) is no longer what was seen."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        at = builder.ptrtoint(_at(context, builder, board, *args[:2]), word)
        _system_call(builder, at, _WAIT, args[2], 0, 0, 0)
        return context.get_dummy_value()

    return types.void(board, types.intp, types.int64), emit


@intrinsic
def ring(typing_context, board, place, count):
    """Wake so many who sleep on a number."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.ptrtoint(_at(context, builder, board, *args[:2]), ir.IntType(64))
        _system_call(builder, at, _WAKE, args[2], 0, 0, 0)
        return context.get_dummy_value()

    return types.void(board, types.intp, types.int64), emit


@intrinsic
def nap(typing_context, microseconds):
    """Sleep for a while."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not THERE_ARE_BELLS:
            return context.get_dummy_value()
        number = ir.IntType(32)
        call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(number, [number]), "usleep")
        builder.call(call, [builder.trunc(args[0], number)])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def put_up(typing_context, function, board, desk, arguments):
    """Lay on a desk: call `function(*arguments, number)`. Arrays among the arguments do not count as references."""
    kinds = (*arguments.types, types.intp)
    wanted = function.get_call_type(typing_context, kinds, {})

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        compiled = signature.args[0].dispatcher.get_compile_result(wanted)
        context.active_code_library.add_linking_library(compiled.library)
        values = []
        for kind, value in zip(arguments.types, cgutils.unpack_tuple(builder, args[3]), strict=True):
            if isinstance(kind, types.Array):
                for owner in (0, 1):
                    nobody = ir.Constant(value.type.elements[owner], None)
                    value = builder.insert_value(value, nobody, owner)
            values.append(value)
        laid = ir.LiteralStructType([v.type for v in values])
        if context.get_abi_sizeof(laid) > 8 * _MOST_WORDS:
            raise NotImplementedError("a kernel with so many arguments cannot be put up on a desk")
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(64)

        kind = ir.FunctionType(ir.VoidType(), [byte, word])
        helped = ir.Function(
            builder.module, kind, builder.module.get_unique_name("helped_" + compiled.fndesc.unique_name)
        )
        helped.linkage = "internal"
        inner = ir.IRBuilder(helped.append_basic_block())
        found = inner.load(inner.bitcast(helped.args[0], laid.as_pointer()), align=8)
        given = [inner.extract_value(found, i) for i in range(len(values))]
        context.call_internal_no_propagate(inner, compiled.fndesc, wanted, [*given, helped.args[1]])
        inner.ret_void()

        whole = ir.Constant(laid, ir.Undefined)
        for i, value in enumerate(values):
            whole = builder.insert_value(whole, value, i)
        place = _at(context, builder, board, args[1], builder.add(args[2], word(ARGUMENTS)))
        builder.store(whole, builder.bitcast(place, laid.as_pointer()), align=8)
        place = _at(context, builder, board, args[1], builder.add(args[2], word(FUNCTION)))
        builder.store(builder.ptrtoint(helped, word), place)
        return context.get_dummy_value()

    return types.void(function, board, types.intp, arguments), emit


@intrinsic
def do_what_lies_there(typing_context, board, desk, number):
    """What a helper does at a desk."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(64)
        function = builder.load(_at(context, builder, board, args[0], builder.add(args[1], word(FUNCTION))))
        arguments = _at(context, builder, board, args[0], builder.add(args[1], word(ARGUMENTS)))
        kind = ir.FunctionType(ir.VoidType(), [byte, word])
        builder.call(builder.inttoptr(function, kind.as_pointer()), [builder.bitcast(arguments, byte), args[2]])
        return context.get_dummy_value()

    return types.void(board, types.intp, types.intp), emit


# --- the caller ------------------------------------------------------------------------------------------------------


@njit(error_model="numpy")
def take_desk(board, threads):
    """Where a free desk begins on the board, its counters set to zero; 0: there is none, or nobody to help."""
    if threads < 2 or threads > MOST_THREADS or board.size < BOARD:
        return 0
    for i in range(COUNT):
        desk = DESKS + i * DESK
        if exchange(board, desk + TAKEN, 1) == 0:
            if look(board, desk + INSIDE) == 0:
                board[desk + COUNTERS : desk + COUNTERS + (threads + 1) * LINE] = 0
                return desk
            exchange(board, desk + TAKEN, 0)
    return 0


@njit(error_model="numpy")
def open_desk(board, desk, threads):
    """Let helpers come."""
    board[desk + THREADS] = threads
    exchange(board, desk + NUMBERS, 1)
    exchange(board, desk + OPEN, add(board, JOBS, 1) + 1)
    add(board, BELL, 1)
    ring(board, BELL, threads - 1)


@njit(error_model="numpy")
def leave_desk(board, desk, units):
    """Let nobody come any more, and wait until all units are finished."""
    exchange(board, desk + OPEN, 0)
    looks = 0
    while look(board, desk + COUNTERS + FINISHED) < units:
        looks += 1
        if looks > _LOOKS:
            nap(_NAP_US)
    exchange(board, desk + TAKEN, 0)
