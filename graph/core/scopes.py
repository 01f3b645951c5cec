"""The stacks that building a graph needs: device blocks, colocation, control dependencies, names, containers.

They are linked lists that never change: entering a block makes a new head that points to the old one, leaving it restores
the old head. So a node records all device blocks around it by keeping one pointer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .device import DeviceSpec, canonical_name, merge_names
from .source_location import Origin, SourceLine, locate

if TYPE_CHECKING:
    from ..control_flow.contexts import FlowContext
    from .node import Node

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./>-]*").fullmatch
_NAME_INSIDE = re.compile(r"[A-Za-z0-9_./>-]+").fullmatch

DeviceFunction = Callable[["Node"], Any]


class DeviceBlock:
    """One open `with dt.device(...)` block.

    Attributes:
        outer: the block around it, or None.
        spec: canonical name that it merges in, or None for a function or a clearing block.
        function: the device function, or None.
        merged: all blocks from here outwards merged into one name, or None when a function is among them.
        left: whether it was left in the wrong order, while a `colocate_with` hid it.
    """

    __slots__ = ("_origin", "function", "left", "merged", "outer", "spec")

    def __init__(self, outer: DeviceBlock | None, request: Any, origin: Origin) -> None:
        self.outer = outer
        self.left = False
        self._origin = origin
        self.spec: str | None = None
        self.function: DeviceFunction | None = None
        self.merged: str | None = None
        if request is None:
            self.merged = ""
        elif callable(request):
            self.function = request
        else:
            self.spec = as_canonical(request)
            around = outer.merged if outer is not None else ""
            if around is not None:
                self.merged = merge_names(around, self.spec)

    @staticmethod
    def still_open(block: DeviceBlock | None) -> DeviceBlock | None:
        """The innermost block from here outwards that was not left."""
        while block is not None and block.left:
            block = block.outer
        return block

    @property
    def clears(self) -> bool:
        """Whether it is `device(None)`, which hides all blocks around it."""
        return self.spec is None and self.function is None

    @property
    def source(self) -> SourceLine:
        """The user's line that opened it."""
        return locate(self._origin)

    def __repr__(self) -> str:
        return f"<device block {self.describe()} at {self.source}>"

    def describe(self) -> str:
        """What the block asks for, in words."""
        if self.function is not None:
            return f"function {getattr(self.function, '__name__', type(self.function).__name__)}"
        return "None (clears the blocks around it)" if self.spec is None else f"'{self.spec}'"


class RecordedBlock(DeviceBlock):
    """A device block in which a node was made that was read from a file or a message: told in `explain`, never applied."""

    __slots__ = ("_description",)

    def __init__(self, outer: DeviceBlock | None, spec: str | None, description: str, file: str, line: int) -> None:
        self.outer = outer
        self.spec = spec
        self.function = None
        self.merged = None
        self._origin = (file, line)
        self._description = description

    @property
    def clears(self) -> bool:
        """Whether it was `device(None)`."""
        return self.spec is None and self._description.startswith("None")

    def describe(self) -> str:
        """What the block asked for, in words."""
        return self._description


def as_canonical(request: Any) -> str:
    """The canonical spelling of a device spec given as text or as a DeviceSpec object.

    Raises:
        ValueError: malformed text. TypeError: neither text nor spec.
    """
    if isinstance(request, str):
        return canonical_name(request)
    to_string = getattr(request, "to_string", None)
    if to_string is None:
        raise TypeError(f"A device is a string, a DeviceSpec, a function of the node, or None, not {request!r}")
    return canonical_name(to_string())


def requested_device(node: Node, block: DeviceBlock | None) -> str:
    """The device that the open blocks ask for, walking from the innermost outwards.

    Texts merge, what stands further in winning; a function's answer replaces what was merged so far; None stops the walk.
    While functions run, `node.device` holds what has been merged so far.
    """
    node.device = ""
    while block is not None:
        if block.merged is not None:  # no function from here outwards: the rest is known
            return merge_names(block.merged, node.device) if block.merged else node.device
        if block.function is not None:
            answer = block.function(node)
            if answer is None:
                answer = ""
            elif not isinstance(answer, (str, DeviceSpec)) and not hasattr(answer, "to_string"):
                raise TypeError(
                    f"The device {block.describe()} opened at {block.source} returned {answer!r} for node "
                    f"'{node.name}' ({node.type}); it must return a string, a DeviceSpec or None"
                )
            # Kept as it was spelled, as TensorFlow does: the placer judges it, unless a block further out merges it first.
            node.device = answer if isinstance(answer, str) else as_canonical(answer)
        elif block.spec:
            node.device = merge_names(block.spec, node.device)
        block = block.outer
    return node.device


@dataclass(slots=True, eq=False)
class ControlBlock:
    """One open `control_dependencies` block. `seen` are nodes made inside it, through which its inputs are already waited for."""

    outer: ControlBlock | None
    inputs: tuple[Node, ...]
    seen: set[Node] = field(default_factory=set)


@dataclass(slots=True)
class Scopes:
    """The heads of all stacks. One per graph, or one per thread after `Graph.switch_to_thread_local`."""

    device: DeviceBlock | None = None
    colocation: tuple[Node, ...] = ()  # innermost last
    colocated: int = 0  # how many `colocate_with` blocks are open
    hidden: DeviceBlock | None = None  # the device blocks that the outermost of them hides
    control: ControlBlock | None = None
    flow: FlowContext | None = None  # the branch or loop that is being built
    name: str = ""
    container: str = ""
    creators: tuple[Any, ...] = ()  # functions that make variables in place of `Variable`, innermost last
    gradients: dict[str, Any] = field(
        default_factory=dict
    )  # op -> gradient rule of nodes made now, in place of its own
    gradient_call: str = ""  # name scope of the call of `gradients` that is running

    def mark_seen(self, node: Node) -> None:
        """What takes this node's outputs waits for the inputs of the open `control_dependencies` blocks through it."""
        block = self.control
        while block is not None:
            block.seen.add(node)
            block = block.outer

    def copy(self) -> Scopes:
        """A copy that a new thread starts from."""
        return replace(self)


def awaited_by(block: ControlBlock | None) -> Iterator[Node]:
    """The inputs of a `control_dependencies` block and of those around it."""
    while block is not None:
        yield from block.inputs
        block = block.outer


def control_inputs_for(block: ControlBlock | None, input_nodes: set[Node]) -> tuple[Node, ...]:
    """Control inputs that the open blocks ask for, leaving out those that a data input already implies (as TensorFlow does)."""
    out: list[tuple[Node, ...]] = []
    while block is not None:
        # An input made inside the block has itself waited for the block's inputs.
        if block.seen.isdisjoint(input_nodes):
            out.append(tuple([n for n in block.inputs if n not in input_nodes]))
        block = block.outer
    return tuple([n for nodes in reversed(out) for n in nodes])  # those of the outermost first


def checked_name(name: str, scope: str, what: str) -> str:
    """A name that a user gives a node or a name scope, inside `scope`. ValueError: it cannot be one; TensorFlow's rule."""
    if (_NAME_INSIDE if scope else _NAME)(name) is None:
        raise ValueError(
            f"'{name}' is not a valid {what} name: it must begin with a letter, a digit or '.', and may go on with those and with "
            "'_', '-', '/' and '>'"
        )
    return name
