"""Which nodes have a compiled kernel of their own on CPUs, and which kernels join two nodes: told without making any.

What the Numba backend does when it makes a program (`kernel` for each node, and `with_product_updates` at the end), told from a
unit's steps. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...graph.core.graph import Node, Tensor
from ...graph.core.shape import element_count
from ..fusion.optimizer_loops import update_of
from ..ir.fused_kernel import FusedKernel, inputs_of
from ..ir.legality import SUPPORTED
from ..ir.partition import AwaitNode, BeginLoop, EndLoop, LeaveUnless, PartitionStep, RecvTensor, node_of
from .dispatch import own_kernel
from .gemm_epilogue import SMALLEST as SMALLEST_PRODUCT
from .jit import source_of
from .kernels.mixed_precision_gemm import is_narrow_product, sources
from .kernels.optimizer import SMALLEST as SMALLEST_UPDATE, sparse_update_of


@dataclass(frozen=True, slots=True)
class OwnKernel:
    """A compiled kernel of a node, or of a product and the update that takes it.

    Attributes:
        nodes: in the order in which they were.
        source: the text that is compiled, of each in turn.
    """

    nodes: tuple[Node, ...]
    source: str


def own_kernels(steps: Sequence[PartitionStep | FusedKernel], fetches: Iterable[Tensor]) -> tuple[OwnKernel, ...]:
    """Those of a unit's steps after fusion, in the order in which they run."""
    joined = dict(_products_of_updates(steps, set(fetches)))
    inside = set(joined.values())
    found = []
    for step in steps:
        node = node_of(step)
        if node is None or node in inside:
            continue
        source = _source(node)
        if source is None:
            continue
        nodes = (joined[node], node) if node in joined else (node,)
        found.append(OwnKernel(nodes, "\n\n".join(filter(None, (_source(n) for n in nodes)))))
    return tuple(found)


def joined_steps(
    steps: Sequence[PartitionStep | FusedKernel], fetches: Iterable[Tensor]
) -> tuple[list[PartitionStep | FusedKernel], set[Tensor]]:
    """The steps in the order in which they run, with products before the updates that take them, and the gradients never made."""
    joined = dict(_products_of_updates(steps, set(fetches)))
    moved = set(joined.values())
    out: list[PartitionStep | FusedKernel] = []
    for step in steps:
        if isinstance(step, Node) and step in joined:
            out.append(joined[step])
        if not (isinstance(step, Node) and step in moved):
            out.append(step)
    return out, {t for n in moved for t in n.outputs}


def _source(node: Node) -> str | None:
    """The text of a node's own kernel; None when it has none."""
    update = update_of(node)
    if update is not None:
        loops, places, gradient = update
        array = node.inputs[gradient]
        small = (element_count(array.dims) or SMALLEST_UPDATE) < SMALLEST_UPDATE
        return None if small or array.dtype.base not in SUPPORTED else source_of(loops, places).text
    sparse = sparse_update_of(node)
    if sparse is not None:
        return sparse.source
    if not node.outputs:
        return None
    if is_narrow_product(node):
        return "\n\n".join(sources(node))
    found = own_kernel(node, 1)
    return found[0] if found is not None else None


def _products_of_updates(
    steps: Sequence[PartitionStep | FusedKernel], fetched: set[Tensor]
) -> Iterator[tuple[Node, Node]]:
    """(update, product) where the product is made piece by piece as the update takes it."""
    users: dict[Tensor, int] = {}
    made: dict[Tensor, tuple[Node, int]] = {}
    fences = 0
    updates: list[tuple[Node, Tensor, int]] = []
    for step in steps:
        for t in inputs_of(step):
            users[t] = users.get(t, 0) + 1
        if isinstance(step, RecvTensor | AwaitNode | BeginLoop | LeaveUnless | EndLoop):
            fences += 1
        elif isinstance(step, Node):
            fences += step.opdef.is_blocking
            if step.type == "MatMul" and not is_narrow_product(step):
                made[step.outputs[0]] = step, fences
            elif (update := update_of(step)) is not None:
                updates.append((step, step.inputs[update[2]], fences))
    for node, gradient, when in updates:
        product, before = made.get(gradient, (None, -1))
        if product is None or before != when or users[gradient] != 1 or gradient in fetched:
            continue
        large = (element_count(gradient.dims) or SMALLEST_PRODUCT) >= SMALLEST_PRODUCT
        if large and _source(product) is not None and _source(node) is not None:
            yield node, product
