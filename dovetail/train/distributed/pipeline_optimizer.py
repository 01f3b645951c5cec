"""Pipeline-parallel training: devices process different micro-batches of a batch at the same time.

The nodes from the inputs to the loss are divided into stages by device. They are built again for each micro-batch and differentiated stage
by stage, so each pass through a stage has its own nodes. Control edges between passes make each device follow the schedule
(`placer/schedule/pipeline_parallel.py`). Gradients are accumulated over the micro-batches, and the wrapped optimizer applies them once. So
a step equals a step on the whole batch, up to rounding. All micro-batches share the nodes that do not depend on the inputs, such as reads
of variables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ...graph.core.build import constant, convert
from ...graph.core.frames import has_control_flow
from ...graph.core.graph import Node, Tensor
from ...graph.gradients.reverse import gradients, sum_slices
from ...graph.ops.array.concat_stack import split
from ...graph.ops.array.identity_and_placeholders import no_op
from ...graph.ops.math.arithmetic import add, add_n, multiply
from ...graph.tensors.indexed_slices import IndexedSlices
from ...graph.variables.store import trainable_variables
from ...placer.schedule.pipeline_parallel import PIPELINES, SCHEDULES, Pass, Pipeline, on_a_clock, stages_of
from ..optimizers.optimizer import Optimizer, WrapperOptimizer, flatten_variables

if TYPE_CHECKING:
    from ...placer.plan import Plan


# The distance between the seeds of micro-batches. It is larger than the number of random ops in a graph, whose seeds are consecutive.
_SEED_STEP = 104_729
_LARGEST_SEED = 2**31 - 1


class PipelineOptimizer(WrapperOptimizer):
    """Wraps an optimizer. Its steps run as a pipeline of micro-batches over the devices of the model.

    Each device has one stage of the model, and values must pass the devices in one direction. A node without a requested device belongs to
    the stage of its newest input.

    Args:
        opt: the optimizer that applies the gradients.
        inputs: the tensors that hold a batch along their first axis, such as placeholders or outputs of an iterator.
        micro_batches: number of micro-batches; the batch size must be a multiple of it.
        schedule: `1f1b` or `gpipe`, which is as fast but needs more memory for activations.
        plan: a plan of the model (`dt.place(..., fetches=loss)`). Its devices become the requested devices of nodes and variables. None:
            the requested devices are unchanged.
        reduction: whether the loss is the `mean` or the `sum` over its batch.
        name: scope of its nodes.

    Attributes:
        pipeline: the last pipeline that was built; print it to see the schedule.
        loss: the loss of the whole batch, a scalar. Fetch it: fetching the model's loss would compute it again.

    Raises:
        ValueError: the schedule or reduction is unknown, there are no inputs, or `micro_batches` is below 1.

    >>> optimizer = dt.train.PipelineOptimizer(dt.train.AdamOptimizer(1e-3), inputs=[images, labels], micro_batches=8)
    >>> train_op = optimizer.minimize(loss)
    >>> session.run([train_op, optimizer.loss], {images: ..., labels: ...})
    """

    def __init__(
        self,
        opt: Optimizer,
        inputs: Sequence[Tensor],
        micro_batches: int,
        schedule: str = "1f1b",
        plan: Plan | None = None,
        reduction: str = "mean",
        name: str = "pipeline",
    ) -> None:
        super().__init__(opt, False, name)
        if schedule not in SCHEDULES:
            raise ValueError(f"There is no pipeline schedule {schedule!r}. Schedules: {', '.join(SCHEDULES)}")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"The loss must be the 'mean' or the 'sum' of its batch, not {reduction!r}")
        if micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, not {micro_batches}")
        if not inputs:
            raise ValueError("A pipeline needs the tensors that hold the batch: inputs=[images, labels]")
        self._inputs = list(inputs)
        self._micro_batches, self._schedule = micro_batches, schedule
        self._plan, self._reduction = plan, reduction
        self.pipeline: Pipeline | None = None
        self.loss: Tensor | None = None

    def compute_gradients(
        self,
        loss: Tensor | Callable[[], Tensor],
        var_list: Any = None,
        gate_gradients: int = Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Any, Any]]:
        """Returns pairs of gradient and variable, for the loss of the whole batch.

        Args:
            loss: a scalar, the mean or the sum over a batch.
            var_list: the variables to update; None: all trainable variables.
            gate_gradients: accepted without effect.
            aggregation_method: accepted without effect.
            colocate_gradients_with_ops: accepted without effect.
            grad_loss: gradient of the loss, a number; None: 1.

        Raises:
            ValueError: the loss is not a scalar or does not depend on the inputs, the batch size is not a multiple of `micro_batches`,
                values pass the devices in both directions, or the model has loops, branches or nodes that need the whole batch.
        """
        if callable(loss):
            loss = loss()
        if loss.dims not in ((), None):
            raise ValueError(f"The loss must be a scalar, the mean or the sum over a batch, not {loss!r}")
        graph = loss.graph
        with graph.as_default(), graph.control_dependencies(None):
            variables = flatten_variables(trainable_variables() if var_list is None else var_list)
            if not variables:
                raise ValueError("No variables to optimize.")
            with graph.name_scope(self._name) as scope:
                weight = 1.0 / self._micro_batches if self._reduction == "mean" else 1.0
                built = _Builder(loss, self._inputs, variables, self._micro_batches, self._plan)
                self.pipeline = built.build(scope.rstrip("/"), self._schedule, weight, grad_loss)
                found = built.totals()
                self.loss = built.total_loss(weight)
        graph.add_to_collection(PIPELINES, self.pipeline)
        return list(zip(found, variables, strict=True))


class _Builder:
    """Builds the passes of one model. A tensor of the model has a copy in each micro-batch."""

    def __init__(
        self, loss: Tensor, inputs: Sequence[Tensor], variables: Sequence[Any], count: int, plan: Plan | None
    ) -> None:
        self.graph, self.loss, self.variables, self.count = loss.graph, loss, variables, count
        self.inputs = list(dict.fromkeys(inputs))
        _check_batch_sizes(self.inputs, count)
        self.stages = stages_of(*_forward(loss, self.inputs, plan))
        self.stage = {node: s for s, (_, nodes) in enumerate(self.stages) for node in nodes}
        self.taken: list[list[Tensor]] = [  # the inputs of each stage from earlier stages
            list(
                dict.fromkeys(
                    t for n in nodes for t in n.inputs
                    if t not in self.inputs and self.stage.get(t.op, s) != s
                )
            )
            for s, (_, nodes) in enumerate(self.stages)
        ]  # fmt: skip
        self.used = [_variables_used(nodes, variables, self.stage) for _, nodes in self.stages]
        self.pieces: dict[tuple[Tensor, int], list[Tensor]] = {}
        self.values: list[dict[Tensor, Tensor]] = [{} for _ in range(count)]  # tensor of the model -> its copy
        self.nodes: list[dict[Node, Node]] = [{} for _ in range(count)]
        self.flows_back: list[dict[Tensor, list[Any]]] = [defaultdict(list) for _ in range(count)]
        # (variable, stage) -> its accumulated gradients. Slices are not added up.
        self.sums: dict[tuple[int, int], list[Any]] = {}
        self.last: list[Node | None] = [None] * len(self.stages)  # the last node of a stage's latest pass

    def build(self, name: str, schedule: str, weight: float, grad_loss: Any) -> Pipeline:
        """Builds all passes, each after the passes that it depends on."""
        pipeline = Pipeline(name, schedule, self.count, tuple(device for device, _ in self.stages))
        for stage, what, _, _ in on_a_clock(pipeline.passes):
            with self._pass(stage, what):
                if what.kind == "F":
                    self._go_forward(stage, what.micro_batch)
                else:
                    self._go_back(stage, what.micro_batch, weight, grad_loss)
        return pipeline

    @contextmanager
    def _pass(self, stage: int, what: Pass) -> Iterator[None]:
        """A block whose nodes form one pass. They run on the stage's device, after its previous pass."""
        graph, first = self.graph, len(self.graph.nodes)
        with self._on(stage), graph.name_scope(f"{what.kind}_{stage}_{what.micro_batch}"):
            before = self.last[stage]
            with graph.control_dependencies([] if before is None else [before]):
                yield
            made = graph.nodes[first:]
            needed = {b for n in made for b in n.before}
            with graph.control_dependencies([n for n in made if n not in needed]):
                self.last[stage] = no_op("done")

    @contextmanager
    def _on(self, stage: int) -> Iterator[None]:
        device = self.stages[stage][0]
        with self.graph.device(None), self.graph.device(device or None):
            yield

    def _go_forward(self, stage: int, m: int) -> None:
        nodes, values, graph = self.nodes[m], self.values[m], self.graph
        for node in self.stages[stage][1]:
            taken = [self._value(t, m, stage) for t in node.inputs]
            with ExitStack() as blocks:
                if node.control_inputs:
                    blocks.enter_context(graph.control_dependencies([nodes.get(c, c) for c in node.control_inputs]))
                if node.colocation:
                    places = [graph.get_operation_by_name(name) for name in node.colocation]
                    for place in places:
                        blocks.enter_context(graph.colocate_with(nodes.get(place, place)))
                try:
                    made = graph.create(node.opdef, taken, _attrs_in(node, m), node.name, origin=node._origin)
                except (TypeError, ValueError) as e:
                    raise ValueError(
                        f"'{node.name}' ({node.type}), created at {node.source}, does not fit a micro-batch: {e}\n"
                        "The model of a pipeline must take the batch size from its inputs. Use -1 in reshapes, or dt.shape(x)[0]."
                    ) from e
            nodes[node] = made
            values.update(zip(node.outputs, made.outputs, strict=True))

    def _value(self, tensor: Tensor, m: int, stage: int) -> Tensor:
        """The copy of a tensor of the model in a micro-batch."""
        if tensor in self.inputs:
            key = tensor, stage
            if (
                key not in self.pieces
            ):  # split it on each device that needs it, so that a fed value is sent to that device directly
                with self.graph.control_dependencies(None), self.graph.name_scope(None), self._on(stage):
                    self.pieces[key] = split(tensor, self.count, 0, name=f"{tensor.op.name}_micro_batches")
            return self.pieces[key][m]
        return self.values[m].get(tensor, tensor)

    def _go_back(self, stage: int, m: int, weight: float, grad_loss: Any) -> None:
        values, flows_back = self.values[m], self.flows_back[m]
        made = [t for n in self.stages[stage][1] for t in n.outputs if t in flows_back]
        ys, weights = [values[t] for t in made], [_sum(flows_back.pop(t)) for t in made]
        if self.stage[self.loss.op] == stage:
            ys.append(values[self.loss])
            weights.append(constant(weight, self.loss.dtype.base) * (1.0 if grad_loss is None else grad_loss))
        if not ys:
            return
        taken = [t for t in self.taken[stage] if t.dtype.is_floating or t.dtype.is_complex]
        before = [values[t] for t in taken]
        used = self.used[stage]
        found = gradients(ys, [*before, *(self.variables[v] for v in used)], weights, stop_gradients=before)
        for t, grad in zip(taken, found, strict=False):
            if grad is not None:
                flows_back[t].append(grad)
        for v, grad in zip(used, found[len(taken) :], strict=True):
            if grad is not None:
                sums = self.sums.setdefault((v, stage), [])
                if sums and not isinstance(grad, IndexedSlices) and not isinstance(sums[-1], IndexedSlices):
                    sums[-1] = add(sums[-1], grad, name="accumulate")
                else:
                    sums.append(grad)

    def totals(self) -> list[Any]:
        """Returns the gradient of each variable, or None."""
        parts: list[list[Any]] = [[] for _ in self.variables]
        for (v, stage), sums in sorted(self.sums.items(), key=lambda item: item[0]):
            with self._on(stage):
                parts[v].append(_sum(sums))
        return [_sum(found) if found else None for found in parts]

    def total_loss(self, weight: float) -> Tensor:
        """Returns the loss of the whole batch."""
        with self._on(self.stage[self.loss.op]):
            return multiply(add_n([values[self.loss] for values in self.values]), weight, name="loss")


