"""The argument PROGRAM of the commands, the placement options, and the plan of a program.

A program is one of these:

- a function that builds a graph: `train.py:build` or `package.module:build`;
- the file of a graph (`save_graph`), an ONNX model (`model.onnx`), or a saved plan (`plan.save`).
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from ...compiled_function import CompiledFunction
from ...graph.core.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.io.serialization import load as load_graph
from ...placer.cluster.load import as_cluster
from ...placer.cluster.spec import Cluster
from ...placer.cost.profile import Profile
from ...placer.cost.shapes import as_tensor, given_shapes, in_full
from ...placer.pipeline import OBJECTIVES, STRATEGIES, place
from ...placer.plan import Plan
from ...placer.render.text import listed
from ...runtime.session.fetches import parse_fetches
from ...runtime.session.session import Session
from ...searched_placement import search_progress
from .common import FailedError, UsageError, addresses, one_of, output_file, program_errors, text_of

LISTED_INPUTS = 8
# Maximum number of names that an error suggests.
SUGGESTIONS = 3
# The first bytes of a saved plan.
PLAN_MARK = b'{"dovetail-plan"'

ProgramArgument = Annotated[
    str,
    typer.Argument(
        help="FILE.py:FUNCTION or MODULE:FUNCTION that builds a graph; a saved graph or plan; or an ONNX model."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="Numbers of tasks, worker=4,ps=2; a description in JSON or YAML, or its file; or a running server, zmq://host:port. "
        "Default: this machine."
    ),
]
FetchOption = Annotated[
    list[str] | None,
    typer.Option(help="A tensor or op that the step returns or runs. May be repeated. Default: what FUNCTION returns."),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Shape of an input: x=64,784. May be repeated. Figures that depend on unknown sizes are marked with ≥."
    ),
]
SoftOption = Annotated[
    bool,
    typer.Option(
        "--allow-soft-placement",
        help="If a requested device type or index is not available, use another device of the same task.",
    ),
]
StrategyOption = Annotated[
    str,
    one_of(
        STRATEGIES,
        "Placement strategy: rules (TensorFlow's), auto (a search for the shortest predicted step), or a part of that search.",
    ),
]
PageOption = Annotated[Path | None, output_file("Write an interactive HTML page.")]
TraceOption = Annotated[Path | None, output_file("Write the timeline in Chrome's format, for ui.perfetto.dev.")]


class Program(NamedTuple):
    """The result of building a program.

    Attributes:
        graph: the graph.
        fetches: the fetches that the program returned; None: all nodes.
        names: names of an ONNX model -> tensors.
        plan: the plan, if the program is a plan.
    """

    graph: Graph
    fetches: Any = None
    names: Mapping[str, Tensor] = {}
    plan: Plan | None = None

    def element(self, name: str) -> Tensor | Node:
        """Returns the tensor or node with a name, which may be a name of an ONNX model. UsageError: there is none."""
        found = self.names.get(name)
        if found is not None:
            return found
        try:
            return self.graph.as_graph_element(name)
        except (KeyError, ValueError, TypeError) as e:
            if self.names:
                raise UsageError(f"The model has no node or tensor {name!r}{_close(name, self.names)}") from None
            raise UsageError(str(e.args[0] if e.args else e)) from None

    def elements(self, names: list[str] | None) -> list[Tensor | Node] | None:
        """Returns the tensors and nodes with some names. Without names, returns the program's fetches, or None if it has none."""
        if names:
            return [self.element(name) for name in names]
        if self.fetches is None:
            return None
        found = parse_fetches(self.graph, self.fetches)
        return [
            *map(self.graph.get_tensor_by_name, found.tensors),
            *map(self.graph.get_operation_by_name, found.targets),
        ]

    def shapes(self, texts: list[str] | None) -> dict[Tensor, tuple[int | None, ...]]:
        """Parses `--shape`, such as `x=64,784`. A `?` is an unknown size, and `x=` is the shape of a scalar.

        `x` also names the argument `f/arguments/x` of a compiled function.

        Raises:
            UsageError: there is no such tensor, or the graph contradicts its shape.
        """
        found = {}
        for text in texts or ():
            name, equals, sizes = text.rpartition("=")
            try:
                dims = tuple(None if d.strip() == "?" else int(d) for d in sizes.split(",")) if sizes.strip() else ()
            except ValueError:
                equals = ""
            if not equals:
                raise UsageError(f"--shape needs a name and sizes, such as x=64,784, not {text!r}")
            try:
                known = name in self.names  # names of an ONNX model take precedence
                element = self.element(name if known else in_full(name, self._fed(), self.graph))
            except UsageError:
                raise UsageError(f"--shape {text}: no input {name!r}; {self._inputs()}") from None
            tensor = as_tensor(self.graph, element)
            if tensor in found:
                raise UsageError(f"--shape {text}: the shape of {name!r} is given twice")
            found[tensor] = dims
        try:
            given_shapes(self.graph, shapes=found)
        except (ValueError, TypeError) as e:
            raise UsageError(str(e)) from None
        return found

    def _fed(self) -> list[Tensor]:
        """Returns the placeholders."""
        return [node.outputs[0] for node in self.graph.nodes if node.type == "Placeholder"]

    def _inputs(self) -> str:
        """Returns the placeholders with their shapes, for an error: `the inputs are x (?, 784), y (?, 10)`."""
        names = {tensor: name for name, tensor in self.names.items()}
        named = [f"{names.get(t, t.op.name)} {t.shape}" for t in self._fed()]
        return f"the inputs are {listed(named, LISTED_INPUTS)}" if named else "the program has no inputs"


