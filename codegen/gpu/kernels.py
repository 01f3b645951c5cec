"""GPU kernel launchers: they bring inputs to the device, allocate outputs, and launch the fastest of several candidates.

`GpuKernel` runs what a template has for a node, `FusedGpuKernel` a fused group, by kernels made from its loops. When a launcher meets new
shapes, its candidates are compiled and measured (`autotune.py`); the winner is kept on disk.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.dtypes import as_dtype, resource
from ...graph.core.errors import InternalError
from ...graph.core.graph import Tensor
from ...graph.core.settings import setting
from ...graph.resources.variable import VariableState
from ..backend import ContextOf
from ..check import agree, compare_fused
from ..ir.fused_kernel import FusedKernel
from ..ir.program import Kernel
from ..reference import references_of
from .autotune import fastest
from .driver.api import CudaError
from .driver.array import DeviceArray
from .driver.device import Device
from .driver.launch import LoadedKernel, LoadedRoutine, NotSuitableError, leaves_others
from .emit.expr import rows_in
from .emit.launches import fused, size_names
from .ir import Choice, Routine, Template
from .residency import brought, on_host, value_on
from .toolchain import compile

logger = logging.getLogger(__name__)
SHAPES_KEPT = 256  # per kernel; a program of ever new shapes starts over


@dataclass(slots=True)
class GpuContext:
    """A GPU, and how its kernels are chosen and run.

    Attributes:
        device: the GPU.
        check: compare every kernel with the references, at every run.
        tf32: products of float32 may be made from 10 bits of each factor's fraction.
        tunes: of several candidates the fastest may be taken, as it is measured.
    """

    device: Device
    check: bool = False
    tf32: bool = False
    tunes: bool = True


@dataclass(slots=True)
class _Ready:
    """A choice for inputs of certain shapes, with the candidate that was taken.

    Attributes:
        run: launches the candidate that was taken.
        outputs: as in `Choice`.
        others: functions that prepare the remaining candidates, the likely best first: the driver may refuse a launch.
    """

    run: Callable[..., None]
    outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
    others: list[Callable[[], Callable[..., None]]]


class GpuKernel:
    """A kernel on the GPU: brings its inputs to the device, allocates its outputs, launches the fastest of its candidates.

    Args:
        gpu: the device, and how its kernels run.
        label: the node's name, for errors when memory runs out.
        tensors: its inputs. Those that are constants are copied to the device once.
        template: which of them are loaded, and the routines for their shapes.
        fallback: runs where the template has no kernel.
    """

    def __init__(
        self, gpu: GpuContext, label: str, tensors: Sequence[Tensor], template: Template, fallback: Kernel
    ) -> None:
        self.gpu = gpu
        self.device = gpu.device
        self.label = label
        self.choose = template.choose
        self.fallback = fallback
        order = template.order or tuple(range(len(tensors)))
        self._loaded, self._looked = order[: template.inputs], order[template.inputs :]
        self._constants: dict[int, tuple[Any, DeviceArray] | None]
        self._constants = {i: None for i, t in enumerate(tensors) if t.op.type == "Const"}
        self._ready: dict[Any, _Ready | None] = {}
        self.checked = gpu.check

    def __call__(self, *inputs: Any) -> Any:
        device = self.device
        arrays = self.brought(inputs, self._loaded)
        key: Any = tuple([x.shape for x in arrays])
        if self._looked:
            key = key, tuple([tuple(np.ravel(on_host(inputs[i])).tolist()) for i in self._looked])
        try:
            ready = self._ready[key]
        except KeyError:
            ready = self._prepared(key, arrays)
        if ready is None:
            return self.fallback(*inputs)
        with device.lock:
            device.make_current()
            outputs = [device.empty(shape, dtype, self.label) for shape, dtype in ready.outputs]
            addresses = [x.pointer for x in arrays] + [y.pointer for y in outputs]
            try:
                ready.run(addresses, self.label)
            except (CudaError, NotSuitableError) as e:
                if not self._run_another(ready, e, addresses):
                    self._ready[key] = ready = None
        if ready is None:
            return self.fallback(*inputs)
        if self.checked:
            self.compare(inputs, outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compare(self, inputs: Sequence[Any], outputs: Sequence[DeviceArray]) -> None:
        """Raise InternalError unless the references give the same."""
        expected = self.fallback(*inputs)
        expected = expected if len(outputs) != 1 else (expected,)
        for mine, theirs in zip(outputs, expected, strict=True):
            if not agree(np.asarray(mine), np.asarray(on_host(theirs))):
                raise InternalError.of(
                    f"The GPU's kernel of {self.label} differs from the reference. This is an error in Dovetail."
                )

    def brought(self, inputs: Sequence[Any], positions: Iterable[int]) -> list[DeviceArray]:
        """The inputs at these positions, on the device."""
        device = self.device
        return [
            x if type(x := inputs[i]) is DeviceArray and x.device is device else self._brought(i, x) for i in positions
        ]

    def _brought(self, position: int, value: Any) -> DeviceArray:
        """An input from host memory or another GPU."""
        if position not in self._constants:
            return brought(self.device, value, self.label)
        known = self._constants[position]
        if known is None or known[0] is not value:
            known = self._constants[position] = (value, brought(self.device, value, self.label))
        return known[1]

    def _prepared(self, key: Any, arrays: Sequence[DeviceArray]) -> _Ready | None:
        shapes, others = key if self._looked else (key, ())
        choice = self.choose(shapes, others)
        ready = None if choice is None else self._tuned(choice, arrays)
        if len(self._ready) >= SHAPES_KEPT:
            self._ready.clear()
        self._ready[key] = ready
        return ready

    def _tuned(self, choice: Choice, arrays: Sequence[DeviceArray]) -> _Ready | None:
        """The fastest candidate; the likely best one where nothing is measured. None: none can be loaded."""
        device = self.device
        tuned = self.gpu.tunes
        competing = choice.candidates if tuned else choice.candidates[:1]
        missing = [x.kernel for c in competing for x in c.launches if x.kernel not in device.loaded]
        compile.compile_together(missing, device.target)
        names = [f"in{i}" for i in range(len(arrays))] + [f"out{i}" for i in range(len(choice.outputs))]
        load = partial(loaded, device, names=names, sizes=choice.sizes)
        runs: list[Callable[..., None]] = []
        measured: list[Routine] = []
        failures: list[Exception] = []
        for candidate in choice.candidates:
            if runs and not tuned:
                break
            try:
                runs.append(load(candidate))
                measured.append(candidate)
            except Exception as e:
                failures.append(self._left_out(e))
        if not runs and all(isinstance(e, InternalError) for e in failures):
            raise InternalError.of(f"No kernel for {self.label} can be used; the log says why")
        if not runs:
            return None
        best = 0
        if len(runs) > 1:
            with device.entered():
                device.must_run("measuring candidates")
                trial = [device.empty(shape, dtype, self.label) for shape, dtype in choice.outputs]
                addresses = [x.pointer for x in arrays] + [y.pointer for y in trial]
                about = ",".join(f"{n}={1 << max(v - 1, 0).bit_length()}" for n, v in choice.sizes.items())
                texts = hashlib.sha256(repr([c.launches for c in measured]).encode()).hexdigest()[:16]
                try:
                    best = fastest(device, f"{texts}; {about}", [partial(run, addresses, self.label) for run in runs])
                except (CudaError, NotSuitableError) as e:
                    self._left_out(e)
                    return None  # none could be launched
        if setting("DOVETAIL_PASSES"):
            sizes = ", ".join(f"{n}={v}" for n, v in choice.sizes.items())
            logger.warning("%s for %s: %s, of %d candidates", self.label, sizes, measured[best], len(choice.candidates))
        others = [c for c in choice.candidates if c is not measured[best]]
        return _Ready(runs[best], choice.outputs, [partial(load, c) for c in others])

    def _left_out(self, failure: Exception) -> Exception:
        """Log that a candidate failed so, and give its error back; raise it if no other candidate may run."""
        if not leaves_others(failure):
            raise failure
        logger.warning("%s: a candidate is left out: %s", self.label, failure)
        return failure

    def _run_another(self, ready: _Ready, failure: Exception, addresses: Sequence[int]) -> bool:
        """Run another candidate in place of one whose launch the driver refused; False: there is none.

        Raises:
            CudaError: the GPU itself has failed, or a graph is being captured, which has failed then.
        """
        if self.device.captures_here:
            raise failure
        self._left_out(failure)
        while ready.others:
            try:
                ready.run = ready.others.pop(0)()
                ready.run(addresses, self.label)
            except Exception as e:
                self._left_out(e)
            else:
                return True
        return False


def loaded(device: Device, routine: Routine, names: Sequence[str], sizes: Mapping[str, int]) -> LoadedRoutine:
    """A routine for these sizes, with kernels compiled and loaded, once per device; the arguments are those of `LoadedRoutine`."""
    for kernel in (launch.kernel for launch in routine.launches):
        if kernel not in device.loaded:
            device.loaded[kernel] = LoadedKernel(device, compile.compile_kernel(kernel, device.target))
    return LoadedRoutine(device, routine, [device.loaded[launch.kernel] for launch in routine.launches], names, sizes)


class FusedGpuKernel(GpuKernel):
    """A fused group. Of variables that it looks rows up in, it takes the values of that time."""

    def __init__(self, gpu: GpuContext, group: FusedKernel, context_of: ContextOf | None = None) -> None:
        tensors = (*group.inputs, *group.shapes)
        super().__init__(gpu, group.nodes[-1].name, tensors, loops_template(group), self.on_host)
        self.group = group
        self._reference = references_of(group, context_of)
        self._context_of = context_of
        self._variables = tuple(i for i, t in enumerate(group.inputs) if t.dtype is resource)

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
        """Raise InternalError, which names the first node that differs, unless the references give the same."""

        def run(part: FusedKernel, values: Sequence[Any]) -> tuple[Any, Any]:
            kernel = FusedGpuKernel(self.gpu, part, self._context_of)
            kernel.checked = False
            return np.asarray(GpuKernel.__call__(kernel, *values)), np.asarray(kernel.on_host(*values))

        given = list(map(on_host, inputs))
        made = list(map(np.asarray, outputs))
        compare_fused("The GPU's fused kernel", self.group, given, made, self.on_host(*inputs), run)


def loops_template(group: FusedKernel) -> Template:
    """The template of a fused kernel: routines for its loops. It launches nothing where the sizes are not as fusion assumed."""

    def choose(shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        sized = group.sized(shapes, others)
        if sized is None:
            return None
        names = dict(zip(size_names(group.loops), sized.loops, strict=True)) | sized.numbers
        names |= {rows_in(f"out{i}"): count for i, count in sized.rows.items()}
        elements = math.prod(sized.outputs[0][0]) if sized.rows else 0
        return Choice(fused(group.loops, sized.loops, elements), names | {"elements": elements}, sized.outputs)

    return Template(len(group.inputs), choose)
