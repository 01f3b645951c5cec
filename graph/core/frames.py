"""Which nodes of a graph run in which loop, in what order, and which of them may be dead.

The edges determine this: the output of an `Enter` is inside its loop, the output of an `Exit` is outside, and any other node is in the loop
of its inputs. A loop has one `LoopCond`. Executors need this form of a graph:

    schedule  = nodes and loops, in an order in which they can run
    a loop    = its Merges;
                its *head*: the nodes that run in every iteration, up to the LoopCond;
                its *body*: the nodes that run in every iteration but the last, such as the NextIterations

Enters and Exits are outside the loop and run once, before and after it. An Enter is constant or feeds a Merge.

A node may be *dead* if it depends on one side of a Switch. Its predicate (`Predicates`) is a set of pairs of a condition and a side, which
must all be met for the node to be live. A Merge of both sides of a condition does not depend on that condition. The body of a loop does not
depend on the loop's own Switches, because it runs only if there is another iteration.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from .errors import InvalidArgumentError
from .graph import Node, Tensor

T = TypeVar("T")

CONTROL_FLOW_OPS = frozenset({"Switch", "RefSwitch", "Merge", "Enter", "RefEnter"})
"""Every branch or loop has one of these ops. Without them, a graph runs as a plain list of nodes."""


@dataclass(slots=True, eq=False)
class Loop:
    """A loop (a frame in TensorFlow), or the part of it that a step needs.

    Attributes:
        name: the `frame_name` of its Enters.
        outer: the enclosing loop, or None.
        merges: the Merges of its variables.
        head: the nodes that run in each iteration, up to its LoopCond.
        body: the nodes that run in each iteration but the last.
        enters: its Enters, which are outside.
        conditions: its LoopConds. A well-formed loop has one.
    """

    name: str
    outer: Loop | None
    merges: list[Node] = field(default_factory=list)
    head: list[Item] = field(default_factory=list)
    body: list[Item] = field(default_factory=list)
    enters: list[Node] = field(default_factory=list)
    conditions: list[Node] = field(default_factory=list)

    @property
    def condition(self) -> Node:
        """The LoopCond."""
        return self.conditions[0]

    @property
    def depth(self) -> int:
        """The nesting depth; 1 for an outermost loop."""
        return 1 if self.outer is None else self.outer.depth + 1

    def nodes(self) -> Iterator[Node]:
        """All nodes inside, in order."""
        yield from self.merges
        yield from flat(self.head)
        yield from flat(self.body)

    def __repr__(self) -> str:
        return f"<loop '{self.name}'>"


Item: TypeAlias = Node | Loop


def flat(items: Iterable[Item]) -> Iterator[Node]:
    """The nodes of a schedule, in order."""
    for item in items:
        if isinstance(item, Loop):
            yield from item.nodes()
        else:
            yield item


def has_control_flow(nodes: Iterable[Node]) -> bool:
    """Whether there is control flow among these nodes."""
    return any(n.opdef.name in CONTROL_FLOW_OPS for n in nodes)


class Frames:
    """The loops among some nodes.

    Args:
        nodes: nodes in order of creation. They include all nodes that they need, except for those of `given`.
        given: tensors whose values are given.

    Raises:
        InvalidArgumentError: a loop does not have exactly one LoopCond, or a node has inputs from two loops that are not nested.
    """

    def __init__(self, nodes: Sequence[Node], given: Iterable[Tensor] = ()) -> None:
        self.given = frozenset(given)
        self.runs_in: dict[Node, Loop | None] = {}
        self._enters_into: dict[Node, Loop] = {}
        self._loops: dict[tuple[Loop | None, str], Loop] = {}
        self._inside = frozenset(nodes)
        for node in in_order(nodes, self.before):
            self._add(node)
        for loop in self._loops.values():
            self._check(loop)

    @property
    def loops(self) -> list[Loop]:
        """All loops, outer ones before inner ones."""
        return list(self._loops.values())

    def before(self, node: Node) -> list[Node]:
        """The nodes that must run before this one in the same iteration."""
        back = node.back_edge
        found = [t.op for t in node.inputs if t not in self.given and t.op is not back and t.op in self._inside]
        found += [c for c in node.controls if c in self._inside]
        return found

    def gives_in(self, node: Node) -> Loop | None:
        """The loop in which a node's outputs are."""
        return self._enters_into.get(node) or self.runs_in[node]

    def _add(self, node: Node) -> None:
        name = node.opdef.name
        here: Loop | None = None
        for before in self.before(node):
            there = self.gives_in(before)
            if there is None or there is here or (here is not None and is_in(here, there)):
                continue
            if not is_in(there, here):
                raise _malformed(node, f"takes '{before.name}' from {there}, and something else from {here}")
            here = there
        if name == "Exit":
            if here is None:
                raise _malformed(node, "leaves a loop, but is in none")
            here = here.outer
        self.runs_in[node] = here
        if name in ("Enter", "RefEnter"):
            key = here, str(node.attrs["frame_name"])
            loop = self._loops.get(key)
            if loop is None:
                loop = self._loops[key] = Loop(key[1], here)
            loop.enters.append(node)
            self._enters_into[node] = loop
        elif here is not None and name == "LoopCond":
            here.conditions.append(node)
        elif here is not None and node.back_edge is not None:
            here.merges.append(node)

    def _check(self, loop: Loop) -> None:
        if len(loop.conditions) != 1:
            raise _malformed(
                loop.enters[0], f"enters {loop}, which must have one LoopCond and has {len(loop.conditions)}"
            )
        for merge in loop.merges:
            back = merge.back_edge
            assert back is not None
            if self.runs_in.get(back) is not loop:
                raise _malformed(merge, f"is led back to by '{back.name}', which is not in {loop}")

    def schedule(self) -> list[Item]:
        """All nodes in order of creation as far as edges allow it. The nodes of a loop are together, in its `Loop`."""
        items: dict[Loop | None, dict[Item, int]] = {}
        for node, loop in self.runs_in.items():
            items.setdefault(loop, {})[node] = node.index
        for loop in reversed(self.loops):  # a loop has the position of its first node
            inside = items.setdefault(loop, {})
            items.setdefault(loop.outer, {})[loop] = min(inside.values())
        needs: dict[Item, dict[Item, None]] = {}
        for node, loop in self.runs_in.items():
            for before in self.before(node):
                # The start of the edge determines the level at which it orders items.
                level = self.runs_in[before]
                a: Item = before
                if node.opdef.name == "Exit" and level is not loop:  # from inside the loop that it leaves
                    a, level = _at_level(level, loop), loop
                b = _at_level_of(node, loop, level)
                if a is not b:
                    needs.setdefault(b, {})[a] = None
        orders = {loop: _sorted(found, needs) for loop, found in items.items()}
        for loop in self.loops:
            order = orders[loop]
            at = order.index(loop.condition)
            merges = set(loop.merges)
            loop.head = [i for i in order[: at + 1] if i not in merges]
            loop.body = [i for i in order[at + 1 :] if i not in merges]
        return orders.get(None, [])


