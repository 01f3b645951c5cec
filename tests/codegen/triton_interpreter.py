"""Running GPU kernels on NumPy arrays, with Triton's interpreter: how their numbers are checked where there is no GPU.

Each block runs after the other, each operation of a block is a NumPy call. That is slow (1 to 100 ms a block) and needs neither
PyTorch nor a switch in the environment: a kernel's text is loaded a second time and rewritten for the interpreter.

The interpreter is a private part of Triton. What is wrong or slow there is put right while a kernel runs:

    fused multiply-add     rounds once, as the machine does (by way of float64)
    bfloat16               casts round to the nearest, arithmetic is refused: kernels must widen it first
    float8                 casts round to the nearest, stop at the largest number, and know NaN
    maximum                minima and maxima keep NaN where they are asked to, and drop it where not
    reductions and scans   by any function, in log2 steps of whole blocks, as the machine does
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from dovetail.codegen.gpu.ir import Grid, Launch, Parameter, Routine, TritonKernel, triton_type
from dovetail.codegen.gpu.toolchain.compile import load_source
from dovetail.graph.core.dtypes import as_dtype

Array = np.ndarray[Any, Any]

_WHOLE = {"i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
          "u64": "uint64"}  # fmt: skip
_FLOAT8: dict[str, Any] = {"fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2}
_lock = threading.Lock()  # the interpreter's state is global


def run_routine(routine: Routine, arguments: Mapping[str, Any]) -> None:
    """Run all kernels of a routine.

    Args:
        arguments: what each name stands for: contiguous arrays (outputs are written to), and numbers.

    Raises:
        TypeError, ValueError: an array is not what a kernel says it takes.
    """
    sizes = {name: value for name, value in arguments.items() if isinstance(value, int)}
    everything = dict(arguments)
    for scratch in routine.scratch:
        everything[scratch.name] = np.full(scratch.bytes(sizes), 0xA5, np.uint8)  # nobody may count on zeros
    for launch in routine.launches:
        run_launch(launch, everything)


def run_launch(launch: Launch, arguments: Mapping[str, Any]) -> None:
    """Run one kernel of a routine; nothing happens when its grid is empty."""
    sizes = {name: value for name, value in arguments.items() if isinstance(value, int)}
    run_kernel(launch.kernel, launch.grid.of(sizes), arguments)


Note = Callable[[Array, int, bool, bool], None]
"""Is told of each load and store: the addresses, the bytes at each, whether they are read, whether they are written."""


def run_kernel(
    kernel: TritonKernel,
    grid: tuple[int, int, int] | Grid,
    arguments: Mapping[str, Any],
    note: Note | None = None,
) -> None:
    """Run one kernel. See `run_routine` for the arguments. An error that `note` raises ends it."""
    if isinstance(grid, Grid):
        grid = grid.of({name: value for name, value in arguments.items() if isinstance(value, int)})
    import triton.language as tl
    from triton.runtime import interpreter

    with _lock, _patched(note), np.errstate(all="ignore"):
        module = load_source(kernel.text, "interpreted")
        values: dict[str, Any] = {}
        for p in kernel.parameters:
            values[p.name] = _argument(p, arguments[p.name], tl, interpreter)
        values |= {name: tl.constexpr(value) for name, value in kernel.constants}
        function = _rewritten(getattr(module, kernel.name).fn)
        interpreter.interpreter_builder.set_grid_dim(*grid)
        for index in np.ndindex(*grid):
            interpreter.interpreter_builder.set_grid_idx(*index)
            function(**values)


def _argument(parameter: Parameter, value: Any, tl: Any, interpreter: Any) -> Any:
    """A value as the interpreter's scalar of exactly the parameter's type."""
    kind = tl.str_to_ty(parameter.type, None)
    if parameter.is_address:
        if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
            raise TypeError(f"{parameter.name} is the address of a contiguous array, not {type(value).__name__}")
        if value.dtype != np.uint8 and parameter.type != "*" + triton_type(value.dtype.name):  # scratch is raw bytes
            raise TypeError(f"{parameter.name} is of type {parameter.type}, not an array of {value.dtype.name}")
        if parameter.divisible and value.ctypes.data % 16:
            raise ValueError(f"the address of {parameter.name} is promised to be a multiple of 16")
        data = np.array([value.ctypes.data], np.uint64)
    else:
        if parameter.divisible and value % 16:
            raise ValueError(f"{parameter.name} is promised to be a multiple of 16, and is {value}")
        data = np.array([value], interpreter._get_np_dtype(kind))
    return tl.core.tensor(interpreter.TensorHandle(data, kind), kind)


# --- what is put right -----------------------------------------------------------------------------------------------

_functions: dict[Any, Callable[..., Any]] = {}


def _rewritten(function: Any) -> Callable[..., Any]:
    """A kernel's function as the interpreter wants it."""
    from triton.runtime.interpreter import FunctionRewriter

    found = _functions.get(function)
    if found is None:
        found = _functions[function] = FunctionRewriter(function).rewrite_ast()
    return found


