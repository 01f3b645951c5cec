"""The launch table and its interpreter: compiled kernels are called without Python in between.

A kernel that Numba has compiled is a function with an address. Numba calls it through a wrapper that looks at each Python argument, which
takes microseconds; a small kernel takes less. Here the arguments are words of a table, and one compiled function interprets it. A
table is a vector of int64:

    addresses of the arrays of a run,  then records: [words of the record, trampoline, function, arguments ...]

A *trampoline* loads the arguments from the table and calls the function with them; there is one for each number of arguments.
Before the records run, `begin` checks the arrays (type, sizes, contiguous) and writes their addresses into the records. All of it
works without Python's lock.

No other module knows how Numba passes arguments (its CPU calling convention, which `tests/codegen/cpu/test_vm.py` checks), or
where NumPy keeps the fields of an array, which its C headers fix for compiled extensions:

    function(result*, error**, arguments ...) -> status, 0: success
    a vector:   0, 0, elements, bytes of an element, address, elements, bytes of an element
    a tuple:    its elements        an integer: itself
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

HEAD = 3  # words of a record before its arguments
WORD = 8  # bytes
MOST_ARGUMENTS = 400  # of a kernel; what has more stays with Numba's own wrapper
VECTOR = 7  # words of a vector's argument
ADDRESS = 4  # which of them is its address

_HEADER = object.__basicsize__  # of a Python object without fields; its type is the last thing there
_FIELDS = {"data": 0, "rank": 8, "sizes": 16, "descriptor": 40, "flags": 48}  # of an array, after that
_ORDERLY = 0x1 | 0x100  # flags: contiguous in C's order, aligned


# --- what Numba takes ------------------------------------------------------------------------------------------------


def address_of(function: Any) -> int:
    """Where the machine code of a compiled kernel with one signature begins."""
    (result,) = function.overloads.values()
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def vector(elements: int, itemsize: int, address: int = 0) -> tuple[int, ...]:
    """The words of a contiguous vector as an argument."""
    return (0, 0, elements, itemsize, address, elements, itemsize)


def flat(numbers: Iterable[Any]) -> list[int]:
    """The words of integers, and of tuples of them, as arguments."""
    out: list[int] = []
    for x in numbers:
        out.extend(x) if isinstance(x, tuple) else out.append(x)
    return out


def head(function: Any, arguments: int) -> list[int]:
    """The first words of a record, by its number of argument words.

    `function`: a compiled kernel, the address of one, or the name of a function of the machine itself:

        fill(address, words, number)             fills int64 words with a number
        copy(to, from, bytes)                    copies memory
        within<n>(address, elements, limit)      fails unless all numbers of n bytes are from 0 to below a limit
        below<n>(address, elements, limit)       the same for numbers that may be negative
    """
    machine = _machine()
    if isinstance(function, str):
        function = machine.own[function]
    elif not isinstance(function, int):
        function = address_of(function)
    return [HEAD + arguments, machine.trampoline(arguments), function]


# --- what runs it ----------------------------------------------------------------------------------------------------


def expected(arrays: Sequence[Array | None], patches: Sequence[tuple[int, int, int]]) -> Array:
    """What `begin` needs to know of the arrays, as words.

    Args:
        arrays: what the arrays of each run must be, in their order; None: any array.
        patches: (word of the table, number of the array, offset in bytes): the addresses in the records.
    """
    words: list[int] = [len(arrays)]
    for x in arrays:
        words += [0] if x is None else [id(x.dtype), x.ndim, *x.shape]
    words.append(len(patches))
    for patch in patches:
        words += patch
    return np.array(words, np.int64)


def begin(table: int, plan: int, arrays: tuple[Array, ...], first: int, last: int) -> int:
    """Run records of a table on these arrays.

    Args:
        table: its address. plan: that of what `expected` gave.
        arrays: as many as `expected` was given.
        first, last: words of the table: where the first record begins and the last one ends.

    Returns:
        0: success. -1 - i: array i is not as expected, and no record was run. Otherwise: the number of the first word of the
        record that failed.
    """
    status: int = _machine().begin(table, plan, arrays, first, last)
    return status


def run(table: int, first: int, last: int) -> int:
    """Run more records of a table that `begin` has seen; gives what that gives."""
    status: int = _machine().run(table, first, last)
    return status


def compiled_functions(text: str) -> Callable[[str], int]:
    """Compile functions written in LLVM IR. Returns a function that gives the address of each by its name."""
    address_of_name: Callable[[str], int] = _machine().compiled(text).get_function_address
    return address_of_name


@cache
def is_possible() -> bool:
    """Whether arrays look as this module takes them to be: not where Python, or NumPy, is built in another way."""
    if ctypes.sizeof(ctypes.c_void_p) != WORD:
        return False
    x = np.zeros((3, 5), np.int16)
    held = (x,)
    at = id(x) + _HEADER
    word = ctypes.c_int64.from_address
    sizes = [word(word(at + _FIELDS["sizes"]).value + WORD * i).value for i in range(2)]
    return (
        word(at - WORD).value == id(np.ndarray)
        and word(at + _FIELDS["data"]).value == x.ctypes.data
        and ctypes.c_int.from_address(at + _FIELDS["rank"]).value == 2
        and sizes == [3, 5]
        and word(at + _FIELDS["descriptor"]).value == id(x.dtype)
        and ctypes.c_int.from_address(at + _FIELDS["flags"]).value & _ORDERLY == _ORDERLY
        and word(id(held) + tuple.__basicsize__).value == id(x)
    )


class _Machine:
    """The compiled functions of this process. Trampolines are compiled on demand."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._llvm = llvm
        self._lock = threading.Lock()
        self._trampolines: dict[int, int] = {}
        engine = self.compiled(_MACHINE)
        at = engine.get_function_address
        i64 = ctypes.c_int64
        self.begin = ctypes.CFUNCTYPE(i64, i64, i64, ctypes.py_object, i64, i64)(at("begin"))
        self.run = ctypes.CFUNCTYPE(i64, i64, i64, i64)(at("run"))
        compared = [f"{name}{size}" for name in ("within", "below") for size in (1, 2, 4, 8)]
        self.own = {name: at(name) for name in ("fill", "copy", *compared)}

    def trampoline(self, arguments: int) -> int:
        """The address of the trampoline for that many arguments."""
        found = self._trampolines.get(arguments)
        if found is not None:
            return found
        with self._lock:
            if arguments not in self._trampolines:
                engine = self.compiled(_trampoline(arguments))
                self._trampolines[arguments] = engine.get_function_address("trampoline")
            return self._trampolines[arguments]

    def compiled(self, text: str) -> Any:
        """An engine that has a text's functions, for as long as this process runs."""
        llvm = self._llvm
        module = llvm.parse_assembly(text)
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _engines.append(engine)
        return engine


