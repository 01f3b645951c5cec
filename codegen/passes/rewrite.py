"""Rewriting: replaces a partition's nodes by fewer or cheaper nodes with the same results.

Two walks visit the steps in order. The first *simplifies*: it folds constants, merges equal nodes (CSE), and applies the rules of
`rules/algebra.py`, `einsum.py`, `layout.py` and `shapes.py`, also to their own results. A node's inputs are simplified before the node,
so one walk is enough. The second *moves* transposes and casts past their neighbours (`moving_rules`) where they cancel or cost less.
After each walk, nodes that lost all consumers are dropped. Nodes that had none before stay, because the step runs them for their effect.

These stay, in their order: a step's feeds, the names of its fetches, sends and receives, stateful nodes, reads of variables, and
control flow. Nodes under a `cond` may be dead and are not matched. Nodes are never changed in place, because they may be the user's
own: a node with a replaced input is copied. A replacement keeps the node's name and source line, so errors still point at the user's
code.

The work is linear in the number of nodes. Rules that need an op which the partition does not have are skipped from the start.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from ...graph.core.constant_value import is_folded, static_value
from ...graph.core.dtypes import resource
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import OpDef, Trait, opdef
from ...graph.core.settings import setting
from ...graph.core.shape import element_count
from ..ir.nodes import new_node
from ..ir.partition import (
    AwaitNode,
    BeginLoop,
    EndLoop,
    LeaveUnless,
    PartitionGraph,
    PartitionStep,
    RunPredicated,
    SendTensor,
    inputs_of_step,
)
from ..ir.symbolic_shape import CONTROL_FLOW_OPS, SymbolicShapes
from ..options import KernelOptions
from .rules.algebra import algebra_rules
from .rules.dsl import Match, Rule, match, roots
from .rules.einsum import einsum_rules
from .rules.layout import arranging_rules, moving_rules
from .rules.shapes import shape_rules

logger = logging.getLogger(__name__)

_IMPURE = Trait.STATEFUL | Trait.STATE_HANDLE | Trait.BLOCKING | Trait.HOST_ONLY
_SWAPS = frozenset(("AddV2", "Mul"))  # commutative ops: the same bits with operands exchanged
_MOST_ROUNDS = 16  # rules applied to one node in sequence; no sensible chain is longer
_ASKING = frozenset(("Shape", "Size", "Reshape", "BroadcastTo"))
_SMALL_CONSTANT = 256  # bytes up to which equal constants are merged


@dataclass(frozen=True, slots=True)
class Fired:
    """One applied rewrite: the rule's name, the replaced node, and the new op."""

    rule: str
    node: Node
    became: str

    def __str__(self) -> str:
        node = self.node
        return f"{self.rule}: '{node.name}' ({node.type}), created at {node.source}, became {self.became}"


def rewrite(partition: PartitionGraph, options: KernelOptions) -> tuple[PartitionGraph, tuple[Fired, ...]]:
    """A partition with the same results and less work, and the rewrites; the partition itself if none applies.

    DOVETAIL_LOG_REWRITES=1 logs each rule that fired with its count; 2 logs each rewrite.
    """
    fired: list[Fired] = []
    rules = (*algebra_rules, *einsum_rules, *arranging_rules, *shape_rules) if options.rewrite else ()
    walk = _Walk(partition, options, _table(rules, partition, options))
    if options.fold or options.merge or options.rewrite or walk.current:
        partition = walk.run()
        fired += walk.fired
    if options.rewrite and _table(moving_rules, partition, options):
        table = _table((*moving_rules, *arranging_rules), partition, options)
        walk = _Walk(partition, replace(options, fold=False), table, counted=True)
        partition = walk.run()
        fired += walk.fired
    level = setting("DOVETAIL_LOG_REWRITES")
    if level >= 1 and fired:
        counts = ", ".join(f"{n} x {rule}" for rule, n in Counter(f.rule for f in fired).items())
        logger.warning("rewrites on %s: %s", partition.device, counts)
    if level >= 2:
        for f in fired:
            logger.warning("  %s", f)
    return partition, tuple(fired)


def _table(rules: Iterable[Rule], partition: PartitionGraph, options: KernelOptions) -> dict[OpDef, list[Rule]]:
    """Op of a node -> the rules that may apply to it, of those that can apply in this partition."""
    present = partition.ops
    table: dict[OpDef, list[Rule]] = {}
    for rule in rules:
        if (not rule.fast or options.fast_math) and rule.needs <= present:
            for root in roots(rule.parsed) & present:
                table.setdefault(opdef(root), []).append(rule)
    return table


