"""Nodes that run on the GPU: fused groups as kernels made from loops, and those that a template runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.core.dtypes import as_dtype, resource
from ...graph.core.errors import InternalError
from ...graph.core.node import Node
from ...graph.resources.resource_manager import VariableState
from ..agreement import agree, difference
from ..cuda.array import DeviceArray
from ..fused_nodes import FusedNodes
from ..fusible import NotFusibleError
from ..kernel_loops import kernel_of
from ..triton_routines import fused, size_names
from ..triton_values import rows_in
from .base import ContextOf
from .cuda_values import OnHost, on_host, value_on
from .numpy import NumpyBackend, one_by_one
from .on_device import Choice, OnDevice

if TYPE_CHECKING:
    from .cuda import CudaBackend
    from .gpu_templates import Template


class FusedOnDevice(OnDevice):
    """A fused group. Of variables that it looks rows up in, it takes the values of that time."""

    def __init__(self, backend: CudaBackend, group: FusedNodes, context_of: ContextOf | None = None) -> None:
        constants = [i for i, t in enumerate(group.inputs) if t.op.type == "Const"]
        super().__init__(backend, group.nodes[-1].name, len(group.inputs), constants, self.on_host)
        self.group = group
        self._reference = one_by_one(
            NumpyBackend(), group.nodes, (*group.inputs, *group.shapes), group.outputs, context_of
        )
        self._context_of = context_of
        self._variables = tuple(i for i, t in enumerate(group.inputs) if t.dtype is resource)
        self._has_others = bool(group.shapes)

    def __call__(self, *inputs: Any) -> Any:
        if not self._variables:
            return super().__call__(*inputs)
        states = {i: inputs[i] for i in self._variables}
        if not all(s.is_initialized and s.read().shape for s in states.values()):
            return self._reference(*map(on_host, inputs))  # which says where
        values = {i: value_on(state, self.device) for i, state in states.items()}
        return super().__call__(*[values.get(i, x) for i, x in enumerate(inputs)])

    def on_host(self, *inputs: Any) -> Any:
        """The references, on copies of the inputs."""
        given = list(map(on_host, inputs))
        for i in self._variables:
            state = VariableState(self.group.inputs[i].name, as_dtype(given[i].dtype))
            state.assign(given[i])
            given[i] = state
        return self._reference(*given)

    def compare(self, inputs: Sequence[Any], outputs: Sequence[DeviceArray]) -> None:
        """InternalError that names the first node whose value differs from its reference's."""
        wanted = self.on_host(*inputs)
        pairs = zip(outputs, wanted if len(outputs) != 1 else (wanted,), strict=True)
        if all(agree(np.asarray(mine), np.asarray(theirs)) for mine, theirs in pairs):
            return
        node, how = self._first_difference(inputs)
        raise InternalError(
            node, node,
            f"The GPU's fused kernel of {', '.join(n.name for n in self.group.nodes)} differs from the reference, first in "
            f"'{node.name}' ({node.type}), made at {node.source}: {how}. This is an error in Dovetail. "
            f"The kernel:\n{self.group.loops}",
        )  # fmt: skip

    def _first_difference(self, inputs: Sequence[Any]) -> tuple[Node, str]:
        """Grow the kernel node by node until its value is wrong."""
        at = dict(zip((*self.group.inputs, *self.group.shapes), inputs, strict=True))
        for i, node in enumerate(self.group.nodes):
            for output in node.outputs if node.type != "Shape" else ():
                try:
                    grown = kernel_of(self.group, self.group.nodes[: i + 1], output)
                except NotFusibleError:
                    continue  # what lies inside may have its axes in another order than results have
                kernel = FusedOnDevice(self.backend, grown, self._context_of)
                kernel.checked = False
                values = [at[t] for t in (*grown.inputs, *grown.shapes)]
                mine, theirs = np.asarray(OnDevice.__call__(kernel, *values)), np.asarray(kernel.on_host(*values))
                if not agree(mine, theirs):
                    return node, difference(mine, theirs)
        return self.group.nodes[-1], "only in the whole kernel"

    def choose(self, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        """Routines for the group's loops."""
        group = self.group
        sizes = group.sizes_for(shapes, [others[a.position] for a in group.assumed])
        counts = {output: int(others[at][0]) for output, _, at in group.tables}
        if sizes is None or any(count <= 0 for count in counts.values()):
            return None
        if 0 in sizes and (group.lookups or group.tables or any(v.op == "position" for v in group.loops.values)):
            return None  # there is no place of an extreme, which is an error of the reference
        joined = [math.prod(sizes[a] for a in part) for part in group.parts]
        outputs = []
        for i, (t, axes) in enumerate(zip(group.outputs, group.output_axes, strict=True)):
            made = tuple(1 if a is None else sizes[a] for a in axes)
            outputs.append(((counts[i], *made) if i in counts else made, t.dtype.base.np))
        names = dict(zip(size_names(group.loops), joined, strict=True))
        names |= {rows_in(f"in{table}"): shapes[table][0] for table, _ in group.lookups}
        names |= {rows_in(f"out{i}"): count for i, count in counts.items()}
        elements = math.prod(outputs[0][0]) if counts else 0
        return Choice(fused(group.loops, joined, elements), names | {"elements": elements}, outputs)


class TemplateOnDevice(OnDevice):
    """A node that a template runs."""

    def __init__(self, backend: CudaBackend, node: Node, template: Template, fallback: OnHost) -> None:
        order = template.order or tuple(range(len(node.inputs)))
        constants = [i for i, at in enumerate(order) if node.inputs[at].op.type == "Const"]
        back = [order.index(i) for i in range(len(order))]
        super().__init__(
            backend, node.name, template.inputs, constants, lambda *inputs: fallback(*[inputs[i] for i in back])
        )
        self.template = template
        self._order = None if order == tuple(range(len(order))) else order
        self._has_others = template.inputs < len(node.inputs)

    def __call__(self, *inputs: Any) -> Any:
        if self._order is not None:
            inputs = tuple([inputs[i] for i in self._order])
        return super().__call__(*inputs)

    def takes_array(self, position: int) -> bool:
        """As `OnDevice.takes_array`."""
        return super().takes_array(position if self._order is None else self._order.index(position))

    def choose(self, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        """What the template has."""
        return self.template.choose(self.device, shapes, others)
