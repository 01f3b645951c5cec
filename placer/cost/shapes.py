"""The sizes of a step's values in a plan: those of the graph, completed by the shapes of what is fed.

A graph often leaves sizes open: a placeholder of shape `[None, 512]` takes a batch of any size. A plan knows them where the
shapes are given. The shape rules of the ops then run once more, with the given shapes in place of the open ones. Every node downstream
of a given tensor has a *stand-in*, a copy that is in no graph and has the complete shapes: shape arithmetic (`reshape(x,
[shape(x)[0], 10])`) and cost formulas read it like any other node. The graph itself stays as it is.

What a rule cannot infer even then stays open (the number of elements that pass a filter) and counts as 1: a lower bound.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.core.constant_value import static_value
from ...graph.core.dtypes import DType
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.opdef import Cost, Trait, size
from ...graph.core.shape import Dims, as_dims, compatible, is_static, merge, text
from ...graph.ops.io.iterators import FULL_BATCH, SMALLER_BATCHES, last_element
from ..partition.partitioned_graph import Channel, LoopPart, Partitioned, Step
from ..render.text import listed
from .profile import Profile

PASSES = 8
"""Attempts to find the shapes of loop variables; after them, those of all loops stay as the graph says."""
LISTED = 4  # tensors that a text names
FIXED = (
    "fixed. To leave the first size open, write None in the shape of the placeholder, or compile the function with "
    "dt.compile(symbolic_batch=True). A compiled function also makes a plan for another batch: step.plan(larger_batch)"
)
"""What is said of sizes of a step's inputs that no plan of this graph can change, and what to do."""


