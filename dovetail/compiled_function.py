"""`dt.compile`: a Python function becomes a graph when it is called, and runs on this machine or on a cluster.

The function is *traced* once per signature, which is the structure, dtypes and shapes of its arguments: it is called with placeholders
and creates nodes. All traces of a function are in one graph and share its variables. `plan` needs only a trace and starts no cluster.
The first call starts or joins the cluster, opens the session and initialises the variables.

    arguments --signature--> trace (made once) --feeds--> session.run --> results in the function's structure, as NumPy arrays
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, Self, overload

from .api import nest
from .call_values import Array, as_array, constants_of, fetches, is_constant, names_of, refusal, returned, with_values
from .given_cluster import DESCRIPTIONS, check_cluster, is_target, processes, target_of
from .graph.core.argument_names import explains_arguments
from .graph.core.build import placeholder
from .graph.core.default_graph import GraphKeys
from .graph.core.errors import NotFoundError, UnavailableError
from .graph.core.frames import Frames
from .graph.core.graph import Graph, Node, Tensor
from .graph.core.nest import flatten
from .graph.core.operators import names_in_trace
from .graph.core.source_location import shows_users_frames
from .graph.variables.builds import build
from .graph.variables.scope import variable_scope
from .graph.variables.store import AUTO_REUSE, report_uninitialized_variables
from .graph.variables.variable import variable_creator_scope
from .placer.cluster.load import as_cluster
from .placer.pipeline import place
from .placer.plan import Plan
from .runtime.config import ConfigProto, RunMetadata, RunOptions
from .runtime.session.session import Session
from .searched_placement import SearchedPlacement
from .train.saving.checkpoint_state import list_variables
from .train.saving.saver import Saver, check_exists
from .variable_makers import FirstArguments, VariableMakers

if TYPE_CHECKING:
    from .runtime.observability.trace import Trace
    from .runtime.server.local_cluster import LocalCluster

P = ParamSpec("P")

MANY_TRACES = 8
"""At this number of traces, a warning says that signatures change too often."""


@dataclass(frozen=True, eq=False)
class _Trace:
    """The nodes of one signature.

    Attributes:
        feeds: placeholders, in the order of the arguments' arrays.
        results: the structure that the function returned.
        fetches: the leaves of `results` that a session fetches.
        effects: nodes with side effects, such as a change of state. They run in each step, even if the function does not return them.
    """

    feeds: tuple[Tensor, ...]
    results: Any
    fetches: list[Any]
    effects: tuple[Node, ...]


class _SharedState:
    """What compiled functions that share variables have in common: graph, variables, cluster and session.

    Attributes:
        made: (scope, name, count in the scope) -> the variable that a trace created there.
        search: the placement by search, or None if the rules place the nodes.
        makers: the function that created each variable.
        first_arguments: the arguments of the first trace.
    """

    def __init__(
        self, scope: str, cluster: Any, strategy: str, budget_s: float | None, config: ConfigProto | None
    ) -> None:
        check_cluster(cluster)
        self.scope, self.cluster = scope, cluster
        self.config = replace(config or ConfigProto(), placement_strategy="rules")
        self.graph = Graph()
        self.search = None if strategy == "rules" else SearchedPlacement(self.graph, strategy, budget_s, self.config)
        self.made: dict[tuple[str, str, int], Any] = {}
        self.makers = VariableMakers()
        self.first_arguments = FirstArguments()
        self.lock = threading.RLock()
        self.opened: Session | None = None
        self._open = ExitStack()
        self._started: LocalCluster | None = None
        self._seen = 0  # number of nodes when the graph was last searched for uninitialized state
        self._initialized: set[Any] = set()  # variables, and nodes that initialize tables
        self._saver: tuple[int, Saver] | None = None
        self._checkpoint: str | None = None  # set by a `restore` before the first trace creates variables
        self._restored: set[Any] = set()  # variables that were read from this checkpoint

    @property
    def variables(self) -> list[Any]:
        """All variables, in order of creation."""
        return list(self.graph.get_collection(GraphKeys.GLOBAL_VARIABLES))

    def session(self) -> Session:
        """The session. The first call starts or joins the cluster. UnavailableError: a process of a started cluster has ended."""
        if self.opened is None:
            self.opened = self._open.enter_context(closing(Session(self._target(), self.graph, self.config)))
            if self.search is not None:
                self.search.on(as_cluster(self.opened))
        self.check_processes()
        return self.opened

    def initialize(self) -> Session:
        """Initialize all variables that have no value, and return the session. In a joined cluster, some may already have values."""
        session = self.session()
        if len(self.graph.nodes) != self._seen:
            self._initialized |= initialize(session, self._initialized)
            self._seen = len(self.graph.nodes)
        if self._checkpoint is not None:
            new = [v for v in self.variables if v not in self._restored]
            if new:
                with self.graph.as_default():  # `partial`: the checkpoint may lack variables of later traces
                    self._read(Saver(new), self._checkpoint, partial=bool(self._restored))
                self._restored.update(new)
        return session

    def place(self, trace: _Trace, feeds: Mapping[Tensor, Array]) -> Plan | None:
        """Search for the devices of a trace's nodes, if the strategy is a search; see `SearchedPlacement.place`."""
        if self.search is None:
            return None
        return self.search.place(trace, flatten(trace.fetches), trace.effects, feeds)

    def restore(self, path: str) -> None:
        """Read all variables from a checkpoint: now, or after the first trace has created them."""
        if self.variables:
            self._checkpoint = None
            self.initialize()
            self._read(self.saver(), path)
        else:
            check_exists(path)
            self._checkpoint, self._restored = path, set()

    def _read(self, saver: Saver, path: str, partial: bool = False) -> None:
        try:
            saver.restore(self.session(), path, partial=partial)
        except NotFoundError as e:
            raise NotFoundError.of(e.message + self.other_scope(path)) from None

    def saver(self) -> Saver:
        """A saver of all variables that keeps all checkpoints. It is reused until a trace creates another variable."""
        variables = self.variables
        if not variables:
            raise ValueError(
                f"{self.scope} has no variables yet. Call {self.scope} or {self.scope}.plan first, which creates them"
            )
        if self._saver is None or self._saver[0] != len(variables):
            with self.graph.as_default():
                self._saver = len(variables), Saver(variables, max_to_keep=None)
        return self._saver[1]

    def other_scope(self, path: str) -> str:
        """A hint for the error about missing variables, if the checkpoint has them under the name of another function; else ""."""
        mine = [v.op.name.removeprefix(f"{self.scope}/") for v in self.variables]
        stored = {name for name, _ in list_variables(path)}
        for scope in sorted({name.partition("/")[0] for name in stored} - {self.scope}):
            if all(f"{scope}/{name}" in stored for name in mine):
                return (
                    f"\nVariables are named after their function: the checkpoint is of the function '{scope}', and this function is "
                    f"'{self.scope}'. To read it, compile this function with share_with={scope} and restore there, or rename this "
                    f"function (`def {scope}`)"
                )
        return ""

    def close(self) -> None:
        """End the session, and the cluster if this process started it."""
        self.opened, self._started, self._seen = None, None, 0
        self._initialized.clear()
        self._checkpoint = None
        self._open.close()

    def check_processes(self) -> None:
        """Raise an UnavailableError if a process of the cluster that this process started has ended."""
        first_ended = getattr(self._started or self.cluster, "first_ended", None)  # a `LocalCluster` has this method
        ended = first_ended() if first_ended is not None else None
        if ended is not None:
            scope = self.scope
            way_on = (
                f"`{scope}` started it. Call `{scope}.close()` to end the cluster; the next call starts a new one, with variables at their "
                "initial values"
                if self._started is not None
                else f"Start it again with the cluster's method `start(job, task)`, and call `{scope}.close()`; the next call opens a new "
                "session, in which the variables of that task have their initial values"
            )
            raise UnavailableError.of(f"{ended}. {way_on}, and `{scope}.restore(path)` reads a checkpoint")

    def _target(self) -> str:
        """The target of the session. If `cluster` is a description, start that cluster."""
        given = self.cluster
        if given is None or is_target(given):
            return given or ""
        if isinstance(given, DESCRIPTIONS):
            self._started = given = self._open.enter_context(processes(given))
        return target_of(given) or ""


