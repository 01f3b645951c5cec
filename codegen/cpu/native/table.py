"""The launch table: compiled kernels are called from a table of int64, without Python in between.

A kernel that Numba has compiled is a function with an address. From Python it is called through a wrapper that inspects each argument,
which takes microseconds, longer than a small kernel. Here the arguments are words of a table, through which compiled loops
(`launch_source`) go without the GIL. A table is a sequence of records:

    [words of the record, trampoline, function, threads, parts, arguments ..., 0, length]

An argument is an integer, or the address and the number of elements of a vector. A *trampoline* loads the arguments from the record, and
calls the function as Numba does, with them and with a range, its last two arguments; there is one for each list of kinds of arguments. A
record for more than one thread is shared with the helpers of a `worker_pool`: its `length` is divided into parts, and each thread takes the
next one when it is free. Alone, a thread has all of it.

No other module but `machine` knows how Numba passes arguments (its CPU calling convention, checked by
`tests/codegen/cpu/native/test_table.py`):

    function(result*, error**, arguments ...) -> status, 0: success
    a vector:   null, null, elements, bytes of an element, address, elements, bytes of an element
    a tuple:    its elements        an integer: itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ....graph.core.dtypes import Array
from ..emit.instantiate import text_with
from ..jit import compile_now
from ..work_parts import LINE

THREADS, PARTS, HEAD = 3, 4, 5  # words of a record: see above; HEAD: where its arguments begin
WORD = 8  # bytes

# Looks of a caller, some 50 microseconds, after which it sleeps while helpers finish.
WAITS = 1 << 15

# Words of the memory of a worker pool: see `launch_source`. Each has a line of the cache.
SLEEPING, BYTE, READ_END, WRITE_END, LOOKS, ORDER, INSIDE, TAKEN, FAILED, LAST, RECORD, POOL_WORDS = (
    LINE * i for i in range(12)
)


def address_of(function: Any) -> int:
    """Where the machine code of a compiled kernel with one signature begins."""
    (result,) = function.overloads.values()
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def begin_of(array: Array) -> int:
    """Where an array's memory begins."""
    address: int = array.__array_interface__["data"][0]
    return address


def record(
    function: Any,
    arguments: Sequence[Any],
    address: Callable[[Array], Any],
    length: int,
    threads: int = 1,
    parts: int = 1,
) -> list[Any]:
    """The words of a record.

    Args:
        function: a compiled kernel. arguments: vectors, integers and tuples of integers. address: gives the word for a vector.
        length: of the range. threads: how many may share it. parts: into how many ranges they divide it.
    """
    flat = [y for x in arguments for y in (x if isinstance(x, tuple) else (x,))]
    kinds = tuple([x.itemsize if isinstance(x, np.ndarray) else 0 for x in flat])
    words = [word for x in flat for word in ((address(x), x.size) if isinstance(x, np.ndarray) else (x,))]
    return [HEAD + len(words) + 2, trampoline(kinds), address_of(function), threads, parts, *words, 0, length]


_LOOPS = ("bind", "run", "serve", "clear")


@cache
def loops_text() -> str:
    """The source text of the loops of `launch_source`."""
    return text_with("native/launch_source", _LOOPS)


@cache
def loops() -> dict[str, Callable[..., Any]]:
    """The compiled loops of `launch_source`, by name."""
    functions: Any = compile_now(loops_text())
    return dict(zip(_LOOPS, functions, strict=True))


# --- trampolines -----------------------------------------------------------------------------------------------------

_engines: list[Any] = []  # what they have compiled lives as long as they do


@cache
def trampoline(kinds: tuple[int, ...]) -> int:
    """The address of the trampoline for arguments of these kinds: the bytes of an element of a vector; 0: an integer."""
    import llvmlite.binding as llvm  # loads LLVM

    loaded = range(sum(2 if size else 1 for size in kinds))
    loads = [f"%p{i} = getelementptr i64, ptr %words, i64 {i}\n%a{i} = load i64, ptr %p{i}" for i in loaded]
    arguments, at = [], 0
    for size in kinds:
        of_vector = f"ptr null, ptr null, i64 %a{at + 1}, i64 {size}, i64 %a{at}, i64 %a{at + 1}, i64 {size}"
        arguments.append(of_vector if size else f"i64 %a{at}")
        at += 2 if size else 1
    passed = ", ".join(["ptr %result", "ptr %error", *arguments, "i64 %low", "i64 %high"])
    lines = [
        "define i32 @trampoline(ptr %function, ptr %words, i64 %low, i64 %high) {",
        "%result = alloca i64\n%error = alloca ptr\nstore ptr null, ptr %error",
        *loads,
        f"%status = call i32 %function({passed})\nret i32 %status\n}}",
    ]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly("\n".join(lines)), machine)
    engine.finalize_object()
    _engines.append(engine)
    address: int = engine.get_function_address("trampoline")
    return address
