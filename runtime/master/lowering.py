"""Lowering: turns a partition into the form that the master registers with the partition's task.

`lower_partitions` turns the placer's partitions into the code generator's partition graphs. It also schedules communication:

Communication overlap (`overlap_collectives`). A device's steps keep the order of the graph, in which a strategy makes its collectives
last, so every collective would begin after the whole backward pass. But its inputs are ready long before: the gradients of the last
layers are computed first. So a collective begins right after the step that produces its last input, and is awaited at its old position:

    in the order of nodes    [ d3 ][ d2 ][ d1 ][ reduce d3 d2 ][ reduce d1 ][ update ]
    overlapped               [ d3 ][ d2 ][ d1 ]              [ reduce d1 ][ update ]
                                       [ reduce d3 d2 ..... ]

Nothing else moves. Collectives keep their relative order, so all members begin them in the same order. A collective is not moved if it
takes a reference to a variable or nothing (a barrier), may be dead or is in a loop, nor if there is little other work to overlap with.
A small one moves, too: one that stays keeps those behind it from beginning.

`kernels_of` lists the kernels that the runtime would generate for a partition of a plan, without generating them. The placer does not
import the code generator, so this module registers the function with `placer.plan.tools`. Every session imports this module, so it
loads the code generator only when a plan's kernels are requested.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...codegen.ir import partition as ir
from ...graph.core.device import DeviceName
from ...graph.core.errors import invalid
from ...graph.core.graph import Graph, Node, Tensor
from ...placer.cost.launches import Launch, is_free
from ...placer.cost.shapes import Sizes, plan_sizes
from ...placer.partition.one_sided_access import remote_places
from ...placer.partition.one_sided_reads import Place, bare_reader, place_read
from ...placer.partition.partitioned_graph import Channel, LoopPart, Partition, Partitioned, Step
from ...placer.plan import Plan, tools
from ..config import ConfigProto, check_config

if TYPE_CHECKING:
    from ...codegen.explain import DeviceKernels

# The two hand-overs between threads take as long as this many arithmetic operations plus bytes moved.
LEAST_WORK = 1 << 18
EarlyStep: TypeAlias = Step | tuple[Literal["await"], Node]


def overlap_collectives(part: Partition, cut: Partitioned) -> list[EarlyStep]:
    """A device's steps with each collective where it can begin, and `("await", node)` where it was."""
    if not any(op.is_collective for op in {what.opdef for _, what in part.steps if isinstance(what, Node)}):
        return list(part.steps)
    # What stands before all steps, then each step, with the collectives that begin behind it.
    placed: list[list[EarlyStep]] = [[]]
    # Nodes that run here and tensors that are fed or received -> the step after which they are available.
    comes: dict[Node | Tensor | str, int] = dict.fromkeys(part.feeds, -1)
    inside: list[Node | Tensor] = []  # those of the open loop: they are available when it has ended
    depth = 0
    last = -1  # the next collective may begin after this step
    for p, step in enumerate(part.steps):
        kind, what = step
        placed.append([step])
        if isinstance(what, LoopPart):
            depth += {"loop": 1, "end": -1}.get(kind, 0)
            if not depth:
                comes.update(dict.fromkeys(inside, p))
                inside.clear()
        elif kind != "send":
            made = what if isinstance(what, Node) else cut.values[what.id]
            if depth:
                inside.append(made)
            else:
                comes[made] = p
        if isinstance(what, Node) and what.opdef.is_collective:
            bound = None if depth or what in cut.predicated else _bound(what, comes)
            if bound is None or not _is_work(part.steps[max(last, bound) + 1 : p]):
                last = p
                continue
            last = max(last, bound)
            while part.steps[last + 1][0] == "send":  # the send comes first
                last += 1
            placed[last + 1].append(("node", what))
            placed[p + 1] = [("await", what)]
    return list(itertools.chain.from_iterable(placed))


def _bound(node: Node, comes: Mapping[Node | Tensor | str, int]) -> int | None:
    """Index of the step after which a collective has its inputs; None: it is not moved."""
    if not node.inputs or any(t.dtype.is_ref for t in node.inputs):  # a barrier stays
        return None
    found = [comes.get(t.name, comes.get(t, comes.get(t.op))) for t in node.inputs]
    found += [comes.get(c) for c in node.controls]
    known = [at for at in found if at is not None]
    return max(known) if len(known) == len(found) else None


def _is_work(steps: Iterable[Step]) -> bool:
    """Whether these steps are enough work to overlap with; unknown sizes count as 1."""
    left = float(LEAST_WORK)
    for kind, what in steps:
        if isinstance(what, Node) and what.type not in ("Const", "Placeholder"):
            left -= sum(what.opdef.cost_of(what))
        if left <= 0 or kind == "recv" or isinstance(what, LoopPart):
            return True
    return False


Published: TypeAlias = Mapping[Place, tuple[int, tuple[int, ...]]]
"""The variables and accumulators that tasks let others use: the incarnation of the task's process, and the record's address."""


