"""Hand-written kernels for CPUs as tests call them: recorded into a plan, which runs once."""

from collections.abc import Callable
from typing import Any

from dovetail.codegen.cpu.native.plans import PlanCache


def by_plan(call: Callable[..., Any], *arrays: Any) -> Any:
    """What `call(planner, *arrays)` gives, an array or several; None where the kernel does not support these arrays."""
    plans = PlanCache(lambda planner, inputs: planner.trace(call, inputs), "a test")
    outputs = plans.run(arrays, True)
    return outputs[0] if outputs is not None and len(outputs) == 1 else outputs
