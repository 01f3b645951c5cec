"""`dovetail devices` and `dovetail plan`: look at machines and clusters; the plan of any program, without running its graph.

A program is a function that builds a graph, named as `train.py:build` or `package.module:build`, a file that
`save_graph` wrote, or an ONNX model (`model.onnx`). The exit status is for scripts: 0 for a plan, 1 when the
graph cannot be placed (also for want of memory), 2 for a command that cannot be understood or a program that fails, 3 when `--diff`
found a difference, 4 when `--check` or `--fix` found something to mend.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ...graph.core.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.io.serialization import load as load_graph
from ...placer.cluster.load import as_cluster, cluster_text, read_cluster
from ...placer.cluster.spec import Cluster, DeviceInfo, Link
from ...placer.cost.profile import Profile
from ...placer.cost.shapes import as_tensor, given_shapes
from ...placer.pipeline import OBJECTIVES, STRATEGIES, place
from ...placer.plan import Plan
from ...placer.render.text import WIDTH, number_text, short, size_text, table
from ...placer.render.timeline import time_text
from ...placer.search.problem import Solution
from ...placer.simulate import simulate
from ...placer.views import lint
from ...placer.views.facts import PREDICTED
from ...placer.views.plan_warning import PlanWarning
from ...runtime.session.fetches import parse_fetches
from ...runtime.session.session import Session
from .common import errors_explained

PLACED, UNPLACEABLE, MISUSED, DIFFERENT, WARNED = 0, 1, 2, 3, 4


class UsageError(Exception):
    """The command, the cluster or the program is at fault, not the placement."""


def find_cluster(text: str | None, master: str | None = None) -> Cluster:
    """The cluster that a file or a text describes, or of the server at a target; by default this machine's devices.

    Raises:
        UsageError: there is no such cluster.
    """
    try:
        if text is None or "://" in text:
            with Session(text or "", graph=Graph()) as session:
                return as_cluster(session, master=master)
        return as_cluster(text, master=master)
    except (OpError, ValueError, TypeError, OSError) as e:
        raise UsageError(str(e)) from None


class Program(NamedTuple):
    """What a program builds: a graph, the fetches that it names (None: all nodes), and tensors by names of its own (an ONNX model's)."""

    graph: Graph
    fetches: Any = None
    names: Mapping[str, Tensor] = {}

    def element(self, name: str) -> Tensor | Node:
        """The tensor or node of a name: the program's own, or the graph's."""
        found = self.names.get(name)
        return self.graph.as_graph_element(name) if found is None else found


def build(program: str) -> Program:
    """The graph that a program builds, and what it names in it.

    The function is called without arguments, with a new graph as the default one. It returns a graph, fetches, both
    (in this order), or nothing.

    Raises:
        UsageError: there is no such program. Whatever the program raises passes through.
    """
    name, colon, function = program.rpartition(":")
    if program.endswith(".onnx"):
        return _model(program)
    if not colon:
        return Program(_saved(program))
    make = getattr(_module(name), function, None)
    if not callable(make):
        raise UsageError(f"{name} has no function {function!r}")
    with Graph().as_default() as graph:
        made = make()
    if isinstance(made, Graph):
        return Program(made)
    if isinstance(made, tuple) and made and isinstance(made[0], Graph):
        return Program(made[0], made[1] if len(made) == 2 else list(made[1:]))
    return Program(graph, made)


def _model(path: str) -> Program:
    """The graph of an ONNX model, its outputs, and its names of values and nodes."""
    from ...interop.onnx import load  # loads the ONNX importers

    with Graph().as_default() as graph:
        try:
            model = load(path)
            return Program(graph, list(model.outputs.values()), {**model.nodes, **model.values})
        except (OpError, OSError) as e:
            raise UsageError(str(e)) from None


def _saved(path: str) -> Graph:
    """A graph from a file."""
    if path.endswith(".py") or not Path(path).exists():
        raise UsageError(
            f"{path!r} names no program: write FILE.py:FUNCTION, MODULE:FUNCTION, the file of a saved graph, or MODEL.onnx"
        )
    try:
        return load_graph(path)
    except (InvalidArgumentError, OSError) as e:
        raise UsageError(f"{path}: {e}") from None


def _module(name: str) -> Any:
    """A module by its file or by its name; as with `python FILE`, its folder comes first on the path."""
    path = Path(name)
    if path.suffix != ".py":
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is not None and name.split(".")[0] == e.name.split(".")[0]:
                raise UsageError(f"There is no module {name!r} ({e})") from None
            raise
    if not path.exists():
        raise UsageError(f"There is no file {name}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a file that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def run(
    program: str,
    cluster: str | None,
    *,
    master: str | None = None,
    fetch: Sequence[str] | None = None,
    shape: Sequence[str] | None = None,
    soft: bool = False,
    strategy: str = "rules",
    objective: str = "makespan",
    explain: Sequence[str] | None = None,
    diff: Path | None = None,
    html: Path | None = None,
    svg: Path | None = None,
    save: Path | None = None,
    kernels: str | None = None,
    timeline: Path | None = None,
    costs: Path | None = None,
    check: bool = False,
    fix: bool = False,
    report: bool = False,
) -> int:
    """Run `dovetail plan` and return its exit status."""
    try:
        if strategy not in STRATEGIES:
            raise UsageError(f"There is no strategy {strategy!r}; strategies: {', '.join(STRATEGIES)}")
        if objective not in OBJECTIVES:
            raise UsageError(f"There is no objective {objective!r}; objectives: {', '.join(OBJECTIVES)}")
        old, measured = _loaded(diff), _profile(costs)
        found = find_cluster(cluster, master)
        built = build(program)
        graph = built.graph
        with _usage():
            asked = [built.element(name) for name in fetch or ()] or _elements(graph, built.fetches)
            nodes = [built.element(name) for name in explain or ()]
            given = given_shapes(graph, shapes=dict(_shape(built, text) for text in shape or ()))
    except UsageError as e:
        print(f"error: {e}", file=sys.stderr)
        return MISUSED
    try:
        with _usage(), _without_log(), _progress(strategy):
            plan = place(
                graph, found, fetches=asked, shapes=given, allow_soft_placement=soft, strategy=strategy, objective=objective,
                costs=measured,
            )  # fmt: skip
    except UsageError as e:
        print(f"error: {e}", file=sys.stderr)
        return MISUSED
    except (InvalidArgumentError, ResourceExhaustedError) as e:
        print(f"error: {e}", file=sys.stderr)
        return UNPLACEABLE
    _write(
        (html, lambda path: plan.to_html(path, before=old, costs=measured)), (save, plan.save),
        (svg, lambda path: path.write_text(plan.to_svg(), encoding="utf-8")),
        (timeline, lambda path: simulate(plan, costs=measured).to_html(path)),
    )  # fmt: skip
    if nodes:
        _say("\n\n".join(plan.explain(n.op if isinstance(n, Tensor) else n) for n in nodes))
    if kernels is not None:
        try:
            _say(str(plan.kernels(kernels)))
        except InvalidArgumentError as e:
            print(f"error: {e}", file=sys.stderr)
            return MISUSED
    if old is not None:
        changes = old.diff(plan)
        _say(str(changes))
        return DIFFERENT if changes else PLACED
    if check or fix:
        warnings = plan.check(fix=fix)
        _say("\n\n".join(map(_wrapped, warnings)) or "nothing to mend")
        return WARNED if warnings else PLACED
    if report:
        _say(f"{plan.report(costs=measured, client=objective == 'latency')}\n")
    if report or (not nodes and kernels is None):
        _say(str(plan))
        for warning in lint.check(plan, predict=len(plan.decisions) <= PREDICTED):
            _say("\n" + _wrapped(warning))
    return PLACED


def _shape(program: Program, text: str) -> tuple[Tensor, tuple[int | None, ...]]:
    """`x=64,784`: a tensor and its shape; `?` for an unknown size, nothing for a scalar's shape."""
    name, equals, sizes = text.rpartition("=")
    try:
        dims = tuple(None if d.strip() == "?" else int(d) for d in sizes.split(",")) if sizes.strip() else ()
    except ValueError:
        equals = ""
    if not equals:
        raise UsageError(f"--shape takes a name and sizes, such as x=64,784, not {text!r}")
    return as_tensor(program.graph, program.element(name)), dims


def _wrapped(warning: PlanWarning) -> str:
    """A warning in lines that fit a terminal."""
    first, *rest = f"warning: {warning}".splitlines()
    found = textwrap.wrap(first, WIDTH, break_long_words=False, break_on_hyphens=False)
    for line in rest:
        found += textwrap.wrap(
            line, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(found)


def _say(text: str) -> None:
    """Print; when the reader has gone (`| head`), go on in silence: the files and the exit status still count."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _loaded(path: Path | None) -> Plan | None:
    try:
        return None if path is None else Plan.load(path)
    except (InvalidArgumentError, OSError) as e:
        raise UsageError(str(e)) from None


def _profile(path: Path | None) -> Profile | None:
    try:
        return None if path is None else Profile.load(path)
    except InvalidArgumentError as e:
        raise UsageError(str(e)) from None


def _elements(graph: Graph, wanted: Any) -> list[Tensor | Node] | None:
    """The fetches that a program names, however nested; None: none named."""
    if wanted is None:
        return None

    found = parse_fetches(graph, wanted)
    return [*map(graph.get_tensor_by_name, found.tensors), *map(graph.get_operation_by_name, found.targets)]


def _write(*files: tuple[Path | None, Callable[[Path], Any]]) -> None:
    for path, write in files:
        if path is not None:
            write(path)


@contextmanager
def _without_log() -> Iterator[None]:
    """What placing warns of in the log is among the warnings that are printed."""
    log = logging.getLogger(place.__module__)
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


@contextmanager
def _progress(strategy: str) -> Iterator[None]:
    """Show the best value and the bound while a search runs, which Ctrl-C ends with the best so far."""
    if strategy == "rules":
        yield
        return
    from ...placer.search.portfolio import watched  # the searches and their compiled loops

    begin, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")

    def show(best: Solution) -> None:
        value, bound = time_text(best.objective), time_text(best.lower_bound)
        print(f"{begin}best so far {value}, at least {bound}; Ctrl-C keeps it", end=end, file=sys.stderr, flush=True)

    try:
        with watched(show):
            yield
    finally:
        print(begin, end="", file=sys.stderr, flush=True)


@contextmanager
def _usage() -> Iterator[None]:
    """A name that is not in the graph is the command's fault."""
    try:
        yield
    except (KeyError, ValueError, TypeError) as e:
        raise UsageError(str(e.args[0] if e.args else e)) from None


def devices_table(devices: Sequence[DeviceInfo]) -> str:
    """One device per line, with what is known of it."""
    known = [
        (
            str(d),
            "" if d.memory_bytes is None else size_text(d.memory_bytes),
            "" if d.flops is None else f"{number_text(d.flops)}flop/s",
            "" if d.bandwidth is None else f"{number_text(d.bandwidth)}B/s",
        )
        for d in devices
    ]
    return table(("device", "memory", "speed", "memory speed"), known, limit=None)


def links_table(links: Sequence[Link]) -> str:
    """One link per line, with what was measured."""
    known = [
        (
            f"{short(link.a)} - {short(link.b)}",
            "" if link.latency is None else time_text(link.latency),
            "" if link.bandwidth is None else f"{number_text(link.bandwidth)}B/s",
        )
        for link in links
    ]
    return table(("link", "latency", "bandwidth"), known, limit=None)


# --- the commands -------------------------------------------------------------------------------------------------------


def devices(
    target: Annotated[str, typer.Option(help="A server of a cluster, zmq://host:port; without it: this machine.")] = "",
    cluster: Annotated[
        str | None, typer.Option(help="The description of a cluster, which need not run: see `dovetail plan`.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure how fast devices and links are; takes seconds for each.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where --measure writes the cluster as YAML, for `dovetail plan --cluster`.", dir_okay=False),
    ] = None,
) -> None:
    """List the devices of this machine, or of a cluster."""
    with errors_explained():
        import dovetail as tf

        if out is not None and not measure:
            raise ValueError("--out is where --measure writes what it finds: give both")
        if measure:
            if cluster is not None:
                raise ValueError(
                    "A description cannot be measured: --measure needs a running cluster (--target), or this machine"
                )
            _measured(target, out)
            return
        if cluster is not None:
            print(devices_table(read_cluster(cluster).devices))
            return

        with tf.Session(target, graph=tf.Graph()) as session:
            for device in session.list_devices():
                print(device)


def _measured(target: str, out: Path | None) -> None:
    """Measure, show, and write a cluster file."""
    from ...runtime.session.profiling import measure  # a parameter has this name

    found = measure(target, lambda text: print(text, file=sys.stderr))
    print(devices_table(found.devices))
    if found.links:
        print(f"\n{links_table(found.links)}")
    if out is not None:
        out.write_text(cluster_text(found), encoding="utf-8")


def plan(
    program: Annotated[
        str,
        typer.Argument(
            help="FILE.py:FUNCTION or MODULE:FUNCTION that builds a graph, a saved graph, or an ONNX model."
        ),
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Numbers of tasks, worker=4,ps=2; a description as JSON or YAML, or a file of it; or a running server, zmq://host:port. "
            "Without it: this machine."
        ),
    ] = None,
    master: Annotated[str | None, typer.Option(help="The task the session talks to: /job:worker/task:0.")] = None,
    fetch: Annotated[
        list[str] | None, typer.Option(help="What the step returns or runs; without it: what FUNCTION says.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="How large an input is: x=64,784. What stays unknown is marked with ≥.")
    ] = None,
    soft: Annotated[bool, typer.Option("--soft", help="Give up device types and indices that cannot be had.")] = False,
    strategy: Annotated[
        str, typer.Option(help="rules: TensorFlow's; auto: search for what is predicted to be fastest.")
    ] = "rules",
    objective: Annotated[
        str, typer.Option(help="What auto makes small: makespan, latency for a client, or throughput (time from step to step).")
    ] = "makespan",
    report: Annotated[
        bool, typer.Option("--report", help="First say what the plan is worth: predicted time, bound, memory, what limits it.")
    ] = False,
    explain: Annotated[
        list[str] | None,
        typer.Option(help="Say why a node is where it is, instead of the tables; for an ONNX model, by its own names, too."),
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(help="Show what this device's part is compiled to, instead of the tables.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the warnings, instead of the tables; exit status 4 when there are any.")
    ] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="As --check, and say what the plan gains by the change that each warning names.")
    ] = False,
    diff: Annotated[
        Path | None, typer.Option(help="Compare with a saved plan; exit status 3 when they differ.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page that shows the plan; with --diff, both plans.", dir_okay=False)] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture of it.", dir_okay=False)] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a page that shows a predicted step on a clock.", dir_okay=False)
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Measured costs, and the sizes of that step: what dt.profile wrote.", dir_okay=False)
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan as text.", dir_okay=False)] = None,
) -> None:
    """Show where each part of a program will run and why, without running it.

    Exit status: 0 planned, 1 it cannot be placed, 2 a mistake in the command or the program, 3 --diff differs, 4 --check found
    something.
    """
    options = dict(locals())
    try:
        status = run(**options)
    except OSError as e:
        print(f"error: {e}", file=sys.stderr)
        status = MISUSED
    except Exception:  # the program's own: its author needs the traceback
        traceback.print_exc()
        status = MISUSED
    raise typer.Exit(status)