def initialize(session: Session, done: Set[Any] = frozenset()) -> set[Any]:
    """Initialize the variables of a session's graph that have no value, and its tables.

    Args:
        session: the session.
        done: variables and table initializers to skip, as an earlier call returned them.

    Returns:
        The variables, and the nodes that initialize tables.
    """
    graph = session.graph
    keys = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES)
    variables = [v for key in keys for v in graph.get_collection(key) if v not in done]
    tables = [t for t in graph.get_collection(GraphKeys.TABLE_INITIALIZERS) if t not in done]
    if variables:
        with graph.as_default():
            names = {name.decode() for name in session.run(report_uninitialized_variables(variables))}
        session.run([v.initializer for v in variables if v.op.name in names])
    session.run(tables)
    return {*variables, *tables}


class CompiledFunction(Generic[P]):
    """A function that `dt.compile` returned. Call it like the original function; results are NumPy arrays. A `with` block closes it."""

    def __init__(self, function: Callable[P, Any], shared: _SharedState, symbolic_batch: bool, is_owner: bool) -> None:
        functools.update_wrapper(self, function)
        self._function, self._signature, self._called = function, inspect.signature(function), _name_of(function)
        self._shared, self._symbolic_batch, self._is_owner = shared, symbolic_batch, is_owner
        self._traces: dict[Any, _Trace] = {}

    @shows_users_frames
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run one step with these arguments.

        Arrays, numbers and other values that NumPy converts to arrays (such as a PyTorch tensor) are fed. Python numbers become int32 and
        float32. None, strings, booleans and functions are constants: each value has its own trace.

        Returns:
            The structure that the function returned, with an array for each tensor and variable, and None for each operation.

        Raises:
            TypeError: the arguments do not match the signature, an argument cannot be fed, or a result cannot be fetched.
            UnavailableError: a task of the cluster has ended.
        """
        return self._run(args, kwargs)

    @shows_users_frames
    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """The `Plan` of the step for these arguments and their shapes. It starts no cluster, but opens a session on a running one."""
        shared = self._shared
        with shared.lock:
            trace, values = self._traced(args, kwargs)
            feeds = dict(zip(trace.feeds, values, strict=True))
            is_open = shared.opened is not None or is_target(shared.cluster)
            cluster = as_cluster(shared.session() if is_open else shared.cluster)
            if shared.search is not None:
                shared.search.on(cluster)
            searched = shared.place(trace, feeds)
            if searched is not None:
                return searched
            if is_open:
                plan = shared.session().plan([trace.fetches, list(trace.effects)], feeds)
            else:
                plan = place(
                    shared.graph, cluster, fetches=flatten(trace.fetches), targets=list(trace.effects), feeds=feeds,
                    allow_soft_placement=shared.config.allow_soft_placement,
                )  # fmt: skip
            return plan if shared.search is None else shared.search.with_solution(trace, plan)

    @shows_users_frames
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Trace:
        """Run one step with these arguments, and return its `Trace`: the times of all nodes and messages, on one clock for all tasks."""
        metadata = RunMetadata()
        self._run(args, kwargs, RunOptions(trace_level=RunOptions.FULL_TRACE), metadata)
        assert metadata.trace is not None
        return metadata.trace

    @property
    def graph(self) -> Graph:
        """The graph of all traces."""
        return self._shared.graph

    @property
    def variables(self) -> list[Any]:
        """All variables that the traces have created, in order of creation."""
        return self._shared.variables

    @property
    def session(self) -> Session:
        """The session that calls run in. The first access starts or joins the cluster."""
        with self._shared.lock:
            return self._shared.session()

    @shows_users_frames
    def save(self, path: str) -> str:
        """Write a checkpoint of all variables.

        Args:
            path: prefix of the files' names.

        Returns:
            The path to pass to `restore`.

        Raises:
            ValueError: the function has no variables yet.
            OSError: the files cannot be written.
        """
        with self._shared.lock:
            return str(self._shared.saver().save(self._shared.initialize(), path))

    @shows_users_frames
    def restore(self, path: str) -> None:
        """Read all variables from a checkpoint.

        Before the first trace, which creates the variables, `restore` only records the path. The first call then reads the checkpoint.
        Variables that later traces create are also read, if the checkpoint has them.

        Args:
            path: the path that `save` returned.

        Raises:
            ValueError: there is no such checkpoint.
            NotFoundError: the checkpoint lacks a variable. The first call raises this error if `restore` came before it.

        >>> predict.restore("weights/model")  # in a new process
        >>> predict(x)
        """
        with self._shared.lock:
            self._shared.restore(path)

    def __repr__(self) -> str:
        on = "" if self._shared.cluster is None else f", on {self._shared.cluster!r}"
        traces = f"{len(self._traces)} trace{'s' * (len(self._traces) != 1)}"
        return f"<dt.compile {self._called}{self._signature}: {traces}, {len(self.variables)} variables{on}>"

    if not TYPE_CHECKING:  # to a type checker an unknown attribute is an error

        def __getattr__(self, name: str) -> Never:
            """Raise an AttributeError that says what to use instead of an attribute of another library."""
            from .api.unknown_names import OF_COMPILED_FUNCTIONS  # needed only for this error

            instead = f": use {OF_COMPILED_FUNCTIONS[name]}" if name in OF_COMPILED_FUNCTIONS else ""
            raise AttributeError(
                f"a function made by dt.compile has no attribute {name!r}{instead}", name=name, obj=self
            )

    def close(self) -> None:
        """End the session, and the cluster if this function started it. A later call starts both again, with the initial variables."""
        with self._shared.lock:
            self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self, args: Any, kwargs: Any, options: RunOptions | None = None, metadata: RunMetadata | None = None
    ) -> Any:
        with self._shared.lock:
            trace, values = self._traced(args, kwargs)
            feeds = dict(zip(trace.feeds, values, strict=True))
            if self._shared.search is not None:
                self._shared.session()
                self._shared.place(trace, feeds)
            session = self._shared.initialize()
        try:
            found = session.run([trace.fetches, list(trace.effects)], feeds, options, metadata)[0]
        except UnavailableError:
            self._shared.check_processes()  # raises a more specific error for a cluster that this process started
            raise
        return with_values(trace.results, found)

    def _traced(self, args: Any, kwargs: Any) -> tuple[_Trace, list[Array]]:
        """The trace for these arguments, which is made if needed, and the arrays to feed."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as e:
            settings = [n for n in kwargs if n in _SETTINGS and n not in self._signature.parameters]
            hint = f"; give `{settings[0]}` to dt.compile: @dt.compile({settings[0]}=...)" if settings else ""
            raise TypeError(f"{self._called}{self._signature}: {e}{hint}") from None
        bound.apply_defaults()
        structure = (list(bound.args), bound.kwargs)
        leaves = nest.flatten(structure)
        fed = [not is_constant(leaf) for leaf in leaves]
        values: list[Array] = []
        for i in itertools.compress(range(len(leaves)), fed):
            array = as_array(leaves[i])
            if array is None:
                raise TypeError(refusal(self._called, names_of(bound)[i], leaves[i]))
            values.append(array)
        key = (constants_of(structure, leaves), *((v.dtype.str, self._dims(v)) for v in values))
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._make_trace(structure, names_of(bound), leaves, fed, values)
            if len(self._traces) == MANY_TRACES:
                warnings.warn(
                    f"{self._shared.scope} was traced {MANY_TRACES} times for different shapes, types or constants; each trace is "
                    "compiled. If only the first axis differs, use dt.compile(symbolic_batch=True)",
                    stacklevel=5,
                )
        return trace, values

    def _dims(self, value: Array) -> tuple[int | None, ...]:
        return (None, *value.shape[1:]) if self._symbolic_batch and value.ndim else value.shape

    def _make_trace(
        self, structure: Any, names: list[str], leaves: list[Any], fed: list[bool], values: list[Any]
    ) -> _Trace:
        """Call the function with placeholders in place of the arrays. The placeholders are named after the parameters."""
        shared, rest = self._shared, iter(values)
        before = len(shared.graph.nodes)
        counts: Counter[tuple[str, str]] = Counter()

        def find_or_make(next_creator: Callable[..., Any], **arguments: Any) -> Any:
            """The variable that an earlier trace created with this name, in this scope, at the same count, or else a new one."""
            place = (shared.graph.get_name_scope().removeprefix(scope), arguments.get("name") or "")
            counts[place] += 1
            key = (*place, counts[place])
            if key not in shared.made:
                shared.made[key] = next_creator(**arguments)
            return shared.made[key]

        def get(getter: Callable[..., Any], *given: Any, **arguments: Any) -> Any:
            """Get a variable as `get_variable` does, and record it."""
            found = getter(*given, **arguments)
            shared.makers.note(found, self._called, self._is_owner, arguments.get("initializer"))
            return found

        with (
            shared.graph.as_default(),
            variable_scope(shared.scope, reuse=AUTO_REUSE, custom_getter=get),
            variable_creator_scope(find_or_make),
        ):
            scope, given = shared.graph.get_name_scope(), []
            for leaf, name, is_fed in zip(leaves, names, fed, strict=True):
                value = next(rest) if is_fed else leaf
                name = f"arguments/{name}"  # a variable may have the name of a parameter
                given.append(placeholder(value.dtype, self._dims(value), name) if is_fed else value)
            positional, named = nest.pack_sequence_as(structure, given)
            token = names_in_trace.set({})
            try:
                with build(shared.graph, object()):
                    results = self._function(*positional, **named)
            except (TypeError, ValueError) as e:
                shared.first_arguments.explain(e, self._called, dict(zip(names, given, strict=True)))
                raise
            finally:
                shared.first_arguments.note(self._called, dict(zip(names, given, strict=True)))
                names_in_trace.reset(token)

            results = returned(self._called, results)
        if shared.search is not None:
            shared.search.note(shared.graph.nodes[before:], scope, shared.scope)
        feeds = tuple(t for t, is_fed in zip(given, fed, strict=True) if is_fed)
        return _Trace(feeds, results, fetches(results), tuple(_effects(shared.graph, before)))


