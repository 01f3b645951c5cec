"""Ops that change state have tests of their own instead of rows: what they do shows over several steps."""

from __future__ import annotations

from itertools import product

CASES: list[object] = []

_RULES = ("GradientDescent", "Momentum", "Adagrad", "Adam", "RMSProp", "CenteredRMSProp")
_SCATTERS = ("Add", "Div", "Max", "Min", "Mul", "Sub", "Update")

_IN_STATE_OPS = (
    *("Assign", "AssignAdd", "AssignSub", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"),
    *("VariableV2", "VarHandleOp", "ReadVariableOp", "IsVariableInitialized", "VarIsInitializedOp"),
    *("UninitializedNames", "CountUpTo", "ResourceGather"),
    *(f"{place}Scatter{kind}" for place, kind in product(("", "Resource"), _SCATTERS)),
)
_IN_TRAINING_OPS = tuple(
    f"{place}{rows}Apply{rule}" for place, rows, rule in product(("", "Resource"), ("", "Sparse"), _RULES)
)

# Each with the reason: the file beside this one that tests it, or why nothing can.
EXEMPT = {
    **dict.fromkeys(_IN_STATE_OPS, "test_state_ops.py"),
    **dict.fromkeys(_IN_TRAINING_OPS, "test_training_ops.py"),
    "InitializedValue": "test_variables.py",
    "Placeholder": "it has no kernel: its value is fed, which every row does",
}