# --- the walk ----------------------------------------------------------------------------------------------------------


class _Walk:
    """One walk over a partition's steps.

    `table`: by op, the rules that may apply to its nodes. `counted`: they may use the number of a tensor's consumers; otherwise, equalities
    of unknown sizes.
    """

    def __init__(
        self,
        partition: PartitionGraph,
        options: KernelOptions,
        table: Mapping[OpDef, Sequence[Rule]],
        *,
        counted: bool = False,
    ) -> None:
        self.partition = partition
        self.options = options
        self.steps: list[PartitionStep] = []
        self.current: dict[Tensor, Tensor] = {}  # the partition's tensors -> their replacements
        self.makers: dict[Tensor, Node] = {}  # the nodes that make tensors, where rules may match them
        self.copies: dict[Node, Node] = {}
        self.originals: dict[Node, Node] = {}  # of copies
        self.same: dict[tuple[Any, ...], Node] = {}  # by the key of equal nodes
        self.in_loops: list[list[tuple[Any, ...]]] = []  # the keys of nodes in the open loops, outermost first
        self.fired: list[Fired] = []
        self.folding = Folding(self.makers)
        self.sizes = SymbolicShapes(self.makers)
        self.fed = {t for _, t in partition.feeds}
        self.feeds = tuple([(name, self.stand_in(t)) for name, t in partition.feeds])
        self.table = table
        self.of_integers = {op for op, rules in table.items() if all(rule.integer for rule in rules)}
        self.sized = not counted and any(op.name in _ASKING for op in self.table)
        # An upper bound of a tensor's uses: removed consumers are not subtracted.
        self.uses: Counter[Tensor] = Counter()
        self.counted = counted and bool(self.table)
        if self.counted:
            self.uses.update(t for s in partition.steps for t in inputs_of_step(s))
            self.uses.update(t for _, t in partition.fetches)

    def stand_in(self, tensor: Tensor) -> Tensor:
        """The stand-in for a fed tensor. It hides the tensor's own value, which is not used."""
        if tensor.op.opdef.name == "Placeholder":
            return tensor
        attrs = {"dtype": tensor.dtype.base, "shape": tensor.dims}
        node = new_node("Placeholder", (), attrs, [(tensor.dtype.base, tensor.dims)], tensor.op)
        self.current[tensor] = node.outputs[0]
        return node.outputs[0]

    def run(self) -> PartitionGraph:
        """Run the walk; returns the partition itself if nothing has changed."""
        for step in self.partition.steps:
            if type(step) is Node:
                self.node(step)
            else:
                self.steps.append(self.renewed(step) if self.current else step)
                if isinstance(step, BeginLoop):
                    self.in_loops.append([])
                elif isinstance(step, EndLoop):  # a node after the loop cannot use the values of those in it
                    for key in self.in_loops.pop():
                        del self.same[key]
        if not self.current:
            return self.partition
        fetches = tuple([(name, self.current.get(t, t)) for name, t in self.partition.fetches])
        return PartitionGraph(self.partition.device, tuple(self.live(fetches)), self.feeds, fetches)

    def node(self, original: Node) -> None:
        """Append a node, or its replacement, to the steps so far."""
        node = self.copy(original) if self.current else original
        if not self.may_change(node):
            self.steps.append(node)
            if self.sized and node.opdef.name not in CONTROL_FLOW_OPS and self.fed.isdisjoint(node.outputs):
                self.sizes.see(node)
            return
        if self.has_rules(node) or self.options.fold and self.folding.may_fold(node):
            for _ in range(_MOST_ROUNDS):
                found = self.replacement(node)
                if found is None:
                    break
                rule, tensor, made = found
                is_new = tensor.op in made
                self.place_all(made, tensor.op)
                self.fired.append(Fired(rule, original, tensor.op.opdef.name if is_new else tensor.name))
                if not is_new:
                    self.replace(original, (tensor,))
                    return
                node = tensor.op
        equal = self.place(node)
        if equal is not node:
            self.fired.append(Fired("equal nodes", original, equal.name))
        if equal is not original:
            self.replace(original, equal.outputs)

    def has_rules(self, node: Node) -> bool:
        """Whether a rule may apply to a node. A fast check."""
        op = node.opdef
        return op in self.table and (op not in self.of_integers or node.outputs[0].dtype.is_integer)

    def may_change(self, node: Node) -> bool:
        """Whether a node is a pure function of its inputs."""
        if not _is_pure(node.opdef):
            return False
        for t in node.inputs:
            dtype = t.dtype
            if dtype.is_ref or dtype is resource:
                return False
        return not self.fed or self.fed.isdisjoint(node.outputs)

    # --- replacing -------------------------------------------------------------------------------------------------

    def replace(self, original: Node, tensors: Sequence[Tensor]) -> None:
        for old, new in zip(original.outputs, tensors, strict=True):
            if self.counted and self.current.get(old) is not new:
                self.uses[new] += self.uses[old]
            self.current[old] = new

    def place(self, node: Node) -> Node:
        """Append a node to the steps so far, unless there is an equal one; returns the node or its equal."""
        if self.options.merge:
            key = _key_of(node)
            if key is not None:
                equal = self.same.setdefault(key, node)
                if equal is not node:
                    return equal
                if self.in_loops:
                    self.in_loops[-1].append(key)
        self.steps.append(node)
        for t in node.outputs:
            self.makers[t] = node
        if self.sized:
            self.sizes.see(node)
        return node

    def place_all(self, made: Sequence[Node], last: Node) -> None:
        """Append the nodes that a rule made, except the last, which replaces the root."""
        instead: dict[Tensor, Tensor] = {}
        for new in made:
            if instead:
                new.inputs = tuple([instead.get(t, t) for t in new.inputs])
            if new is not last:
                equal = self.place(new)
                if equal is not new:
                    instead.update(zip(new.outputs, equal.outputs, strict=True))
                    continue
            if self.counted:
                self.uses.update(new.inputs)

    def replacement(self, node: Node) -> tuple[str, Tensor, Sequence[Node]] | None:
        """A node's replacement: the rule, the tensor, and the new nodes."""
        if self.options.fold and self.folding.may_fold(node):
            constant = self.folding.constant_of(node)
            if constant is not None:
                return "constant", constant.outputs[0], [constant]
        for rule in self.table.get(node.opdef, ()) if len(node.outputs) == 1 else ():
            if rule.integer and not node.outputs[0].dtype.is_integer:
                continue
            for found in match(rule.parsed, node, self.makers.get):
                m = Match(found, node, self.makers.get, self.uses.__getitem__, self.sizes)
                tensor = rule.apply(m)
                if tensor is not None and _fits(tensor, node.outputs[0]):
                    return rule.name, tensor, m.made
        return None

    # --- steps with replaced inputs --------------------------------------------------------------------------------

    def copy(self, node: Node) -> Node:
        """The node, or a copy of it if one of its inputs was replaced."""
        current = self.current
        if current.keys().isdisjoint(node.inputs):
            return node
        inputs = tuple([current.get(t, t) for t in node.inputs])
        copied = new_node(node.opdef, inputs, node.attrs, [(t.dtype, t.dims) for t in node.outputs], node)
        # Consumers of a fed output take the fed value.
        outputs = zip(node.outputs, copied.outputs, strict=True)
        copied.outputs = tuple([old if old in self.fed else new for old, new in outputs])
        for old, new in zip(node.outputs, copied.outputs, strict=True):
            if old is not new:
                if self.counted:
                    self.uses[new] += self.uses[old]
                current[old] = new
        self.copies[node] = copied
        self.originals[copied] = node
        return copied

    def renewed(self, step: PartitionStep) -> PartitionStep:
        """A step that is not a plain node, with its current inputs."""

        def now(what: Any) -> Any:
            if isinstance(what, tuple):
                return tuple(map(now, what))
            if isinstance(what, Tensor):
                return self.current.get(what, what)
            return self.copies.get(what, what) if isinstance(what, Node) else what

        if isinstance(step, RunPredicated):
            return RunPredicated(self.copy(step.node), now(step.after))
        if isinstance(step, BeginLoop):
            return BeginLoop(step.name, tuple(map(self.copy, step.merges)))
        if isinstance(step, (SendTensor, AwaitNode, LeaveUnless, EndLoop)):
            return replace(step, **{f.name: now(getattr(step, f.name)) for f in fields(step)})
        return step

    def live(self, fetches: Iterable[tuple[str, Tensor]]) -> list[PartitionStep]:
        """The steps without those that have lost all their consumers."""
        taken = {t for s in self.partition.steps for t in inputs_of_step(s)}
        taken.update(t for _, t in self.partition.fetches)
        before = {n for n in self.partition.steps if type(n) is Node}
        needed = {t for _, t in fetches}
        left: list[PartitionStep] = []
        for step in reversed(self.steps):
            if type(step) is Node and not any(t in needed for t in step.outputs) and self.may_change(step):
                original = self.originals.get(step, step)
                if original not in before or any(t in taken for t in original.outputs):
                    continue
            needed.update(inputs_of_step(step))
            left.append(step)
        left.reverse()
        return left


