"""GPU kernels before and after compiling, as plain data. Nothing here needs Triton or a GPU.

    TritonKernel  --toolchain.compile_kernel(kernel, target)-->  Binary  --the device layer-->  a launch

A kernel is written for one set of *constants* and takes everything else as *parameters*. Parameters are known by name, and so
are the arguments of a launch: the launcher has one mapping from names to addresses and numbers, and passes each kernel its
parameters in the order of `Binary.parameters`. A `Routine` is one or a few kernels that run one after the other on
one stream, with scratch memory between them, and do the work of one fused group, one matrix product, one sort. By convention

    in0, in1, ...     addresses of the inputs, in order          n0, n1, ...   sizes of the axes
    out0, out1, ...   addresses of the outputs, in order         scratch0, ... addresses of the routine's scratch

A `Grid` gives the number of a launch's blocks in terms of the same names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from ..ir.schedule import GpuProductSchedule, GpuSchedule
from ..target import MOST_BLOCKS, WARP, Target

_POINTED = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8,
            "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "fp8e4nv": 1, "fp8e5": 1}  # fmt: skip
_NUMBERS = ("i32", "i64")

TRITON_TYPES = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv",
           "float8_e5m2": "fp8e5", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
           "uint32": "u32", "uint64": "u64", "bool": "i1"}  # fmt: skip


def triton_type(dtype: str) -> str:
    """Triton's name of an element type, by NumPy's: `fp32` for `float32`.

    Raises:
        KeyError: kernels cannot have this type.
    """
    return TRITON_TYPES[dtype]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One run-time argument of a kernel.

    Attributes:
        name: the argument's name in the kernel's text, and in the launcher's mapping.
        type: Triton's: `*fp32` for an address, `i32` or `i64` for a number.
        divisible: the launcher promises that the address, or the number, is a multiple of 16. Vector loads need that of every
            address and stride that they come from.
    """

    name: str
    type: str
    divisible: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"{self.name!r} is no name of an argument")
        if (self.type[1:] not in _POINTED) if self.is_address else (self.type not in _NUMBERS):
            raise ValueError(f"argument {self.name} has the type {self.type!r}, which kernels do not take")

    @property
    def is_address(self) -> bool:
        """Whether it is the address of an array."""
        return self.type.startswith("*")

    @property
    def size(self) -> int:
        """Bytes that it takes among the kernel's arguments; it is aligned to as many."""
        return 4 if self.type == "i32" else 8


