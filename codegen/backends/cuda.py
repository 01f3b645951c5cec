"""The CUDA backend: fused nodes become Triton kernels, products and their like templates, and what has neither runs on the host.

Where a value lives. Floating-point tensors, and all larger ones, live in the GPU's memory as `DeviceArray`s from the moment they
arrive or are made until they leave. Whole numbers and flags of up to SMALL elements (shapes, axes, counters, conditions) stay in
the host's memory, where the program that looks at them is. A kernel uploads what it finds there and needs here.

What runs where.

    a fused group, and each node alone that has a loop form     Triton kernels made from loops, the fastest of a few candidates
    matrix products, convolutions, attention, pooling...         templates (`gpu_templates`), against each other and cuBLASLt
    variables and optimisers' updates                            in the GPU's memory, in place where nobody holds the old value
    views, shapes, control flow                                  nothing: they only look at shapes, or pass values on
    everything else                                              its NumPy reference, on the host: the inputs are copied there. Such
                                                                 steps have `(on the host)` behind their name in the program

Which candidate is fastest is measured when a kernel meets sizes that it has not met, and kept on disk.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.dtypes import DType, as_dtype, resource
from ...graph.errors import InternalError
from ...graph.node import Node
from ...graph.opdef import Trait
from ...graph.settings import setting
from ...graph.shape import element_count
from ...graph.state import Context, VariableState
from .. import triton_compile
from ..agreement import agree, difference
from ..cuda.array import DeviceArray
from ..cuda.device import Device
from ..cuda.ipc import Incoming, Lends
from ..cuda.kernels import KernelOnDevice, NotSuitableError, RoutineOnDevice
from ..cuda.tune import fastest
from ..edged import EdgedNodes
from ..fused_nodes import FusedNodes
from ..fusible import NotFusibleError
from ..gpu_fusion import fuse_for_gpu
from ..gpu_kernel import Routine, TritonKernel
from ..kernel_loops import kernel_of
from ..program import Kernel, Program
from ..triton_routines import fused, size_names
from ..triton_values import rows_in
from .base import ContextOf
from .numpy import NumpyBackend, one_by_one

if TYPE_CHECKING:
    from ..unit import Unit, UnitStep
    from .gpu_templates import Template

logger = logging.getLogger(__name__)

SMALL = 64  # elements of whole numbers up to which a tensor stays with the host
SHAPES_KEPT = 256  # per kernel; a program of ever new shapes starts over

_VIEWS = frozenset(("Reshape", "ExpandDims", "Squeeze"))
_OF_SHAPES = frozenset(("BroadcastGradientArgs",))  # their operands are shapes, however long these may be
_PASSING = frozenset(
    ("Identity", "StopGradient", "PreventGradient", "Switch", "RefSwitch", "Merge", "Enter", "RefEnter", "Exit", "NextIteration",
     "LoopCond", "ReadVariableOp", "IsVariableInitialized", "VarIsInitializedOp", "InitializedValue", "IdentityN")
)  # fmt: skip
"""Ops that hand values on without looking into them: their references do for arrays of any kind."""


def lives_on_device(dtype: DType, count: int | None) -> bool:
    """Whether a tensor of this type and number of elements (None: not known) belongs into a GPU's memory."""
    if dtype.is_ref or dtype.np.kind not in "fiubV" or dtype.np.hasobject:
        return False
    return dtype.is_floating or count is None or count > SMALL


def arriving(device: Device, value: Any) -> Any:
    """What comes from the client or another device, where it belongs."""
    if type(value) is DeviceArray:
        return value if value.device is device else device.from_peer(value, "a received tensor")
    if type(value) is Incoming:
        return value.taken("a received tensor")
    if isinstance(value, (np.ndarray, np.generic)):
        kind = value.dtype.kind
        number = kind == "f" or (kind == "V" and value.dtype.names is None)
        if number or (kind in "iub" and value.size > SMALL):
            return device.from_host(value, "a fed or received tensor")
    return value


def on_host(value: Any) -> Any:
    """A value for a NumPy kernel. The place of a variable is given with its value brought to the host."""
    if type(value) is DeviceArray:
        return value.device.to_host(value)
    if type(value) is VariableState:
        with value.lock:
            held: Any = value._value
            if type(held) is DeviceArray:
                value._value = held.device.to_host(held)
    return value