@cache
def _is_pure(op: OpDef) -> bool:
    known = op.reference is not None or op.name == "Const"
    return known and op.name not in CONTROL_FLOW_OPS and not op.traits & _IMPURE


def _fits(new: Tensor, old: Tensor) -> bool:
    """Whether a tensor can replace another: it has the same type, and is known to have the other's known shape."""
    if new.dtype is not old.dtype or old.dims is None:
        return new.dtype is old.dtype
    if new.dims is None or len(new.dims) != len(old.dims):
        return False
    return all(b is None or a == b for a, b in zip(new.dims, old.dims, strict=True))


def _key_of(node: Node) -> tuple[Any, ...] | None:
    """A key that two nodes share exactly if they always have equal results; None if a node has no equal."""
    op = node.opdef
    if op.name == "Const":
        value = node.attrs["value"]
        if value.nbytes > _SMALL_CONSTANT or value.dtype.hasobject:
            return None
        return op, node.outputs[0].dtype, value.shape, value.tobytes()
    inputs = node.inputs
    if op.name in _SWAPS and id(inputs[1]) < id(inputs[0]):
        inputs = inputs[::-1]
    if not node.attrs:
        return op, *inputs
    # repr distinguishes 0.0 and -0.0, and 1 and True, which are equal
    attrs = tuple([(k, repr(v) if isinstance(v, float | int) else v) for k, v in node.attrs.items()])
    try:
        hash(attrs)
    except TypeError:
        return None
    return op, *inputs, attrs