def _effects(graph: Graph, before: int) -> list[Node]:
    """The nodes with side effects from number `before` on, except the initialisers of variables and tables.

    A node inside a loop cannot be a target, so the exits of the loops stand for such nodes.
    """
    nodes = graph.nodes[before:]
    starts = [
        v.initializer
        for key in (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES)
        for v in graph.get_collection(key)
    ]
    cone, left = set(), [*starts, *graph.get_collection(GraphKeys.TABLE_INITIALIZERS)]
    while left:
        node = left.pop()
        if node not in cone:
            cone.add(node)
            left += [*(t.op for t in node.inputs), *node.controls]
    found = [n for n in nodes if n.opdef.changes_state and n not in cone and n.type != "Placeholder"]
    loops = Frames(graph.nodes).runs_in if any(n.type == "LoopCond" for n in nodes) else {}
    inside = [n for n in found if loops.get(n) is not None]
    exits = [n for n in nodes if n.type == "Exit" and loops.get(n) is None] if inside else []
    return [*(n for n in found if n not in set(inside)), *exits]


@overload
def compile(
    function: Callable[P, Any],
    *,
    cluster: Any = None,
    strategy: str = "rules",
    budget_s: float | None = None,
    symbolic_batch: bool = False,
    config: ConfigProto | None = None,
    share_with: CompiledFunction[Any] | None = None,
) -> CompiledFunction[P]: ...
@overload
def compile(
    function: None = None,
    *,
    cluster: Any = None,
    strategy: str = "rules",
    budget_s: float | None = None,
    symbolic_batch: bool = False,
    config: ConfigProto | None = None,
    share_with: CompiledFunction[Any] | None = None,
) -> Callable[[Callable[P, Any]], CompiledFunction[P]]: ...
@explains_arguments
def compile(
    function: Callable[..., Any] | None = None,
    *,
    cluster: Any = None,
    strategy: str = "rules",
    budget_s: float | None = None,
    symbolic_batch: bool = False,
    config: ConfigProto | None = None,
    share_with: CompiledFunction[Any] | None = None,
) -> Any:
    """Compile a function: it is traced into a graph once per signature, planned, compiled, and run in this process or on a cluster.

    The function uses Dovetail's ops, device blocks, variables, layers and optimizers. The first trace creates its variables. Later traces
    reuse them by name and scope. Ops with side effects, such as an update or a `dt.print`, run in each call even if the function does not
    return them. Their order is that of the graph (see `control_dependencies`).

    Args:
        function: takes and returns nested structures of tensors. None: `compile` returns a decorator.
        cluster: where the function runs. None: in this process. A running cluster is a `LocalCluster`, a `RayCluster`, a server, or a
            target (`"zmq://host:port"`). A description is numbers of tasks (`{"ps": 1, "worker": 2}` or `"ps=1,worker=2"`), a
            `ClusterSpec`, or the path of a cluster file. The first call starts the described tasks on this machine, and `close` ends them.
        strategy: how nodes without a device are placed, as in `dt.place`. The first call, or `plan`, makes the search of `auto` with the
            shapes of its arguments. Signatures with the same nodes, such as other batch sizes, share the placement.
        budget_s: effort of the search, in seconds of two typical CPU cores, as in `dt.place`. None: 5.0. Only with `strategy="auto"`.
        symbolic_batch: make the first axis of all arrays symbolic, so that all batch sizes share one trace.
        config: settings of the session.
        share_with: another compiled function whose graph, variables, session and cluster this function uses.

    Raises:
        TypeError: `function` is not callable, or is a generator or a coroutine. `share_with` is combined with `cluster`, `strategy` or
            `config`. An argument has another type.
        ValueError: the description of the cluster is malformed, the strategy is unknown, or `budget_s` is invalid or not for the strategy.
        OSError: the cluster file cannot be read.

    >>> @dt.compile(cluster={"ps": 1, "worker": 2})
    ... def double(x):
    ...     with dt.device("/job:worker/task:1"):
    ...         return x * 2
    >>> print(double.plan(np.ones(3)).explain("double/mul"))
    >>> with double:
    ...     double(np.ones(3))
    array([2., 2., 2.])
    """
    if function is None:
        return functools.partial(
            compile, cluster=cluster, strategy=strategy, budget_s=budget_s, symbolic_batch=symbolic_batch, config=config,
            share_with=share_with,
        )  # fmt: skip
    if any(c.__name__ == "Module" and c.__module__ == "torch.nn.modules.module" for c in type(function).__mro__):
        raise TypeError(
            f"dt.compile takes a function of Dovetail's ops, not a PyTorch module ({type(function).__name__}): export it with "
            "torch.onnx.export, and load the file with dt.onnx.load"
        )
    if not callable(function) or inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise TypeError(f"dt.compile takes a function that returns tensors, not {function!r}")
    if budget_s is not None and strategy != "auto":
        raise ValueError(
            f'budget_s is the effort of the search of strategy="auto", not {strategy!r}: add strategy="auto", or leave out budget_s'
        )
    if share_with is None:
        shared = _SharedState(_name_of(function), cluster, strategy, budget_s, config)
        return CompiledFunction(function, shared, symbolic_batch, True)
    if cluster is not None or config is not None or strategy != "rules":
        raise TypeError(
            "`share_with` implies the cluster, strategy and config of the other function: leave these arguments out"
        )
    return CompiledFunction(function, share_with._shared, symbolic_batch, False)


_SETTINGS = [p.name for p in inspect.signature(compile).parameters.values() if p.kind is p.KEYWORD_ONLY]


def _name_of(function: Callable[..., Any]) -> str:
    """The function's name, as the scope of its variables."""
    return re.sub(r"\W", "", getattr(function, "__name__", "")) or "function"
