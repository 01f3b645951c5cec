"""What a name means among nodes: `add` is a node, `add:0` its first output."""

from __future__ import annotations

from collections.abc import Mapping

from .node import Node, Tensor


def element_by_name(
    nodes: Mapping[str, Node], name: str, allow_tensor: bool = True, allow_operation: bool = True
) -> Tensor | Node:
    """The node or tensor of that name.

    Raises:
        KeyError: there is none; the text tells names that are close.
        ValueError: it is of the kind that is not allowed, or malformed.
    """
    if ":" in name:
        node_name, _, index = name.rpartition(":")
        if not allow_tensor:
            raise ValueError(
                f"'{name}' is the name of a Tensor, where an Operation is asked for; did you mean '{node_name}'?"
            )
        if not index.isdigit():
            raise ValueError(f"'{name}' is not a tensor's name: it must have the form '<node>:<output number>'")
        node = nodes.get(node_name)
        if node is None:
            raise KeyError(
                f"The name '{name}' refers to a Tensor which does not exist: no node is called '{node_name}'.{_close(nodes, node_name)}"
            )
        if int(index) >= len(node.outputs):
            raise KeyError(
                f"The name '{name}' refers to a Tensor which does not exist: '{node_name}' has {len(node.outputs)} outputs"
            )
        return node.outputs[int(index)]
    node = nodes.get(name)
    if node is None:
        raise KeyError(f"The name '{name}' refers to an Operation not in the graph.{_close(nodes, name)}")
    if not allow_operation:
        raise ValueError(f"'{name}' is the name of an Operation, where a Tensor is asked for; did you mean '{name}:0'?")
    return node


def _close(nodes: Mapping[str, Node], name: str) -> str:
    import difflib

    # difflib is quadratic: on a large graph only look among names that end alike.
    names = list(nodes)
    if len(names) > 5000:
        names = [n for n in names if n.rpartition("/")[2][:3] == name.rpartition("/")[2][:3]][:5000]
    close = difflib.get_close_matches(name, names, n=3)
    return f" Close names: {', '.join(close)}." if close else ""
