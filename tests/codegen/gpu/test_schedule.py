"""The schedules that are chosen for GPUs, against a golden file. DOVETAIL_UPDATE_GOLDEN=1 writes it anew."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.codegen.gpu.emit.launches import fused
from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.schedule import (
    attention_schedules,
    convolution_schedules,
    copy_schedules,
    filter_schedules,
    loop_schedules,
    product_schedules,
    specialise,
)
from dovetail.codegen.gpu.templates.gemm import matmul
from dovetail.codegen.gpu.toolchain.compile import key_of
from dovetail.codegen.ir.loop_nest import LoopNest, LoopNestBuilder
from dovetail.codegen.ir.schedule import GpuProductSchedule, GpuSchedule
from dovetail.codegen.target import SM80, SM90, SM100
from dovetail.graph.core.dtypes import bfloat16, float32, float64

pytest.importorskip("triton")

GOLDEN = Path(__file__).parents[1] / "golden" / "gpu_schedules.txt"
GEMMS = {"square": {"m": 8192, "n": 8192, "k": 8192}, "few rows": {"m": 16, "n": 4096, "k": 4096}}


def nest(reduced: Sequence[bool]) -> LoopNest:
    """exp(x), or the sum of it over some axes."""
    build = LoopNestBuilder(reduced)
    value = build.apply("exp", build.load(0, float32, range(len(reduced))))
    kept = [a for a, is_reduced in enumerate(reduced) if not is_reduced]
    build.store(build.reduce("sum", value) if any(reduced) else value, kept)
    return build.finish(join=False)[0]


NESTS = {
    "elements": (nest([False]), (1 << 20,)),
    "rows": (nest([False, False]), (4096, 48)),
    "sums of rows": (nest([False, True]), (4096, 1000)),
    "sums of long rows": (nest([False, True]), (4096, 50_000)),
    "sums of columns": (nest([True, False]), (40_000, 64)),
}


def kinds() -> Iterator[tuple[str, Sequence[Any]]]:
    for name, (loops, sizes) in NESTS.items():
        yield f"loops: {name}, {sizes}", loop_schedules(loops, specialise(loops, sizes))
    yield "copy", copy_schedules([64, 48])
    yield "narrow copy", copy_schedules([64, 3])
    for target in (SM80, SM90, SM100):
        for name, known in GEMMS.items():
            yield (
                f"product: {name}, bfloat16, {target}",
                product_schedules(bfloat16, target, False, known, target is not SM80),
            )
    for tf32 in (False, True):
        yield (
            f"product: square, float32, TF32 {tf32}",
            product_schedules(float32, SM90, tf32, GEMMS["square"], turned=True),
        )
    yield "product: square, float64", product_schedules(float64, SM90, False, GEMMS["square"])
    sizes = {"images": 32, "rows": 28, "columns": 28, "channels": 64, "filters": 96}
    for dtype in (bfloat16, float32, float64):
        yield f"convolution: {dtype.name}", convolution_schedules(dtype, sizes, "filters")
        yield f"filter's gradient: {dtype.name}", filter_schedules(dtype, 9, sizes)
    for dtype, head, masked, backward in (
        (bfloat16, 64, False, False), (bfloat16, 128, True, False), (bfloat16, 64, False, True), (float32, 64, False, False),
    ):  # fmt: skip
        name = f"attention: {dtype.name}, heads of {head}{', masked' * masked}{', backward' * backward}"
        yield name, attention_schedules(dtype, head, masked=masked, backward=backward)


def test_schedules_of_each_kind() -> None:
    text = "\n".join(f"{name}\n" + "".join(f"    {s}\n" for s in schedules) for name, schedules in kinds())
    if os.environ.get("DOVETAIL_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_a_schedule_prints_what_it_decides() -> None:
    assert str(GpuSchedule(1, 2048, 1, pieces=64)) == "tiles of 1x2048, 64 pieces of rows, 1 warp"
    shared = GpuProductSchedule(64, 64, 32, 4, 3, splits=2)
    assert str(shared) == "tiles of 64x64x32, 4 warps, 3 stages, k split over 2 blocks"
    several = GpuProductSchedule(128, 256, 64, 8, 3, described=True, programs=132)
    assert str(several) == "tiles of 128x256x64, 8 warps, 3 stages, by the copy engine, 132 persistent blocks"
    assert str(GpuProductSchedule(64, 32, 0, 8, 1, straight=True)) == (
        "tiles of 64x32, 8 warps, 1 stage, second operand transposed first"
    )


@pytest.mark.parametrize("name", NESTS)
def test_the_emitter_does_what_the_schedule_says(name: str) -> None:
    """A kernel has the blocks and warps of its schedule; another schedule is another kernel, on disk too."""
    loops, sizes = NESTS[name]
    launches = [launch for way in fused(loops, sizes) for launch in way.launches]
    assert len({key_of(x.kernel, SM90) for x in launches}) == len({x.schedule for x in launches})
    for launch in launches:
        schedule = launch.schedule
        assert isinstance(schedule, GpuSchedule) and launch.kernel.num_warps == schedule.warps
        given = {"YB": schedule.rows, "XB": schedule.columns, "SPLITS": schedule.pieces}
        assert given.items() >= dict(launch.kernel.constants).items()


def test_a_routine_prints_its_launches() -> None:
    split: Routine = fused(nest([True, False]), (1 << 20, 64))[0]
    assert str(split) == "tiles of 64x32, 1024 pieces of rows, 4 warps; then tiles of 4x1024, whole rows, 8 warps"
    (way,) = matmul(float32, float32, target=SM90, at=[GpuProductSchedule(64, 64, 16, 4, 3)])
    assert str(way) == "tiles of 64x64x16, 4 warps, 3 stages"
