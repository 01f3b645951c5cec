"""The compiler's passes in their order, for CPUs and GPUs: from one device's partition of a step to the program that runs it.

`reference_passes`, `cpu_passes` and `gpu_passes` are the lists. Each pass reads and changes one `Compilation`. There are three kinds:

    graph passes      nodes to nodes: rewriting, attention fusion, random numbers, fusion, epilogue fusion
    lowering          nodes to instructions: a call for every op and every fused kernel, which says by which family it is computed
    program passes    instructions to instructions: liveness, regions, send buffers; the last, binding, makes the kernels

`compile_partition` runs a list. DOVETAIL_PASSES=1 logs the result of each pass. `plan.kernels` prints the list. The code
generators load when a list is made, so a process that only builds graphs does not load them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..graph.core.dtypes import FLOAT8
from ..graph.core.errors import InternalError
from ..graph.core.settings import setting
from .backend import Backend, ContextOf, bind
from .ir.fused_kernel import FusedKernel
from .ir.partition import PartitionGraph, PartitionStep
from .ir.program import Program
from .ir.verify import BrokenPassError, verify_program, verify_steps
from .lower.chunked_saves import read_saved_in_chunks
from .lower.lower import ReaderOf, free_dead_slots, lower
from .lower.sends import find_last_sends, use_send_buffers
from .options import KernelOptions, is_enabled
from .passes.rewrite import Fired, rewrite
from .reference import NumpyBackend

if TYPE_CHECKING:
    from .cpu.backend import NumbaBackend
    from .fusion.fuse import Fusion
    from .gpu.backend import CudaBackend

logger = logging.getLogger("dovetail")


@dataclass(slots=True)
class Compilation:
    """The state of one partition's compilation, which the passes change.

    Attributes:
        graph: the partition after the graph passes so far.
        context_of: the `Context` of a stateful node.
        reader_of: makes readers of published variables of other tasks; None: there are none.
        fired: the rewrites so far, in order.
        fusion: the steps with fused kernels, and why other nodes are not fused; None before fusion.
        program: the program; None before lowering.
    """

    graph: PartitionGraph
    context_of: ContextOf
    reader_of: ReaderOf | None = None
    fired: list[Fired] = field(default_factory=list)
    fusion: Fusion | None = None
    program: Program | None = None

    @property
    def steps(self) -> Sequence[PartitionStep | FusedKernel]:
        """The steps, with fused kernels among them after fusion."""
        return self.graph.steps if self.fusion is None else self.fusion.steps

    def __str__(self) -> str:
        return str(self.program or self.fusion or self.graph)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass.

    Attributes:
        name: the name in logs.
        run: reads and changes a compilation.
        needs_device: whether it queries the device. `explain.py` skips such a pass.
    """

    name: str
    run: Callable[[Compilation], None]
    needs_device: bool = False


def reference_passes(backend: NumpyBackend) -> tuple[Pass, ...]:
    """For CPUs and emulated GPUs, where each node is a NumPy call."""
    return (
        Pass("rewriting", _rewriting(lambda graph: rewrite(graph, backend.options))),
        *_lowering(backend),
        *_ending(backend),
    )


def cpu_passes(backend: NumbaBackend) -> tuple[Pass, ...]:
    """For CPUs with compiled kernels."""
    from .cpu.regions.formation import form_native_regions  # the CPU code generator, some 40 modules
    from .cpu.schedule import scheduled
    from .fusion.fuse import fuse
    from .passes.decompose import functionalize_random, widen_products
    from .passes.sums_of_products import merge_summed_products
    from .target import OPERATIONS_PER_BYTE

    def fusion(c: Compilation) -> None:
        c.fusion = fuse(c.graph, small=backend.fuses_small(c.graph), again=OPERATIONS_PER_BYTE, numbers=True)

    def schedules(c: Compilation) -> None:
        if c.fusion is not None:
            steps = tuple(scheduled(s) if isinstance(s, FusedKernel) else s for s in c.fusion.steps)
            c.fusion = c.fusion.with_steps(steps)

    def regions(program: Program, c: Compilation) -> Program:
        return form_native_regions(program, backend.fuses_small(c.graph)) if backend.has_regions else program

    return (
        Pass("rewriting", _rewriting(lambda graph: rewrite(graph, backend.options))),
        Pass("sums of products", _on_graph(merge_summed_products if backend.options.rewrite else lambda graph: graph)),
        Pass("mixed precision", _on_graph(widen_products)),
        Pass("counter-based random numbers", _on_graph(functionalize_random)),
        Pass("fusion", fusion),
        Pass("schedules", schedules),
        *_lowering(backend),
        Pass("native regions", _on_program(regions)),
        *_ending(backend),
    )


