"""The families of kernels on GPUs, and which of them computes a node or a fused kernel.

loops                                       Triton kernels made from loops: for what is fused, and each node that has a loop nest
templates                                   matrix products, convolutions, attention, sorting... (`template_of`)
updates, rows, gathers                      optimizers' updates, changes of rows, rows of variables: in place where that is possible
assignments, collectives, random streams    change variables, or put values, in GPU memory
shapes, views                               launch nothing: they use the shape of their first input
host values                                 run their reference: inputs and outputs are with the host anyway
reference                                   runs its reference, which passes on values of any kind without looking into them
parts                                       a product whose prologues and epilogue no template takes: one kernel for each part
host                                        runs its reference on copies of the inputs in host memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.core.dtypes import FLOATS
from ...graph.core.gpu_models import MATRIX_OPS
from ...graph.core.graph import Node
from ...graph.core.opdef import Trait
from ...graph.core.shape import element_count
from ..fusion.epilogue import EpilogueKernel
from ..fusion.optimizer_loops import update_of
from ..ir.fused_kernel import FusedKernel
from ..ir.loop_nest import TileLoops
from ..ir.nodes import PASSED_ON, PRODUCTS
from ..ir.program import REFERENCE, Call, Updates, Work
from ..target import Target
from .collectives import is_between_gpus
from .ir import Choice, Shape, Template
from .ops.conv import IMAGE_MAKERS, convolutions
from .ops.copy import COPY_MAKERS
from .ops.products import ATTENTION_MAKERS, product_template
from .ops.rows import ROW_MAKERS
from .residency import lives_on_device
from .variables import ASSIGNS, assigns_in_place, gathers, row_change

LOOPS, TEMPLATES, UPDATES, ROWS, GATHERS = "loops", "templates", "updates", "rows", "gathers"
ASSIGNMENTS, ASSIGNMENTS_IN_PLACE = "assignments", "assignments in place"
COLLECTIVES, RANDOM_STREAMS = "collectives", "random streams"
SHAPES, VIEWS, HOST_VALUES, PARTS, HOST = "shapes", "views", "host values", "parts", "host"

LAUNCHING = frozenset((LOOPS, TEMPLATES, UPDATES, ROWS, GATHERS))
WITHOUT_WAITING = LAUNCHING | {SHAPES, VIEWS}
HARMLESS = WITHOUT_WAITING | {HOST_VALUES}
"""The families that only compute, and change at most variables."""

_VIEWS = frozenset(("Reshape", "ExpandDims", "Squeeze"))
_OF_SHAPES = frozenset(("BroadcastArgs", "BroadcastGradientArgs"))  # their operands are shapes, of any length
_PASSING = PASSED_ON | {
    "Switch", "RefSwitch", "Merge", "Enter", "RefEnter", "Exit", "NextIteration", "LoopCond", "ReadVariableOp", "IsVariableInitialized",
    "VarIsInitializedOp", "InitializedValue", "IdentityN",
}  # fmt: skip
"""Ops that hand values on without looking into them: their references do for arrays of any kind."""


def choose(step: Node | FusedKernel, target: Target, tf32: bool) -> Work:
    """As `Backend.choose`, for a GPU. `tf32`: as in `template_of`."""
    if isinstance(step, EpilogueKernel):
        template = with_edges(step, target, tf32)
        return Work(step, PARTS if template is None else TEMPLATES, template)
    tensors = (*step.inputs, *step.outputs)  # a kernel of which none may live on the GPU runs on the host
    stays_with_host = not any(lives_on_device(t.dtype.base, element_count(t.dims)) for t in tensors)
    if isinstance(step, FusedKernel):
        return Work(step, HOST_VALUES if stays_with_host else LOOPS)
    op = step.opdef
    if step.type in _PASSING or Trait.STATE_HANDLE in op.traits or not step.inputs:
        return Work(step, REFERENCE)
    if Trait.METADATA in op.traits or step.type in _VIEWS:
        return Work(step, VIEWS if step.type in _VIEWS else SHAPES)
    if op.is_stateful:
        return _stateful(step)
    if step.type in _OF_SHAPES or stays_with_host:
        return Work(step, HOST_VALUES)
    template = template_of(step, target, tf32=tf32)
    return Work(step, HOST if template is None else TEMPLATES, template)


def _stateful(node: Node) -> Work:
    """For a node that changes variables, makes a stream of random numbers, or meets others."""
    if is_between_gpus(node):
        return Work(node, COLLECTIVES)
    if node.type in ASSIGNS:
        return Work(node, ASSIGNMENTS_IN_PLACE if assigns_in_place(node) else ASSIGNMENTS)
    if gathers(node):
        return Work(node, GATHERS)
    change = row_change(node)
    if change is not None:
        return Work(node, ROWS, change)
    if node.type == "RandomStream":
        return Work(node, RANDOM_STREAMS)
    found = update_of(node)
    return Work(node, HOST if found is None or node.inputs[found[2]].dtype.base not in FLOATS else UPDATES)


def family_of(call: Call) -> str:
    """The family of a call, also of several updates as one launch; "" of other calls."""
    work = call.work
    return work.family if isinstance(work, Work) else UPDATES if isinstance(work, Updates) else ""


def loads(call: Call, position: int) -> bool:
    """Whether launches alone read an input of a call of `LAUNCHING`, so that it may be in GPU memory however small it is."""
    work = call.work
    if not isinstance(work, Work) or work.family not in (LOOPS, TEMPLATES):
        return True
    if work.family == LOOPS:
        return position < len(work.step.inputs)
    return position in (work.template.order or range(work.template.inputs))[: work.template.inputs]


# --- templates ---------------------------------------------------------------------------------------------------------


_MAKERS: dict[str, Callable[..., Template]] = {**ATTENTION_MAKERS, **COPY_MAKERS, **IMAGE_MAKERS, **ROW_MAKERS}


def template_of(
    node: Node, target: Target, edges: Sequence[TileLoops | None] = (), tf32: bool = False
) -> Template | None:
    """The template for a node; None when there is none.

    `edges`: elementwise work on the operands, if any, and on the result (`codegen/fusion/epilogue.py`). What it reads beside the tiles
    comes behind the inputs of a launch; of what it writes, the template's choice tells nothing. `tf32`: products of float32 may be made
    from 10 bits of each factor's fraction.
    """
    make = _MAKERS.get(node.type)
    try:
        if node.type in PRODUCTS:
            return product_template(node, target, edges or (None, None, None), tf32=tf32)
        if any(edges):
            return convolutions("result" if node.type == "Conv2D" else "image", edges[-1])(node, tf32=tf32)
        if make is None:
            return None
        return make(node, tf32=tf32) if node.type in MATRIX_OPS else make(node)
    except (ValueError, KeyError):  # not these types, or attributes
        return None


def with_edges(group: EpilogueKernel, target: Target, tf32: bool) -> Template | None:
    """The template of a product or convolution with its prologues and epilogue as one kernel; None when there is none.

    The parts together determine a run. A prologue checks that the sizes are as fusion assumed. The anchor's template gives the shape of
    the result, the reshape the shape for the epilogue, and the epilogue the shapes of the outputs. If one of them refuses, each part runs
    by itself, so that errors name the right node.
    """
    anchor = template_of(group.anchor, target, group.tile_loops, tf32)
    if anchor is None:
        return None

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        operands, beside = group.parts_of_inputs(shapes)
        looked, new_shape, told = group.parts_of_shapes(others)
        for edge, tile, *rest in zip(group.edges[:2], operands, beside, told, strict=False):
            if edge is not None and edge.sized(tile, *rest) is None:
                return None
        try:
            choice = anchor.choose(operands, looked)
        except ValueError:
            return None  # the parts say what is wrong
        if choice is None:
            return None
        ((shape, dtype),) = choice.outputs
        if group.reshape is not None:
            other = reshaped(shape, new_shape)
            if other is None:
                return None
            shape = other
        outputs: Sequence[tuple[Shape, np.dtype[Any]]] = [(shape, dtype)]
        behind = group.edges[2]
        if behind is not None:
            sized = behind.sized(shape, beside[2], told[2])
            if sized is None:
                return None
            outputs = sized.outputs
        return Choice(choice.candidates, choice.sizes, outputs)

    return Template(len(group.inputs), choose)


def reshaped(shape: Shape, new_shape: Sequence[int]) -> Shape | None:
    """A shape after a reshape that leaves the last axis as it is; None when it does not."""
    nothing = np.lib.stride_tricks.as_strided(np.zeros((), np.int8), shape, (0,) * len(shape))
    try:
        made: Shape = nothing.reshape(tuple(new_shape)).shape
    except ValueError:
        return None
    return made if made[-1:] == shape[-1:] else None