# --- constant folding ------------------------------------------------------------------------------------------------


_METADATA = frozenset(("Shape", "Size", "Rank"))  # known where the shape is
_MOST_FOLDED_IN_ALL = 1 << 24  # bytes per partition


@dataclass(slots=True)
class Folding:
    """Folds constants of one partition, by the ops' NumPy references: small ones, since large ones would be slow to make and to send.

    `makers`: the nodes that make tensors, where the pass may use them. `bytes`: of what has been folded so far.
    """

    makers: Mapping[Tensor, Node]
    bytes: int = 0

    def may_fold(self, node: Node) -> bool:
        """Whether a node may be foldable. A fast check."""
        if not node.inputs:
            return False
        maker = self.makers.get(node.inputs[0])
        return (maker is not None and maker.opdef.name == "Const") or node.opdef.name in _METADATA

    def constant_of(self, node: Node) -> Node | None:
        """A constant with the node's value, if it can be folded and is small."""
        if len(node.outputs) != 1 or node.opdef.name == "Const":
            return None
        (output,) = node.outputs
        if node.opdef.name in _METADATA:
            value = static_value(output)
            return None if value is None else _const(node, value)
        given = []
        for t in node.inputs:
            maker = self.makers.get(t)
            if maker is None or maker.opdef.name != "Const":
                return None
            given.append(maker.attrs["value"])
        size = (element_count(output.dims) or 0) * output.dtype.size
        taken, flops = sum(v.nbytes for v in given), node.opdef.cost_of(node).flops
        if self.bytes + size > _MOST_FOLDED_IN_ALL or not is_folded(node, taken, flops):
            return None
        try:
            with np.errstate(all="ignore"):
                assert node.opdef.reference is not None
                value = np.asarray(node.opdef.reference(*given, **node.opdef.kernel_attrs(node.attrs)))
        except Exception:
            return None  # reported at run time
        self.bytes += size
        return _const(node, value)


def _const(node: Node, value: np.ndarray[Any, Any]) -> Node | None:
    (output,) = node.outputs
    if value.dtype != output.dtype.np:
        return None
    value = np.array(value)
    value.flags.writeable = False
    return new_node("Const", (), {"value": value}, [(output.dtype, value.shape)], node)
