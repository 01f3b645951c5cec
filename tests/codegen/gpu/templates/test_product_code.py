"""What the machine code of products, attention and convolutions says, for Hopper: a change that ruins it fails here.

In the loop that multiplies: the widest matrix instructions that a tile allows, or, where products are exact, mostly multiply-adds and
vectors from shared memory; no registers that were put aside; loads of 16 bytes.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from machine_code import Code, disassembler, facts_of_code

from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.templates.attention import attention
from dovetail.codegen.gpu.templates.conv import convolution
from dovetail.codegen.gpu.templates.gemm import matmul
from dovetail.codegen.gpu.toolchain.compile import compile_kernel
from dovetail.codegen.ir.schedule import GpuProductSchedule
from dovetail.codegen.target import SM90
from dovetail.graph.core.dtypes import DType, bfloat16, float32
from dovetail.graph.ops.nn.conv_geometry import Window

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(disassembler() is None, reason="there is no disassembler beside Triton"),
]


def multiplying(routine: Routine, name: str) -> tuple[Code, Code]:
    """A kernel of a routine: all of it, and its innermost loop with the most products."""
    (kernel,) = {launch.kernel for launch in routine.launches if launch.kernel.name == name}
    code = facts_of_code(compile_kernel(kernel, SM90)).code
    return code, max(code.loops, key=lambda loop: (loop.count("HGMMA", "FFMA"), -len(loop.instructions)))


def shapes(code: Code) -> Counter[str]:
    """Matrix instructions by their shape: `64x256x16`."""
    return Counter(i.opcode.split(".")[1] for i in code.instructions if i.name == "HGMMA")


def described(dtype: DType, **sizes: int) -> list[Routine]:
    return matmul(dtype, dtype, target=SM90, known=sizes)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["persistent", "described", "addresses"])
def test_large_products_in_half_precision(which: int) -> None:
    routine = described(bfloat16, m=8192, n=8192, k=8192, batch=1)[which]
    code, loop = multiplying(routine, "matmul")
    assert shapes(loop) == {"64x256x16": 4}, "a step of 64 in the widest instructions there are"
    assert not code.local
    assert loop.count("HMMA", "LDSM") == 0
    if which < 2:
        assert loop.count("UTMALDG") == 2, "the copy engine brings both operands"
    else:
        assert set(loop.loads) == {16}
    if which == 0:
        assert code.count("UTMASTG") and not code.stores, "the copy engine takes the result"
    else:
        assert set(code.stores) == {16}


def test_few_rows_keep_memory_busy() -> None:
    """16 x 4096 x 4096 is bound by the bytes of the second operand."""
    best = described(bfloat16, m=16, n=4096, k=4096, batch=1)[0]
    launch = best.launches[0]
    facts = facts_of_code(compile_kernel(launch.kernel, SM90))
    x, y, z = launch.grid.of({"m": 16, "n": 4096, "k": 4096, "batch": 1})
    assert x * y * z >= 128
    assert set(max(facts.code.loops, key=lambda loop: loop.moved).loads) == {16} and not facts.code.local
    assert facts.threads * facts.code.in_flight >= 40 << 10, (
        "bytes in flight of one block, and there is one for each multiprocessor"
    )


@pytest.mark.parametrize(
    "tile", [GpuProductSchedule(128, 128, 16, 8, 3), GpuProductSchedule(64, 128, 16, 4, 3)], ids=str
)
@pytest.mark.parametrize("straight", [False, True])
def test_exact_products(tile: GpuProductSchedule, straight: bool) -> None:
    """At least 85 of 100 instructions multiply and add, and a vector from shared memory serves 12 of them."""
    (routine,) = matmul(
        float32, float32, target=SM90, transpose_b=straight, known={"m": 4096, "n": 1024, "k": 1024},
        at=[replace(tile, straight=straight)],
    )  # fmt: skip
    code, loop = multiplying(routine, "matmul")
    assert loop.share("FFMA") >= 0.85
    assert loop.widths("LDS")[16] * 12 <= loop.count("FFMA")
    assert set(loop.loads) == {16} and set(code.stores) == {16} and not code.local


ATTENTION: dict[str, tuple[DType, int, Any]] = {
    "bfloat16, 64": (bfloat16, 64, ({"64x128x16": 4, "64x64x16": 8}, {"64x64x16": 16}, {"64x64x16": 12})),
    "bfloat16, 128": (
        bfloat16,
        128,
        (
            {"64x64x16": 8, "64x128x16": 4},
            {"64x32x16": 16, "64x128x16": 4},
            {"64x32x16": 16, "64x128x16": 2},
        ),
    ),
}
SIZES = {"batch": 8, "heads": 8, "kv_heads": 8, "queries": 2048, "keys": 2048}


@pytest.mark.parametrize("case", ATTENTION.values(), ids=ATTENTION)
def test_attention_in_half_precision(case: tuple[DType, int, Any]) -> None:
    dtype, size, expected = case
    forward = attention(dtype, size, 0.125, known=SIZES)[0]
    backward = attention(dtype, size, 0.125, known=SIZES, backward=True)[0]
    pairs = ((forward, "attention"), (backward, "attention_keys"), (backward, "attention_queries"))
    for (routine, name), instructions in zip(pairs, expected, strict=True):
        code, loop = multiplying(routine, name)
        assert shapes(loop) == instructions, name
        assert not code.local and set(loop.loads) <= {4, 16}, name


def test_exact_attention() -> None:
    """Three quarters of the instructions multiply and add: all others of a block of keys are few beside its products."""
    forward = attention(float32, 64, 0.125, known=SIZES)[0]
    backward = attention(float32, 64, 0.125, known=SIZES, backward=True)[0]
    for routine, name in ((forward, "attention"), (backward, "attention_keys"), (backward, "attention_queries")):
        _, loop = multiplying(routine, name)
        assert loop.share("FFMA") >= 0.7, name
        assert not loop.local, name


def test_convolutions() -> None:
    """A quarter of a multiprocessor issues fewer instructions for a step than its matrix unit is busy for."""
    known = {"images": 64, "height": 28, "width": 28, "channels": 256, "filters": 256, "rows": 28, "columns": 28}
    window = Window((3, 3), (1, 1), (1, 1), "SAME")
    for makes, name in (("result", "convolution"), ("image", "convolution_input")):
        code, loop = multiplying(convolution(bfloat16, window, makes, known=known)[0], name)
        assert shapes(loop) == {"64x128x16": 4}
        # Of a quarter; of both groups of warps, 64 for each product of 64 x 128 x 16.
        warps, cycles = (
            8 // 4,
            2 * 4 * 64,
        )
        assert warps * len(loop.instructions) <= cycles
        assert not code.local and set(loop.loads) == {16}