def _close(name: str, names: Collection[str]) -> str:
    """Returns the end of an error: names that contain this one or are similar to it, or else some names."""
    close = [n for n in names if name and f"/{name}/".lower() in f"/{n}/".lower()]
    close = close or difflib.get_close_matches(name, names, n=SUGGESTIONS)
    shown = listed(map(repr, close or names), SUGGESTIONS)
    return f": did you mean {shown}?" if close else f"; it has {shown}"


def build(program: str) -> Program:
    """Builds a program: calls its function, or reads its file.

    A function is called without arguments, with a new graph as the default graph. It returns a graph, fetches, both (in this order), a
    plan, or nothing. A function of `dt.compile` is planned.

    Raises:
        UsageError: there is no such program.
        typer.Exit: the program failed, and its traceback was printed.
    """
    name, colon, function = program.rpartition(":")
    if program.endswith(".onnx"):
        return _model(program)
    if not colon:
        return _saved(program)
    with program_errors():
        module = _module(name)
    if isinstance(module, UsageError):
        raise module
    make = getattr(module, function, None)
    if not callable(make):
        close = difflib.get_close_matches(function, [n for n, v in vars(module).items() if callable(v)], n=1)
        raise UsageError(f"{name} has no function {function!r}" + (f": did you mean {close[0]!r}?" if close else ""))
    is_compiled = isinstance(make, CompiledFunction)
    if needed := _required(make):
        instead = f"returns {function}.plan(...)" if is_compiled else f"calls it without arguments, in {name}"
        raise UsageError(f"{function} needs arguments ({', '.join(needed)}). Name a function that {instead}")
    with Graph().as_default() as graph, program_errors():
        made = make.plan() if is_compiled else make()
    if isinstance(made, Plan):
        return Program(made.graph, plan=made)
    if isinstance(made, Graph):
        return Program(made)
    if isinstance(made, tuple) and made and isinstance(made[0], Graph):
        return Program(made[0], made[1] if len(made) == 2 else list(made[1:]))
    return Program(graph, made)


