"""Explains a compiled partition: its kernels, the bytes and operations of each, and why other nodes are not fused.

It runs the compiler's own passes and reads their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any

from ..graph.core.dtypes import resource
from ..graph.core.errors import OpError
from ..graph.core.gpu_models import GpuModel
from ..graph.core.graph import Node, Tensor
from ..graph.resources.resource_manager import Context, Resources, SessionState
from .backend import Backend, bind
from .fusion.epilogue import EpilogueKernel
from .fusion.fuse import Fusion
from .fusion.optimizer_loops import writes_in_place
from .gpu.ir import CompiledCall, Routine
from .ir.fused_kernel import FusedKernel, inputs_of, nodes_of, outputs_of
from .ir.index_maps import LOOKUPS
from .ir.partition import PartitionGraph, PartitionStep, node_of
from .ir.program import Call, Program, Region, Updates, Work, calls_of, one_by_one
from .memory.plan import Arena, MemoryPlan, TensorSizes, plan_memory, value_bytes
from .options import KernelOptions
from .passes.rewrite import Fired
from .pipeline import cpu_backend, passes_of, run_graph_passes, run_passes
from .target import Target


@dataclass(frozen=True)  # no slots: the source is computed on demand
class KernelInfo:
    """A compiled kernel: of fused nodes, or hand-written for one node.

    Attributes:
        part: the kernels of its device. Its source is Triton's for a GPU, else Python for Numba.
        step: the fused kernel, or the node.
        number: its index among the fused kernels of its device; -1: it is hand-written.
        written: the source text of a hand-written kernel.
        schedules: of a hand-written kernel, one for each product or convolution that it makes; none if sizes are not known.
    """

    part: DeviceKernels = field(compare=False, repr=False)
    step: FusedKernel | Node
    number: int = -1
    written: str = ""
    schedules: Sequence[object] = ()

    @property
    def sizes(self) -> TensorSizes:
        """The sizes of its values."""
        return self.part.sizes

    @property
    def group(self) -> FusedKernel:
        """The fused kernel."""
        assert isinstance(self.step, FusedKernel)
        return self.step

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes."""
        return tuple(n.name for n in nodes_of(self.step))

    @property
    def bytes_read(self) -> int:
        """Bytes of its inputs, and of what it gathers from tables and slices; an unknown size counts as 1.

        The values of variables that it changes are among them.
        """
        if isinstance(self.step, Node):
            return sum(value_bytes(t, self.sizes) for t in self.step.inputs)
        tables = {i for i, *_ in (*self.step.lookups, *self.step.moves)}
        looked_up = sum(self.sizes.bytes(n.outputs[0]) for n in self.step.nodes if n.type in LOOKUPS or n.opdef.places)
        return looked_up + sum(self.sizes.bytes(t) for i, t in enumerate(self.step.inputs) if i not in tables)

    @property
    def bytes_written(self) -> int:
        """Bytes of its outputs, and of the variables that it changes."""
        changed = [t for t in self.step.inputs if t.dtype.is_ref or t.dtype is resource and isinstance(self.step, Node)]
        made = [t for t in self.step.outputs if not t.dtype.is_ref]
        return sum(value_bytes(t, self.sizes) for t in changed) + sum(map(self.sizes.bytes, made))

    @property
    def bytes_saved(self) -> int:
        """Bytes of memory traffic that fusion saves: intermediate values that are not written and read back."""
        nodes = nodes_of(self.step)
        inside = {t for n in nodes for t in n.outputs} - set(self.step.outputs)
        taken = [t for n in nodes for t in n.inputs if t in inside]
        return sum(map(self.sizes.bytes, [*inside, *taken]))

    @property
    def flops(self) -> float:
        """Arithmetic operations of one run."""
        return sum(self.sizes.cost(n).flops for n in nodes_of(self.step))

    @property
    def exact(self) -> bool:
        """Whether the sizes of all its values are known; if not, its bytes and operations are lower bounds."""
        return all(self.sizes.is_known(t) for n in nodes_of(self.step) for t in (*n.inputs, *n.outputs))

    @property
    def loops(self) -> str:
        """The computation of a fused kernel in loop IR; for a product, its prologues and epilogue."""
        if isinstance(self.group, EpilogueKernel):
            return self.group.text()
        return str(self.group.loops)

    @cached_property
    def source(self) -> str:
        """The source text that is compiled. A GPU kernel's depends on sizes; unknown sizes count as 1024."""
        if isinstance(self.step, Node):
            return self.written
        if self.part.gpu is None:
            from .cpu.kernels.fused import source_for  # loads the CPU code generator

            return source_for(self.group).text
        found = self.part.likely.get(self.nodes[-1])
        return found.text if found else "no kernel for these types and sizes: its parts run one by one"

    @property
    def schedule(self) -> str:
        """How it runs, as text. A GPU kernel's schedule depends on sizes; unknown sizes count as 1024."""
        chosen = self.step.schedule if isinstance(self.step, FusedKernel) else None
        return str(chosen or self.part.likely.get(self.nodes[-1]) or "; then ".join(map(str, self.schedules)))

    @property
    def seconds(self) -> float | None:
        """The least time on its GPU by the maker's figures: of its bytes or its operations, whichever is longer. None on a CPU."""
        gpu, moved = self.part.gpu, self.bytes_read + self.bytes_written
        return None if gpu is None else gpu.seconds(nodes_of(self.step), moved, self.sizes.cost, self.part.tf32)

    def __str__(self) -> str:
        took = "" if self.seconds is None else f", at least {self.seconds * 1e6:.3g} µs"
        least = "" if self.exact else "≥ "  # bytes and operations depend on an unknown size
        does = f"reads {least}{_bytes(self.bytes_read)}, writes {least}{_bytes(self.bytes_written)}, {least}{self.flops:,.0f} flops"
        name = self.step.type if isinstance(self.step, Node) else f"kernel {self.number}"
        schedule = f"\n  {self.schedule}" if self.schedule else ""
        return f"{name}: {does}{took}\n  {', '.join(self.nodes)}{schedule}"


