"""Plans of GPUs without a GPU: what compiled kernels say of themselves, and their least time by the maker's figures."""

from collections.abc import Iterator
from typing import Any

import pytest

import dovetail as dt
from dovetail.codegen.gpu.roofline import blocks_at_a_time
from dovetail.graph.core.gpu_models import GPU_MODELS, Work
from dovetail.placer.cluster.calibration import OVERHEADS, Calibration, Point
from dovetail.placer.cluster.load import as_cluster
from dovetail.placer.cost.launches import GPU_LAUNCH, KINDS, Launch, seconds_of
from dovetail.placer.cost.shapes import Sizes
from dovetail.placer.search.from_graph import step_problem
from dovetail.placer.simulate import simulate

H100 = GPU_MODELS["H100"]
EXACT = H100.rates[Work.FLOAT32]
ON_GPU = "/job:worker/replica:0/task:0/device:GPU:0"
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
    yield placed("gpu:0")


def placed(gpu: Any, dtype: dt.DType = dt.float32, profile: Calibration | str = "none") -> dt.Plan:
    """The plan of a product and a softmax on a GPU, which is described as in a cluster file."""
    with dt.Graph().as_default():
        with dt.device("/gpu:0"):
            x = dt.placeholder(dtype, [4096, 1024], name="x")
            w = dt.placeholder(dtype, [1024, 512], name="w")
            shares = dt.nn.softmax(dt.matmul(x, w, name="product"), name="shares")
        return dt.place(
            shares, {"worker": 1}, devices={"worker": ["cpu:0", gpu]}, master="/job:worker/task:0", profile=profile
        )


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_plan_tells_what_kernels_take_without_a_gpu(plan: dt.Plan) -> None:
    pytest.importorskip("triton")
    product, softmax = plan.kernels("gpu:0").compiled
    assert product.flops == 2 * 4096 * 1024 * 512
    assert product.bytes == 4 * (4096 * 1024 + 1024 * 512 + 4096 * 512)
    assert product.seconds == product.flops / EXACT > product.bytes / H100.bytes_per_second
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
    launches = plan.launches(ON_GPU)
    kernels = plan.kernels("gpu:0")
    (softmax,) = kernels
    assert [x.seconds for x in launches] == [2 * 4096 * 1024 * 512 / EXACT, softmax.seconds]
    assert f"at least {1e6 * (softmax.seconds or 0):.3g} µs" in str(kernels)

    class Profile:
        overheads = {"launch": 1e-6, "call": 3e-6}

        def at(self, kind: str, work: float) -> Any:
            raise AssertionError("a processor's kernels tell nothing of a GPU's")

    profile: Any = Profile()
    assert seconds_of(launches[1], profile) == ((softmax.seconds or 0) + 3e-6, 0.0), "no core is busy meanwhile"
    assert Launch((), 0.0, True, Sizes()).seconds is None


def test_a_simulated_step_takes_a_gpu_s_least_times() -> None:
    """On a machine whose processor needs a second for each byte."""
    points = (Point(1.0, 1.0, 1.0), Point(2.0, 2.0, 1.0))
    profile = Calibration(
        "made up", 2, "2026-01-02T03:04:05+00:00", "", dict.fromkeys(KINDS, points), dict.fromkeys(OVERHEADS, 0.0), 2.0
    )
    predicted = placed("gpu:0", profile=profile)
    assert predicted.cluster.calibration is not None
    launches = predicted.launches(ON_GPU)
    assert simulate(predicted).makespan == pytest.approx(sum(x.seconds or 0.0 for x in launches))


@pytest.mark.parametrize("name", GPU_MODELS)
def test_without_a_profile_a_step_takes_the_least_times_of_its_gpu(name: str) -> None:
    """Fused as they run, by the figures of the product, and with the time of each launch."""
    model = GPU_MODELS[name]
    found = placed({"name": "gpu:0", "model": name}, dt.bfloat16)
    product, softmax = 2 * 4096 * 1024 * 512 / model.rates[Work.FLOAT16], 2 * 2 * 4096 * 512 / model.bytes_per_second
    moved = 2 * (4096 * 1024 + 1024 * 512 + 4096 * 512) / model.bytes_per_second
    assert found.cluster.calibration is None
    assert simulate(found).makespan == pytest.approx(max(product, moved) + softmax + 2 * GPU_LAUNCH)
    assert [k.seconds for k in found.kernels("gpu:0")] == [softmax]


def test_described_speeds_count_before_published_ones() -> None:
    given = {"name": "gpu:0", "model": "B200", "flops": EXACT / 2, "bandwidth": 1e12}
    gpu = placed(given).cluster.devices[1].gpu
    assert gpu is not None and gpu.bytes_per_second == 1e12
    assert gpu.rates[Work.FLOAT32] == EXACT / 2
    assert gpu.rates[Work.FLOAT16] == pytest.approx(EXACT / 2 * 2250 / 75), "in proportion"
    assert placed({"name": "gpu:0", "emulated": True}).cluster.devices[1].gpu is None


def test_a_search_counts_gpus_by_their_figures() -> None:
    """A node by itself takes what its kernel takes."""
    devices = ["cpu:0", {"name": "gpu:0", "model": "A100"}, {"name": "gpu:1", "model": "B200"}]
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.bfloat16, [4096, 4096], name="x")
        product = dt.matmul(x, x, name="product")
        dt.add(product, product, name="sum")
    cluster = as_cluster({"worker": 1}, {"worker": devices})
    problem = step_problem(graph.get_operations(), cluster)
    for device, name in ((1, "A100"), (2, "B200")):
        model, (_, matmul, add) = GPU_MODELS[name], problem.seconds[problem.device_class[device]]
        assert matmul == pytest.approx(GPU_LAUNCH + 2 * 4096**3 / model.rates[Work.FLOAT16])
        assert add == pytest.approx(GPU_LAUNCH + 2 * 3 * 4096**2 / model.bytes_per_second)


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", ["A100", "B200"])
def test_kernels_are_compiled_for_the_model_of_the_gpu(name: str) -> None:
    pytest.importorskip("triton")
    model = GPU_MODELS[name]
    product, softmax = placed({"name": "gpu:0", "model": name}, dt.bfloat16).kernels("gpu:0").compiled
    assert softmax.seconds == softmax.bytes / model.bytes_per_second
    assert product.seconds == max(product.bytes / model.bytes_per_second, product.flops / model.rates[Work.FLOAT16])
    assert all(
        0 < k.occupancy <= 1 and k.shared_bytes <= model.block_shared_bytes
        for k in (*product.launches, *softmax.launches)
    )
    (matmul,) = product.launches
    assert matmul.blocks <= model.multiprocessors or name == "A100", (
        "programs that make several tiles: one for each multiprocessor"
    )