def _required(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the parameters without a default."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _model(path: str) -> Program:
    """Reads an ONNX model as a graph, with its outputs as fetches."""
    from ...interop.onnx import load  # loads the ONNX importers

    with Graph().as_default() as graph:
        try:
            model = load(path)
            return Program(graph, list(model.outputs.values()), {**model.nodes, **model.values})
        except (OpError, OSError) as e:
            raise UsageError(str(e)) from None


def _saved(path: str) -> Program:
    """Reads a graph or a plan from a file."""
    if path.endswith(".py") or not Path(path).is_file():
        raise UsageError(
            f"{path!r} is not a program. Expected FILE.py:FUNCTION, MODULE:FUNCTION, the file of a saved graph or plan, or MODEL.onnx"
            + (_functions_in(path) if path.endswith(".py") and Path(path).is_file() else "")
        )
    try:
        with Path(path).open("rb") as file:
            is_plan = file.read(len(PLAN_MARK)) == PLAN_MARK
        if is_plan:
            plan = Plan.load(path)
            return Program(plan.graph, plan=plan)
        return Program(load_graph(path))
    except (InvalidArgumentError, OSError) as e:
        raise UsageError(f"{path}: {e}") from None


def _functions_in(path: str) -> str:
    """Returns the functions of a Python file that can be programs, for an error. The file is parsed, and not run."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    functions = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name[0] != "_"]
    free: list[str] = []
    rest: list[str] = []
    for f in functions:
        has_defaults = (
            len(f.args.defaults) == len(f.args.posonlyargs) + len(f.args.args) and None not in f.args.kw_defaults
        )
        (free if has_defaults else rest).append(f.name)
    text = "\nFUNCTION is called without arguments, and returns tensors, a graph or a plan. "
    text += f"{path} has {listed(free, LISTED_INPUTS)}" if free else f"{path} has no such function"
    return text + (f"; with arguments: {listed(rest, LISTED_INPUTS)}" if rest else "")


def _module(name: str) -> Any:
    """Imports a module by its file or name. Returns a UsageError if there is none. Its folder becomes the first one of `sys.path`."""
    path = Path(name)
    if path.suffix != ".py":
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is not None and name.split(".")[0] == e.name.split(".")[0]:
                return UsageError(f"There is no module {name!r} ({e})")
            raise
    if not path.exists():
        return UsageError(f"There is no file {name}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a file that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, kw_only=True)
class Placing:
    """The placement options, which `takes_placing` adds to a command."""

    cluster: ClusterOption = None
    master: Annotated[
        str | None, typer.Option(help="Task that the session connects to, such as /job:worker/task:0.")
    ] = None
    fetch: FetchOption = None
    shape: ShapeOption = None
    allow_soft_placement: SoftOption = False
    strategy: StrategyOption = "rules"
    objective: Annotated[
        str,
        one_of(
            OBJECTIVES,
            "What the search minimizes: makespan, the time of a step; latency, the same with feeds and fetches; or throughput, the time "
            "between the starts of overlapping steps.",
        ),
    ] = "makespan"
    budget: Annotated[
        float,
        typer.Option(
            min=0,
            help="Search effort, in seconds of two typical CPU cores. A busy machine takes longer, and the first search on a machine "
            "some ten seconds more, to compile. Ctrl-C stops the search and uses the best plan so far.",
        ),
    ] = 5.0
    costs: Annotated[
        Path | None,
        typer.Option(
            help="Measured costs and sizes of a step: a file that dt.profile wrote.", dir_okay=False, exists=True
        ),
    ] = None

    @functools.cached_property
    def profile(self) -> Profile | None:
        """The profile of `--costs`."""
        try:
            return None if self.costs is None else Profile.load(self.costs)
        except InvalidArgumentError as e:
            raise UsageError(str(e)) from None

    def plan(self, program: Program) -> Plan:
        """Returns the plan of a program.

        Raises:
            UsageError: a name or a cluster does not exist, or placement options are given for a plan.
            FailedError: the program cannot be placed.
        """
        shapes = program.shapes(self.shape)
        if program.plan is not None:
            return self._resized(program.plan, shapes)
        found, fetched = find_cluster(self.cluster, self.master), program.elements(self.fetch)
        try:
            with without_log(), nullcontext() if self.strategy == "rules" else search_progress():
                return place(
                    program.graph, found, fetches=fetched, shapes=shapes, allow_soft_placement=self.allow_soft_placement,
                    strategy=self.strategy, objective=self.objective, budget_s=self.budget, costs=self.profile,
                )  # fmt: skip
        except (InvalidArgumentError, ResourceExhaustedError) as e:
            raise FailedError(str(e)) from None

    def _resized(self, plan: Plan, shapes: dict[Tensor, tuple[int | None, ...]]) -> Plan:
        """Returns a plan with the given shapes."""
        for option in fields(self):
            if option.name not in ("shape", "costs") and getattr(self, option.name) not in (option.default, []):
                raise UsageError(
                    f"--{option.name.replace('_', '-')} applies only to programs: a plan is already placed"
                )
        return plan.at(shapes=shapes) if shapes else plan


def takes_placing(command: Callable[..., None]) -> Callable[..., None]:
    """A decorator that replaces the parameter `placing` of a command by the options of `Placing`."""
    own = inspect.signature(command, eval_str=True)
    types = get_type_hints(Placing, include_extras=True)
    options = [
        inspect.Parameter(f.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=f.default, annotation=types[f.name])
        for f in fields(Placing)
    ]
    parameters = [p for o in own.parameters.values() for p in (options if o.name == "placing" else [o])]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        placing = Placing(**{o.name: given.pop(o.name) for o in options})
        command(placing=placing, **given)

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def find_cluster(text: str | None, master: str | None = None) -> Cluster:
    """Returns the cluster of a description, of its file, or of the server at a target. Default: the devices of this machine.

    Raises:
        UsageError: there is no such cluster.
    """
    try:
        if text is None or "://" in text:
            target = "" if text is None else f"zmq://{addresses(text)[0]}"
            with Session(target, graph=Graph()) as session:
                return as_cluster(session, master=master)
        return as_cluster(text, master=master)
    except (InvalidArgumentError, ValueError, TypeError, OSError) as e:
        raise UsageError(f"--cluster: {text_of(e)}" if text is not None and master is None else text_of(e)) from None


@contextmanager
def without_log() -> Iterator[None]:
    """A block without the placer's log, because the command prints the same warnings."""
    log = logging.getLogger(place.__module__)
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False