def _forward(loss: Tensor, inputs: Sequence[Tensor], plan: Plan | None) -> tuple[list[Node], Any]:
    """Returns the nodes between the inputs and the loss, and a function from each of them to its requested device."""
    graph = loss.graph
    needed: set[Node] = set()
    todo = [loss.op]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += [t.op for t in node.inputs if t not in inputs] + list(node.control_inputs)
    if plan is not None:
        for node in needed:
            if not node.colocation:  # colocated nodes follow
                node._set_device(plan.placement.get(node.name, node.device))
    found: dict[Node, str] = {}
    for node in sorted(needed, key=lambda n: n.index):
        behind = [t.op for t in node.inputs if t.op in found]
        if not behind and not any(t in inputs for t in node.inputs):
            continue
        if node.colocation:
            device = graph.get_operation_by_name(node.colocation[0]).device
        else:
            device = node.device or (found[max(behind, key=lambda n: n.index)] if behind else "")
        found[node] = device
    if loss.op not in found:
        raise ValueError(f"The loss {loss!r} does not depend on the inputs {', '.join(t.name for t in inputs)}")
    if has_control_flow(found):
        raise ValueError("The model of a pipeline must not have loops or branches between the inputs and the loss")
    return list(found), found.__getitem__


def _attrs_in(node: Node, m: int) -> dict[str, Any]:
    """Returns a node's attributes in a micro-batch. A random op has another seed in each micro-batch."""
    attrs = dict(node.attrs)
    if attrs.get("seed") or attrs.get("seed2"):
        attrs["seed2"] = (attrs["seed2"] + m * _SEED_STEP) % _LARGEST_SEED
    return attrs


def _variables_used(nodes: Sequence[Node], variables: Sequence[Any], forward: dict[Node, int]) -> list[int]:
    """Returns the indices of the variables that a stage uses, directly or through nodes that belong to no stage."""
    seen: set[Node] = set()
    todo = [t.op for n in nodes for t in n.inputs if t.op not in forward]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [t.op for t in node.inputs if t.op not in forward]
    return [v for v, variable in enumerate(variables) if variable._ref().op in seen]


def _check_batch_sizes(inputs: Sequence[Tensor], count: int) -> None:
    for t in inputs:
        if t.dims == ():
            raise ValueError(f"{t!r} has no first axis that could hold a batch")
        if t.dims is not None and t.dims[0] is not None and t.dims[0] % count:
            raise ValueError(
                f"A batch of {t.dims[0]} cannot be divided into {count} micro-batches of equal size: {t!r}, created at {t.op.source}"
            )


def _sum(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(p, IndexedSlices) for p in parts):
        return sum_slices(parts)
    return add_n([convert(p) for p in parts])
