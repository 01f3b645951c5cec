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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..graph.core.errors import InternalError
from ..graph.core.settings import setting
from .backend import Backend, ContextOf, bind
from .compilation import Compilation, Pass, on_graph, on_program
from .ir.partition import PartitionGraph
from .ir.program import Program
from .ir.verify import BrokenPassError, verify_program, verify_steps
from .lower.chunked_saves import read_saved_in_chunks
from .lower.lower import ReaderOf, free_dead_slots, lower
from .lower.sends import find_last_sends, use_send_buffers
from .options import KernelOptions, is_enabled
from .passes.decompose import functionalize_random, split_batch_norms, split_max_pool_gradients, widen_products
from .passes.rewrite import rewrite
from .reference import NumpyBackend

if TYPE_CHECKING:
    from .gpu.backend import CudaBackend

logger = logging.getLogger("dovetail")


# --- passes that all lists share ---------------------------------------------------------------------------------------


def rewrite_nodes(c: Compilation) -> None:
    """Folds constants, merges equal nodes and applies the rules of `passes/rules`, as the options say. Leaves nodes, and `fired`."""
    c.graph, fired = rewrite(c.graph, c.backend.options)
    c.fired += fired


def lower_steps(c: Compilation) -> None:
    """Makes the program: a call for each node and fused kernel, with the family that computes it. No slot is freed yet."""
    c.program = lower(c.graph, c.steps, c.backend, c.reader_of)


def bind_kernels(c: Compilation) -> None:
    """Makes the kernels of all calls. The program keeps no nodes, so no other pass can follow."""
    c.program = bind(c.lowered, c.backend, c.context_of)


_REWRITING = Pass("rewriting", rewrite_nodes)
_BATCH_NORMS = Pass("steps of batch normalization", on_graph(split_batch_norms))
_RANDOM_NUMBERS = Pass("counter-based random numbers", on_graph(functionalize_random))
_POOLING_GRADIENTS = Pass("steps of pooling gradients", on_graph(split_max_pool_gradients))
_LOWERING = (
    Pass("lowering", lower_steps),
    Pass("saves in chunks", on_program(read_saved_in_chunks), lambda graph: "SaveV2" in graph.ops),
)
_LIVENESS = Pass("liveness", on_program(free_dead_slots))
_ENDING = (
    Pass("send buffers", on_program(use_send_buffers), lambda graph: graph.sends_away),
    Pass("last sends", on_program(find_last_sends), lambda graph: graph.sends_away),
    Pass("binding", bind_kernels),
)

# --- the lists ---------------------------------------------------------------------------------------------------------


def reference_passes() -> tuple[Pass, ...]:
    """For CPUs and emulated GPUs, where each node is a NumPy call."""
    return (_REWRITING, *_LOWERING, _LIVENESS, *_ENDING)


def cpu_passes() -> tuple[Pass, ...]:
    """For CPUs with compiled kernels."""
    from .cpu import backend as cpu  # the CPU code generator, some 40 modules

    return (
        _BATCH_NORMS,
        _REWRITING,
        Pass("sums of products", cpu.join_products),
        Pass("mixed precision", on_graph(widen_products)),
        _RANDOM_NUMBERS,
        _POOLING_GRADIENTS,
        Pass("fusion", cpu.fuse_nodes),
        Pass("schedules", cpu.schedule_loops),
        *_LOWERING,
        _LIVENESS,
        Pass("native regions", cpu.form_regions),
        *_ENDING,
    )


def gpu_passes() -> tuple[Pass, ...]:
    """For GPUs."""
    from .gpu import backend as gpu  # the GPU code generator, some 60 modules

    return (
        _BATCH_NORMS,
        _REWRITING,
        Pass("attention fusion", gpu.fuse_attention),
        _RANDOM_NUMBERS,
        _POOLING_GRADIENTS,
        Pass("fusion", gpu.fuse_nodes),
        Pass("epilogue fusion", gpu.fuse_epilogues),
        *_LOWERING,
        Pass("transfers", gpu.add_transfers, needs_device=True),
        Pass("horizontal fusion", gpu.join_updates),
        _LIVENESS,
        Pass("CUDA graphs", gpu.form_regions, needs_device=True),
        *_ENDING,
    )


_LISTS: dict[str, Callable[[], tuple[Pass, ...]]] = {"numpy": reference_passes, "numba": cpu_passes, "cuda": gpu_passes}


# --- running them ------------------------------------------------------------------------------------------------------


def passes_of(backend: Backend) -> tuple[Pass, ...]:
    """The list for a backend."""
    return _LISTS[backend.name]()


def compile_partition(
    graph: PartitionGraph, backend: Backend, context_of: ContextOf, reader_of: ReaderOf | None = None
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
    compilation = Compilation(graph, backend, context_of, reader_of)
    run_passes(compilation, passes_of(backend))
    return compilation.lowered


def run_graph_passes(graph: PartitionGraph, backend: Backend, context_of: ContextOf) -> Compilation:
    """Run the passes before lowering: rewriting and fusion."""
    compilation = Compilation(graph, backend, context_of)
    run_passes(compilation, itertools.takewhile(lambda p: p.name != "lowering", passes_of(backend)))
    return compilation


def run_passes(compilation: Compilation, passes: Iterable[Pass]) -> None:
    """Run passes in order, and log them if DOVETAIL_PASSES says so."""
    logs, verifies = setting("DOVETAIL_PASSES"), setting("DOVETAIL_VERIFY_PASSES")
    for each in passes:
        if not is_enabled(each.name):
            continue
        if each.applies(compilation.graph):
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