def lower_partitions(
    cut: Partitioned, graph: Graph, device_of: Callable[[Node], str] | None = None, published: Published | None = None,
    only: str | None = None,
) -> list[ir.PartitionGraph]:  # fmt: skip
    """The partition graphs of all partitions, or of `only` that of one device.

    Args:
        device_of, published: where nodes are placed, and the published memory that the partitions use; None: for a look at the
            kernels only.
    """
    partitions = []
    predicated = cut.predicated
    numbers = itertools.count(1 + max((c.id for c in cut.channels), default=-1) if published else 0)
    for part in cut.partitions.values() if only is None else [cut.partitions[only]]:
        steps: list[ir.PartitionStep] = []
        if published and device_of is not None:
            for node, place in remote_places(part, device_of).items():
                posted = _posted(node, node.type, place, published)
                steps.append(ir.RecvTensor(next(numbers), None, device_of(node), None, posted, node))
        for kind, what in overlap_collectives(part, cut):
            if isinstance(what, Node):
                if kind == "await":
                    steps.append(ir.AwaitNode(what))
                elif what.back_edge is None:  # else it is a Merge of a loop, which is in `BeginLoop`
                    steps.append(ir.RunPredicated(what, predicated[what]) if what in predicated else what)
            elif isinstance(what, LoopPart):
                steps.append(_mark(kind, what))
            else:
                number, value = what.id, cut.values[what.id]
                tensor = value if isinstance(value, Tensor) else None
                other = what.dtype if tensor is not None and what.dtype is not tensor.dtype.base else None
                if kind == "recv":
                    steps.append(ir.RecvTensor(number, tensor, what.source, other))
                elif kind == "read":
                    assert tensor is not None
                    reader = bare_reader(tensor)
                    assert reader is not None
                    op, place = reader.type if reader.inputs else "Read", place_read(reader, what.source)
                    read = _posted(reader, op, place, published) if published else None
                    steps.append(ir.RecvTensor(number, tensor, what.source, None, read))
                else:
                    token: Node | int | None = None  # what tells whether the empty message of a control edge is dead
                    if isinstance(value, Node) and value in predicated:
                        token = value if what.relays is None else what.relays
                    steps.append(ir.SendTensor(number, tensor, what.destination, token, other))
        partitions.append(
            ir.PartitionGraph(
                part.device,
                tuple(steps),
                tuple((name, graph.get_tensor_by_name(name)) for name in part.feeds),
                tuple((name, graph.get_tensor_by_name(name)) for name in part.fetches),
            )
        )
    return partitions


def _posted(node: Node, op: str, place: Place, published: Published) -> ir.Posted:
    incarnation, address = published[place]
    return ir.Posted(address, incarnation, place[1], place[2], node.name, op, str(node.source))


def _mark(kind: str, part: LoopPart) -> ir.PartitionStep:
    if kind == "loop":
        return ir.BeginLoop(part.name, part.merges)
    if kind == "test":
        return ir.LeaveUnless(part.condition.outputs[0])
    return ir.EndLoop(tuple(m.inputs[1] for m in part.merges))


def kernels_of(plan: Plan, device: str, config: ConfigProto | None = None) -> DeviceKernels:
    """The kernels of one device's partition.

    Raises:
        InvalidArgumentError: the step does not run on that device.
    """
    from ...codegen.explain import explain  # loads the compiler

    if device not in plan.partitions:
        raise invalid(f"The step runs nothing on {device}; it runs on: {', '.join(plan.partitions) or 'no device'}")
    (partition,) = lower_partitions(plan.partitioned, plan.graph, only=device)
    options = check_config(config).kernel_options()
    gpu = plan.cluster.device(DeviceName.parse(device)).gpu
    # What other devices make has here the sizes that it has in the plan.
    crossing = [what for _, what in plan.partitions[device].steps if isinstance(what, Channel)]
    given = plan.sizes.given | {c.name: c.dims for c in crossing if c.destination == device and not c.control}
    return explain(partition, options, gpu, lambda nodes: plan_sizes(nodes, given))


def launches_of(plan: Plan, device: str) -> list[Launch]:
    """The kernels that one device's program calls, for predicted times."""
    found = kernels_of(plan, device)
    sizes = found.sizes
    assert isinstance(sizes, Sizes)
    native = {name for region in found.regions for name in region.nodes}
    fused = {id(kernel.group): kernel for kernel in found.kernels}
    out = []
    for step in found.steps:
        kernel, node = fused.get(id(step)), ir.node_of(step)
        if kernel is not None:
            nodes: tuple[Node, ...] = tuple(kernel.group.nodes)
            moved = kernel.bytes_read + kernel.bytes_written
            out.append(Launch(nodes, moved, nodes[-1].name in native, sizes, found.seconds_of(step)))
        elif node is not None and not is_free(node):
            own = found.seconds_of(step)
            out.append(Launch((node,), sizes.cost(node).bytes, node.name in native, sizes, own))
    return out


tools["kernels"], tools["launches"] = kernels_of, launches_of
