"""Which devices are GPUs of this machine, and their backends. Nothing of CUDA or Triton is loaded for those that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .backend import Backend
from .options import KernelOptions

if TYPE_CHECKING:
    from .gpu.backend import CudaBackend


def gpu_backend(
    options: KernelOptions, host: Backend, device: str, gpus: frozenset[str], lends: Callable[[str], bool] | None = None
) -> CudaBackend | None:
    """The backend for a device's part of a step; None for one that is no GPU.

    Args:
        options: how kernels are made.
        host: the backend of the CPUs, whose rewrites are done here, too.
        device: full device name.
        gpus: full names of the GPUs of this task. GPU:1 is the second that the process sees.
        lends: which GPUs of other tasks read this process's GPU memory; None: none.
    """
    if device not in gpus:
        return None
    from .gpu.backend import CudaBackend
    from .gpu.driver.device import device as gpu
    from .gpu.fusion_passes import gpu_rewrites

    index, check = int(device.rpartition(":")[2]), options.check >= 2  # what is compared is computed exactly
    backend = CudaBackend(
        gpu(index),
        peers=gpus,
        check=check,
        lends=lends,
        tf32=options.tf32 and not check,
        tunes=not options.deterministic,
    )
    backend.rewrites = gpu_rewrites(host.rewrites)
    return backend