_engines: list[Any] = []  # what they have compiled lives as long as they do


@cache
def _machine() -> _Machine:
    return _Machine()


def _trampoline(arguments: int) -> str:
    """A function that calls another one with the argument words of a record."""
    loads = [
        f"  %p{i} = getelementptr i64, ptr %words, i64 {i}\n  %a{i} = load i64, ptr %p{i}" for i in range(arguments)
    ]
    passed = ", ".join(["ptr %result", "ptr %error", *[f"i64 %a{i}" for i in range(arguments)]])
    return "\n".join(
        [
            "define i32 @trampoline(ptr %function, ptr %words) {",
            "  %result = alloca i64",
            "  %error = alloca ptr",
            "  store ptr null, ptr %error",
            *loads,
            f"  %status = call i32 %function({passed})",
            "  ret i32 %status",
            "}",
        ]
    )


def _all_below(name: str, size: int) -> str:
    """`within`: an unsigned comparison, so a negative number is above every limit; `below`: a signed one."""
    kind = f"i{8 * size}"
    extend, compare = ("zext", "ult") if name == "within" else ("sext", "slt")
    return f"""
define i32 @{name}{size}(ptr %result, ptr %error, ptr %numbers, i64 %count, i64 %limit) {{
start:
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %following, %look ]
  %is_last = icmp eq i64 %i, %count
  br i1 %is_last, label %well, label %look
look:
  %place = getelementptr {kind}, ptr %numbers, i64 %i
  %number = load {kind}, ptr %place
  %wide = {f"{extend} {kind} %number to i64" if size < 8 else "add i64 %number, 0"}
  %is_below = icmp {compare} i64 %wide, %limit
  %following = add i64 %i, 1
  br i1 %is_below, label %next, label %wrong
well:
  ret i32 0
wrong:
  ret i32 1
}}"""


_MACHINE = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i64 @run(ptr %table, i64 %first, i64 %last) {{
start:
  br label %next
next:
  %at = phi i64 [ %first, %start ], [ %following, %call ]
  %is_end = icmp eq i64 %at, %last
  br i1 %is_end, label %well, label %call
call:
  %record = getelementptr i64, ptr %table, i64 %at
  %words = load i64, ptr %record
  %following = add i64 %at, %words
  %place1 = getelementptr i64, ptr %record, i64 1
  %trampoline = load ptr, ptr %place1
  %place2 = getelementptr i64, ptr %record, i64 2
  %function = load ptr, ptr %place2
  %arguments = getelementptr i64, ptr %record, i64 {HEAD}
  %status = call i32 %trampoline(ptr %function, ptr %arguments)
  %is_well = icmp eq i32 %status, 0
  br i1 %is_well, label %next, label %wrong
well:
  ret i64 0
wrong:
  ret i64 %at
}}

