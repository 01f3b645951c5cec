"""The blocks that are open while a graph is built: devices, colocation, control dependencies, names, containers.

The open blocks are a set of immutable linked lists (`Scopes`). Entering a block makes a new head that points to the old one,
and leaving it restores the old head. So a node records all device blocks around it by keeping one pointer.

A graph has one `ScopeStack`, and the public methods of `Graph` open its blocks. Blocks that open at every node are classes: a
generator would cost three times as much per block. `graph.py` defines `Node` and imports this module, so nodes are `Any` here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from .device import DeviceSpec, canonical_name, merge_names
from .opdef import named_gradients
from .source_location import Origin, SourceLine, at_caller, caller, locate

Node: TypeAlias = Any
_G = TypeVar("_G", bound=Any)  # `Graph`

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./>-]*").fullmatch
_NAME_INSIDE = re.compile(r"[A-Za-z0-9_./>-]+").fullmatch

DeviceFunction: TypeAlias = Callable[[Node], Any]


class DeviceBlock:
    """One open `with dt.device(...)` block.

    Attributes:
        outer: the block around it, or None.
        spec: canonical name that it merges in, or None for a function or a clearing block.
        function: the device function, or None.
        merged: all blocks from here outwards merged into one name, or None when a function is among them.
        left: whether it was exited in the wrong order, while a `colocate_with` hid it.
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
        """A description of the block's request."""
        if self.function is not None:
            return f"function {getattr(self.function, '__name__', type(self.function).__name__)}"
        return "None (clears the blocks around it)" if self.spec is None else f"'{self.spec}'"


class RecordedBlock(DeviceBlock):
    """A device block recorded for a node that was read from a file or message: shown in `explain`, never applied."""

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
        """A description of the block's request."""
        return self._description


def as_canonical(request: Any) -> str:
    """The canonical spelling of a device spec, from a string or a DeviceSpec object.

    Raises:
        ValueError: malformed text.
        TypeError: neither text nor spec.
    """
    to_string = getattr(request, "to_string", None)
    if not isinstance(request, str) and to_string is None:
        raise TypeError(
            f"A device is a string, a DeviceSpec, a function of the node, or None, not {request!r}{at_caller()}"
        )
    try:
        return canonical_name(request if to_string is None else to_string())
    except ValueError as e:
        raise ValueError(f"{e}{at_caller()}") from None


