"""The plan of a step: the device of each node, the reason for it, and the transfers between devices.

A plan is a value, computed from a graph and a description of a cluster. No server need run. A session computes the same plan from the
same inputs before it runs a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from ..graph.core.argument_names import check_flags, no_attribute
from ..graph.core.device import DeviceName, DeviceSpec
from ..graph.core.dtypes import bfloat16
from ..graph.core.errors import InvalidArgumentError
from ..graph.core.graph import Graph, Node, Tensor
from ..graph.core.opdef import Cost
from ..graph.core.shape import Dims
from ..graph.core.source_location import shows_users_frames
from .cluster.spec import Cluster
from .cost.launches import Launch
from .cost.profile import Profile, as_profile
from .cost.shapes import Sizes, batch_misfit, batch_shapes, given_shapes, in_full, plan_sizes, resized
from .cost.static import DeviceLoad, Traffic, device_loads, repeated, traffic, work
from .partition.control_edges import bypassed_noops
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
"""Functions of a plan that other packages register: the runtime, which imports placer and code generator, registers "kernels" and
"launches"; the pipeline registers "place"."""


@dataclass(frozen=True, eq=False)  # no slots: the cached views live in the instance
class Plan:
    """The plan of one step: device, partition and transfers of each node. `print(plan)` shows it; `dt.place` and `Session.plan` make it.

    Attributes:
        graph: the graph.
        cluster: the devices.
        decisions: the device of every node of the graph, with the decision behind it.
        partitioned: the partition of each device in this step.
        fetches: names of the tensors that the step returns.
        targets: names of the nodes that it runs for their effect.
        feeds: names of the tensors that it is fed.
        sizes: shapes and sizes of its tensors: those of the graph, completed by the given shapes.
        solution: the result of the placement search: predicted time, lower bound and history; None if the rules placed the nodes. In a
            session it is that of the search for all nodes of the graph, after `at` that for the sizes before (`is_of_step` is False). The
            session of a compiled function has none, as it follows a search that was made before: `step.plan(...)` has it.
        access: one-sided access: which tasks read and update the memory of others in this step, as assumed or as measured.
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
        """Node name -> its requested device in canonical form, '' if it requests none. It has all nodes of the graph."""
        return {n.name: n.device for n in self.decisions}

    @cached_property
    def placement(self) -> dict[str, str]:
        """Node name -> complete device name. It has all nodes of the graph, also those that the step does not run."""
        return self.decisions.as_dict()

    @property
    def partitions(self) -> dict[str, Partition]:
        """Device -> its partition, with the nodes in execution order."""
        return self.partitioned.partitions

    @property
    def channels(self) -> list[Channel]:
        """The send/receive pairs between devices."""
        return self.partitioned.channels

    @cached_property
    def relaxations(self) -> tuple[Relaxation, ...]:
        """The device requests that soft placement did not satisfy, each with the reason."""
        return self.decisions.relaxations

    @cached_property
    def unknown_sizes(self) -> tuple[Tensor, ...]:
        """The tensors whose shapes must be given for all sizes of this step to be known, in order of creation; () if none."""
        nodes = sorted(set(self.partitioned.nodes), key=lambda n: n.index)
        return self.sizes.unknown(nodes, {self.graph.get_tensor_by_name(name) for name in self.feeds})

    @cached_property
    def cost(self) -> dict[str, Cost]:
        """Device -> operations and bytes of memory traffic of one step. Unknown sizes count as 1."""
        return {device: work(p.nodes, self.sizes.cost) for device, p in self.partitions.items()}

    @cached_property
    def loads(self) -> list[DeviceLoad]:
        """The load of each device that runs a node or stores a variable: a row for each, by name."""
        placed = ((self.decisions.device_of(n), n) for n in self.decisions)
        return device_loads(self.partitions, placed)

    @cached_property
    def traffic(self) -> list[Traffic]:
        """The bytes from device to device in one step, largest first. A loop counts as one iteration."""
        return traffic(self.channels, repeated(self.partitions.values()))

    @cached_property
    def moved_parts(self) -> dict[str, str]:
        """One-sided updates: task -> the device of another task that runs its part of the step in its memory."""
        return moved_parts(self.partitions, self.decisions.device_of)

    @cached_property
    def added_to(self) -> dict[Node, str]:
        """One-sided accumulates: accumulators that other tasks add to in their owner's memory, and these additions -> the device that
        runs the additions.
        """
        return added_to(self.partitions, self.decisions.device_of)

    @shows_users_frames
    def explain(self, name: str | Node | Tensor) -> str:
        """Explain why a node is on its device, and where its outputs are sent.

        The text has the requested device, each device block around the node with its source line, the colocation group, the
        candidates, why each other device was excluded, and the rule that chose among the candidates.

        Args:
            name: a node or tensor, or its name.

        Raises:
            KeyError: there is no such node. ValueError: it is the name of a device.
        """
        if isinstance(name, str) and name.startswith(("/job:", "/device:", "/task:")):
            raise ValueError(
                f"{name!r} is a device, and `explain` takes a node. print(plan) shows what runs on each device, plan.why_not(node, device) "
                "why a node is not on one"
            )
        node = self._node(name)
        lines = [self.decisions.explain(node)]
        if is_moved_to_data(node) and node in self.decisions:
            runs_on = next((d for d, p in self.partitions.items() if node in p.nodes), None)
            if runs_on not in (None, self.decisions.device_of(node)):
                data = "its input" if node.type in MOVES_TO_DATA else "its first consumer"
                lines.append(f"  runs on {runs_on}, with {data}: on another device it would cost a message")
        by = self.moved_parts.get(task_of(self.decisions.device_of(node))) if node in self.decisions else None
        by = self.added_to.get(node, by)
        if by is not None and node in self.partitions[by].nodes:
            home = task_of(self.decisions.device_of(node))
            lines.append(
                f"  run by {short(by)} in the shared memory of {short(home)}, without a message ({self.access.how})"
            )
        if is_copied(node) and node in self.decisions:
            home = self.decisions.device_of(node)
            copies = [short(d) for d, p in self.partitions.items() if d != home and node in p.nodes]
            if copies:
                lines.append(f"  copied to {', '.join(copies)}: a constant this small is not sent")
        if node in self.decisions and self.decisions.decision(node).rule is Rule.SEARCHED:
            lines += alternatives_text(self, node.name)
        if node.type in SHARED and node in self.decisions:
            lines += [f"  {text}" for text in self._refusals(node)]
        values = {t.name for t in node.outputs} | {f"^{node.name}"}
        for c in self.channels:
            if c.name in values:
                how = "flow control" if c.paces else "control edge" if c.control else size_text(c.bytes, c.is_exact)
                if c.dtype is bfloat16 and not any(t.name == c.name and t.dtype.base is bfloat16 for t in node.outputs):
                    how += " as bfloat16"
                often = f", once per iteration of '{c.loop}'" if c.loop is not None else ""
                if c.direct:
                    where = f"in the shared memory of {short(c.source)} ({self.access.how})"
                    lines.append(f"  read as {c.name} ({how}) by {short(c.destination)} {where}")
                else:
                    lines.append(f"  sent as {c.name} ({how}{often}) {short(c.source)} -> {short(c.destination)}")
        return "\n".join(lines)

    def _refusals(self, node: Node) -> Iterator[str]:
        """Why other tasks do not use a variable or accumulator in its task's memory."""
        owner, _, name = place_at(node, self.decisions.device_of(node))
        for r in self.access.refusals(owner, name):
            if r.variable:
                yield f"no one-sided access from {short(r.task)}: {short(r.owner)} does not publish it ({self.access.how})"
            else:
                yield f"no one-sided access from {short(r.task)}: it cannot map the memory of {short(r.owner)} ({self.access.how})"

    @shows_users_frames
    def why_not(self, name: str | Node | Tensor, device: str) -> str:
        """Explain why a node is not on a device.

        Args:
            name: a node or tensor, or its name.
            device: a device of the cluster; its name may be partial (`/job:ps/task:0`).

        Raises:
            KeyError: there is no such node. InvalidArgumentError: no device, or several, match the name.
        """
        node = self._node(name)
        decision = self.decisions.decision(node)
        name = str(_device(device, self.cluster))
        if name == decision.chosen:
            return f"'{node.name}' is on {name}: {decision.rule.text}"
        for r in decision.rejected:
            if r.device == name:
                return f"'{node.name}' cannot be on {name}: {r.reason}"
        return f"'{node.name}' could be on {name}, but is assigned to {decision.chosen}: {decision.rule.text}"

    @shows_users_frames
    def kernels(self, device: str, config: Any = None) -> Any:
        """The kernels into which a device's partition is compiled: a `codegen.explain.DeviceKernels`, which prints as a table.

        It is a sequence of kernels. Each has its `nodes`, `bytes_read`, `bytes_written` and `flops`, and its `source` text. Nothing is
        compiled.

        Args:
            device: a device of the cluster; its name may be partial (`cpu:0`).
            config: a `ConfigProto` with kernel options; None: the defaults of a session.

        Raises:
            InvalidArgumentError: no device, or several, match the name, or the step runs nothing there.
        """
        return tools["kernels"](self, str(_device(device, self.cluster)), config)

    def launches(self, device: str) -> Sequence[Launch]:
        """The kernels that a device's program launches, in order, as the compiler fuses them; empty if no compiler is loaded."""
        if device not in self._launches and "launches" in tools:
            self._launches[device] = tools["launches"](self, device)
        return self._launches.get(device, ())

    @cached_property
    def _launches(self) -> dict[str, Sequence[Launch]]:
        return {}

    @shows_users_frames
    def why_not_fused(self, a: str | Node | Tensor, b: str | Node | Tensor) -> str:
        """Explain why two nodes are not fused, or name the kernel that has both.

        Args:
            a: a node or tensor, or its name.
            b: likewise.

        Raises:
            KeyError: the step does not run one of them.
        """
        one, other = self._node(a), self._node(b)
        where = {n: device for device, p in self.partitions.items() for n in p.nodes}
        for n in (one, other):
            if n not in where:
                raise KeyError(f"The step does not run '{n.name}'")
        if where[one] != where[other]:
            return f"'{one.name}' is on {where[one]}, '{other.name}' on {where[other]}"
        text: str = self.kernels(where[one]).why_not_fused(one.name, other.name)
        return text

    @shows_users_frames
    def diff(self, other: Plan) -> PlanDiff:
        """The differences from this plan to another: nodes that moved, traffic, variables. Nodes are matched by name.

        Raises:
            TypeError: `other` is no plan.
        """
        if not isinstance(other, Plan):
            raise TypeError(f"other must be a plan, not {other!r}")
        return diff(self, other)

    @shows_users_frames
    def at(self, batch: int | None = None, *, shapes: Mapping[Any, Any] | None = None) -> Plan:
        """This plan for other sizes: the same placement and partitions, with new predictions. Nothing is placed or searched again.

        Args:
            batch: the size of the first axis of every feed and of batches from data sets, where the graph leaves it open.
            shapes: tensors, or their names -> shapes; they take precedence over `batch`. `x` also names the argument `f/arguments/x` of a
                compiled function.

        Raises:
            ValueError: no first axis is open; a shape contradicts the graph, or is invalid for a node. TypeError: `batch` is no integer.
                KeyError: there is no such tensor.

        >>> print(dt.place(graph, {"ps": 1, "worker": 2}, fetches=loss).at(batch=64).report())
        """
        given = dict(self.sizes.given)
        feeds = [self.graph.get_tensor_by_name(n) for n in self.feeds]
        set_here = {} if batch is None else batch_shapes(self.partitioned.nodes, feeds, given, batch)
        given.update(set_here)
        if isinstance(shapes, Mapping):
            shapes = {in_full(name, feeds, self.graph): dims for name, dims in shapes.items()}
        given.update(given_shapes(self.graph, shapes=shapes))
        plan = self.resized(given)
        if plan.sizes.misfit and set_here:
            raise ValueError(batch_misfit(plan.sizes, batch, list(map(self.graph.get_tensor_by_name, set_here))))
        plan.sizes.checked()
        return plan

    @shows_users_frames
    def all_on(self, device: str) -> Plan:
        """A plan of this step with all nodes on one device, whatever they request: the baseline of predictions.

        Args:
            device: a device of the cluster; its name may be partial (`/job:worker/task:1`).

        Raises:
            InvalidArgumentError: no device, or several, match the name.
        """
        device = str(_device(device, self.cluster))
        tensors = [self.graph.get_tensor_by_name(name) for name in self.fetches]
        targets = [self.graph.get_operation_by_name(name) for name in self.targets]
        feeds = [self.graph.get_tensor_by_name(name) for name in self.feeds]
        nodes, decisions = needed(self.graph, tensors, targets, feeds), self.decisions.all_on(device)
        bypassed = bypassed_noops(nodes, decisions.device_of)
        cut = partition(nodes, decisions.device_of, feeds=feeds, fetches=tensors, bypassed=bypassed)
        return replace(self, decisions=decisions, partitioned=cut, solution=None, access=OneSidedAccess())

    def resized(self, given: Mapping[str, Dims]) -> Plan:
        """This plan for these shapes, by tensor name. Shapes that are invalid for a node are left unknown."""
        sizes = plan_sizes(self.partitioned.nodes, given)
        if sizes.given == self.sizes.given:
            return self
        solution = None if self.solution is None else replace(self.solution, is_of_step=False)
        return replace(self, partitioned=resized(self.partitioned, sizes), sizes=sizes, solution=solution)

    @shows_users_frames
    def scale(
        self,
        batch: int | Iterable[int],
        *,
        costs: Profile | str | os.PathLike[str] | None = None,
        contended: bool = True,
    ) -> BatchScaling:
        """Predict time, memory and traffic for several batch sizes: `at(batch=...)` of each, as a table.

        Args:
            batch: a size, or several, at least 1.
            costs: as in `dt.simulate`.
            contended: as in `dt.simulate`.

        Raises:
            TypeError, ValueError: `batch` is empty, or as in `at`.

        >>> print(plan.scale(batch=[1, 16, 256, 4096]))
        """
        sizes = list(batch) if isinstance(batch, Iterable) and not isinstance(batch, str) else [batch]
        if not sizes:
            raise ValueError("batch must be at least one batch size, such as [1, 16, 256]")
        return BatchScaling(tuple(scaled(size, self.at(batch=size), as_profile(costs), contended) for size in sizes))

    @shows_users_frames
    def simulate(
        self, *, contended: bool = True, costs: Profile | str | os.PathLike[str] | None = None, client: bool = False
    ) -> Timeline:
        """Simulate one step: start and end of each node and transfer, the critical path, and memory. Arguments as in `dt.simulate`.

        >>> print(plan.simulate())
        """
        return simulate(self, contended=contended, costs=costs, client=client)

    @shows_users_frames
    def report(
        self, *, costs: Profile | str | os.PathLike[str] | None = None, contended: bool = True, client: bool = False
    ) -> Evaluation:
        """Evaluate the plan: its predicted time, a lower bound and the gap to it, the bottleneck, and how other placements compare.

        The arguments are those of `dt.simulate`.

        >>> print(plan.report())
        """
        with without_compiling(self):
            return evaluate(self, costs, contended=contended, client=client)

    @shows_users_frames
    def compare(self, trace: Any, *, costs: Profile | str | os.PathLike[str] | None = None) -> Comparison:
        """Compare the predicted with the measured times of each kernel, each transfer, each device, and the step.

        Args:
            trace: of a step: its `run_metadata`, the `trace` of that, or a `Timeline`.
            costs: as in `dt.simulate`.

        Raises:
            TypeError: `trace` is none of these, or the step was not traced.

        >>> print(session.last_plan.compare(run_metadata.trace))
        """
        return compare(self, trace, as_profile(costs))

    @shows_users_frames
    def check(self, fix: bool = False) -> list[PlanWarning]:
        """Warnings about parts of the plan that cost time or memory, each with its line of the program and a change that avoids the cost.

        Args:
            fix: also make the plan with each change (`warning.fixed`), and print the predicted gain. If a change cannot be applied
                automatically, the warning says why.

        Returns:
            The warnings, those that cost the most bytes first.

        >>> for warning in plan.check(fix=True):
        ...     print(warning)
        """
        check_flags(fix=fix)
        return check(self, tools["place"] if fix else None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file as text, atomically. `Plan.load` reads it."""
        write_plan(self, Path(path))

    @staticmethod
    @shows_users_frames
    def load(path: str | os.PathLike[str]) -> Plan:
        """Read a plan that `save` wrote. It prints, explains and compares as before.

        Its graph can be inspected and placed again, but not run: the values of most constants are not saved.

        Raises:
            InvalidArgumentError: the file is damaged, or no plan. OSError: it cannot be read.
        """
        from .serialize.read import read_plan  # msgspec: most programs read no plans

        return Plan(**read_plan(Path(path))._asdict())

    def to_dot(self) -> str:
        """The plan as text in Graphviz's language DOT."""
        return to_dot(self)

    def to_svg(self, graphviz: bool | None = None) -> str:
        """The plan as one `<svg>` element.

        Args:
            graphviz: whether Graphviz draws it; None: if it is installed.

        Raises:
            FileNotFoundError: `graphviz` is True, and it is not installed.
        """
        return to_svg(self, graphviz)

    @shows_users_frames
    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "",
        measured: Any = None,
        before: Plan | None = None,
        costs: Profile | str | os.PathLike[str] | None = None,
        complete: bool = False,
    ) -> None:
        """Write an interactive, self-contained HTML page of the plan.

        Args:
            path: the file; an existing file is replaced.
            title: the title of the page.
            measured: a trace of the step (`run_metadata.trace`) or its run metadata, shown beside the prediction.
            before: another plan of the same program, to compare with.
            costs: as in `dt.simulate`.
            complete: predict the step and find its kernels, however large it is, which may take minutes. Else the page says what it
                leaves out: the timeline above 100,000 nodes or 1,000 devices, kernels above 20,000 nodes.

        Raises:
            OSError: the file cannot be written. TypeError: `measured` is no trace, or `before` no plan.

        >>> plan.to_html("plan.html", before=dt.Plan.load("yesterday.plan"))
        """
        if before is not None and not isinstance(before, Plan):
            raise TypeError(f"before must be a plan, not {before!r}")
        check_flags(complete=complete)
        write_html(
            self, path, title, kernels=self._kernels, measured=measured, before=before, costs=as_profile(costs), complete=complete
        )  # fmt: skip

    @property
    def _kernels(self) -> Callable[[str], Any] | None:
        """A device's kernels; None where no compiler is loaded."""
        return self.kernels if "kernels" in tools else None

    def to_networkx(self) -> Any:
        """The nodes that the step runs as a `networkx.MultiDiGraph`.

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
    """The one device of the cluster that a name, which may be partial, matches."""
    found = cluster.matching(DeviceSpec.from_string(name))
    if len(found) != 1:
        listed = ", ".join(map(str, found or cluster.devices))
        raise InvalidArgumentError.of(
            f"'{name}' names {'several devices' if found else 'no device'} of the cluster: {listed}",
        )
    return found[0].name
