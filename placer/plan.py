"""The plan of a step: where every node runs, why, and what crosses between devices.

A plan is a value. It can be made without any server running, from a graph and a description of a cluster; a
session makes the same plan from the same inputs before it runs a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from ..graph.core.argument_names import no_attribute
from ..graph.core.device import DeviceName, DeviceSpec
from ..graph.core.dtypes import bfloat16
from ..graph.core.errors import InvalidArgumentError
from ..graph.core.graph import Graph, Node, Tensor
from ..graph.core.opdef import Cost
from ..graph.core.shape import Dims
from .cluster.spec import Cluster
from .cost.launches import Launch
from .cost.profile import Profile, as_profile
from .cost.shapes import Sizes, batch_misfit, batch_shapes, given_shapes, in_full, plan_sizes, resized
from .cost.static import DeviceLoad, Traffic, device_loads, repeated, traffic, work
from .partition.control_edges import passed_over
from .partition.control_flow_placement import MOVES_TO_DATA, is_moved_to_data
from .partition.insert_channels import is_copied
from .partition.one_sided_access import SHARED, OneSidedAccess
from .partition.one_sided_accumulates import added_to
from .partition.one_sided_reads import place_at
from .partition.one_sided_updates import moved_parts
from .partition.partition import partition
from .partition.partitioned_graph import Channel, Partition, Partitioned, task_of
from .partition.prune import needed
from .render.text import short, size_text
from .rules.placement import Placement, Relaxation, Rule
from .search.problem import Solution
from .serialize.write import write_plan
from .simulate import Timeline, simulate
from .views.compare import Comparison, compare
from .views.diagram import to_dot, to_svg
from .views.diff import PlanDiff, diff
from .views.evaluation import Evaluation, alternatives_text, evaluate
from .views.facts import without_compiling
from .views.lint import check
from .views.plan_page import notebook_html, write_html
from .views.plan_warning import PlanWarning
from .views.report import render
from .views.scale import BatchScaling, scaled

tools: dict[str, Callable[..., Any]] = {}
"""What others know of a plan: "kernels" and "launches" come from the runtime, which knows placer and code generator both;
"place" comes from the pipeline."""


@dataclass(frozen=True, eq=False)  # no slots: the cached views live in the instance
class Plan:
    """What a step will do. `print(plan)` shows it.

    Attributes:
        graph: the graph.
        cluster: the devices.
        decisions: the device of every node of the graph, with the decision behind each.
        partitioned: what each device runs in this step.
        fetches: names of the tensors that the step returns.
        targets: names of the nodes that it runs for their effect.
        feeds: names of the tensors that it is given.
        sizes: the shapes and sizes of its values: those of the graph, made complete by the shapes that were given.
        solution: what a search found, with its predicted time, lower bound and history; None where the rules
            placed, and in a plan that was read from a file.
        access: which tasks use the memory of others in this step, as assumed or as found (`one_sided_access.py`).
    """

    graph: Graph
    cluster: Cluster
    decisions: Placement
    partitioned: Partitioned
    fetches: tuple[str, ...]
    targets: tuple[str, ...]
    feeds: tuple[str, ...]
    sizes: Sizes = field(default_factory=Sizes)
    solution: Solution | None = None
    access: OneSidedAccess = OneSidedAccess()

    if not TYPE_CHECKING:  # to a type checker an unknown attribute is an error

        def __getattr__(self, name: str) -> Never:
            """An attribute that a plan does not have: the error says what to use."""
            raise no_attribute(
                self, name, dict.fromkeys(("draw", "plot", "show", "summary"), "print(plan), or plan.to_html(path)")
            )

    @cached_property
    def requested(self) -> dict[str, str]:
        """Node name -> what it asks for, canonical; '' when it asks for nothing. All nodes of the graph."""
        return {n.name: n.device for n in self.decisions}

    @cached_property
    def placement(self) -> dict[str, str]:
        """Node name -> complete device name. All nodes of the graph, also those the step does not run."""
        return self.decisions.as_dict()

    @property
    def partitions(self) -> dict[str, Partition]:
        """Device -> what it runs, in order."""
        return self.partitioned.partitions

    @property
    def channels(self) -> list[Channel]:
        """What crosses between devices."""
        return self.partitioned.channels

    @cached_property
    def relaxations(self) -> tuple[Relaxation, ...]:
        """The requests that are not met, each with the reason."""
        return self.decisions.relaxations

    @cached_property
    def unknown_sizes(self) -> tuple[Tensor, ...]:
        """The tensors whose shapes would have to be given for all sizes of this step to be known, in order of creation; () if they are."""
        nodes = sorted({n for p in self.partitions.values() for n in p.nodes}, key=lambda n: n.index)
        return self.sizes.unknown(nodes, {self.graph.get_tensor_by_name(name) for name in self.feeds})

    @cached_property
    def cost(self) -> dict[str, Cost]:
        """Device -> arithmetic operations and memory traffic of one step; unknown sizes count as 1."""
        return {device: work(p.nodes, self.sizes.cost) for device, p in self.partitions.items()}

    @cached_property
    def loads(self) -> list[DeviceLoad]:
        """What each device holds and does: one row for each that runs or holds something, by name."""
        held = ((self.decisions.device_of(n), n) for n in self.decisions)
        return device_loads(self.partitions, held)

    @cached_property
    def traffic(self) -> list[Traffic]:
        """What crosses from device to device in one step, most bytes first; loops count as one iteration."""
        return traffic(self.channels, repeated(self.partitions.values()))

    @cached_property
    def moved_parts(self) -> dict[str, str]:
        """Task -> the device of another task that runs its part of the step, in its memory (*direct updates*)."""
        return moved_parts(self.partitions, self.decisions.device_of)

    @cached_property
    def added_to(self) -> dict[Node, str]:
        """The accumulators to which other tasks than their own add, in their memory (*direct additions*), and these additions: each
        with the device that does."""
        return added_to(self.partitions, self.decisions.device_of)

    def explain(self, name: str | Node | Tensor) -> str:
        """Why a node is where it is, and where its values go. KeyError when there is no such node.

        The text gives its request, each device block around it with its source line, its colocation group,
        the candidates, what dropped each other device, and the rule that chose.
        """
        node = self._node(name)
        lines = [self.decisions.explain(node)]
        if is_moved_to_data(node) and node in self.decisions:
            runs_on = next((d for d, p in self.partitions.items() if node in p.nodes), None)
            if runs_on not in (None, self.decisions.device_of(node)):
                data = "what it passes on" if node.type in MOVES_TO_DATA else "the first that takes what it passes on"
                lines.append(f"  runs on {runs_on}, beside {data}: a {node.type} elsewhere would cost a message")
        by = self.moved_parts.get(task_of(self.decisions.device_of(node))) if node in self.decisions else None
        by = self.added_to.get(node, by)
        if by is not None and node in self.partitions[by].nodes:
            home = task_of(self.decisions.device_of(node))
            lines.append(f"  run by {short(by)} in the memory of {short(home)}, without a message ({self.access.how})")
        if is_copied(node) and node in self.decisions:
            home = self.decisions.device_of(node)
            copies = [short(d) for d, p in self.partitions.items() if d != home and node in p.nodes]
            if copies:
                lines.append(f"  copied to {', '.join(copies)}: so small a constant is not sent")
        if node in self.decisions and self.decisions.decision(node).rule is Rule.SEARCHED:
            lines += alternatives_text(self, node.name)
        if node.type in SHARED and node in self.decisions:
            lines += [f"  {text}" for text in self._refusals(node)]
        values = {t.name for t in node.outputs} | {f"^{node.name}"}
        for c in self.channels:
            if c.name in values:
                how = "the pace" if c.paces else "control edge" if c.control else size_text(c.bytes, c.is_exact)
                if c.dtype is bfloat16 and not any(t.name == c.name and t.dtype.base is bfloat16 for t in node.outputs):
                    how += " as bfloat16"
                often = f", once per iteration of '{c.loop}'" if c.loop is not None else ""
                if c.direct:
                    lines.append(
                        f"  read as {c.name} ({how}) by {short(c.destination)} in the memory of {short(c.source)} ({self.access.how})"
                    )
                else:
                    lines.append(f"  sent as {c.name} ({how}{often}) {short(c.source)} -> {short(c.destination)}")
        return "\n".join(lines)

    def _refusals(self, node: Node) -> Iterator[str]:
        """Why other tasks do not use a variable or accumulator in its task's memory."""
        owner, _, name = place_at(node, self.decisions.device_of(node))
        for r in self.access.refusals(owner, name):
            if r.variable:
                yield f"{short(r.task)} does not use it in memory: {short(r.owner)} does not publish it ({self.access.how})"
            else:
                yield f"{short(r.task)} does not use it in memory: it does not reach that of {short(r.owner)} ({self.access.how})"

    def why_not(self, name: str | Node | Tensor, device: str) -> str:
        """Why a node is not on a device, which may be named in part (`/job:ps/task:0`).

        Raises:
            KeyError: there is no such node. InvalidArgumentError: not one device of the cluster has that
                name.
        """
        node = self._node(name)
        decision = self.decisions.decision(node)
        name = str(_device(device, self.cluster))
        if name == decision.chosen:
            return f"'{node.name}' is on {name}: {decision.rule.text}"
        for r in decision.rejected:
            if r.device == name:
                return f"'{node.name}' cannot be on {name}: {r.reason}"
        return f"'{node.name}' could be on {name}, but got {decision.chosen}: {decision.rule.text}"

    def kernels(self, device: str, config: Any = None) -> Any:
        """What a device's part of the step is compiled to: a `codegen.explain.DeviceKernels`, which prints.

        It is a sequence of kernels. Each has the `nodes` in it, `bytes_read`, `bytes_written` and `flops`, and its
        `source` text. Nothing is compiled.

        Args:
            device: may be named in part (`cpu:0`).
            config: a `ConfigProto`, for how kernels are made; None: as a session without one makes them.

        Raises:
            InvalidArgumentError: not one device of the cluster has that name, or the step runs nothing there.
        """
        return tools["kernels"](self, str(_device(device, self.cluster)), config)

    def launches(self, device: str) -> Sequence[Launch]:
        """The kernels that a device's program calls, in order, as the compiler fuses them; empty where no compiler is loaded."""
        if device not in self._launches and "launches" in tools:
            self._launches[device] = tools["launches"](self, device)
        return self._launches.get(device, ())

    @cached_property
    def _launches(self) -> dict[str, Sequence[Launch]]:
        return {}

    def why_not_fused(self, a: str | Node | Tensor, b: str | Node | Tensor) -> str:
        """Why two nodes are not in one kernel, or in which one they are. KeyError when the step does not run one."""
        one, other = self._node(a), self._node(b)
        where = {n: device for device, p in self.partitions.items() for n in p.nodes}
        for n in (one, other):
            if n not in where:
                raise KeyError(f"The step does not run '{n.name}'")
        if where[one] != where[other]:
            return f"'{one.name}' is on {where[one]}, '{other.name}' on {where[other]}"
        text: str = self.kernels(where[one]).why_not_fused(one.name, other.name)
        return text

    def diff(self, other: Plan) -> PlanDiff:
        """What changes from this plan to another: nodes that moved, traffic, state. Nodes match by name. TypeError: it is no plan."""
        if not isinstance(other, Plan):
            raise TypeError(f"other must be a plan, not {other!r}")
        return diff(self, other)

    def at(self, batch: int | None = None, *, shapes: Mapping[Any, Any] | None = None) -> Plan:
        """This plan for other sizes: the same placement and partition, with other predictions. Nothing is placed or searched again.

        Args:
            batch: the first size of everything fed, and of batches from data sets, where the graph leaves it open.
            shapes: tensors or their names -> shapes; they count before `batch`. `x` also names what is fed as `f/arguments/x`.

        Raises:
            ValueError: no first size is open; a shape contradicts the graph, or a node cannot take it. TypeError: `batch` is no whole
                number. KeyError: there is no such tensor.

        >>> print(dt.place(graph, {"ps": 1, "worker": 2}, fetches=loss).at(batch=64).report())
        """
        nodes = [n for p in self.partitions.values() for n in p.nodes]
        given = dict(self.sizes.given)
        feeds = [self.graph.get_tensor_by_name(n) for n in self.feeds]
        set_here = {} if batch is None else batch_shapes(nodes, feeds, given, batch)
        given.update(set_here)
        if isinstance(shapes, Mapping):
            shapes = {in_full(name, feeds, self.graph): dims for name, dims in shapes.items()}
        given.update(given_shapes(self.graph, shapes=shapes))
        plan = self.resized(given)
        if plan.sizes.misfit and set_here:
            raise ValueError(batch_misfit(plan.sizes, batch, list(map(self.graph.get_tensor_by_name, set_here))))
        plan.sizes.checked()
        return plan

    def all_on(self, device: str) -> Plan:
        """This step with all of it on one device, whatever its nodes ask for: what predictions compare with."""
        tensors = [self.graph.get_tensor_by_name(name) for name in self.fetches]
        targets = [self.graph.get_operation_by_name(name) for name in self.targets]
        feeds = [self.graph.get_tensor_by_name(name) for name in self.feeds]
        nodes, decisions = needed(self.graph, tensors, targets, feeds), self.decisions.all_on(device)
        passed = passed_over(nodes, decisions.device_of)
        cut = partition(nodes, decisions.device_of, feeds=feeds, fetches=tensors, passed=passed)
        return replace(self, decisions=decisions, partitioned=cut, solution=None, access=OneSidedAccess())

    def resized(self, given: Mapping[str, Dims]) -> Plan:
        """This plan for these shapes, by tensor name; what a node cannot take is left unknown."""
        sizes = plan_sizes([n for p in self.partitions.values() for n in p.nodes], given)
        if sizes.given == self.sizes.given:
            return self
        return replace(self, partitioned=resized(self.partitioned, sizes), sizes=sizes, solution=None)

    def scale(
        self,
        batch: int | Iterable[int],
        *,
        costs: Profile | str | os.PathLike[str] | None = None,
        contended: bool = True,
    ) -> BatchScaling:
        """Predicted time, memory and traffic for several batch sizes: `at(batch=...)` of each, as a table.

        Args:
            batch: a size, or several, from 1 on. costs, contended: as `simulate` takes them.

        Raises:
            TypeError, ValueError: `batch` has no sizes, or as of `at`.

        >>> print(plan.scale(batch=[1, 16, 256, 4096]))
        """
        sizes = list(batch) if isinstance(batch, Iterable) and not isinstance(batch, str) else [batch]
        if not sizes:
            raise ValueError("batch must be at least one batch size, such as [1, 16, 256]")
        return BatchScaling(tuple(scaled(size, self.at(batch=size), as_profile(costs), contended) for size in sizes))

    def simulate(
        self, *, contended: bool = True, costs: Profile | str | os.PathLike[str] | None = None, client: bool = False
    ) -> Timeline:
        """One step on a clock: when each node and transfer runs, the critical path, memory. The arguments are those of `dt.simulate`.

        >>> print(plan.simulate())
        """
        return simulate(self, contended=contended, costs=costs, client=client)

    def report(
        self, *, costs: Profile | str | os.PathLike[str] | None = None, contended: bool = True, client: bool = False
    ) -> Evaluation:
        """What the plan is worth: predicted time, a lower bound and the gap, what limits it, what else one could do.

        The arguments are those of `simulate`.

        >>> print(plan.report())
        """
        with without_compiling(self):
            return evaluate(self, costs, contended=contended, client=client)

    def compare(self, trace: Any, *, costs: Profile | str | os.PathLike[str] | None = None) -> Comparison:
        """Prediction against measurement: each kernel, each transfer, each device, the step.

        Args:
            trace: of a step (`run_metadata`, or its `trace`), or a `Timeline`.
            costs: as `simulate` takes them.

        Raises:
            TypeError: `trace` is nothing of that; the step was not traced.

        >>> print(session.last_plan.compare(run_metadata.trace))
        """
        return compare(self, trace, as_profile(costs))

    def check(self, fix: bool = False) -> list[PlanWarning]:
        """Warnings about what a better plan would not do, each with the line of the program and the change that mends it.

        Args:
            fix: also make the plan with each change (`warning.fixed`), and say what it gains. A change that cannot be applied to
                a plan says why.

        Returns:
            The warnings, those that cost the most bytes first.

        >>> for warning in plan.check(fix=True):
        ...     print(warning)
        """
        return check(self, tools["place"] if fix else None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as text (`serialize/write.py` has the form). The file appears whole or not at all."""
        write_plan(self, Path(path))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Read a plan that `save` wrote. It prints, explains and compares as before.

        Its graph can be looked at and placed again, but not run: most constants' values are not kept.

        Raises:
            InvalidArgumentError: the file is damaged, or no plan. OSError: it cannot be read.
        """
        from .serialize.read import read_plan  # msgspec: most programs read no plans

        return Plan(**read_plan(Path(path))._asdict())

    def to_dot(self) -> str:
        """The plan in Graphviz's language."""
        return to_dot(self)

    def to_svg(self, graphviz: bool | None = None) -> str:
        """The plan as one `<svg>` element, drawn by Graphviz where it is installed, unless `graphviz` says.

        Raises:
            FileNotFoundError: Graphviz was asked for and is not installed.
        """
        return to_svg(self, graphviz)

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "",
        measured: Any = None,
        before: Plan | None = None,
        costs: Profile | str | os.PathLike[str] | None = None,
    ) -> None:
        """Write one self-contained page that shows the plan and opens without a network.

        Args:
            path: the file; an existing one is replaced.
            title: of the browser's tab.
            measured: a trace of the step (`run_metadata.trace`), to show beside the prediction.
            before: a plan of the same program, to show beside this one.
            costs: what the prediction rests on, as `simulate` takes it.

        Raises:
            OSError: the file cannot be written.

        >>> plan.to_html("plan.html", before=dt.Plan.load("yesterday.plan"))
        """
        write_html(self, path, title, kernels=self._kernels, measured=measured, before=before, costs=as_profile(costs))

    @property
    def _kernels(self) -> Callable[[str], Any] | None:
        """A device's kernels; None where no compiler is loaded."""
        return self.kernels if "kernels" in tools else None

    def to_networkx(self) -> Any:
        """A `networkx.MultiDiGraph` of the nodes that the step runs.

        Vertices are node names, with `op`, `device` and `requested`. Edges have `name` (the tensor, or
        `^node`), `control`, and `crosses` (whether source and destination are on different devices).
        """
        import networkx as nx

        out: Any = nx.MultiDiGraph()
        where = {n.name: device for device, p in self.partitions.items() for n in p.nodes}
        for p in self.partitions.values():
            for n in p.nodes:
                out.add_node(n.name, op=n.type, device=p.device, requested=n.device)
        for p in self.partitions.values():
            for n in p.nodes:
                for before, name in [
                    *((t.op, t.name) for t in n.inputs),
                    *((c, f"^{c.name}") for c in n.controls),
                ]:
                    if before.name in where and name not in self.feeds:
                        crosses = where[before.name] != p.device
                        out.add_edge(before.name, n.name, name=name, control=name[0] == "^", crosses=crosses)
        return out

    def _node(self, name: str | Node | Tensor) -> Node:
        element = self.graph.as_graph_element(name)
        return element.op if isinstance(element, Tensor) else element

    def __str__(self) -> str:
        return render(self)

    def _repr_html_(self) -> str:
        return notebook_html(self, self._kernels)

    def _repr_svg_(self) -> str:
        return to_svg(self, graphviz=False)

    def __repr__(self) -> str:
        return (
            f"<dt.Plan of {len(self.decisions)} nodes, {len(self.partitions)} partitions, "
            f"{len(self.channels)} channels>"
        )


def _device(name: str, cluster: Cluster) -> DeviceName:
    """The one device of the cluster that a name, which may be partial, stands for."""
    found = cluster.matching(DeviceSpec.from_string(name))
    if len(found) != 1:
        listed = ", ".join(map(str, found or cluster.devices))
        raise InvalidArgumentError(
            None,
            None,
            f"'{name}' names {'several devices' if found else 'no device'} of the cluster: {listed}",
        )
    return found[0].name