def gpu_passes(backend: CudaBackend) -> tuple[Pass, ...]:
    """For GPUs."""
    from .fusion.epilogue import fuse_epilogues  # loads the compiler
    from .fusion.fuse import fuse
    from .gpu.graph_regions import with_graph_regions  # the GPU code generator, some 60 modules
    from .gpu.horizontal_fusion import fuse_updates
    from .gpu.transfers import insert_transfers
    from .ir.loop_nest import SUPPORTED
    from .passes.attention_fusion import fuse_attention
    from .passes.decompose import functionalize_random
    from .target import GPU_LONGEST_ROW, GPU_OPERATIONS_PER_BYTE

    gpu = backend.gpu
    types = SUPPORTED + FLOAT8 * gpu.device.target.has_float8

    def fusion(c: Compilation) -> None:
        # No `numbers`: arithmetic on scalars stays in kernels, since the host would have to wait for the GPU.
        c.fusion = fuse(
            c.graph, small=True, lone=True, types=types, again=GPU_OPERATIONS_PER_BYTE, longest=GPU_LONGEST_ROW
        )

    def epilogues(c: Compilation) -> None:
        assert c.fusion is not None
        c.fusion = c.fusion.with_steps(fuse_epilogues(c.graph, c.fusion.steps))

    def transfers(program: Program, c: Compilation) -> Program:
        return insert_transfers(program, gpu.device, backend.peers, backend.lends)

    def horizontal(program: Program, c: Compilation) -> Program:
        return program if gpu.check else fuse_updates(program, c.context_of)

    def graphs(program: Program, c: Compilation) -> Program:
        return with_graph_regions(program) if setting("DOVETAIL_CUDA_GRAPHS") and not gpu.check else program

    return (
        Pass("rewriting", _rewriting(lambda graph: rewrite(graph, backend.options))),
        Pass("attention fusion", _rewriting(fuse_attention if backend.options.rewrite else lambda graph: (graph, ()))),
        Pass("counter-based random numbers", _on_graph(functionalize_random)),
        Pass("fusion", fusion),
        Pass("epilogue fusion", epilogues),
        *_lowering(
            backend, Pass("transfers", _on_program(transfers), True), Pass("horizontal fusion", _on_program(horizontal))
        ),
        Pass("CUDA graphs", _on_program(graphs), True),
        *_ending(backend),
    )


def passes_of(backend: Backend) -> tuple[Pass, ...]:
    """The list for a backend."""
    return _LISTS[backend.name](backend)


def compile_partition(
    graph: PartitionGraph,
    backend: Backend,
    context_of: ContextOf,
    reader_of: ReaderOf | None = None,
) -> Program:
    """Compile a device's partition of a step.

    Args:
        graph: nodes in order, with sends, receives, feeds and fetches.
        backend: says which kernel each node and fused kernel gets, and makes it; its name chooses the passes.
        context_of: the `Context` of a stateful node.
        reader_of: makes readers of published variables of other tasks; None: there are none.

    Raises:
        InvalidArgumentError: a placeholder is needed and not fed.
        UnimplementedError: a node has no kernel on this backend.
    """
    compilation = Compilation(graph, context_of, reader_of)
    run_passes(compilation, passes_of(backend))
    assert compilation.program is not None
    return compilation.program


def run_graph_passes(graph: PartitionGraph, backend: Backend, context_of: ContextOf) -> Compilation:
    """Run the passes before lowering: rewriting and fusion."""
    compilation = Compilation(graph, context_of)
    run_passes(compilation, itertools.takewhile(lambda p: p.name != "lowering", passes_of(backend)))
    return compilation