class CudaBackend:
    """Kernels for one GPU.

    Args:
        device: the GPU.
        peers: names of the devices of this task that are GPUs, too: what is sent to them stays in GPU memory.
        lends: which GPUs of other tasks read this one's memory; None: none.
        check: compare every kernel with the references, at every run.
        tf32: products of float32 may be made from 10 bits of each factor's fraction.
    """

    name = "cuda"
    rewrites = NumpyBackend.rewrites

    def __init__(
        self,
        device: Device,
        *,
        peers: frozenset[str] = frozenset(),
        check: bool = False,
        lends: Lends | None = None,
        tf32: bool = False,
    ) -> None:
        self.device = device
        self.peers = peers
        self.lends = lends
        self.check = check
        self.tf32 = tf32
        self.variables: dict[str, tuple[str, str]] = {}  # nodes that give a variable's place: its container and name
        self._host = NumpyBackend()

    def fuse(self, unit: Unit) -> Sequence[UnitStep | FusedNodes]:
        """Steps with fused nodes among them, single ones included."""
        return fuse_for_gpu(unit, self.rewrites, float8=self.device.target.has_float8)[1].steps

    def fused(self, group: FusedNodes, context_of: ContextOf | None = None) -> Kernel:
        """A kernel made from the group's loops, or from a template with those at its edges."""
        if isinstance(group, EdgedNodes):
            from .edge_templates import edged_kernel

            return edged_kernel(self, group)
        tensors = (*group.inputs, *group.outputs)
        if not any(lives_on_device(t.dtype.base, element_count(t.dims)) for t in tensors):
            return SmallOnHost(self._host.fused(group, context_of))
        return FusedOnDevice(self, group, context_of)

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """What runs a node that is not fused."""
        from .cuda_state import state_kernel
        from .gpu_templates import template_of

        plain = self._host.kernel(node, context)
        if context is not None and Trait.STATE_HANDLE in node.opdef.traits:
            self.variables[node.name] = context.container, str(node.attrs.get("shared_name") or node.name)
        if node.type in _PASSING or Trait.STATE_HANDLE in node.opdef.traits or not node.inputs:
            return plain
        if Trait.METADATA in node.opdef.traits:
            return OnShape(plain)
        if node.type in _VIEWS:
            return View(node, plain)
        if node.type in _OF_SHAPES:
            return SmallOnHost(plain)
        tensors = (*node.inputs, *node.outputs)
        if context is None and not any(lives_on_device(t.dtype.base, element_count(t.dims)) for t in tensors):
            return SmallOnHost(plain)
        if context is not None:
            return state_kernel(self, node, context, OnHost(plain)) or OnHost(plain)
        template = template_of(node, self.device.target, tf32=self.tf32)
        return OnHost(plain) if template is None else TemplateOnDevice(self, node, template, OnHost(plain))

    def finish(self, program: Program) -> Program:
        """The program with copies where tensors arrive and leave, and long stretches of launches as graphs."""
        from .crossings import with_crossings
        from .joint_updates import with_joint_updates
        from .stretches import with_stretches

        program = with_crossings(program, self.device, self.peers, self.lends)
        if not self.check:
            program = with_joint_updates(program, self)
        return with_stretches(program, self.device) if setting("DOVETAIL_CUDA_GRAPHS") and not self.check else program


class OnHost:
    """A node without a GPU kernel: its NumPy reference, on copies of the inputs."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, *inputs: Any) -> Any:
        return self.kernel(*[on_host(x) for x in inputs])


class SmallOnHost(OnHost):
    """Nodes whose inputs and outputs are with the host anyway."""


class OnShape:
    """A node that looks at nothing but the shape of its input."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, x: Any, *rest: Any) -> Any:
        if type(x) is DeviceArray:  # an array of the same shape and type without contents
            x = np.broadcast_to(np.zeros((), x.dtype), x.shape)
        return self.kernel(x, *rest)