@contextlib.contextmanager
def _patched(note: Note | None) -> Iterator[None]:
    """Triton's language, for the time being, as functions on arrays."""
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    scope = interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    kept_cast, kept_dot, kept_binary = builder.cast_impl, builder.create_dot, builder.binary_op
    kept_convert = builder.create_fp_to_fp

    def wide(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return handle(x.data.view(ml_dtypes.bfloat16).astype(np.float32), tl.float32)

    def cast(self: Any, source: Any, target: Any) -> Any:
        before, after = source.dtype.scalar, target.scalar
        if after == tl.bfloat16 and before != tl.bfloat16 and before.is_floating():
            return handle(source.data.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16), after)
        if before == tl.bfloat16 and after != tl.bfloat16:
            return wide(source) if after == tl.float32 else kept_cast(self, wide(source), target)
        return kept_cast(self, source, target)

    def convert(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        before, after = source.dtype.scalar, target.scalar
        if after.name in _FLOAT8 and before.name in ("fp16", "fp32", "fp64"):
            kind = _FLOAT8[after.name]
            most = float(as_dtype(kind).max)  # the machine's conversion stops there
            return handle(np.clip(source.data.astype(np.float32), -most, most).astype(kind).view(np.uint8), after)
        if before.name in _FLOAT8 and after.name in ("fp16", "fp32", "fp64"):
            widened = source.data.view(_FLOAT8[before.name]).astype(np.float32)
            return handle(
                widened.astype({"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}[after.name]), after
            )
        return kept_convert(self, source, target, rounding)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return kept_dot(self, wide(a), wide(b), *rest)

    def binary(self: Any, a: Any, b: Any, function: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            raise TypeError("a kernel computes with bfloat16, which the interpreter cannot: widen it to float32 first")
        return kept_binary(self, a, b, function)

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        exact = x.data.astype(np.float64) * y.data + z.data
        return handle(exact.astype(x.data.dtype), x.dtype.scalar)

    def calls(self: Any, *arguments: Any, **named: Any) -> Any:
        return _rewritten(self.fn)(*arguments, **named)

    changes = {
        (builder, "cast_impl"): cast,
        (builder, "create_fp_to_fp"): convert,
        (builder, "create_dot"): dot,
        (builder, "binary_op"): binary,
        (builder, "create_fma"): fma,
        (JITFunction, "__call__"): calls,
        (interpreter.ReduceOps, "apply_impl"): _reduce,
        (interpreter.ScanOps, "generic_scan"): _scan,
        (tl.core.tensor, "__index__"): lambda self: int(self.handle.data.reshape(-1)[0]),
    }
    if note is not None:
        changes[interpreter, "_interpreter"] = _Noted(interpreter._interpreter, note)
    try:
        for (owner, name), value in changes.items():
            scope.set_attr(owner, name, value)
        yield
    finally:
        scope.restore()


class _Noted:
    """The interpreter's memory, which tells of each access before it is made."""

    def __init__(self, memory: Any, note: Note) -> None:
        self._memory, self._note = memory, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def _tell(self, at: Array, mask: Array | None, size: int, reads: bool, writes: bool) -> None:
        at = at if mask is None else np.broadcast_to(at, mask.shape)[mask.astype(bool)]
        if at.size:
            self._note(at, size, reads, writes)

    def load(self, at: Array, mask: Array, other: Array, dtype: Any) -> Any:
        self._tell(at, mask, np.dtype(dtype).itemsize, True, False)
        return self._memory.load(at, mask, other, dtype)

    def store(self, at: Array, value: Array, mask: Array) -> Any:
        self._tell(at, mask, value.dtype.itemsize, False, True)
        return self._memory.store(at, value, mask)

    def atomic_rmw(self, how: Any, at: Array, value: Array, mask: Array, order: Any) -> Any:
        self._tell(at, mask, value.dtype.itemsize, True, True)
        return self._memory.atomic_rmw(how, at, value, mask, order)

    def atomic_cas(self, at: Array, compared: Array, value: Array, order: Any) -> Any:
        self._tell(at, None, value.dtype.itemsize, True, True)
        return self._memory.atomic_cas(at, compared, value, order)


def _reduce(self: Any, inputs: Any) -> Any:
    """A reduction by any function, in halves."""
    import triton.language as tl

    standard = tl.standard
    arrays = [x.handle.data for x in inputs]
    axis = self.axis
    if axis is None:
        arrays, axis = [a.reshape(-1) for a in arrays], 0
    if self.combine_fn is standard._sum_combine:
        done = [np.sum(arrays[0], axis=axis, keepdims=True, dtype=arrays[0].dtype)]
    elif self.combine_fn in (standard._elementwise_max, standard._elementwise_min):
        # Without being asked to keep it, the machine drops NaN.
        function = np.fmax if self.combine_fn is standard._elementwise_max else np.fmin
        done = [function.reduce(arrays[0], axis=axis, keepdims=True)]
    else:
        combine = _rewritten(self.combine_fn.fn)
        done = arrays
        while done[0].shape[axis] > 1:
            first, second = zip(*(np.split(a, 2, axis=axis) for a in done), strict=True)
            given = [
                self.to_tensor(np.ascontiguousarray(a), x.dtype)
                for a, x in zip((*first, *second), (*inputs, *inputs), strict=True)
            ]
            made = combine(*given)
            done = [x.handle.data for x in (made if isinstance(made, tuple) else (made,))]
    if not self.keep_dims:
        done = [np.squeeze(a, axis=axis) for a in done]
    elif self.axis is None:
        done = [a.reshape((1,) * len(inputs[0].shape)) for a in done]
    return [self.to_tensor(a if a.shape else a[()], x.dtype) for a, x in zip(done, inputs, strict=True)]


def _scan(self: Any, inputs: Any) -> Any:
    """A scan by any function, in steps of 1, 2, 4, ..."""
    combine = _rewritten(self.combine_fn.fn)
    done = [x.handle.data for x in inputs]
    length = done[0].shape[self.axis]
    at = np.arange(length).reshape([-1 if i == self.axis else 1 for i in range(done[0].ndim)])
    step = 1
    while step < length:
        before = [np.roll(a, step, axis=self.axis) for a in done]
        given = [self.to_tensor(a, x.dtype) for a, x in zip((*before, *done), (*inputs, *inputs), strict=True)]
        made = combine(*given)
        new = [x.handle.data for x in (made if isinstance(made, tuple) else (made,))]
        done = [np.where(at < step, a, n) for a, n in zip(done, new, strict=True)]
        step *= 2
    return [self.to_tensor(a, x.dtype) for a, x in zip(done, inputs, strict=True)]
