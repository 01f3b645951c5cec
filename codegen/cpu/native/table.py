"""The launch table: compiled kernels are called from a table of int64, without Python in between.

A kernel that Numba has compiled is a function with an address. A wrapper through which Python could call it would inspect each argument,
which takes microseconds, longer than a small kernel; so kernels have none (`vecmath.launched`). Their arguments are words of a table,
through which compiled loops (`launch_source`) go without the GIL. A table is a sequence of records:

    [words of the record, kernel, threads, parts, arguments ..., length]

An argument is an integer, or the address and the number of elements of a vector. A kernel reads its arguments from the record: it is called
with their address and a range. A record for more than one thread is shared with the helpers of a `worker_pool`: its `length` is divided
into parts, and each thread takes the next one when it is free. Alone, a thread has all of it.
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

KERNEL, THREADS, PARTS, HEAD = range(1, 5)  # words of a record: see above; HEAD: where its arguments begin

# Looks of a caller, some 400 microseconds, after which it sleeps while helpers finish: a unit of work of theirs takes less. A sleep takes
# 120 microseconds. Meanwhile the helpers fall asleep, too, and come late to the next launch, for which the caller would sleep again.
WAITS = 1 << 18

# Words of the memory of a worker pool: see `launch_source`. Each has a line of the cache.
HELPERS, SLEEPING, BYTE, READ_END, WRITE_END, LOOKS, ORDER, INSIDE, TAKEN, FAILED, LAST, RECORD, POOL_WORDS = (
    LINE * i for i in range(13)
)


def address_of(function: Any) -> int:
    """Where the machine code of a compiled kernel begins."""
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
    words = [word for x in flat for word in ((address(x), x.size) if isinstance(x, np.ndarray) else (x,))]
    return [HEAD + len(words) + 1, address_of(function), threads, parts, *words, length]


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
