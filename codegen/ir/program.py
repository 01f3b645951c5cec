"""Programs: the instructions that a device runs for its part of a step.

A `Program` is a flat list of instructions over numbered slots; a slot holds one tensor. Running it walks no graph, looks up no name
and makes no scheduling decision: lowering has done all that. Its instructions:

    Call        run a kernel on some slots, put the results into others, free slots after their last use
    Send        push a slot's tensor into a channel
    Recv        take a channel's tensor into a slot, or pause the program until it is there
    Read        read published variables of other tasks in place, into slots
    Predicated  a Call in a branch that may not be taken: it does not run when a slot that it depends on is dead
    Wait        a Predicated whose kernel may answer later (a dequeue): the program pauses until it does
    Begin       start an asynchronous kernel (a collective); the program continues meanwhile
    Await       take the results of a Begin, or pause the program until they are there
    Loop        a list of instructions that repeats

Only nodes under a `cond` become Predicated; a program without control flow is Calls, Sends and Recvs.

What a call does is its *work*, a value: a node or a fused kernel with the family of kernels that computes it (`Work`), a function that
needs no backend (`Builtin`), or several calls (`Region`). All passes decide by works. The last pass, binding, makes the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeAlias

from ...graph.core.graph import Node, Tensor
from ...graph.core.source_location import Origin, SourceLine, locate
from .fused_kernel import FusedKernel
from .partition import RecvTensor

Kernel: TypeAlias = Callable[..., Any]


def one_or_all(outputs: Sequence[Any]) -> Any:
    """Outputs as a kernel gives them."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


REFERENCE = "reference"
"""The family, of each backend, of nodes whose kernel is their op's reference, and of fused kernels whose nodes run one by one."""


# Works and instructions are not frozen, because a frozen dataclass costs four times as much to make, and a program may have a million
# of them. Works do not change, and instructions do not after binding.


@dataclass(slots=True)
class Work:
    """A node, or a fused kernel, and how a backend computes it.

    Attributes:
        step: the node or the fused kernel.
        family: the backend's name for the kind of kernel that it gets.
        template: what a GPU's kernel is made from, beside the step; None: nothing else.
    """

    step: Node | FusedKernel
    family: str
    template: Any = field(default=None, compare=False, repr=False)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it computes."""
        return self.step.nodes if isinstance(self.step, FusedKernel) else (self.step,)

    def __str__(self) -> str:
        return f"{', '.join(n.name for n in self.nodes)} ({self.family})"


@dataclass(frozen=True, slots=True)
class Builtin:
    """A function that is a kernel as it is, such as a read of a variable."""

    kernel: Kernel


def _unbound(*inputs: Any) -> Any:
    raise AssertionError("a kernel is called before it is bound")


@dataclass(slots=True, eq=False)
class Call:
    """Run a kernel. It returns one array if there is one output, else a tuple.

    `work` says what to run, and binding makes `kernel` from it. A program that runs has only works of regions: others hold nodes.
    `node`, `op` and `origin` (where the user wrote it) are for errors and traces; so are `nodes`, all that a fused kernel computes, and
    `operands`, the names of its first inputs (none in a program of more than 10,000 steps).
    """

    work: CallWork | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    node: str
    op: str
    origin: Origin
    nodes: tuple[str, ...] = ()
    kernel: Kernel = _unbound
    operands: tuple[str, ...] = ()

    @property
    def source(self) -> SourceLine:
        """The user's line that made the node."""
        return locate(self.origin)


