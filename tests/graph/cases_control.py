"""The steering ops have no rows of their own: what they mean is where they lead."""

from __future__ import annotations

CASES: list[object] = []

_OPS = ("Switch", "RefSwitch", "Merge", "Enter", "RefEnter", "Exit", "NextIteration", "LoopCond")
EXEMPT = dict.fromkeys(_OPS, "test_control_flow.py")