def layout(parameters: Sequence[Parameter]) -> tuple[tuple[int, int], ...]:
    """Offset and size in bytes of each argument of a launch, and of the two addresses that Triton adds: of global and profile scratch."""
    out: list[tuple[int, int]] = []
    end = 0
    for size in (*(p.size for p in parameters), 8, 8):
        start = -(-end // size) * size
        out.append((start, size))
        end = start + size
    return tuple(out)


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A kernel as source text, with all that decides what it is compiled to.

    Attributes:
        name: the `@triton.jit` function of `text` that is launched.
        text: a whole module, which imports nothing but Triton. It should begin with `HEADER`.
        parameters: the function's run-time arguments, in order.
        constants: name and value of each `tl.constexpr` argument. They follow the parameters.
        num_warps, num_stages: Triton's. A block has num_warps times WARP threads.
        contract: whether a product and a sum may become one operation, rounded once. NumPy's results need `False`.
    """

    name: str
    text: str
    parameters: tuple[Parameter, ...]
    constants: tuple[tuple[str, bool | int | float | str], ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    contract: bool = False

    def __post_init__(self) -> None:
        found = re.search(rf"^def {re.escape(self.name)}\(([^)]*)\)", self.text, re.MULTILINE)
        if found is None:
            raise ValueError(f"the text has no function {self.name!r}")
        names = [a.split(":")[0].strip() for a in found.group(1).split(",") if a.strip()]
        given = [p.name for p in self.parameters] + [name for name, _ in self.constants]
        if names != given:
            raise ValueError(f"{self.name} takes {', '.join(names)}; given are {', '.join(given)}")
        if self.num_warps & (self.num_warps - 1) or not 1 <= self.num_warps <= 32:
            raise ValueError(f"a block has 1, 2, 4, 8, 16 or 32 warps, not {self.num_warps}")


HEADER = "import triton\nimport triton.language as tl\n\n\n"
"""The first lines of all kernel texts. They are equal because Triton's cache key contains the line that a function begins in."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel.

    Attributes:
        image: what the driver loads: a cubin.
        entry: the function in it.
        parameters: the run-time arguments. After them the function takes two addresses: of global_scratch, 0 where its size is 0,
            and one of what is never asked for.
        num_warps: warps in a block.
        shared_bytes: dynamic shared memory of a block. More than 48 KiB must be asked for beforehand.
        global_scratch: bytes per block.
        registers: of a thread; 0 where it is not known.
        spills: bytes of a thread's stack: registers that did not fit, and arrays.
        target: what it was compiled for.
    """

    image: bytes
    entry: str
    parameters: tuple[Parameter, ...]
    num_warps: int
    shared_bytes: int
    global_scratch: int
    registers: int
    spills: int
    target: Target

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.num_warps * WARP

    def to_fields(self) -> dict[str, Any]:
        """The fields except the image, for JSON."""
        fields = asdict(self)
        del fields["image"]
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], image: bytes) -> Binary:
        """The inverse of `to_fields`.

        Raises:
            KeyError, TypeError, ValueError: the fields are not those of a binary.
        """
        rest = dict(fields)
        parameters = tuple(Parameter(**p) for p in rest.pop("parameters"))
        return cls(image=image, parameters=parameters, target=Target(**rest.pop("target")), **rest)


# --- launches --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Count:
    """A number that is known at launch: the product of some sizes, divided, rounded up, times something.

    Attributes:
        names: the sizes; none: 1.
        per: what their product is divided by.
        times: what that is multiplied by, afterwards.
    """

    names: tuple[str, ...]
    per: int = 1
    times: int = 1

    def of(self, sizes: Mapping[str, int]) -> int:
        """The number, for these sizes.

        >>> Count(("n0", "n1"), 1024).of({"n0": 100, "n1": 50})
        5
        """
        return -(-math.prod(sizes[name] for name in self.names) // self.per) * self.times


@dataclass(frozen=True, slots=True)
class Grid:
    """How many blocks a launch has along x and y: each a product of counts.

    >>> Grid((Count(("m",), 128), Count(("n",), 64)), (Count(("batch",)),)).of({"m": 300, "n": 64, "batch": 7})
    (3, 7, 1)
    """

    x: tuple[Count, ...] = ()
    y: tuple[Count, ...] = ()

    def of(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """The blocks, for these sizes. When one number is 0 there is nothing to launch.

        Raises:
            ValueError: more blocks than a GPU takes.
        """
        x, y = (math.prod(c.of(sizes) for c in counts) for counts in (self.x, self.y))
        if any(have > most for have, most in zip((x, y), MOST_BLOCKS, strict=True)):
            raise ValueError(f"a grid of {x} x {y} blocks is larger than {MOST_BLOCKS}")
        return x, y, 1


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch memory that only a routine's kernels use. It need not be cleared.

    Attributes:
        name: of the parameter that gets its address.
        type: of an element, in Triton's words: `fp32`.
        count: how many elements: a product.
    """

    name: str
    type: str
    count: tuple[Count, ...]

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """How many bytes, for these sizes."""
        return math.prod(c.of(sizes) for c in self.count) * _POINTED[self.type]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel, how many blocks of it, and the schedule that it follows (None: one without choices)."""

    kernel: TritonKernel
    grid: Grid
    schedule: GpuSchedule | GpuProductSchedule | None = None

    def __str__(self) -> str:
        return str(self.schedule or f"{self.kernel.num_warps} warps")


@dataclass(frozen=True, slots=True)
class Routine:
    """Kernels that together do one piece of work: launched in order, on one stream.

    Attributes:
        launches: in order.
        scratch: memory that they need besides inputs and outputs.
    """

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()

    @property
    def text(self) -> str:
        """The texts of its kernels."""
        return "\n\n".join(launch.kernel.text for launch in self.launches)

    def __str__(self) -> str:
        return "; then ".join(dict.fromkeys(map(str, self.launches)))


# --- plans -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompiledLaunch:
    """One kernel that a GPU's program launches, as it is compiled.

    Attributes:
        name: the function's.
        blocks, threads: of the launch, and of a block.
        registers: of a thread. spilled_bytes: of a thread's registers that did not fit.
        shared_bytes: of a block.
        occupancy: threads that a multiprocessor has at a time, as a part of the most that it can have.
    """

    name: str
    blocks: int
    threads: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    occupancy: float

    def __str__(self) -> str:
        spilled = f", {self.spilled_bytes} B spilled" if self.spilled_bytes else ""
        return (
            f"{self.name}: {self.blocks:,} blocks of {self.threads} threads, {self.registers} registers{spilled}, "
            f"{self.shared_bytes:,} B shared, occupancy {self.occupancy:.0%}"
        )


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """What one call of a GPU's program launches: the likely best of its candidates.

    Attributes:
        op: of the call. nodes: names of what it computes.
        launches: its kernels, in order.
        bytes: that it reads and writes. flops: that it computes.
        seconds: the least time by the roofline.
    """

    op: str
    nodes: tuple[str, ...]
    launches: tuple[CompiledLaunch, ...]
    bytes: float
    flops: float
    seconds: float

    def __str__(self) -> str:
        work = f"{self.bytes / 1e6:,.3f} MB, {self.flops:,.0f} flops"
        head = f"{self.op} up to '{self.nodes[-1]}': {work}, at least {self.seconds * 1e6:.3g} µs"
        return "\n  ".join([head, *map(str, self.launches)])


@dataclass(frozen=True, slots=True)
class Choice:
    """The routines that can be launched for inputs of certain shapes.

    Attributes:
        candidates: routines, each of which does the work; likely fast ones first.
        sizes: of a launch, by name.
        outputs: shape and type of each.
    """

    candidates: Sequence[Routine]
    sizes: Mapping[str, int]
    outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]


Shape: TypeAlias = tuple[int, ...]
Choose: TypeAlias = "Callable[[Sequence[Shape], Sequence[Any]], Choice | None]"


@dataclass(slots=True)
class Template:
    """How one node runs.

    Attributes:
        inputs: how many of the node's inputs are loaded; of the others only the values on the host are used.
        choose: (shapes of the loaded inputs, values of the others, as tuples) -> what to launch; None: nothing, the fallback runs.
        order: the node's inputs in the order that the others follow: first those that are loaded. None: their own.
    """

    inputs: int
    choose: Choose
    order: tuple[int, ...] | None = None