class Sizes:
    """The sizes of tensors, and the costs of nodes, in one plan.

    Args:
        nodes: what the step runs, in any order; nodes that a rewrite made, which share an index, in theirs.
        given: tensor name -> its shape, for fed tensors and for any others whose shape the graph leaves open.

    Attributes:
        given: the same. misfit: why a node cannot take what it is given (its name, op and source line); '' where all fits.

    >>> Sizes(graph.nodes, {"x:0": (64, 512)}).bytes(graph.get_tensor_by_name("y:0"))
    """

    def __init__(self, nodes: Collection[Node] = (), given: Mapping[str, Dims] | None = None) -> None:
        self.given = dict(given or {})
        self.misfit = ""
        self._stand_ins: dict[Node, Node] = {}
        # Results that a rewritten node makes in place of the node that they name.
        self._handed_on: dict[Tensor, Tensor] = {}
        known = {**_batches(nodes), **self.given}
        if nodes and known:
            self._infer(sorted(dict.fromkeys(nodes), key=lambda n: n.index), known)

    @property
    def has_stand_ins(self) -> bool:
        """Whether any shape differs from that in the graph."""
        return bool(self._stand_ins)

    def checked(self) -> Sizes:
        """Itself. ValueError: a node cannot take what it is given."""
        if self.misfit:
            raise ValueError(f"The given shapes do not fit the program: {self.misfit}")
        return self

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor, or one in its place whose shape is as complete as is known."""
        found = self._stand_ins.get(tensor.op)
        if found is None:
            return self._handed_on.get(tensor, tensor)
        return found.outputs[tensor.value_index]

    def node(self, node: Node) -> Node:
        """The node, or its stand-in, whose inputs and outputs have their shapes in this plan."""
        return self._stand_ins.get(node, node)

    def bytes(self, tensor: Tensor, dtype: DType | None = None) -> int:
        """The bytes of a tensor in this plan, an unknown size counting as 1; `dtype`: as which it travels."""
        return size(self.of(tensor)) * int((dtype or tensor.dtype).size)

    def is_known(self, tensor: Tensor) -> bool:
        """Whether all sizes of a tensor are known in this plan."""
        return is_static(self.of(tensor).dims)

    def cost(self, node: Node) -> Cost:
        """Arithmetic operations and bytes moved by one execution of a node in this plan."""
        return node.opdef.cost_of(self.node(node))

    def is_exact(self, nodes: Iterable[Node]) -> bool:
        """Whether the costs of nodes depend on no unknown size."""
        return all(self._has_known_cost(node) for node in nodes)

    def unknown(self, nodes: Iterable[Node], feeds: Collection[Tensor] = ()) -> tuple[Tensor, ...]:
        """Where unknown sizes come from: what is fed, and results whose sizes are unknown though those of all inputs are known.

        Results computed from one that is named are left out: a gradient often has its size from the shape of what is fed.

        Args:
            nodes: what the step runs, in order of creation. feeds: what it is given.
        """
        found: dict[Tensor, None] = {}
        behind: set[Node] = set()
        for node in nodes:
            back = node.back_edge
            taken = [t for t in node.inputs if not self.is_known(t) and t.op is not back]
            found.update((t, None) for t in taken if t in feeds)
            if any(t in found or t.op in behind for t in node.inputs):
                behind.add(node)
            elif not taken and not self._has_known_cost(node):
                found.update((t, None) for t in node.outputs if t not in feeds and not self.is_known(t))
        return tuple(found)

    def _has_known_cost(self, node: Node) -> bool:
        seen = self.node(node)
        for t in (*seen.inputs, *seen.outputs):
            if not is_static(t.dims):  # asked for each node of large graphs: what is rare comes last
                return node.type == "Placeholder" or bool(node.opdef.traits & (Trait.METADATA | Trait.STATE_HANDLE))
        return True

    def _infer(self, nodes: Sequence[Node], given: Mapping[str, Dims]) -> None:
        """Make the stand-ins. A loop variable is taken to keep the shape with which it enters, until an iteration changes it."""
        run, graph = set(nodes), nodes[0].graph
        fed = {graph.get_tensor_by_name(name).op for name in given} - run
        changed: set[Node] = set()
        loops = [n for n in nodes if n.back_edge is not None]
        for turn in range(PASSES):
            self.misfit = ""
            self._stand_ins, self._handed_on = {}, {}
            for node in fed:  # their values are not computed, so nothing may follow from their inputs
                self._stand_ins[node] = _copy(node, (), [merge(t.dims, given.get(t.name)) for t in node.outputs])
            for node in nodes:
                self._visit(node, given, changed)
            wrong = {m for m in loops if self.of(m.inputs[1]).dims != self.of(m.outputs[0]).dims} - changed
            if not wrong:
                return
            changed.update(wrong if turn < PASSES - 2 else loops)

    def _visit(self, node: Node, given: Mapping[str, Dims], changed: Collection[Node]) -> None:
        """Make the node's stand-in, where a shape is given for one of its outputs, or an input has a stand-in."""
        stand_ins = self._stand_ins
        is_behind = any(t.op in stand_ins or t in self._handed_on for t in node.inputs)
        known = [given.get(t.name) for t in node.outputs]
        if not is_behind and all(d is None for d in known):
            return
        made = _copy(node, tuple(self.of(t) for t in node.inputs), [t.dims for t in node.outputs])
        if not all(is_static(t.dims) for t in node.outputs):
            for t, given_dims, found in zip(made.outputs, known, self._inferred(node, made, changed), strict=True):
                t.dims = found if given_dims is None else merge(t.dims, given_dims)
                if not is_static(t.dims) and t.dtype.is_integer and (value := static_value(t)) is not None:
                    t.dims = value.shape  # shape arithmetic whose length depends on values, such as the axes of a sum
        stand_ins[node] = made
        self._handed_on.update((t, m) for t, m in zip(node.outputs, made.outputs, strict=True) if t.op is not node)

    def _inferred(self, node: Node, made: Node, changed: Collection[Node]) -> Sequence[Dims]:
        """The shapes of a node's outputs, from those of its stand-in's inputs."""
        dims: list[Dims] = [t.dims for t in node.outputs]
        try:
            if node.back_edge is not None:
                return dims if node in changed else [merge(dims[0], made.inputs[0].dims), *dims[1:]]
            found = [d for _, d in node.opdef.infer(made.inputs, made.attrs)]
            if node.opdef.name in ("Enter", "RefEnter"):  # its shape in the graph is that of all iterations
                found = [merge(found[0], made.inputs[0].dims)]
            return [merge(d, f) for d, f in zip(dims, found, strict=True)]
        except (TypeError, ValueError) as e:
            if not self.misfit and node.graph.flow.of(node) is None:  # a branch that is not taken may misfit
                self.misfit = f"'{node.name}' ({node.type}), created at {node.source}: {e}"
        except Exception:  # noqa: S110  an attr of a graph that was saved with a plan has been left out
            pass
        return dims


def _batches(nodes: Iterable[Node]) -> dict[str, Dims]:
    """The shapes of full batches, where data sets know them: the last batch of an epoch may be smaller, so the graph leaves them open."""
    found: dict[str, Dims] = {}
    for node in nodes:
        rows = node.attrs.get(FULL_BATCH) if node.opdef.name == "IteratorGetNext" else None
        if isinstance(rows, int):
            found.update((t.name, (rows, *t.dims[1:])) for t in node.outputs if t.dims and t.dims[0] is None)
    return found


def produced_batches(nodes: Iterable[Node], here: bool) -> dict[str, Dims]:
    """The shapes of data sets' batches in a step that ran, where they may be smaller than full ones: a size is open where it is not known.

    Args:
        nodes: what the step ran. here: whether its data sets run in this process, which knows what they have returned last.
    """
    takes = [n for n in nodes if n.attrs.get(SMALLER_BATCHES)]
    often = Counter(n.attrs["token"] for n in takes)
    found: dict[str, Dims] = {}
    for node in takes:
        is_once = often[node.attrs["token"]] == 1 and node.graph.flow.of(node) is None
        last = (last_element(node) if here and is_once else None) or [t.dims for t in node.outputs]
        found.update((t.name, dims) for t, dims in zip(node.outputs, last, strict=True))
    return found