def is_in(inner: Loop | None, outer: Loop | None) -> bool:
    """Whether `inner` is `outer` or inside it; every loop is inside None."""
    while inner is not outer:
        if inner is None:
            return False
        inner = inner.outer
    return True


def _at_level(inner: Loop | None, level: Loop | None) -> Loop:
    """The loop directly in `level` that is, or holds, `inner`."""
    while inner is not None and inner.outer is not level:
        inner = inner.outer
    assert inner is not None
    return inner


def _at_level_of(node: Node, loop: Loop | None, level: Loop | None) -> Item:
    return node if loop is level else _at_level(loop, level)


def in_order(nodes: Sequence[Node], before: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Sort nodes so that each comes after those `before` it. If they already are in such an order, it does not change."""
    seen: set[Node] = set()
    for node in nodes:
        if not seen.issuperset(before(node)):
            break
        seen.add(node)
    else:
        return list(nodes)
    order = _sorted({n: n.index for n in nodes}, {n: dict.fromkeys(before(n)) for n in nodes})
    return [n for n in order if isinstance(n, Node)]


def topological(items: Mapping[T, int], needs: Mapping[T, Iterable[T]]) -> tuple[list[T], T | None]:
    """A topological order of items, and an item of a cycle, or None if there is no cycle.

    This is Kahn's algorithm. Of several items that are ready, the one with the lowest number comes first.

    Args:
        items: item -> its number.
        needs: item -> the items that must come before it.
    """
    waiting: dict[T, int] = {}
    users: dict[T, list[T]] = {}
    for item in items:
        found = [n for n in needs.get(item, ()) if n in items]
        waiting[item] = len(found)
        for n in found:
            users.setdefault(n, []).append(item)
    # Two items may share a number (a loop has that of its first node), so a count breaks the tie.
    ready = [(items[i], k, i) for k, i in enumerate(items) if not waiting[i]]
    heapq.heapify(ready)
    count = len(items)
    order: list[T] = []
    while ready:
        item = heapq.heappop(ready)[2]
        order.append(item)
        for user in users.get(item, ()):
            waiting[user] -= 1
            if not waiting[user]:
                count += 1
                heapq.heappush(ready, (items[user], count, user))
    return order, None if len(order) == len(items) else next(i for i in items if waiting[i])


def _sorted(items: Mapping[Item, int], needs: Mapping[Item, Iterable[Item]]) -> list[Item]:
    order, stuck = topological(items, needs)
    if stuck is not None:
        node = stuck if isinstance(stuck, Node) else stuck.condition
        raise InvalidArgumentError(
            node, node, f"The graph has a cycle through '{node.name}' (created at {node.source})"
        )
    return order


def _malformed(node: Node, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        node, node, f"Malformed loop: '{node.name}' ({node.type}, created at {node.source}) {what}"
    )


# --- deadness -----------------------------------------------------------------------------------------------

Predicate: TypeAlias = frozenset[tuple[object, int]]
ALIVE: Predicate = frozenset()


class Predicates:
    """The conditions under which nodes are live.

    Attributes:
        of: node -> its predicate, for nodes that have conditions. Inside a loop, those of the loop itself are left out.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.of: dict[Node, Predicate] = {}
        self._of_output: dict[Tensor, Predicate] = {}  # outputs whose predicates differ from their node's
        self._walk(items)

    def __contains__(self, node: Node) -> bool:
        return node in self.of

    def of_tensor(self, tensor: Tensor) -> Predicate:
        """The conditions under which a tensor is live."""
        found = self._of_output.get(tensor)
        return self.of.get(tensor.op, ALIVE) if found is None else found

    def _walk(self, items: Iterable[Item], known: Predicate = ALIVE) -> None:
        for item in items:
            if isinstance(item, Node):
                self._add(item, known)
                continue
            around = ALIVE.union(*(self.of.get(e, ALIVE) for e in item.enters)) - known
            for merge in item.merges:
                self._put(merge, around)
            self._walk(item.head, known)
            # If the body runs, all conditions of the loop itself are met.
            self._walk(item.body, known | around)
            for node in item.body:
                if isinstance(node, Node) and node.inputs and node.inputs[-1].op is item.condition:
                    self._of_output[node.outputs[0]] = around  # the input of an Exit

    def _add(self, node: Node, known: Predicate) -> None:
        predicates = [self.of_tensor(t) - known for t in node.inputs]
        alive = ALIVE.union(*(self.of.get(c, ALIVE) for c in node.controls)) - known
        name = node.opdef.name
        if name == "ControlTrigger":
            self._put(node, ALIVE)
            return
        if name == "Merge":
            self._put(node, alive | _either(predicates, node))
            return
        predicate = alive.union(*predicates)
        self._put(node, predicate)
        if name in ("Switch", "RefSwitch"):
            pred = node.inputs[1]
            if pred.op.opdef.name != "LoopCond":
                while pred.op.opdef.name == "Identity":
                    pred = pred.op.inputs[0]
                for side, t in enumerate(node.outputs):
                    self._of_output[t] = predicate | {(pred, side)}

    def _put(self, node: Node, predicate: Predicate) -> None:
        if predicate:
            self.of[node] = predicate
        else:
            self.of.pop(node, None)


def _either(predicates: Sequence[Predicate], merge: Node) -> Predicate:
    """The conditions under which one of a Merge's inputs is live."""
    common = frozenset.intersection(*predicates)
    rests = [g - common for g in predicates]
    if any(not r for r in rests):
        return common
    # The two sides of the same condition: one of them is always met.
    if len(rests) == 2 and all(len(r) == 1 for r in rests):
        (a,), (b,) = rests
        if a[0] is b[0] and a[1] != b[1]:
            return common
    return common | {(merge, 0)}  # unknown
