"""The steering ops have no rows of their own: what they mean is where they lead. Stacks serve loops' gradients."""

from __future__ import annotations

CASES: list[object] = []

_OPS = ("Switch", "RefSwitch", "Merge", "Enter", "RefEnter", "Exit", "NextIteration", "LoopCond", "ControlTrigger")
_STACKS = ("StackV2", "StackPushV2", "StackPopV2")
_ARRAYS = tuple(
    f"TensorArray{what}V3"
    for what in ("", "Grad", "Write", "Scatter", "Split", "Read", "Gather", "Concat", "Size", "Close")
)
EXEMPT = {
    **dict.fromkeys((*_OPS, *_STACKS), "graph/control_flow/test_cond_while.py"),
    **dict.fromkeys(_ARRAYS, "graph/control_flow/test_functional.py"),
}