def _bytes(count: int) -> str:
    for unit, limit in (("B", 1 << 10), ("KiB", 1 << 20), ("MiB", 1 << 30)):
        if count < limit:
            return f"{count / (limit >> 10):.4g} {unit}"
    return f"{count / (1 << 30):.4g} GiB"


@dataclass(frozen=True, slots=True)
class RegionInfo:
    """A native region: CPU kernels that become one call of compiled code after a few runs with the same shapes.

    Attributes:
        nodes: names of the nodes in it, in order.
        kernels: number of kernel calls, as far as it is known without shapes.
        arena: memory of the values inside; None if sizes are unknown, or if the region is so large that it runs call by call.
    """

    nodes: tuple[str, ...]
    kernels: int
    arena: Arena | None

    @property
    def arena_bytes(self) -> int | None:
        """Bytes of the arena."""
        return None if self.arena is None else self.arena.bytes

    def __str__(self) -> str:
        arena = "" if self.arena is None else f", in an arena of {_bytes(self.arena.bytes)}"
        return f"one call for {self.kernels} kernels, up to '{self.nodes[-1]}'{arena}"


@dataclass(frozen=True, repr=False)  # no slots: views are computed on demand
class DeviceKernels:
    """The kernels of one device's part of a step. Prints as a list; iterates like a sequence of `KernelInfo`.

    Attributes:
        device: full device name.
        partition: the nodes as they were written, with sends and receives.
        rewritten: the nodes that are left after rewriting.
        fired: the rewrites, in order.
        fusion: kernels, and why other nodes are not fused.
        passes: names of the compiler's passes, in order.
        lower: makes the program of the remaining steps.
        backend: made the kernels.
        gpu: the GPU that kernels, Triton's, are for; None: a CPU.
        sizes: of the values; an unknown one counts as 1.
        tf32: whether GPUs may make float32 products in TF32.
    """

    device: str
    partition: PartitionGraph
    rewritten: PartitionGraph
    fired: tuple[Fired, ...]
    fusion: Fusion
    passes: tuple[str, ...]
    lower: Callable[[], Program]
    backend: Backend
    gpu: GpuModel | None
    sizes: TensorSizes
    tf32: bool

    @property
    def steps(self) -> Sequence[PartitionStep | FusedKernel]:
        """The steps after fusion."""
        return self.fusion.steps

    @property
    def reasons(self) -> Mapping[str, str]:
        """Node name -> why it is in no kernel."""
        return self.fusion.reasons

    @cached_property
    def program(self) -> Program | None:
        """The program, which is not run; None if one of its nodes cannot be compiled."""
        try:
            return self.lower()
        except OpError:
            return None

    @cached_property
    def _bound(self) -> list[Call]:
        """The calls of the program, in loops too; none if there is no program."""
        return [] if self.program is None else list(calls_of(self.program.instructions))

    @cached_property
    def regions(self) -> tuple[RegionInfo, ...]:
        """Native regions of a CPU, in the order in which they run."""
        from .cpu.regions.region import arena_of  # the CPU code generator

        tensors = self.program.tensors or {} if self.program else {}
        found: list[tuple[Region, Any]] = [(c.work, c.kernel) for c in self._bound if isinstance(c.work, Region)]
        return tuple(RegionInfo(work.nodes, work.launches, arena_of(kernel, tensors)) for work, kernel in found)

    @cached_property
    def updates(self) -> tuple[tuple[str, ...], ...]:
        """Horizontally fused updates of variables, one launch each: names of their nodes. GPUs only."""
        return tuple(c.nodes for c in self._bound if isinstance(c.work, Updates))

    @cached_property
    def likely(self) -> Mapping[str, Routine]:
        """What a GPU's calls likely launch, by the name of each one's last node. It prints its schedules. Unknown sizes count as 1024."""
        if self.gpu is None or self.program is None:
            return {}
        from .gpu.roofline import likely_routines  # loads the GPU code generator

        return likely_routines(self.program, self.sizes)

    @cached_property
    def kernels(self) -> tuple[KernelInfo, ...]:
        """In the order in which they run."""
        return tuple(KernelInfo(self, group, i) for i, group in enumerate(self.fusion.kernels))

    @cached_property
    def own(self) -> tuple[KernelInfo, ...]:
        """Compiled kernels that are not made by fusion, in the order in which they run. CPUs only."""
        if self.gpu is not None or self.program is None:
            return ()
        from .cpu.kernels.families import FAMILIES  # the CPU code generator

        def info(work: Work, kernel: Any) -> KernelInfo:
            schedules = self.backend.schedules(work, lambda tensor: self.sizes.of(tensor).dims)
            return KernelInfo(self, work.step, written="\n\n".join(kernel.sources), schedules=schedules)

        calls = calls_of(one_by_one(self.program.instructions))
        found: list[tuple[Work, Any]] = [(c.work, c.kernel) for c in calls if isinstance(c.work, Work)]
        return tuple(info(w, kernel) for w, kernel in found if w.family in FAMILIES and hasattr(kernel, "sources"))

    @cached_property
    def compiled(self) -> tuple[CompiledCall, ...]:
        """The calls of a GPU's program as they are compiled for its model, in the order in which they run; empty for a CPU.

        Each has the `launches` of its likely best candidate, with threads, registers, shared memory and occupancy, and its `bytes`,
        `flops` and least `seconds`. No GPU is needed. A kernel that is not in the cache folder takes up to a second to compile.
        Calls whose sizes are not known, and what runs on the host, are left out.

        Raises:
            FailedPreconditionError: Triton is not installed.
        """
        if self.gpu is None or self.program is None:
            return ()
        from .gpu.roofline import compiled_launches  # loads the GPU code generator

        found = []
        for call, launches in compiled_launches(self.program.instructions, self.sizes, self.gpu):
            works = call.work.works if isinstance(call.work, Updates) else (call.work,)
            parts = [KernelInfo(self, work.step) for work in works if isinstance(work, Work)]
            nodes = [n for k in parts for n in nodes_of(k.step)]
            moved, flops = sum(k.bytes_read + k.bytes_written for k in parts), sum(k.flops for k in parts)
            seconds = self.gpu.seconds(nodes, moved, self.sizes.cost, self.tf32)
            found.append(CompiledCall(call.op, tuple(n.name for n in nodes), launches, moved, flops, seconds))
        return tuple(found)

    def compile(self) -> int:
        """Compile all candidates of a GPU's kernels for its model beforehand, side by side on all cores; returns how many there are.

        They are kept in the cache folder, so a machine that has it compiles none of them. Kernels whose sizes are not known are left out.

        Raises:
            FailedPreconditionError: Triton is not installed.
        """
        if self.gpu is None or self.program is None:
            return 0
        from .gpu.roofline import compile_candidates  # loads the GPU code generator

        return compile_candidates(self.program.instructions, self.sizes, Target(self.gpu.architecture))

    def seconds_of(self, step: PartitionStep | FusedKernel) -> float | None:
        """The least time of one of `steps` on its GPU, by the maker's figures; None on a CPU, or where it computes nothing."""
        nodes = nodes_of(step)
        if self.gpu is None or not nodes:
            return None
        return KernelInfo(self, step if isinstance(step, FusedKernel) else nodes[0]).seconds

    @cached_property
    def memory(self) -> MemoryPlan:
        """Lifetimes and the predicted peak of memory."""
        feeds, fetches = ([t for _, t in named] for named in (self.rewritten.feeds, self.rewritten.fetches))
        arenas = [region.arena for region in self.regions if region.arena is not None]
        planned = plan_memory(self.steps, feeds, fetches, writes_in_place=writes_in_place, sizes=self.sizes)
        return planned.with_arenas(arenas)

    @property
    def peak_bytes(self) -> int:
        """The peak memory of this device's tensors in bytes; unknown sizes count as 1."""
        return self.memory.peak_bytes

    @property
    def calls(self) -> list[Node]:
        """The nodes that run by themselves, in order."""
        joined = {name for names in self.updates for name in names}
        return [n for n in _nodes(self.steps) if n.type not in ("Const", "Placeholder") and n.name not in joined]

    def __iter__(self) -> Iterator[KernelInfo]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __getitem__(self, number: int) -> KernelInfo:
        return self.kernels[number]

    def why_not_fused(self, a: str, b: str) -> str:
        """Why two nodes are not in one kernel.

        Raises:
            KeyError: this device does not run one of them.
        """
        names = {n.name: n for n in _nodes(self.partition.steps)}
        for name in (a, b):
            if name not in names:
                raise KeyError(f"{self.device} runs no node '{name}'")
        both = next((k for k in self.kernels if {a, b} <= {*k.nodes}), None)
        if both is not None:
            return f"'{a}' and '{b}' are both in kernel {both.number}"
        # If several kernels have a node, the first one gives its value to others; later ones recompute it.
        of = {name: k for k in reversed(self.kernels) for name in k.nodes}
        alone = [self._why_in_none(names[name]) for name in (a, b) if name not in of]
        if alone:
            return "\n".join(alone)
        one, other = sorted((of[a], of[b]), key=lambda k: k.number)
        return f"'{a}' is in kernel {of[a].number}, '{b}' in kernel {of[b].number}: {self._apart(one, other)}"

    def _why_in_none(self, node: Node) -> str:
        together = next((names for names in self.updates if node.name in names), None)
        if together is not None:
            return f"'{node.name}' ({node.type}) is one launch with {len(together) - 1} other updates of variables"
        if node.type in ("Const", "Placeholder"):
            return f"'{node.name}' is a {node.type}: nothing is computed"
        for f in self.fired:
            if f.node is node:
                return f"'{node.name}' became {f.became} when the graph was rewritten ({f.rule})"
        if node.name in self.reasons:
            return f"'{node.name}' ({node.type}) is in no kernel: {self.reasons[node.name]}"
        if all(n.name != node.name for n in _nodes(self.rewritten.steps)):
            return f"'{node.name}' is not needed any more after the graph was rewritten"
        return f"'{node.name}' ({node.type}) is in no kernel"

    def _apart(self, one: KernelInfo, other: KernelInfo) -> str:
        """Why two kernels are not fused."""
        between = self._between(one.group, other.group)
        if between is not None:
            why = _because(self.reasons.get(between.name, ""))
            return f"between them runs '{between.name}' ({between.type}), which is in neither{why}"
        mine, theirs = (" x ".join("?" if d is None else str(d) for d in k.group.sizes) for k in (one, other))
        if mine != theirs:
            return f"they run over other axes, {mine or 'one element'} and {theirs or 'one element'}"
        if any(one.group.reduced) and any(other.group.reduced) and one.group.reduced != other.group.reduced:
            return "they reduce other axes"
        if not {*one.group.inputs, *one.group.outputs} & {*other.group.inputs}:
            return "they share no tensor"
        return "another step takes a result of the first before the second can run, or one kernel would be too large"

    def _between(self, one: FusedKernel, other: FusedKernel) -> Node | None:
        """A node outside both, on a path from the first to the second."""
        reached: dict[Tensor, Node | None] = dict.fromkeys(one.outputs)
        for step in self.steps:
            if step is one:
                continue
            hits = [t for t in inputs_of(step) if t in reached]
            if step is other:
                return next((reached[t] for t in hits if reached[t] is not None), None)
            nodes = nodes_of(step)
            if hits and nodes:
                first = next((reached[t] for t in hits if reached[t] is not None), nodes[-1])
                reached.update(dict.fromkeys(outputs_of(step), first))
        return None

    def __str__(self) -> str:
        lines = [f"kernels of {self.device}: {len(self.kernels)} for {sum(len(k.nodes) for k in self.kernels)} nodes"]
        if self.fired:
            counts = Counter(f.rule for f in self.fired)
            lines.append("rewritten: " + ", ".join(f"{rule} ({n})" for rule, n in counts.items()))
        lines += [str(k) for k in self.kernels]
        for names in self.updates:
            lines += [f"one launch for {len(names)} updates:", "  " + ", ".join(names)]
        if self.own:
            lines.append("hand-written kernels:")
            lines += [str(k) for k in self.own]
        lines += [str(r) for r in self.regions]
        compiled = {name for k in self.own for name in k.nodes}
        rest = [n for n in self.calls if n.name not in compiled]
        lines += ["not fused:"] if rest else []
        for n in rest:
            why = _because(str(self.likely.get(n.name) or self.reasons.get(n.name, "")))
            lines.append(f"  {n.name} ({n.type}){why}")
        at_least, about = ("", "") if self.memory.exact else ("at least ", " (some sizes are dynamic)")
        lines.append(f"peak memory: {at_least}{_bytes(self.peak_bytes)}{about}")
        lines.append("compiler passes: " + ", ".join(self.passes))
        return "\n".join(lines)

    def __repr__(self) -> str:
        count = len(self.kernels)
        return f"<dt.DeviceKernels of {self.device}: {count} kernel{'s' * (count != 1)}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _nodes(steps: Iterable[object]) -> list[Node]:
    return [n for n in map(node_of, steps) if n is not None]


