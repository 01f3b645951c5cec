"""A plan's kernels: what the runtime would make of each partition, without making it.

The placer, which plans, does not know the code generator. So a plan asks for its kernels by way of `placer.plan.tools`, where
this module puts itself. Every session imports it, so it loads the code generator only when a plan asks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..graph.core.errors import InvalidArgumentError
from ..graph.core.node import Node
from ..placer.plan import Plan, tools
from .config import ConfigProto, check_config

if TYPE_CHECKING:
    from ..codegen.explain import DeviceKernels
    from ..codegen.ir.partition import Unit
    from ..codegen.ir.program import Program
    from ..codegen.options import KernelOptions

_FEW_STEPS = 1000  # as in the Numba backend: in larger programs, what is small is not fused


def kernels_of(plan: Plan, device: str, config: ConfigProto | None = None) -> DeviceKernels:
    """What one device's partition becomes.

    Raises:
        InvalidArgumentError: the step does not run on that device.
    """
    from ..codegen.explain import explain
    from .units import units_of

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
    program = None if on_gpu or backend.name != "numba" else partial(_program, options)
    return explain(unit, backend.rewrites, small=small, on_gpu=on_gpu, program=program)


def _program(options: KernelOptions, unit: Unit) -> Program:
    """A unit's program, of which nothing is compiled."""
    from ..codegen.lower.lower import lower

    backend = options.make_backend(cold=True)
    given = [n.outputs[0] for n in unit.steps if isinstance(n, Node) and n.type == "Placeholder"]
    steps = tuple(s for s in unit.steps if not (isinstance(s, Node) and s.type == "Placeholder"))
    fed = replace(unit, steps=steps, feeds=(*unit.feeds, *((t.name, t) for t in given)))
    return backend.finish(lower(fed, backend, _no_context))


def _no_context(node: Node) -> Any:
    """The context of a node that is never run."""
    return None


tools["kernels"] = kernels_of
