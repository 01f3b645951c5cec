"""A plan's kernels: what the runtime would make of each partition, without making it.

The placer, which plans, does not know the code generator. So a plan asks for its kernels by way of `placer.plan.tools`, where
this module puts itself.
"""

from __future__ import annotations

from ..codegen.explain import DeviceKernels, explain
from ..graph.errors import InvalidArgumentError
from ..placer.plan import Plan, tools
from .config import ConfigProto, check_config
from .units import units_of

_FEW_STEPS = 1000  # as in the Numba backend: in larger programs, what is small is not fused


def kernels_of(plan: Plan, device: str, config: ConfigProto | None = None) -> DeviceKernels:
    """What one device's partition becomes.

    Raises:
        InvalidArgumentError: the step does not run on that device.
    """
    unit = next((u for u in units_of(plan.partitioned, plan.graph) if u.device == device), None)
    if unit is None:
        raise InvalidArgumentError(
            None, None, f"The step runs nothing on {device}; it runs on: {', '.join(plan.partitions) or 'no device'}"
        )
    options = check_config(config).kernel_options()
    info = next((d for d in plan.cluster.devices if str(d.name) == device), None)
    on_gpu = ":GPU:" in device and info is not None and not info.emulated
    backend = options.make_backend()
    small = options.backend == "numba" or len(unit.steps) <= _FEW_STEPS
    return explain(unit, backend.rewrites, small=small, on_gpu=on_gpu)


tools["kernels"] = kernels_of