class View:
    """The same elements in another shape: no copy."""

    def __init__(self, node: Node, plain: Kernel) -> None:
        self.plain = plain
        self.is_reshape = node.type == "Reshape"

    def __call__(self, x: Any, *rest: Any) -> Any:
        if type(x) is not DeviceArray:
            return self.plain(x, *[on_host(r) for r in rest])
        if (
            self.is_reshape
            and -1 not in (wanted := tuple(int(d) for d in on_host(rest[0])))
            and math.prod(wanted) == x.size
        ):
            return x.reshape(wanted)
        # The reference knows the rules and their errors. A view of nothing is as good as one of something, and costs nothing.
        shape = self.plain(
            np.lib.stride_tricks.as_strided(np.zeros((), np.int8), x.shape, (0,) * x.ndim), *map(on_host, rest)
        ).shape
        return x.reshape(shape)


# --- work on the device ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be launched for inputs of certain shapes.

    Attributes:
        candidates: routines that all do the work; or functions of (addresses of inputs and outputs) that do.
        sizes: what a launch calls them.
        outputs: shape and type of each.
        results: how many of these are the node's; the others are by-products. 0: all.
    """

    candidates: Sequence[Routine | Callable[[Sequence[int]], None]]
    sizes: Mapping[str, int]
    outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
    results: int = 0


@dataclass(slots=True)
class _Ready:
    """A choice made."""

    run: Callable[..., None]
    outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
    results: int


class OnDevice:
    """Something that runs on the GPU: gets its inputs there, makes its outputs, launches the fastest of its candidates.

    Subclasses say what there is to launch in `choose`.

    Args:
        backend: for the device.
        label: the node's name, for errors when memory runs out.
        constants: positions of inputs that never change: they are copied to the device once.
        fallback: what runs when `choose` gives None.
    """

    def __init__(
        self, backend: CudaBackend, label: str, inputs: int, constants: Sequence[int], fallback: Kernel
    ) -> None:
        self.backend = backend
        self.device = backend.device
        self.label = label
        self.fallback = fallback
        self._loaded = inputs
        self._constants: dict[int, tuple[Any, DeviceArray] | None] = dict.fromkeys(constants)
        self._ready: dict[Any, _Ready | None] = {}
        self._has_others = False
        self.checked = backend.check

    def choose(self, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        """What to launch for inputs of these shapes; None: nothing, they are not as was assumed.

        Args:
            shapes: of the inputs that are loaded.
            others: values of those that are only looked at, as tuples.
        """
        raise NotImplementedError

    def __call__(self, *inputs: Any) -> Any:
        loaded = inputs[: self._loaded]
        device = self.device
        arrays = [
            x if type(x) is DeviceArray and x.device is device else self._brought(i, x) for i, x in enumerate(loaded)
        ]
        key: Any = tuple([x.shape for x in arrays])
        if self._has_others:
            key = key, tuple([tuple(np.ravel(on_host(x)).tolist()) for x in inputs[self._loaded :]])
        try:
            ready = self._ready[key]
        except KeyError:
            ready = self._prepared(key, arrays)
        if ready is None:
            return self.fallback(*inputs)
        with device.lock:
            device.make_current()
            outputs = [device.empty(shape, dtype, self.label) for shape, dtype in ready.outputs]
            ready.run([x.pointer for x in arrays] + [y.pointer for y in outputs], self.label)
        if ready.results:
            del outputs[ready.results :]
        if self.checked:
            self.compare(inputs, outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compare(self, inputs: Sequence[Any], outputs: Sequence[DeviceArray]) -> None:
        """InternalError unless the references say the same."""
        wanted = self.fallback(*inputs)
        wanted = wanted if len(outputs) != 1 else (wanted,)
        for mine, theirs in zip(outputs, wanted, strict=True):
            if not agree(np.asarray(mine), np.asarray(on_host(theirs))):
                raise InternalError(
                    None, None, f"The GPU's kernel of {self.label} differs from the reference. This is an error in Dovetail."
                )  # fmt: skip

    def _brought(self, position: int, value: Any) -> DeviceArray:
        """An input that is with the host, or another GPU."""
        if type(value) is DeviceArray:
            return self.device.from_peer(value, self.label)
        if position not in self._constants:
            return self.device.from_host(value, self.label)
        known = self._constants[position]
        if known is None or known[0] is not value:
            known = self._constants[position] = (value, self.device.from_host(value, self.label))
        return known[1]

    def _prepared(self, key: Any, arrays: Sequence[DeviceArray]) -> _Ready | None:
        shapes, others = key if self._has_others else (key, ())
        choice = self.choose(shapes, others)
        ready = None if choice is None else self._tuned(choice, arrays)
        if len(self._ready) >= SHAPES_KEPT:
            self._ready.clear()
        self._ready[key] = ready
        return ready

    def _tuned(self, choice: Choice, arrays: Sequence[DeviceArray]) -> _Ready:
        device = self.device
        runs: list[Callable[..., None]] = []
        names: list[str] = []
        tuned = bool(setting("DOVETAIL_TUNE"))
        wanted = choice.candidates if tuned else choice.candidates[:1]
        compile_missing(device, [c for c in wanted if isinstance(c, Routine)])
        for candidate in choice.candidates:
            if runs and not tuned:
                break
            try:
                runs.append(self._loaded_on(candidate, len(arrays), choice))
            except (NotSuitableError, InternalError) as e:
                logger.warning("%s: a candidate is left out: %s", self.label, e)
                continue
            names.append(_name_of(candidate))
        if not runs:
            raise InternalError(None, None, f"No kernel for {self.label} can be used; the log says why")
        best = 0
        if len(runs) > 1:
            with device.entered():
                device.must_run("measuring candidates")
                trial = [device.empty(shape, dtype, self.label) for shape, dtype in choice.outputs]
                addresses = [x.pointer for x in arrays] + [y.pointer for y in trial]
                about = ",".join(f"{n}={1 << max(v - 1, 0).bit_length()}" for n, v in choice.sizes.items())
                key = f"{'|'.join(names)}; {about}"
                best = fastest(device, key, [partial(run, addresses, self.label) for run in runs])
        return _Ready(runs[best], choice.outputs, choice.results)

    def _loaded_on(self, candidate: Any, inputs: int, choice: Choice) -> Callable[..., None]:
        if not isinstance(candidate, Routine):
            return lambda addresses, label: candidate(addresses)
        kernels = [loaded_kernel(self.device, launch.kernel) for launch in candidate.launches]
        return RoutineOnDevice(self.device, candidate, kernels, inputs, len(choice.outputs), choice.sizes)


def loaded_kernel(device: Device, kernel: TritonKernel) -> KernelOnDevice:
    """A kernel, compiled and loaded; once per device."""
    loaded: dict[TritonKernel, KernelOnDevice] = device.loaded
    found = loaded.get(kernel)
    if found is None:
        found = loaded[kernel] = KernelOnDevice(device, triton_compile.compile_kernel(kernel, device.target))
    return found


def compile_missing(device: Device, routines: Sequence[Routine]) -> None:
    """Compile side by side what of these routines the device has not loaded."""
    kernels = [launch.kernel for r in routines for launch in r.launches if launch.kernel not in device.loaded]
    triton_compile.compile_together(kernels, device.target)


def _name_of(candidate: Any) -> str:
    """What tells a candidate from others, in the key of a measurement."""
    if isinstance(candidate, Routine):
        return "+".join(f"{hash_of(launch.kernel)}" for launch in candidate.launches)
    return str(getattr(candidate, "name", candidate))


def hash_of(kernel: TritonKernel) -> str:
    """A short name of a kernel's text and constants."""
    return hashlib.sha256(repr(kernel).encode()).hexdigest()[:12]


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


def on_device(state: VariableState, device: Device) -> Any:
    """A variable's value in a GPU's memory."""
    value: Any = state._value
    if type(value) is DeviceArray:
        return value if value.device is device else device.from_peer(value, state.name)
    return device.from_host(value, state.name)


def value_on(state: VariableState, device: Device) -> Any:
    """A variable's value in a GPU's memory, where it is from now on."""
    with state.lock:
        value = on_device(state, device)
        state.move(value)
    return value


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

    def choose(self, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        """What the template has."""
        return self.template.choose(self.device, shapes, others)