class NodeError(Exception):
    """A node inside a fused kernel or a region failed; the cause is chained. The caller of the kernel names the node in the error.

    `operands`, `inputs`: the names and the values that it took, as far as they are known.
    """

    def __init__(self, node: Node, operands: Sequence[str] = (), inputs: Sequence[Any] = ()) -> None:
        super().__init__(node.name)
        self.node, self.operands, self.inputs = node, operands, inputs


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive calls of a program that become one call.

    Attributes:
        calls: in the order of the program.
        given: input slots, which none of the calls makes.
        outputs: slots that they make and do not free, because later instructions take them.
        frees: slots of `given` whose last use is here.
        constants: values of the input slots that never change.
        launches: how many of the calls launch a kernel, as far as that is known without shapes.
    """

    calls: tuple[Call, ...]
    given: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    constants: Mapping[int, Any]
    launches: int

    @classmethod
    def of(cls, calls: Sequence[Call], constants: Mapping[int, Any], launches: int = 0) -> Region:
        """The region of these calls, so many of which launch a kernel. `constants`, by slot: of the whole program."""
        made: set[int] = set()
        given: dict[int, None] = {}
        held: set[int] = set()  # a slot may be assigned again: its value at the end counts, unless it was freed
        for call in calls:
            given.update(dict.fromkeys(i for i in call.inputs if i not in made and i not in constants))
            made.update(call.outputs)
            held.update(call.outputs)
            held.difference_update(call.frees)
        freed = [i for call in calls for i in call.frees]
        frees = tuple(dict.fromkeys(i for i in freed if i in given and i not in held))
        used = {i for c in calls for i in c.inputs}
        own = {i: v for i, v in constants.items() if i in used}
        return cls(tuple(calls), tuple(given), tuple(sorted(held)), frees, own, launches)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes in it."""
        return tuple([n for c in self.calls for n in c.nodes or (c.node,)])

    def as_call(self, work: CallWork, op: str) -> Call:
        """One call that replaces them; its kernel takes `given` and makes `outputs`."""
        last = self.calls[-1]
        return Call(work, self.given, self.outputs, self.frees, last.node, op, last.origin, self.nodes)

    def one_by_one(self, inputs: Sequence[Any], passed: type[Exception] = NodeError) -> list[Any]:
        """Run them one by one; gives the values of `outputs`.

        Raises:
            NodeError: names the node that failed. Exceptions of the types `passed` are raised unchanged.
        """
        slots = dict(self.constants)
        slots.update(zip(self.given, inputs, strict=True))
        del inputs
        for call in self.calls:
            try:
                result = call.kernel(*[slots[i] for i in call.inputs])
            except (NodeError, passed):
                raise
            except Exception as e:
                node: Any = SimpleNamespace(name=call.node, type=call.op, source=call.source)
                raise NodeError(node, call.operands, [slots[i] for i in call.inputs]) from e
            if len(call.outputs) == 1:
                slots[call.outputs[0]] = result
            else:
                for i, value in zip(call.outputs, result, strict=True):
                    slots[i] = value
                value = None
            result = None
            for i in call.frees:
                slots.pop(i, None)
        return [slots[i] for i in self.outputs]


@dataclass(slots=True, eq=False)
class Send:
    """Push a slot's tensor into a channel; slot -1 sends an empty message (a control edge).

    `more`: another tensor for the same task follows before the program may pause.
    """

    channel: int
    slot: int
    destination: str
    frees: tuple[int, ...]
    more: bool = False

    @property
    def task(self) -> str:
        """The task of the destination."""
        return self.destination.partition("/device:")[0]


@dataclass(slots=True, eq=False)
class Recv:
    """Take a channel's tensor into a slot; slot -1 only waits (a control edge).

    `unless_read`: a `Read` has already put the value there, or has requested it. `what`: the tensor's name, for errors.
    """

    channel: int
    slot: int
    source: str
    unless_read: bool = False
    what: str = ""

    @property
    def wanted(self) -> str:
        """What it waits for, for errors."""
        return f"{repr(self.what) if self.what else f'channel {self.channel}'} from {self.source}"


@dataclass(slots=True, eq=False)
class Read:
    """Read published variables of other tasks in place. If one cannot be read, it is requested, and its `Recv` takes it.

    Attributes:
        read: gives the values, None for a variable that cannot be read.
        receives: the `RecvTensor` of each, with its fallback channel.
        slots: slots for the values.
    """

    read: Callable[[], Sequence[Any]]
    receives: tuple[RecvTensor, ...]
    slots: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Predicated:
    """Run a Call unless one of some slots is dead; then its outputs are dead.

    Attributes:
        call: what to run; its `frees` hold in both cases.
        checks: the slots that may be dead.
        token: a slot that shows whether it ran: dead, or None; -1 if no other instruction needs it.
    """

    call: Call
    checks: tuple[int, ...]
    token: int


@dataclass(slots=True, eq=False)
class Wait(Predicated):
    """A Predicated whose kernel may return a `Request` (graph/resources/async_request.py) instead of its result; `checks` may be empty."""


@dataclass(slots=True, eq=False)
class Begin(Predicated):
    """Start the call's kernel asynchronously. Its only output is a future, which an `Await` takes.

    There are no `checks`: a node that may be dead does not run asynchronously.
    """


@dataclass(slots=True, eq=False)
class Await(Predicated):
    """Pause the program until an asynchronous kernel has ended. The call takes the kernel's future and gives its results."""