def partial_batches(nodes: Iterable[Node], made: Mapping[str, int], sizes: Sizes) -> dict[str, Dims]:
    """The shapes of data sets' batches that a step made with fewer rows than full ones have, as the last of an epoch may.

    Args:
        made: node -> bytes of its outputs. sizes: those with full batches.
    """
    found: dict[str, Dims] = {}
    for node in nodes:
        full = _batches([node])
        if full and node.name in made and len(full) == len(node.outputs) and all(map(sizes.is_known, node.outputs)):
            whole = sum(map(sizes.bytes, node.outputs))
            rows, rest = divmod(made[node.name] * node.attrs[FULL_BATCH], max(whole, 1))
            if rows < node.attrs[FULL_BATCH] and not rest and all(t.dtype.np.kind != "O" for t in node.outputs):
                found.update(
                    (name, (rows, *(sizes.of(t).dims or ())[1:])) for name, t in zip(full, node.outputs, strict=True)
                )
    return found


def _copy(node: Node, inputs: tuple[Tensor, ...], dims: Sequence[Dims]) -> Node:
    """A node that is in no graph: the same, but for its inputs and the shapes of its outputs."""
    made = Node()
    for name in Node.__slots__:
        setattr(made, name, getattr(node, name))
    made.inputs = inputs
    made.outputs = tuple(Tensor(made, t.value_index, t.dtype, d) for t, d in zip(node.outputs, dims, strict=True))
    return made


def resized(cut: Partitioned, sizes: Sizes) -> Partitioned:
    """The same partitions, whose channels carry values of the sizes in a plan."""
    if not sizes.has_stand_ins:
        return cut
    channels = [
        c._replace(bytes=sizes.bytes(v, c.dtype), dims=sizes.of(v).dims) if isinstance(v, Tensor) else c
        for c, v in zip(cut.channels, cut.values, strict=True)
    ]

    def step(kind: Any, what: Node | Channel | LoopPart) -> Step:
        return kind, channels[what.id] if isinstance(what, Channel) else what  # type: ignore[return-value]

    parts = {d: replace(p, steps=tuple(step(*s) for s in p.steps)) for d, p in cut.partitions.items()}
    return replace(cut, partitions=parts, channels=channels)


def how_to_give(tensors: Sequence[Tensor], sizes: Sizes) -> str:
    """`shapes={'x': (64, 784)}`: the argument that gives the shapes of these tensors, with 64 where a size is unknown."""
    given = [f"{name!r}: {dims}" for name, dims in _examples(tensors, sizes)]
    return f"shapes={{{', '.join(given)}{', ...' * (len(tensors) > LISTED)}}}"


def shape_options(tensors: Sequence[Tensor], sizes: Sizes) -> str:
    """The same for the command line: `--shape x=64,784`."""
    given = [f"--shape {name}={','.join(map(str, dims))}" for name, dims in _examples(tensors, sizes)]
    return " ".join(given) + " ..." * (len(tensors) > LISTED)


