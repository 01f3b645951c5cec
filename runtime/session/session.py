"""Sessions run graphs.

`Session()` runs steps in this process, `Session("zmq://host:port")` on the cluster of that server. The first `run` of a signature (fetches,
targets and feeds) prepares it: nodes are placed, partitioned and compiled on their tasks. Later runs of the same signature only send
the fed values to the tasks that take part, and wait for the fetched ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...graph.core.argument_names import explains_arguments
from ...graph.core.default_graph import default_session, get_default_graph
from ...graph.core.errors import invalid
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.interpreter_state import process_id
from ...graph.core.scopes import open_blocks
from ...graph.core.source_location import hide_own_frames
from ...placer.cluster.spec import DeviceInfo
from ...placer.cost.shapes import given_shapes
from ...placer.partition.prune import named, needed
from ...placer.plan import Plan
from ..config import ConfigProto, RunMetadata, RunOptions, check_config
from ..master import lowering as _kernels_of  # noqa: F401  registers the function that lists a plan's kernels
from .fetches import Fetches, fed_tensor, feed_value, parse_feeds, parse_fetches
from .partial_run import PartialRun
from .prepared_steps import CLOSED, Backend, PreparedSteps, address_of


class Session:
    """Runs the steps of a graph, in this process or on a cluster.

    Args:
        target: '' for this process, or a server's `target`, "zmq://host:port" ("grpc://host:port" means the same).
        graph: the graph to run; None: the default graph.
        config: a `ConfigProto`.
        wait_for_cluster: seconds to wait for tasks that have not started, including the one at `target`; None: `wait_for_cluster_s`
            of `config` (30 s), and for the task at `target` its `peer_timeout_s` (5 s). The log names the missing tasks.

    Raises:
        NotFoundError: the target is malformed.
        UnavailableError: no server answers there, or tasks of its cluster are missing.
        TypeError: `config` is not a ConfigProto.
        InvalidArgumentError: the target does not support an option of `config`, such as another `cluster_def` or threads per session.

    >>> with Session() as session:
    ...     session.run(constant(2.0) * 3)
    6.0
    """

    @explains_arguments
    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        *,
        wait_for_cluster: float | None = None,
        _within: Backend | None = None,
    ) -> None:
        self._config = check_config(config).settled()
        if wait_for_cluster is not None:
            self._config = dataclasses.replace(self._config, wait_for_cluster_s=float(wait_for_cluster))
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph must be a Graph, not {type(graph).__name__}")
        if isinstance(target, bytes):
            target = target.decode()
        if not isinstance(target, str):
            own = getattr(target, "target", None)  # a cluster's is a method, a server's is not
            hint = f": pass its `target{'()' * callable(own)}`" if own is not None else ""
            raise TypeError(f"target must be a string, not {type(target).__name__}{hint}")
        self._target_name = target
        self._process = process_id()
        self._graph = get_default_graph() if graph is None else graph
        self._graph.table.check_values()
        self._parsed: dict[Any, Fetches] = {}
        self._partial_runs: dict[str, PartialRun] = {}
        self._numbers = itertools.count(1)  # numbers of partial runs
        self._contexts: list[AbstractContextManager[Any]] = []
        self._backend: Backend
        if _within is not None:
            self._backend = _within
        elif target:
            if self._config.use_per_session_threads or self._config.session_inter_op_thread_pool:
                raise invalid(
                    f"use_per_session_threads and session_inter_op_thread_pool are for sessions in this process: the server at {target} "
                    "runs steps with its own threads (inter_op_parallelism_threads of its config). Leave them out",
                )  # fmt: skip
            from .cluster_backend import connect  # loads ZeroMQ only when it is used

            self._backend = connect(address_of(target), self._config, wait_for_cluster or 0.0)
        else:
            from .local_backend import make_local_backend  # loads ZeroMQ

            self._backend = make_local_backend(self._graph, self._config)
        self._steps = PreparedSteps(self._graph, self._backend)

    # --- what it is ------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The graph of the session."""
        return self._graph

    @property
    def graph_def(self) -> Any:
        """The graph as TensorFlow's `GraphDef`, with shapes. Errors as in `Graph.as_graph_def`."""
        return self._graph.as_graph_def(add_shapes=True)

    @property
    def sess_str(self) -> str:
        """The target."""
        return self._target_name

    def list_devices(self) -> list[DeviceInfo]:
        """The devices that the session can use, the master's first."""
        return list(self._backend.devices)

    @property
    def is_replicated(self) -> bool:
        """Whether a second task has a copy of the variables of each parameter server (`DOVETAIL_PS_REPLICAS`)."""
        return self._backend.is_replicated

    # --- running ---------------------------------------------------------------------------------------------------

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Run one step.

        Args:
            fetches: tensors, nodes, names, variables, or nested lists, tuples, dicts and namedtuples of those.
            feed_dict: tensor -> its value in this step: arrays, numbers or lists. Any tensor may be fed; its producer then does not run.
            options: the timeout and tracing of this step.
            run_metadata: receives the trace and partitions of the step, as `options` request.

        Returns:
            The values, in the structure of `fetches`; None for a node. Scalars are NumPy scalars.

        Raises:
            RuntimeError: the session is closed, or its graph is empty.
            TypeError, ValueError: the fetches or feeds are invalid; nothing has run.
            OpError: the step could not be prepared, or failed (see `dt.errors`); `op` is the node that failed.
        """
        try:
            self._check_open()
            parsed = self._parse(fetches)  # which may make nodes
            self._check_runnable()
            feeds = parse_feeds(self._graph, feed_dict)
            return parsed.rebuild(self._steps.run(parsed, feeds, options, run_metadata))
        except Exception as e:
            hide_own_frames(e)
            raise

    def between_steps(self, timeout_s: float = 60.0) -> AbstractContextManager[None]:
        """A context in which only steps of this thread can change variables, among the steps of this session.

        Steps of other threads that change variables wait until it ends. Steps that change none, such as those that fill queues, continue.
        Steps of other sessions are not affected.

        Args:
            timeout_s: seconds to wait for running steps.

        Raises:
            DeadlineExceededError: a step that changes variables has not ended in time.

        >>> with session.between_steps():
        ...     values = session.run(tf.trainable_variables())  # of one moment
        """
        return self._steps.gate.closed(timeout_s)

    def partial_run_setup(self, fetches: Any, feeds: Iterable[Any] | None = None) -> str:
        """Declare a step that is run in several calls of `partial_run`.

        Args:
            fetches: everything that will be fetched or run, in any structure.
            feeds: every tensor that will be fed.

        Returns:
            A handle for `partial_run`. It is valid until everything has been fetched, or a step has failed.

        Raises:
            RuntimeError: the session is closed, or its graph is empty. TypeError, ValueError: as in `run`.
            InvalidArgumentError: there are no fetches.

        >>> handle = session.partial_run_setup([hidden, loss], [x, y])
        >>> seen = session.partial_run(handle, hidden, {x: images})
        >>> session.partial_run(handle, loss, {y: answer(seen)})  # `hidden` is not computed again
        """
        self._check_runnable()
        parsed = self._parse(fetches)
        made = PartialRun(self._graph, parsed, [fed_tensor(self._graph, key) for key in feeds or ()])
        handle = f"partial run {next(self._numbers)} of {', '.join((*parsed.tensors, *parsed.targets))}"
        self._partial_runs[handle] = made
        return handle

    def partial_run(self, handle: str, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Continue a partial run: feed some of the declared feeds, and return some of the declared fetches.

        Each node runs once in all calls together, when a fetch first needs it. This process stores the values that later calls need.

        Args:
            handle: the result of `partial_run_setup`.
            fetches: as for `run`; each declared fetch may be used once.
            feed_dict: as for `run`; each declared feed may be used once.

        Raises:
            InvalidArgumentError: a feed or fetch was not declared, was used before, or needs a tensor that has not been fed.
            UnimplementedError: two calls need a node with side effects inside a loop or a branch. Other errors as in `run`.
        """
        self._check_runnable()
        run = self._partial_runs.get(handle)
        if run is None:
            raise invalid("Must run 'setup' before performing partial runs!")
        parsed = self._parse(fetches)
        try:
            found = run.run(parsed, parse_feeds(self._graph, feed_dict), lambda w, f: self._steps.run(w, f, None))
        finally:
            if run.is_over:
                self._partial_runs.pop(handle, None)
        return parsed.rebuild(found)

    # --- plans -----------------------------------------------------------------------------------------------------

    def plan(self, fetches: Any, feed_dict: Mapping[Any, Any] | Iterable[Any] | None = None) -> Plan:
        """Plan `run(fetches, feed_dict)`, and run nothing: the device of each node and its reason, and the transfers between devices.

        The master that prepares the session's steps makes the plan.

        Args:
            fetches: as for `run`.
            feed_dict: the feeds: a dictionary as for `run`, of which only the shapes of values are used, or its keys. None: all
                placeholders that the fetches need. Feeds without values have the shapes that were last fed in this session; if there are
                none, unknown sizes count as 1.

        Raises:
            RuntimeError: the session is closed. TypeError, ValueError: the fetches or feeds are invalid.
            InvalidArgumentError: the graph cannot be placed.

        >>> print(session.plan(train_op))
        """
        self._check_open()
        parsed = self._parse(fetches)
        if feed_dict is None:
            nodes = needed(self._graph, *named(self._graph, parsed.tensors, parsed.targets))
            fed = [n.outputs[0].name for n in nodes if n.type == "Placeholder"]
        else:
            fed = [fed_tensor(self._graph, key).name for key in feed_dict]
        key = tuple(n for n in parsed.tensors if n not in fed), parsed.targets, tuple(fed)
        return self._steps.plan(key, given_shapes(self._graph, feed_dict))

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last step, with the shapes that were fed, and batches of data sets as they were; None before the first step.

        Where a batch may have been smaller than a full one, and nobody knows, its size is open: `plan(...)` has that of full batches.

        Raises:
            RuntimeError: the session is closed. AbortedError: its master was restarted and has lost the plan.
        """
        self._check_open()
        return self._steps.last_plan

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function that runs these fetches; its positional arguments are the values of `feed_list`.

        >>> add_one = session.make_callable(x + 1, [x])
        >>> add_one(2.0)
        3.0
        """
        self._check_open()
        parsed = self._parse(fetches)
        fed = [fed_tensor(self._graph, key) for key in feed_list or ()]
        names = [t.name for t in fed]

        def call(*values: Any, options: RunOptions | None = None, run_metadata: RunMetadata | None = None) -> Any:
            if len(values) != len(fed):
                raise ValueError(f"Expected {len(fed)} values ({', '.join(names)}), got {len(values)}")
            self._check_open()
            feeds = dict(zip(names, map(feed_value, fed, values), strict=True))
            return parsed.rebuild(self._steps.run(parsed, feeds, options, run_metadata))

        return call

    def warmup(self, fetches: Any, feed_dict: Mapping[Any, Any] | Sequence[Any] | None = None) -> None:
        """Prepare a step and compile all its kernels in advance. Nothing runs.

        Without it, kernels are compiled in the background, and NumPy runs them until then.

        Args:
            fetches: as for `run`.
            feed_dict: the tensors that will be fed, or a dictionary as for `run`.

        >>> session.warmup(train_op, [images, labels])
        """
        self._check_open()
        parsed = self._parse(fetches)
        fed = tuple(fed_tensor(self._graph, key).name for key in feed_dict or ())
        key = (tuple(n for n in parsed.tensors if n not in fed), parsed.targets, fed)
        if key[0] or key[1]:
            self._steps.prepare(key, warm=True)

    def _parse(self, fetches: Any) -> Fetches:
        """`parse_fetches`, cached for graph elements and flat lists of them, the common cases in a training loop."""
        is_list = type(fetches) is list or type(fetches) is tuple
        key = (type(fetches), *fetches) if is_list else fetches
        try:
            found = self._parsed.get(key)
        except TypeError:  # a dict, or a list of lists
            return parse_fetches(self._graph, fetches)
        if found is None:
            found = parse_fetches(self._graph, fetches)
            if all(isinstance(x, (Tensor, Node)) for x in (fetches if is_list else (fetches,))):
                self._parsed[key] = found
        return found

    def _check_open(self) -> None:
        if self._steps.is_closed:
            raise RuntimeError(CLOSED)
        if process_id() != self._process and self._target_name:
            raise RuntimeError(
                f"This session on {self._target_name} belongs to process {self._process}, and a fork has inherited it: its connections "
                "cannot be shared. Make a session of this process's own"
            )

    def _check_runnable(self) -> None:
        self._check_open()
        if self._graph.version == 0:
            raise RuntimeError(
                "The Session graph is empty. Add operations to the graph before calling run(). A session runs the graph that was "
                "the default one when it was made; for another one, dt.Session(graph=...)"
            )

    # --- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session. Running steps fail with CancelledError; later calls of `run` raise RuntimeError. A second call does nothing."""
        if not self._steps.is_closed:
            self._steps.is_closed = True
            if process_id() == self._process or not self._target_name:  # else it is the parent's
                self._backend.close()

    def as_default(self) -> AbstractContextManager[Any]:
        """A context in which `tensor.eval()` and `op.run()` use this session. The end of the context does not close it."""
        return default_session(self)

    def __enter__(self) -> Session:
        if self._contexts and not isinstance(self, InteractiveSession):
            raise RuntimeError(
                "Session context managers are not re-entrant. Use `session.as_default()` inside the block"
            )
        for context in (self._graph.as_default(), self.as_default()):
            context.__enter__()
            self._contexts.append(context)
        return self

    def __exit__(self, *exc: Any) -> None:
        while self._contexts:
            self._contexts.pop().__exit__(*exc)
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_steps"):
            try:  # noqa: SIM105  (while the interpreter shuts down, even contextlib may be gone)
                self.close()
            except Exception:
                pass

    @staticmethod
    def reset(target: str, containers: Sequence[str] | None = None, config: ConfigProto | None = None) -> None:
        """Clear containers on all tasks of a cluster (default: each task's own) and close all sessions of that master.

        Raises:
            NotFoundError: the target is malformed. UnavailableError: no server answers there.
        """
        from .cluster_backend import reset_cluster  # loads ZeroMQ

        reset_cluster(address_of(target), list(containers or ()), check_config(config))

    def __repr__(self) -> str:
        state = "closed" if self._steps.is_closed else "open"
        count = len(self.list_devices())
        return f"<dt.Session on {self._target_name or 'this process'}, {count} device{'s' * (count != 1)}, {state}>"


class InteractiveSession(Session):
    """A session for interactive use: it is the default session until it is closed.

    It places only the nodes that a run needs (`GraphOptions.place_pruned_graph`), so that a node that cannot be placed fails only its own
    runs. A second open InteractiveSession in a thread gives a warning: each keeps its memory until it is closed.
    """

    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        *,
        wait_for_cluster: float | None = None,
    ) -> None:
        if any(isinstance(session, InteractiveSession) for session in open_blocks.sessions):
            warnings.warn(
                "An InteractiveSession is open already; it holds its memory and its server until its close() is called",
                stacklevel=2,
            )
        config = check_config(config)
        options = dataclasses.replace(config.graph_options, place_pruned_graph=True)
        config = dataclasses.replace(config, graph_options=options)
        super().__init__(target, graph, config, wait_for_cluster=wait_for_cluster)
        given = [] if graph is None else [self._graph.as_default()]  # the default graph may be reset meanwhile
        for context in (*given, self.as_default()):
            context.__enter__()
            self._contexts.append(context)

    def close(self) -> None:
        """End the session; it is no longer the default session."""
        while self._contexts:
            self._contexts.pop().__exit__(None, None, None)
        super().close()
