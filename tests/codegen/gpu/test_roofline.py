"""Plans of GPUs without a GPU: what compiled kernels say of themselves, and their least time by the maker's figures."""

from collections.abc import Iterator
from typing import Any

import pytest

import dovetail as dt
from dovetail.codegen.gpu.roofline import blocks_at_a_time
from dovetail.codegen.target import GPUS
from dovetail.placer.cluster.calibration import OVERHEADS, Calibration, Point
from dovetail.placer.cost.launches import KINDS, Launch, seconds_of
from dovetail.placer.cost.shapes import Sizes
from dovetail.placer.simulate import simulate

H100 = GPUS[90]
MOST_WARPS = 64


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),  # 64 warps
        (128, 40, 0, 12),  # 16,384 registers of a quarter are 12 warps of 40
        (256, 255, 0, 1),
        (1024, 64, 0, 1),
        (32, 16, 0, 32),  # no more blocks than that
        (128, 32, 227 << 10, 1),
        (128, 32, 113 << 10, 2),  # each block takes one KiB more
        (128, 32, 114 << 10, 1),
    ],
)
def test_how_many_blocks_run_at_a_time(threads: int, registers: int, shared: int, blocks: int) -> None:
    """By NVIDIA's tables of compute capability 9.0."""
    assert blocks_at_a_time(H100, threads, registers, shared) == blocks


@pytest.fixture(scope="module")
def plan() -> Iterator[dt.Plan]:
    with dt.Graph().as_default() as graph:
        with dt.device("/gpu:0"):
            x = dt.placeholder(dt.float32, [4096, 1024], name="x")
            w = dt.placeholder(dt.float32, [1024, 512], name="w")
            product = dt.matmul(x, w, name="product")
            dt.nn.softmax(product, name="shares")
        yield dt.place(
            graph.get_tensor_by_name("shares:0"),
            {"worker": 1},
            devices={"worker": ["cpu:0", "gpu:0"]},
            master="/job:worker/task:0",
        )


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_plan_tells_what_kernels_take_without_a_gpu(plan: dt.Plan) -> None:
    pytest.importorskip("triton")
    product, softmax = plan.kernels("gpu:0").compiled
    assert product.flops == 2 * 4096 * 1024 * 512
    assert product.bytes == 4 * (4096 * 1024 + 1024 * 512 + 4096 * 512)
    assert product.seconds == product.flops / H100.flops[4] > product.bytes / H100.bytes_per_second
    assert softmax.bytes == 2 * 4 * 4096 * 512
    assert softmax.seconds == softmax.bytes / H100.bytes_per_second
    for call in (product, softmax):
        for launch in call.launches:
            assert launch.registers > 0 and 0 < launch.occupancy <= 1 and launch.shared_bytes <= H100.block_shared_bytes
            fits = blocks_at_a_time(H100, launch.threads, launch.registers, launch.shared_bytes)
            assert launch.occupancy == fits * launch.threads / 32 / MOST_WARPS
    (matmul,) = product.launches
    assert matmul.blocks >= H100.multiprocessors // 2 and matmul.shared_bytes > 0
    assert f"{matmul.registers} registers" in str(product) and "occupancy" in str(product)


def test_predictions_take_a_gpu_s_least_times(plan: dt.Plan) -> None:
    """The machine's profile is of its processor."""
    launches = plan.launches["/job:worker/replica:0/task:0/device:GPU:0"]
    kernels = plan.kernels("gpu:0")
    (softmax,) = kernels
    assert [x.seconds for x in launches] == [2 * 4096 * 1024 * 512 / H100.flops[4], softmax.seconds]
    assert f"at least {1e6 * (softmax.seconds or 0):.3g} µs" in str(kernels)

    class Profile:
        overheads = {"launch": 1e-6, "call": 3e-6}

        def at(self, kind: str, work: float) -> Any:
            raise AssertionError("a processor's kernels tell nothing of a GPU's")

    profile: Any = Profile()
    assert seconds_of(launches[1], profile) == ((softmax.seconds or 0) + 3e-6, 0.0), "no core is busy meanwhile"
    assert Launch((), 0.0, True, Sizes()).seconds is None


def test_a_simulated_step_takes_a_gpu_s_least_times(plan: dt.Plan) -> None:
    """On a machine whose processor needs a second for each byte."""
    points = (Point(1.0, 1.0, 1.0), Point(2.0, 2.0, 1.0))
    profile = Calibration(
        "made up", 2, "2026-01-02T03:04:05+00:00", "", dict.fromkeys(KINDS, points), dict.fromkeys(OVERHEADS, 0.0)
    )
    predicted = dt.place(
        plan.graph.get_tensor_by_name("shares:0"), {"worker": 1}, devices={"worker": ["cpu:0", "gpu:0"]},
        master="/job:worker/task:0", profile=profile,
    )  # fmt: skip
    assert predicted.cluster.calibration is not None
    launches = predicted.launches["/job:worker/replica:0/task:0/device:GPU:0"]
    assert simulate(predicted).makespan == pytest.approx(sum(x.seconds or 0.0 for x in launches))
