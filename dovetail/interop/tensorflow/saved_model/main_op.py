"""The op that runs after a saved model is loaded, and initializes local variables and tables."""

from __future__ import annotations

from ....api.ops.lookup import tables_initializer
from ....graph.core.graph import Node
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.variables.store import local_variables_initializer


def main_op() -> Node:
    """Returns a node that initializes local variables and tables."""
    return group(local_variables_initializer(), tables_initializer(), name="main_op")


__all__ = ["main_op"]