def run_passes(compilation: Compilation, passes: Iterable[Pass]) -> None:
    """Run passes in order, and log them if DOVETAIL_PASSES says so."""
    logs, verifies = setting("DOVETAIL_PASSES"), setting("DOVETAIL_VERIFY_PASSES")
    for each in passes:
        if not is_enabled(each.name):
            continue
        each.run(compilation)
        if verifies:
            _verify(compilation, each.name)
        if logs:
            logger.warning("%s: after %s:\n%s", compilation.graph.device, each.name, compilation)


def _verify(c: Compilation, name: str) -> None:
    """InternalError unless a pass left a compilation well formed."""
    try:
        if c.program is not None:
            verify_program(c.program)
        else:
            verify_steps(c.graph, c.steps)
    except BrokenPassError as e:
        raise InternalError.of(f"the pass '{name}' is broken, on {c.graph.device}: {e}\n{c}") from None


# --- passes that all lists share ---------------------------------------------------------------------------------------


def _rewriting(
    change: Callable[[PartitionGraph], tuple[PartitionGraph, Iterable[Fired]]],
) -> Callable[[Compilation], None]:
    def run(c: Compilation) -> None:
        c.graph, fired = change(c.graph)
        c.fired += fired

    return run


def _on_graph(change: Callable[[PartitionGraph], PartitionGraph]) -> Callable[[Compilation], None]:
    return _rewriting(lambda graph: (change(graph), ()))


def _on_program(change: Callable[[Program, Compilation], Program]) -> Callable[[Compilation], None]:
    def run(c: Compilation) -> None:
        assert c.program is not None
        c.program = change(c.program, c)

    return run


def _lowering(backend: Backend, *before: Pass) -> tuple[Pass, ...]:
    """Lower nodes to instructions, and say where slots are free, after the passes `before`, which add and move instructions."""

    def lowering(c: Compilation) -> None:
        c.program = lower(c.graph, c.steps, backend, c.reader_of)

    return (
        Pass("lowering", lowering),
        Pass("saves in chunks", _on_program(lambda program, c: read_saved_in_chunks(program))),
        *before,
        Pass("liveness", _on_program(lambda program, c: free_dead_slots(program))),
    )


def _ending(backend: Backend) -> tuple[Pass, ...]:
    """What is sent, and the kernels."""
    return (
        Pass("send buffers", _on_program(lambda program, c: use_send_buffers(program))),
        Pass("last sends", _on_program(lambda program, c: find_last_sends(program))),
        Pass("binding", _on_program(lambda program, c: bind(program, backend, c.context_of))),
    )


_LISTS: dict[str, Callable[..., tuple[Pass, ...]]] = {
    "numpy": reference_passes,
    "numba": cpu_passes,
    "cuda": gpu_passes,
}


# --- backends ----------------------------------------------------------------------------------------------------------


def cpu_backend(options: KernelOptions, *, cold: bool = False) -> NumpyBackend:
    """The backend of CPUs and emulated GPUs. Numba itself loads when the first kernel is compiled.

    `cold`: compile nothing beforehand, despite the options, because the program is not run.
    """
    if options.backend == "numpy":
        backend = NumpyBackend()
    else:
        from .cpu.backend import NumbaBackend  # the CPU code generator

        everything = options.backend == "numba"
        first = (everything or options.warm or options.deterministic) and not cold
        backend = NumbaBackend(
            fuse_small=everything, compile_first=first, threads=options.threads, check=options.check >= 2
        )
    backend.options = options
    return backend


def gpu_backend(
    options: KernelOptions, device: str, gpus: frozenset[str], lends: Callable[[str], bool] | None = None
) -> CudaBackend | None:
    """The backend for a device's partition; None for a device that is no GPU.

    Args:
        options: the compile options.
        device: full device name.
        gpus: full names of the GPUs of this task. GPU:1 is the second that the process sees.
        lends: the GPUs of other tasks that read this process's GPU memory; None: none.
    """
    if device not in gpus:
        return None
    from .gpu.backend import CudaBackend  # the GPU code generator, and CUDA
    from .gpu.driver.device import device as gpu

    return CudaBackend(gpu(int(device.rpartition(":")[2])), options, peers=gpus, lends=lends)