def _examples(tensors: Sequence[Tensor], sizes: Sizes) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes, with 64 for unknown sizes; those of the first few."""
    return [
        (t.op.name if len(t.op.outputs) == 1 else t.name, tuple(64 if d is None else d for d in sizes.of(t).dims or ()))
        for t in tensors[:LISTED]
    ]


def listed_tensors(tensors: Sequence[Tensor], sizes: Sizes) -> str:
    """`'x:0' (?, 784), 'y:0' (?, 10)`: tensors with what is known of their shapes."""
    return listed((f"'{t.name}' {text(sizes.of(t).dims)}" for t in tensors), LISTED)


def plan_sizes(nodes: Collection[Node], given: Mapping[str, Dims], costs: Profile | None = None) -> Sizes:
    """The sizes of what a step runs: from the given shapes, and where there are none, from those of the steps that were measured."""
    by_name = {**(costs.shapes if costs is not None else {}), **given}
    new: dict[str, Dims] = {}
    for name, dims in by_name.items() if nodes else ():
        graph = next(iter(nodes)).graph
        if name.partition(":")[0] in graph:
            tensor = graph.get_tensor_by_name(name)
            if compatible(tensor.dims, dims):  # a profile may be of another model
                whole = merge(tensor.dims, dims)
                if whole != tensor.dims or FULL_BATCH in tensor.op.attrs:  # an open size may be told: no full batch
                    new[name] = whole
    return Sizes(nodes, new)


def given_shapes(graph: Graph, feeds: Any = None, shapes: Mapping[Any, Any] | None = None) -> dict[str, Dims]:
    """Tensor name -> shape, from `feeds={x: array}` and `shapes={x: (64, 784)}`; a feed without a value, or with a
    mere number as a stand-in for one, tells nothing.

    Args:
        feeds: tensors or names, or a mapping from them to values: arrays, anything with a shape, nested lists, numbers, or
            None.
        shapes: tensors or names -> shapes; None or -1 in a shape is a size that stays open.

    Raises:
        TypeError: `shapes` is no mapping, or holds what is no shape. KeyError: there is no such tensor.
        ValueError: a shape contradicts that of the graph; the text has both.
    """
    if shapes is not None and not isinstance(shapes, Mapping):
        raise TypeError(f"shapes must be a mapping such as {{x: (64, 784)}}, not {shapes!r}")
    found: dict[str, Dims] = {}
    fed = {k: _shape_of(v) for k, v in feeds.items() if not _is_number(v)} if isinstance(feeds, Mapping) else {}
    for key, given in [*fed.items(), *(shapes or {}).items()]:
        tensor = as_tensor(graph, key)
        try:
            dims = as_dims(given)
            merge(tensor.dims, dims)
        except (TypeError, ValueError) as e:
            why = f": {e}" if isinstance(e, TypeError) else ""
            if not why and is_static(tensor.dims) and tensor.op.type == "Placeholder":
                why = f". Its sizes are {FIXED}"
            raise type(e)(
                f"'{tensor.name}' (created at {tensor.op.source}) cannot have the shape {given!r}; the graph says {text(tensor.dims)}{why}"
            ) from None
        found[tensor.name] = dims
    return found


def as_tensor(graph: Graph, key: Any) -> Tensor:
    """A tensor of the graph, from itself or its name; `x` stands for the only output of the node `x`.

    Raises:
        KeyError: there is none. TypeError: it is neither a tensor nor a name. ValueError: the node has several outputs, or none.
    """
    element = graph.as_graph_element(key)
    if isinstance(element, Tensor):
        return element
    if len(element.outputs) != 1:
        raise ValueError(
            f"'{element.name}' has {len(element.outputs)} outputs: name one of them, such as '{element.name}:0'"
        )
    return element.outputs[0]


def batch_shapes(
    nodes: Iterable[Node], feeds: Iterable[Tensor], given: Mapping[str, Dims], batch: int
) -> dict[str, Dims]:
    """Tensor name -> shape with `batch` as its first size, for all feeds and data sets' elements that leave the first size open.

    Args:
        nodes: what the step runs. feeds: what it is given. given: shapes that are known already.

    Raises:
        TypeError: `batch` is no whole number. ValueError: it is less than 1; or there is no open first size.
    """
    wrong = TypeError(f"batch must be a whole number, not {batch!r}")
    if isinstance(batch, bool):
        raise wrong
    try:
        rows = operator.index(batch)
    except TypeError:
        raise wrong from None
    if rows < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    elements = [t for n in nodes if n.opdef.name.startswith("IteratorGetNext") for t in n.outputs]
    sources = [*feeds, *elements]
    found: dict[str, Dims] = {}
    for t in sources:
        if t.dims and t.dims[0] is None:
            found[t.name] = (rows, *(merge(t.dims, given.get(t.name)) or ())[1:])
    if not found:
        others = [t for t in sources if not is_static(t.dims)]
        remedy = f"Give the shapes: plan.at({how_to_give(others, Sizes())})" if others else f"These sizes are {FIXED}"
        raise ValueError(
            f"There is no batch size to choose: nothing that the step is given leaves its first size open "
            f"({listed_tensors(sources, Sizes()) or 'it is given nothing'}). {remedy}"
        )
    return found


def batch_misfit(sizes: Sizes, batch: int | None, tensors: Sequence[Tensor]) -> str:
    """The text of the error for a batch size that does not fit the program; `tensors`: those whose first size it is."""
    one = how_to_give(tensors[:1], sizes)
    return (
        f"batch={batch} does not fit the program: {sizes.misfit}. It is the first size of {listed_tensors(tensors, sizes)}, because the "
        "graph leaves it open there (symbolic_batch of dt.compile does so for all arrays). Give the shapes of those that hold a batch "
        f"alone, such as plan.at({one}), and make parameters variables"
    )


def in_full(name: Any, feeds: Iterable[Tensor], graph: Graph) -> Any:
    """The fed tensor that is meant by the end of its name, such as a parameter of a compiled function; else `name`."""
    if not isinstance(name, str) or name.partition(":")[0] in graph:
        return name
    found = [t for t in feeds if t.op.name.endswith(f"/{name}") or t.name.endswith(f"/{name}")]
    return found[0] if len(found) == 1 else name


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, complex))


def _shape_of(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    return np.shape(value) if shape is None else shape
