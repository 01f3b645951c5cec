"""Values that a GPU's kernels compute again: which, what that saves, and that the numbers stay those of a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_programs import agree

import dovetail as dt
from dovetail.codegen.explain import DeviceKernels, KernelInfo
from dovetail.codegen.fusion.epilogue import EpilogueKernel
from dovetail.codegen.gpu import backend

pytestmark = pytest.mark.gpu
ROWS, WIDTH, INNER = 128, 16, 160


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + dt.tanh(0.8 * (x + 0.04 * x * x * x)))


def layer_norm(x: Any) -> Any:
    centred = x - dt.reduce_mean(x, -1, keepdims=True)
    return centred * dt.rsqrt(dt.reduce_mean(dt.square(centred), -1, keepdims=True) + 1e-5)


def fed(*places: Any) -> dict[Any, Any]:
    """The same numbers each time."""
    random = np.random.default_rng(1)
    return {t: (random.standard_normal(t.dims) / 4).astype(np.float32) for t in places}


def block(*, stacked: bool = False, dropped: bool = False) -> tuple[list[Any], dict[Any, Any]]:
    """The feed-forward half of a transformer's layer with its gradient; `stacked`: of a batch of sequences."""
    shape = (4, ROWS // 4) if stacked else (ROWS,)
    x = dt.placeholder(dt.float32, [*shape, WIDTH], name="x")
    w, bias = dt.placeholder(dt.float32, [WIDTH, INNER]), dt.placeholder(dt.float32, [INNER])
    back = dt.placeholder(dt.float32, [INNER, WIDTH])
    h = dt.matmul(dt.reshape(layer_norm(x), [ROWS, WIDTH]), w)
    act = gelu((dt.reshape(h, [*shape, INNER]) if stacked else h) + bias)
    if dropped:
        act = dt.nn.dropout(act, rate=0.25, seed=3)
    y = dt.matmul(dt.reshape(act, [ROWS, INNER]), back) + dt.reshape(x, [ROWS, WIDTH])
    loss = dt.reduce_mean(dt.square(y))
    return [loss, *dt.gradients(loss, [x, w, bias, back])], fed(x, w, bias, back)


def kernels_of(**how: Any) -> DeviceKernels:
    """What a GPU makes of the block."""
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        fetches, _ = block(**how)
    with dt.Session(graph=graph) as session:
        return session.plan(fetches).kernels("gpu:0")


def of_the_activation(kernels: DeviceKernels) -> tuple[KernelInfo, KernelInfo]:
    """The kernel of a GELU, and that of its gradient."""
    first, *others = [k for k in kernels if "Tanh" in {n.type for n in k.group.nodes}]
    gradient = others or [k for k in kernels if set(k.group.inputs) & set(first.group.outputs) and k is not first]
    return first, max(gradient, key=lambda k: k.bytes_read)


def without(monkeypatch: pytest.MonkeyPatch, **how: Any) -> DeviceKernels:
    """The same with all of it read."""
    with monkeypatch.context() as patch:
        patch.setattr(backend, "GPU_OPERATIONS_PER_BYTE", 0.0)
        return kernels_of(**how)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_gradient_reads_what_its_activation_read(fake, monkeypatch, stacked):
    before, after = without(monkeypatch, stacked=stacked), kernels_of(stacked=stacked)
    large = 4 * ROWS * INNER
    forward, backward = of_the_activation(after)
    assert isinstance(forward.group, EpilogueKernel)  # still joined to its product
    assert forward.bytes_written == 2 * large  # the product and the activation
    assert 2 * large <= backward.bytes_read < 2.1 * large  # the product, what comes from behind, and the bias
    was_forward, was_backward = of_the_activation(before)
    assert was_forward.bytes_written >= forward.bytes_written + 2 * large
    assert was_backward.bytes_read >= backward.bytes_read + 2 * large
    assert len(after.calls) == len(before.calls) and len(after) == len(before)
    assert after.peak_bytes < before.peak_bytes


@pytest.mark.parametrize("stacked", [False, True])
def test_numbers_are_those_of_a_cpu(fake, stacked):
    agree(lambda: block(stacked=stacked), rtol=2e-4, atol=2e-5)


def test_a_mask_is_drawn_once_and_read(fake):
    agree(lambda: block(dropped=True), rtol=2e-4, atol=2e-5)
    drawn = [k.number for k in kernels_of(dropped=True) if any("random" in line for line in k.loops.splitlines())]
    assert len(drawn) == 1


def test_a_node_that_is_in_two_kernels_is_told_of(fake):
    kernels = kernels_of()
    forward, backward = of_the_activation(kernels)
    tanh = next(n.name for n in forward.group.nodes if n.type == "Tanh")
    product = forward.group.anchor.name
    own = next(n for n in reversed(backward.nodes) if n not in forward.nodes)
    assert tanh in backward.nodes
    assert kernels.why_not_fused(tanh, own) == f"'{tanh}' and '{own}' are both in kernel {backward.number}"
    assert kernels.why_not_fused(product, tanh) == f"'{product}' and '{tanh}' are both in kernel {forward.number}"


def test_numbers_by_themselves_stay_on_the_gpu(fake):
    """Arithmetic on single numbers is a kernel: as nodes it would run on the host, and wait for what the GPU does."""

    def build() -> tuple[list[Any], dict[Any, Any]]:
        x, rate = dt.placeholder(dt.float32, [8, 40]), dt.placeholder(dt.float32, [])
        scale = 1.0 / (rate * 3.0 + 1.0)
        return [x * scale, scale], fed(x, rate)

    assert not [op for op in agree(build) if "on the host" in op]
