"""The text of one kernel of each template, against golden files. DOVETAIL_UPDATE_GOLDEN=1 writes them anew."""

import os
from pathlib import Path

import pytest

from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.templates import tables
from dovetail.codegen.gpu.templates.attention import attention
from dovetail.codegen.gpu.templates.conv import convolution
from dovetail.codegen.gpu.templates.gemm import matmul
from dovetail.codegen.gpu.templates.sort import sort
from dovetail.codegen.gpu.templates.strided_copy import Move, moves
from dovetail.codegen.ir.loop_nest import LoopNestBuilder, TileLoops
from dovetail.codegen.ir.schedule import GpuProductSchedule
from dovetail.codegen.ir.windows import image_sizes
from dovetail.codegen.target import SM90
from dovetail.graph.core.dtypes import bfloat16, float32, int32
from dovetail.graph.ops.nn.conv_geometry import Window

GOLDEN = Path(__file__).parents[2] / "golden"


def dense_layer() -> Routine:
    """bfloat16, with bias and relu; the inner size is shared by two programs."""
    build = LoopNestBuilder([False, False])
    biased = build.apply("add", build.load(0, float32, [0, 1]), build.load(1, float32, [1]))
    active = build.apply("maximum", biased, build.constant(0.0, float32))
    build.store(build.apply("cast", active, dtype=bfloat16), [0, 1])
    edge = TileLoops(*build.finish())
    return matmul(
        bfloat16,
        bfloat16,
        target=SM90,
        epilogue=edge,
        known={"n": 512, "k": 1024},
        at=[GpuProductSchedule(64, 64, 64, 4, 3, splits=2)],
    )[0]


TEMPLATES = {
    "dense_layer": dense_layer,
    "masked_attention": lambda: attention(bfloat16, 64, 0.125, mask=bfloat16)[0],
    "convolution_input": lambda: convolution(bfloat16, Window((3, 3), (2, 2), padding="SAME"), "image")[0],
    "sorted_rows": lambda: sort(float32, 250),
    "transposed_copy": lambda: moves(float32, [Move(0, 0, ((64, 1, 48), (48, 64, 1)))])[0][0],
    "added_rows": lambda: tables.scatter("add", float32, int32, tables.launch_sizes(1000, 96, 5000, [1000]))[0],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_of_a_template(name: str) -> None:
    text = "\n\n".join(f"# {launch.grid}\n{launch.kernel.text}" for launch in TEMPLATES[name]().launches)
    path = GOLDEN / f"triton_{name}.py.txt"
    if os.environ.get("DOVETAIL_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_offsets_near_two_to_the_31_keep_a_block_of_room() -> None:
    """32 bits count the elements of an image, and how far a tile reaches beyond it."""
    window = Window((1, 1), (1, 1))
    assert image_sizes(window, (1, 1 << 15, 1 << 15, 1))["rows"] == 1 << 15
    for columns in ((1 << 16) - 1, 1 << 16):
        with pytest.raises(ValueError, match="with a block's margin"):
            image_sizes(window, (1, 1 << 15, columns, 1))
