"""Pass: horizontal fusion (multi-tensor apply) of optimizer updates, so that many small variables are updated by one launch.

A training step ends with an update for each variable. For a bias of 64 elements a launch takes longer than the work. So updates by one
rule and of one type become one launch, at the position of the last: the loops that update one variable become a function, and each
variable gets some of the kernel's blocks. Moving an update is correct if no instruction between reads its variable. So the pass visits the
instructions in order and emits the collected updates before an update by another rule, when there are MOST, and before anything but a
kernel, a view, a variable's handle, or a read of another variable. Variables are compared by container and name, since two nodes may
stand for one. Large variables keep launches of their own, because their gradients can be freed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...graph.core.shape import element_count
from ...graph.resources.variable import VariableState
from ..backend import ContextOf
from ..fusion.optimizer_loops import update_of
from ..ir.loop_nest import LoopNest
from ..ir.nodes import HANDLES, PASSED_ON
from ..ir.program import Call, Instruction, Loop, NodeError, Program, Updates, Work
from ..ir.schedule import GpuSchedule
from ..target import GPU_BLOCK_ELEMENTS, GPU_LARGE_UPDATE
from .driver.launch import LoadedRoutine
from .emit.expr import Names
from .emit.nest import triton_source
from .families import HARMLESS, UPDATES, family_of
from .ir import Choice, Count, Grid, Launch, Parameter, Routine, Template, TritonKernel, triton_type
from .kernels import GpuContext, GpuKernel, loaded
from .schedule import Specialisation
from .variables import OptimizerUpdate, mutable_values

_READS = frozenset(("Read", "ReadVariableOp"))
_WITHOUT_WORK = PASSED_ON | {"NoOp"}


def fuse_updates(program: Program, context_of: ContextOf) -> Program:
    """The program, which frees no slot yet, with small updates fused into one launch, inside loops too.

    `context_of` tells the containers of variables.
    """

    def joined(instructions: Iterable[Instruction]) -> list[Instruction]:
        gathering = _Gathering(context_of)
        for step in instructions:
            gathering.add(step.with_parts(joined) if isinstance(step, Loop) else step)
        gathering.emit()
        return gathering.out

    return replace(program, instructions=tuple(joined(program.instructions)))


@dataclass(slots=True)
class _Gathering:
    """Collects updates and emits them together.

    Attributes:
        out: the instructions so far.
        pending: the updates. rule: what they have in common. needed: slots that they read.
        changed: the variables that they change. made: slots that they set.
        variables: for each slot with a variable's handle, which variable it is.
    """

    context_of: ContextOf
    out: list[Instruction] = field(default_factory=list)
    pending: list[Call] = field(default_factory=list)
    rule: Any = None
    needed: set[int] = field(default_factory=set)
    changed: set[Any] = field(default_factory=set)
    made: set[int] = field(default_factory=set)
    variables: dict[int, Any] = field(default_factory=dict)

    def add(self, step: Instruction) -> None:
        if isinstance(step, Call) and isinstance(step.work, Work) and step.work.family == UPDATES:
            self.update(step, step.work)
            return
        if not (isinstance(step, Call) and self.may_pass(step)):
            self.emit()
        self.out.append(step)
        if isinstance(step, Call) and step.op in HANDLES and isinstance(step.work, Work):
            (node,) = step.work.nodes
            name = str(node.attrs.get("shared_name") or node.name)
            self.variables[step.outputs[0]] = self.context_of(node).container, name

    def may_pass(self, call: Call) -> bool:
        """Whether a call may run before the pending updates."""
        if self.made & {*call.inputs, *call.outputs} or self.needed & set(call.outputs):
            return False
        if call.op in _READS:
            return call.inputs[0] in self.variables and self.variables[call.inputs[0]] not in self.changed
        if call.op in HANDLES:
            return True
        if any(i in self.variables for i in call.inputs):
            return False
        return family_of(call) in HARMLESS or call.op in _WITHOUT_WORK

    def update(self, call: Call, work: Work) -> None:
        """Collects an update. First emits the pending ones if it does not fit them."""
        (node,), found = work.nodes, update_of(work.nodes[0])
        assert found is not None
        loops, count, gradient = found
        places = [self.variables.get(i) for i in call.inputs[:count]]
        known = None not in places and len(set(places)) == len(places)
        rule = loops, node.inputs[gradient].dtype.base
        is_large = (element_count(node.inputs[gradient].dims) or 0) >= GPU_LARGE_UPDATE
        clashes = not known or self.changed & set(places) or self.made & set(call.inputs)
        if clashes or (not is_large and (rule != self.rule or len(self.pending) == MOST)):
            self.emit()
        if not known or is_large:
            self.out.append(call)
            return
        self.rule = rule
        self.pending.append(call)
        self.needed.update(call.inputs)
        self.changed.update(places)
        self.made.update(call.outputs)

    def emit(self) -> None:
        pending, self.pending, self.rule = self.pending, [], None
        self.needed, self.changed, self.made = set(), set(), set()
        if len(pending) < 2:
            self.out += pending
            return
        last = pending[-1]
        inputs = tuple(slot for c in pending for slot in c.inputs)
        outputs = tuple(slot for c in pending for slot in c.outputs)
        fused = Updates(tuple([c.work for c in pending if isinstance(c.work, Work)]))
        names = tuple(name for c in pending for name in c.nodes or (c.node,))
        op = f"{len(pending)} x {last.op}"
        self.out.append(Call(fused, inputs, outputs, (), last.node, op, last.origin, names))


class MultiTensorUpdate(GpuKernel):
    """Several updates as one launch.

    Inputs: those of each update. Where a variable is not initialised or has another shape, or two updates turn out to change one variable,
    they run one after the other.
    """

    def __init__(self, gpu: GpuContext, updates: Sequence[OptimizerUpdate]) -> None:
        tensors = [t for u in updates for t in u.node.inputs]
        nothing = Template(len(tensors), lambda shapes, others: None)
        super().__init__(gpu, updates[-1].label, tensors, nothing, self._one_by_one)
        self.updates = tuple(updates)
        self.loops, self.places, self.gradient = updates[0].loops, updates[0].places, updates[0].gradient
        self.own = len(updates[0].node.inputs)
        self.given = tuple([i for i in range(len(tensors)) if i % self.own >= self.places])  # all but the variables
        self._runs: dict[tuple[int, ...], LoadedRoutine] = {}

    def __call__(self, *inputs: Any) -> Any:
        own, places = self.own, self.places
        begins = range(0, len(inputs), own)
        states: list[VariableState] = [inputs[i + k] for i in begins for k in range(places)]
        if len(set(map(id, states))) < len(states) or not all(
            u.is_ready(inputs[i : i + places], inputs[i + places : i + own])
            for u, i in zip(self.updates, begins, strict=True)
        ):
            return self._one_by_one(*inputs)
        device = self.device
        arrays = self.brought(inputs, self.given)
        lengths = tuple([x.size for x in arrays[self.gradient - places :: own - places]])
        run = self._runs.get(lengths)
        if run is None:
            choice = updates_choice(self.loops, lengths)
            names = [f"in{i}_{k}" for k in range(len(begins)) for i in range(places)]
            names += [f"in{i}_{k}" for k in range(len(begins)) for i in range(places, own)]
            names += [f"out{i}_{k}" for k in range(len(begins)) for i in range(places)]
            run = self._runs[lengths] = loaded(device, choice.candidates[0], names, choice.sizes)
        with mutable_values(device, states, whole=True) as (old, new):
            run([*old, *[x.pointer for x in arrays], *new], self.label)
        return self._result([inputs[i] if u.is_ref else () for u, i in zip(self.updates, begins, strict=True)])

    def _one_by_one(self, *inputs: Any) -> Any:
        results = []
        for i, update in enumerate(self.updates):
            try:
                results.append(update(*inputs[i * self.own : (i + 1) * self.own]))
            except Exception as e:
                raise NodeError(update.node) from e
        return self._result(results)

    def _result(self, results: Sequence[Any]) -> Any:
        made = [r for u, r in zip(self.updates, results, strict=True) if u.is_ref]
        return made[0] if len(made) == 1 else tuple(made)


# --- the kernel ------------------------------------------------------------------------------------------------------


MOST = 24  # updates of one launch: with ten arrays each, some 2 KB of arguments, of the 4 KiB that CUDA allows


def multi_tensor_update(loops: LoopNest, divisible: Sequence[bool], *, wide: bool = False) -> Routine:
    """The loops, on several sets of arrays of any lengths.

    A launch knows `in0_0`, `in0_1`... for the inputs of each set, `out0_0`, `out0_1`..., and what `sizes_of` gives. An output may be the
    array that the input is in. An input without axes, a learning rate for example, has one element.

    Args:
        loops: over one axis that is not reduced.
        divisible: for each set, whether its length is a multiple of 16. There are up to MOST.
        wide: some length is near 2**31 or above.
    """
    inputs = tuple(f"in{i}" for i in range(len(loops.loads)))
    outputs = tuple(f"out{i}" for i in range(len(loops.stores)))
    schedule, names = GpuSchedule(1, GPU_BLOCK_ELEMENTS), Names(inputs, outputs, ("n0",), block="block")
    text, _ = triton_source(loops, schedule, Specialisation((False,), 0, wide=wide), names, "one")
    types = [v.dtype for v in loops.loads] + [loops.values[s.value].dtype for s in loops.stores]
    parameters: list[Parameter] = []
    lines = ["block = tl.program_id(0)", "first = 0"]
    for k, is_divisible in enumerate(divisible):
        given = [f"{name}_{k}" for name in (*inputs, *outputs)]
        parameters += [Parameter(n, f"*{triton_type(t.name)}", True) for n, t in zip(given, types, strict=True)]
        parameters.append(Parameter(f"n{k}", "i64" if wide else "i32", is_divisible))
        lines += [
            f"behind = first + tl.cdiv(n{k}, XB)",
            "if (block >= first) & (block < behind):",
            f"    one({', '.join(given)}, n{k}, block - first, XB)",
            "first = behind",
        ]
    arguments = ", ".join([*(p.name for p in parameters), "XB: tl.constexpr"])
    text += f"\n\n@triton.jit\ndef kernel({arguments}):\n" + "".join(f"    {line}\n" for line in lines)
    kernel = TritonKernel("kernel", text, tuple(parameters), (("XB", GPU_BLOCK_ELEMENTS),))
    return Routine((Launch(kernel, Grid((Count(("blocks",)),)), schedule),))


def updates_choice(loops: LoopNest, lengths: Sequence[int]) -> Choice:
    """The one launch of updates of arrays of these lengths."""
    routine = multi_tensor_update(loops, [n % 16 == 0 for n in lengths], wide=max(lengths) >= 1 << 30)
    return Choice([routine], sizes_of(lengths), [])


def sizes_of(lengths: Sequence[int]) -> dict[str, int]:
    """The sizes that a launch for arrays of these lengths gives."""
    sizes = {f"n{k}": n for k, n in enumerate(lengths)}
    return sizes | {"blocks": sum(-(-n // GPU_BLOCK_ELEMENTS) for n in lengths)}