def explain(
    graph: PartitionGraph,
    options: KernelOptions,
    gpu: GpuModel | None,
    sizes_of: Callable[[Sequence[Node]], TensorSizes],
) -> DeviceKernels:
    """Explain a partition. The passes run, but no machine code is made, and no GPU is needed.

    Args:
        graph: one device's partition.
        options: the compile options.
        gpu: the GPU to compile for; None: the CPU.
        sizes_of: gives the sizes in the rewritten partition, from its nodes in order.
    """
    backend: Backend = cpu_backend(options, cold=True)
    if gpu is not None:
        from .gpu.backend import absent_gpu_backend  # the GPU code generator

        backend = absent_gpu_backend(Target(gpu.architecture), options)
    resources, session = Resources(), SessionState(None)

    def context_of(node: Node) -> Context:
        return Context(node.name, node.container, resources, session, tuple(t.dims for t in node.outputs))

    made, passes = run_graph_passes(graph, backend, context_of), passes_of(backend)
    names = tuple(p.name for p in passes)

    def lower() -> Program:
        given = [n for n in _nodes(made.steps) if n.type == "Placeholder"]  # as if they were fed
        feeds = (*made.graph.feeds, *((n.outputs[0].name, n.outputs[0]) for n in given))
        fusion = Fusion(tuple(s for s in made.steps if node_of(s) not in given), {})
        later = replace(made, graph=replace(made.graph, feeds=feeds), fusion=fusion)
        run_passes(later, [p for p in passes[names.index("lowering") : -1] if not p.needs_device])
        return bind(later.lowered, backend, context_of, keeps_nodes=True)

    sizes, fusion = sizes_of(_nodes(made.graph.steps)), made.fusion or Fusion(made.graph.steps, {})
    return DeviceKernels(
        graph.device, graph, made.graph, tuple(made.fired), fusion, names, lower, backend, gpu, sizes, options.tf32
    )