def requested_device(node: Node, block: DeviceBlock | None) -> str:
    """The device that the open blocks request, walking from the innermost outwards.

    Specs merge, and inner ones win; a function's result replaces the device merged so far; None stops the walk.
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
            # Kept as it was spelled, as in TensorFlow: the placer checks it, unless an outer block merges it first.
            node.device = answer if isinstance(answer, str) else as_canonical(answer)
        elif block.spec:
            node.device = merge_names(block.spec, node.device)
        block = block.outer
    device: str = node.device
    return device


@dataclass(slots=True, eq=False)
class ControlBlock:
    """One open `control_dependencies` block. `seen`: nodes made inside it, which already wait for its inputs."""

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
    flow: Any = None  # the branch or loop that is being built: a `control_flow.contexts.FlowContext`, or None
    name: str = ""
    container: str = ""
    creators: tuple[Any, ...] = ()  # functions that make variables in place of `Variable`, innermost last
    # Op -> gradient rule of nodes made now, in place of its own.
    gradients: dict[str, Any] = field(default_factory=dict)
    gradient_call: str = ""  # name scope of the call of `gradients` that is running

    def mark_seen(self, node: Node) -> None:
        """Note that this node, and so consumers of its outputs, wait for the inputs of the open `control_dependencies` blocks."""
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
    """Control inputs that the open blocks require, without those that a data input already implies (as in TensorFlow)."""
    out: list[tuple[Node, ...]] = []
    while block is not None:
        # An input made inside the block has itself waited for the block's inputs.
        if block.seen.isdisjoint(input_nodes):
            out.append(tuple([n for n in block.inputs if n not in input_nodes]))
        block = block.outer
    return tuple([n for nodes in reversed(out) for n in nodes])  # those of the outermost first


def checked_name(name: str, scope: str, what: str) -> str:
    """A user's name of a node or name scope, inside `scope`. ValueError if it is invalid by TensorFlow's rule."""
    if (_NAME_INSIDE if scope else _NAME)(name) is None:
        valid = re.sub(r"^[_>/-]+|[^A-Za-z0-9_./>-]", lambda found: "_" * bool(found.start()), name)
        raise ValueError(
            f"'{name}' is not a valid {what} name: it must begin with a letter, a digit or '.', and may go on with those and with "
            f"'_', '-', '/' and '>'{f', such as {valid!r}' if valid else ''}{at_caller()}"
        )
    return name


class ScopeStack:
    """The open blocks of one graph, and the names that are taken in it.

    All threads share one `Scopes`, until `switch_to_thread_local`: then each thread has its own.

    Attributes:
        shared: the open blocks of all threads.
        per_thread: the open blocks of this thread; None while threads share them.
        names_in_use: name in lower case -> number of nodes and scopes that have requested it.
    """

    __slots__ = ("names_in_use", "per_thread", "shared")

    def __init__(self) -> None:
        self.shared = Scopes()
        self.per_thread: threading.local | None = None
        self.names_in_use: dict[str, int] = {}

    @property
    def current(self) -> Scopes:
        """The open blocks of this thread."""
        return self.shared if self.per_thread is None else self.of_thread()

    @current.setter
    def current(self, scopes: Scopes) -> None:
        if self.per_thread is None:
            self.shared = scopes
        else:
            self.per_thread.scopes = scopes

    def switch_to_thread_local(self) -> None:
        """Keep the open blocks per thread from now on. Each thread starts from a copy of what is open now."""
        if self.per_thread is None:
            self.per_thread = threading.local()

    def of_thread(self) -> Scopes:
        """The open blocks of this thread, after `switch_to_thread_local`."""
        found: Scopes | None = getattr(self.per_thread, "scopes", None)
        if found is None:
            found = self.shared.copy()
            self.per_thread.scopes = found  # type: ignore[union-attr]
        return found

    def unique_name(self, name: str, scope: str, mark_as_used: bool = True) -> str:
        """A name in a scope that no node has: `add`, `add_1`, ... Case does not distinguish, as in TensorFlow."""
        if scope:
            name = f"{scope}/{name}"
        key = name.lower()
        in_use = self.names_in_use
        count = in_use.get(key, 0)
        if mark_as_used:
            in_use[key] = count + 1
        if count:
            base = key
            while key in in_use:
                key = f"{base}_{count}"
                count += 1
            if mark_as_used:
                in_use[key] = 1
            name = f"{name}_{count - 1}"
        return name

    @contextmanager
    def colocated(self, find: Callable[[], Node | None], ignore_existing: bool) -> Iterator[None]:
        """`with graph.colocate_with(...)`; `find` gives the node when the block opens."""
        node = find()
        if node is None and not ignore_existing:
            raise ValueError("colocate_with(None) makes sense only with ignore_existing=True")
        scopes = self.current
        saved = scopes.device, scopes.colocation
        depth = scopes.colocated
        if not depth:
            scopes.hidden = scopes.device
        scopes.colocated = depth + 1
        scopes.device = None
        kept = () if ignore_existing else scopes.colocation
        inside = scopes.colocation = kept if node is None else (*kept, node)
        try:
            yield
        finally:
            in_order = scopes.colocated == depth + 1 and scopes.colocation is inside and scopes.device is None
            if scopes.colocated > depth:  # else an outer block that was exited too early has already ended it
                scopes.device, scopes.colocation = DeviceBlock.still_open(saved[0]), saved[1]
                scopes.colocated = depth
            if not in_order:
                raise RuntimeError("Exiting colocation scope without proper scope nesting.")

    @contextmanager
    def outside_the_step(self) -> Iterator[None]:
        """`with graph.init_scope()`."""
        scopes = self.current
        saved = scopes.device
        if saved is None and scopes.colocated:
            scopes.device = scopes.hidden
        try:
            with self.waiting_for(None):
                yield
        finally:
            scopes.device = saved

    @contextmanager
    def waiting_for(self, find: Callable[[], Iterable[Node]] | None) -> Iterator[None]:
        """`with graph.control_dependencies(...)`; `find` gives the nodes when the block opens, None means `control_dependencies(None)`."""
        scopes = self.current
        saved, flow = scopes.control, scopes.flow
        if find is None:
            scopes.control = scopes.flow = None
        else:
            awaited = set(awaited_by(saved))  # an inner block need not repeat the inputs of an outer one
            scopes.control = ControlBlock(saved, tuple(dict.fromkeys(n for n in find() if n not in awaited)))
        try:
            yield
        finally:
            scopes.control, scopes.flow = saved, flow

    @contextmanager
    def in_container(self, container_name: str) -> Iterator[str]:
        """`with graph.container(...)`."""
        scopes = self.current
        saved, scopes.container = scopes.container, container_name
        try:
            yield container_name
        finally:
            scopes.container = saved

    @contextmanager
    def overriding_gradients(self, op_type_map: Mapping[str, str]) -> Iterator[None]:
        """`with graph.gradient_override_map(...)`."""
        if not isinstance(op_type_map, Mapping):
            raise TypeError(f"op_type_map must be a dictionary of names, not {op_type_map!r}")
        missing = [name for name in op_type_map.values() if name not in named_gradients]
        if missing:
            raise LookupError(
                f"No gradient is registered under the name {missing[0]!r}: use dt.RegisterGradient({missing[0]!r})"
            )
        scopes = self.current
        saved = scopes.gradients
        scopes.gradients = {**saved, **{op: named_gradients[name] for op, name in op_type_map.items()}}
        try:
            yield
        finally:
            scopes.gradients = saved


class OpenBlocks(threading.local):
    """The default graphs and sessions of a thread, the innermost last."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.sessions: list[Any] = []

    def inside(self, graph: _G) -> AbstractContextManager[_G]:
        """A context in which a graph is the default one."""
        return pushed(self.graphs, graph)

    def traced_in(self, graph: _G) -> _G | None:
        """The graph of the function inside a graph that this thread is tracing; None: it is tracing none."""
        graphs: list[Any] = self.graphs
        if not graph.functions or not graphs or graphs[-1] is graph:
            return None
        return graphs[-1] if graphs[-1].encloses(graph) else None

    def session_for(self, graph: Any, session: Any, method: str) -> Any:
        """The given or else the default session; ValueError when there is none or it runs another graph."""
        if session is None:
            session = self.sessions[-1] if self.sessions else None
            if session is None:
                raise ValueError(
                    f"No default session is open: use `with dt.Session():`, or pass a session to {method}(session=...)"
                )
        if session.graph is not graph:
            raise ValueError(f"The session runs another graph: pass the right one to {method}(session=...)")
        return session