define i64 @begin(ptr %table, ptr %plan, ptr %arrays, i64 %first, i64 %last) {{
start:
  %count = load i64, ptr %plan
  %items = getelementptr i8, ptr %arrays, i64 {tuple.__basicsize__}
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %i1, %put ]
  %at = phi i64 [ 1, %start ], [ %following, %put ]
  %is_end = icmp eq i64 %i, %count
  br i1 %is_end, label %patches, label %array
array:
  %item = getelementptr ptr, ptr %items, i64 %i
  %x = load ptr, ptr %item
  %fields = getelementptr i8, ptr %x, i64 {_HEADER}
  %expected = getelementptr i64, ptr %plan, i64 %at
  %descriptor = load i64, ptr %expected
  %at1 = add i64 %at, 1
  %is_any = icmp eq i64 %descriptor, 0
  br i1 %is_any, label %put, label %look
look:
  %type_place = getelementptr i8, ptr %fields, i64 -{WORD}
  %type = load i64, ptr %type_place
  %is_array = icmp eq i64 %type, {id(np.ndarray)}
  br i1 %is_array, label %look2, label %other
look2:
  %own_place = getelementptr i8, ptr %fields, i64 {_FIELDS["descriptor"]}
  %own = load i64, ptr %own_place
  %is_alike = icmp eq i64 %own, %descriptor
  %flags_place = getelementptr i8, ptr %fields, i64 {_FIELDS["flags"]}
  %flags = load i32, ptr %flags_place
  %orderly = and i32 %flags, {_ORDERLY}
  %is_orderly = icmp eq i32 %orderly, {_ORDERLY}
  %rank_place = getelementptr i8, ptr %fields, i64 {_FIELDS["rank"]}
  %rank32 = load i32, ptr %rank_place
  %rank = sext i32 %rank32 to i64
  %wanted_place = getelementptr i64, ptr %plan, i64 %at1
  %wanted = load i64, ptr %wanted_place
  %is_rank = icmp eq i64 %rank, %wanted
  %both = and i1 %is_alike, %is_orderly
  %all = and i1 %both, %is_rank
  %sizes_place = getelementptr i8, ptr %fields, i64 {_FIELDS["sizes"]}
  %sizes = load ptr, ptr %sizes_place
  %at2 = add i64 %at, 2
  br i1 %all, label %size, label %other
size:
  %d = phi i64 [ 0, %look2 ], [ %d1, %size2 ]
  %here = add i64 %at2, %d
  %is_last = icmp eq i64 %d, %rank
  br i1 %is_last, label %put, label %size2
size2:
  %own_size_place = getelementptr i64, ptr %sizes, i64 %d
  %own_size = load i64, ptr %own_size_place
  %size_place = getelementptr i64, ptr %plan, i64 %here
  %wanted_size = load i64, ptr %size_place
  %d1 = add i64 %d, 1
  %is_size = icmp eq i64 %own_size, %wanted_size
  br i1 %is_size, label %size, label %other
put:
  %following = phi i64 [ %at1, %array ], [ %here, %size ]
  %data = load i64, ptr %fields
  %slot = getelementptr i64, ptr %table, i64 %i
  store i64 %data, ptr %slot
  %i1 = add i64 %i, 1
  br label %next
other:
  %negative = xor i64 %i, -1
  ret i64 %negative
patches:
  %patches_place = getelementptr i64, ptr %plan, i64 %at
  %patches_count = load i64, ptr %patches_place
  br label %patch
patch:
  %k = phi i64 [ 0, %patches ], [ %k1, %write ]
  %p = phi ptr [ %patches_place, %patches ], [ %offset_place, %write ]
  %is_done = icmp eq i64 %k, %patches_count
  br i1 %is_done, label %go, label %write
write:
  %word_place = getelementptr i64, ptr %p, i64 1
  %word = load i64, ptr %word_place
  %number_place = getelementptr i64, ptr %p, i64 2
  %number = load i64, ptr %number_place
  %offset_place = getelementptr i64, ptr %p, i64 3
  %offset = load i64, ptr %offset_place
  %base_place = getelementptr i64, ptr %table, i64 %number
  %base = load i64, ptr %base_place
  %address = add i64 %base, %offset
  %target = getelementptr i64, ptr %table, i64 %word
  store i64 %address, ptr %target
  %k1 = add i64 %k, 1
  br label %patch
go:
  %status = call i64 @run(ptr %table, i64 %first, i64 %last)
  ret i64 %status
}}

define i32 @fill(ptr %result, ptr %error, ptr %to, i64 %count, i64 %number) {{
start:
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %i1, %put ]
  %is_end = icmp eq i64 %i, %count
  br i1 %is_end, label %well, label %put
put:
  %place = getelementptr i64, ptr %to, i64 %i
  store i64 %number, ptr %place
  %i1 = add i64 %i, 1
  br label %next
well:
  ret i32 0
}}

define i32 @copy(ptr %result, ptr %error, ptr %to, ptr %from, i64 %size) {{
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)
  ret i32 0
}}
{"".join(_all_below(name, size) for name in ("within", "below") for size in (1, 2, 4, 8))}
"""