@dataclass(slots=True, eq=False)
class Loop:
    """A device's part of a loop: run `head`; while the slot `test` then holds true, run `body` and go on with the next iteration.

    Attributes:
        name: the loop's, for messages.
        starts: (slot of the first value, slot) of each loop variable.
        counts: slots that hold 0 in the first iteration and 1 afterwards: where a loop variable came from.
        head: the instructions that compute the loop condition.
        test: slot of the condition: true, false, or dead if the whole loop is dead.
        body: the instructions of an iteration.
        nexts: (slot of the next value, slot) of each loop variable.
        lost: slots to free after each iteration.
        frees: slots to free after the last iteration.
    """

    name: str
    starts: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]
    head: tuple[Instruction, ...]
    test: int
    body: tuple[Instruction, ...]
    nexts: tuple[tuple[int, int], ...]
    lost: tuple[int, ...]
    frees: tuple[int, ...]

    def with_parts(self, change: Callable[[Sequence[Instruction]], Iterable[Instruction]]) -> Loop:
        """The loop with its head and its body changed."""
        return replace(self, head=tuple(change(self.head)), body=tuple(change(self.body)))


def flattened(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """All instructions in order; behind a loop, those that are in it."""
    for step in instructions:
        yield step
        if type(step) is Loop:
            yield from flattened((*step.head, *step.body))


def calls_of(instructions: Iterable[Instruction]) -> Iterator[Call]:
    """All calls, in loops and under predicates too."""
    for step in instructions:
        if type(step) is Call:
            yield step
        elif isinstance(step, Predicated):
            yield step.call
        elif type(step) is Loop:
            yield from calls_of((*step.head, *step.body))


def slots_read(step: Instruction) -> tuple[int, ...]:
    """The slots that an instruction reads, each as often as it does; of a loop, not those that only its instructions read."""
    if isinstance(step, Call):
        return step.inputs
    if isinstance(step, Predicated):
        return (*step.checks, *step.call.inputs)
    if isinstance(step, Loop):
        return (step.test, *(slot for slot, _ in (*step.starts, *step.nexts)))
    return (step.slot,) if isinstance(step, Send) else ()


def slots_set(step: Instruction) -> tuple[int, ...]:
    """The slots that an instruction sets; of a loop, its variables."""
    if isinstance(step, Call):
        return step.outputs
    if isinstance(step, Predicated):
        return (*step.call.outputs, step.token)
    if isinstance(step, Loop):
        return (*step.counts, *(slot for _, slot in step.starts))
    return step.slots if isinstance(step, Read) else (step.slot,) if isinstance(step, Recv) else ()


def slots_used(step: Instruction) -> tuple[int, ...]:
    """All slots that an instruction reads or sets, each as often as it does; of a loop, its instructions' too."""
    if not isinstance(step, Loop):
        return (*slots_read(step), *slots_set(step))
    inside = (slot for each in (*step.head, *step.body) for slot in slots_used(each))
    return (*slots_read(step), *slots_set(step), *inside)


def one_by_one(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """The instructions with the calls themselves where several became one (`cpu/regions/`), in loops too."""
    for step in instructions:
        if isinstance(step, Loop):
            yield step.with_parts(one_by_one)
        elif type(step) is Call and isinstance(step.work, Region):
            yield from step.work.calls
        else:
            yield step


@dataclass(frozen=True, slots=True)
class CapturedRegion:
    """A region that runs on a GPU alone, which captures it as a graph.

    Attributes:
        region: the calls.
        fed: positions of inputs from the host that only this region reads.
        arrays: of inputs that are only read on the device, so that small ones may be in GPU memory, too.
        leaving: of outputs that only a copy to the host reads.
    """

    region: Region
    fed: frozenset[int]
    arrays: frozenset[int]
    leaving: frozenset[int]

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the region."""
        return self.region.calls


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of variables as one launch. The call takes and gives what each of them does, one after the other."""

    works: tuple[Work, ...]


BoundWork: TypeAlias = Work | Region | CapturedRegion | Updates
"""The works whose kernels a backend makes."""

CallWork: TypeAlias = BoundWork | Builtin
SchedulesOf: TypeAlias = Callable[[Work], Sequence[object]]
Instruction: TypeAlias = Call | Send | Recv | Read | Predicated | Loop


@dataclass(frozen=True, slots=True)
class Program:
    """A device's compiled part of a step.

    Attributes:
        device: full device name.
        instructions: run from first to last.
        slots: what the slots hold before the first instruction: constants, or None.
        feeds: (name, slot) of values that the client gives.
        fetches: (name, slot) of values that the client gets.
        sent: slots that are sent to other tasks, and whose values are to be written to shared memory
            (`graph/resources/shared_storage.py`).
        tensors: slot -> tensor, if it holds one; None for many steps, and in a program that runs, which keeps no nodes.
        is_bounded: whether it has no loop and no op with the trait UNBOUNDED, so that sizes bound its time.
    """

    device: str
    instructions: tuple[Instruction, ...]
    slots: tuple[Any, ...]
    feeds: tuple[tuple[str, int], ...]
    fetches: tuple[tuple[str, int], ...]
    sent: frozenset[int] = frozenset()
    tensors: Mapping[int, Tensor] | None = field(default=None, compare=False, repr=False)
    is_bounded: bool = True

    @property
    def constants(self) -> dict[int, Any]:
        """What the slots hold that hold something before the first instruction."""
        return {i: v for i, v in enumerate(self.slots) if v is not None}

    def __str__(self) -> str:
        return self.text(lambda work: ())

    def text(self, schedules: SchedulesOf) -> str:
        """A line for each instruction. Behind a call, the schedules that `schedules` gives for its work."""
        lines = [f"program for {self.device}: {len(self.instructions)} instructions, {len(self.slots)} slots"]
        lines += [f"  s{slot} = feed {name}" for name, slot in self.feeds]
        lines += [f"  s{i} = constant {_brief(v)}" for i, v in self.constants.items()]
        lines += [f"  {line}" for step in self.instructions for line in _lines(step, schedules)]
        lines += [f"  fetch {name} = s{slot}" for name, slot in self.fetches]
        return "\n".join(lines)


def _lines(step: Instruction, schedules: SchedulesOf) -> list[str]:
    if isinstance(step, Loop):
        starts = ", ".join(f"s{to} = s{start}" for start, to in step.starts)
        nexts = ", ".join(f"s{to} = s{following}" for following, to in step.nexts)
        head, body = ([f"    {line}" for i in part for line in _lines(i, schedules)] for part in (step.head, step.body))
        first, last = f"loop {step.name}: {starts or '-'}", f"  again: {nexts or '-'}" + _freed(step.lost)
        return [first, *head, f"  while s{step.test}", *body, last, "end" + _freed(step.frees)]
    if isinstance(step, Predicated):
        token = f" (token s{step.token})" if step.token >= 0 else ""
        waits = {Wait: "wait for ", Begin: "begin ", Await: "await "}.get(type(step), "")
        if not step.checks:
            return [f"{waits}{_line(step.call)}"]
        return [f"unless dead {', '.join(f's{i}' for i in step.checks)}{token}: {waits}{_line(step.call)}"]
    if isinstance(step, Call) and isinstance(step.work, Work):
        return [_line(step), *[f"    {schedule}" for schedule in schedules(step.work)]]
    if not isinstance(step, Call) or not isinstance(step.work, Region):
        return [_line(step)]
    plans = getattr(step.kernel, "plans", None)  # that there are by now
    return [
        _line(step),
        *[f"    {line}" for call in step.work.calls for line in _lines(call, schedules)],
        *[f"    in an arena of {n:,} bytes" for n in (plans.arenas if plans else ())],
    ]


def _freed(slots: tuple[int, ...]) -> str:
    return f"  free {', '.join(f's{i}' for i in slots)}" if slots else ""


def _line(step: Call | Send | Recv | Read) -> str:
    if isinstance(step, Call):
        outputs = ", ".join(f"s{i}" for i in step.outputs) or "-"
        inputs = ", ".join(f"s{i}" for i in step.inputs)
        text = f"{outputs} = {step.op}({inputs})  # {step.node}"
    elif isinstance(step, Send):
        what = f"s{step.slot}" if step.slot >= 0 else "control"
        text = f"send {what} -> channel {step.channel} to {step.destination}"
    elif isinstance(step, Read):
        names = ", ".join(f"{r.posted.name} of {r.source}" for r in step.receives if r.posted is not None)
        return f"{', '.join(f's{i}' for i in step.slots)} = read {names}"
    else:
        what = f"{f's{step.slot}' if step.slot >= 0 else 'control'} = recv channel {step.channel} from {step.source}"
        return what + (" unless read" if step.unless_read else "")
    return text + _freed(step.frees)


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", ())
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(shape)}" if shape else repr(value)