open_blocks = OpenBlocks()


@contextmanager
def pushed(stack: list[Any], item: Any) -> Iterator[Any]:
    """A context in which an item is the innermost of a stack."""
    stack.append(item)
    try:
        yield item
    finally:
        if stack and stack[-1] is item:
            stack.pop()
        else:  # left in the wrong order: remove the right one, do not corrupt the others
            stack.remove(item)


class DeviceContext:
    """`with graph.device(...)`."""

    __slots__ = ("_block", "_outer", "_request", "_stack")

    def __init__(self, stack: ScopeStack, request: Any) -> None:
        self._stack = stack
        self._request = request
        self._outer: DeviceBlock | None = None
        self._block: DeviceBlock | None = None

    def __enter__(self) -> None:
        if self._block is not None:
            raise RuntimeError(f"The device block {self._block.describe()} is open already")
        scopes = self._stack.current
        self._outer = scopes.device
        self._block = scopes.device = DeviceBlock(scopes.device, self._request, caller())

    def __exit__(self, *exc: object) -> None:
        scopes, block = self._stack.current, self._block
        self._block = None
        if block is not None and scopes.device is block:
            scopes.device = DeviceBlock.still_open(self._outer)
            return
        # Exiting a block also exits the open blocks inside it; a second exit of such a block changes nothing.
        open_ = scopes.device
        while open_ is not None and open_ is not block:
            open_ = open_.outer
        if open_ is not None:
            scopes.device = self._outer
        elif block is not None:
            block.left = True
        raise RuntimeError("Exiting device scope without proper scope nesting.")


class NameContext:
    """`with graph.name_scope(...)`."""

    __slots__ = ("_name", "_outer", "_stack")

    def __init__(self, stack: ScopeStack, name: str | None) -> None:
        self._stack = stack
        self._name = name
        self._outer = ""

    def __enter__(self) -> str:
        scopes = self._stack.current
        self._outer = scopes.name
        name = self._name
        if not name:
            scopes.name = ""
            return ""
        scopes.name = (
            name[:-1]
            if name[-1] == "/"
            else self._stack.unique_name(checked_name(name, scopes.name, "scope"), scopes.name)
        )
        return scopes.name + "/"

    def __exit__(self, *exc: object) -> None:
        self._stack.current.name = self._outer


class OpContext(NameContext):
    """`with graph.op_scope(...)`: a name scope in which `graph`, whose `stack` this is, is the default graph."""

    __slots__ = ("_graph",)

    def __init__(self, stack: ScopeStack, name: str | None, graph: Any) -> None:
        self._stack = stack
        self._name = name
        self._outer = ""
        self._graph = graph

    def __enter__(self) -> str:
        scope = super().__enter__()
        open_blocks.graphs.append(self._graph)
        return scope

    def __exit__(self, *exc: object) -> None:
        open_blocks.graphs.pop()
        super().__exit__(*exc)
