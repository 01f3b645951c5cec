"""`Supervisor`: what training programs used before monitored sessions, and many still do.

It makes the session (the chief initialises or restores, others wait), starts the threads that fill queues, and on the chief the
services: summaries, steps per second, checkpoints, each in a thread of its own, every so many seconds. The program has the loop.

A session that a lost task has ended is not made anew: the program leaves `managed_session` with the error, or asks for the next one.
`MonitoredTrainingSession` goes on by itself.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from ....graph.core.default_graph import GraphKeys, get_default_graph
from ....graph.core.errors import AbortedError, OpError
from ....graph.core.graph import Graph
from ....graph.variables.store import global_variables, global_variables_initializer, report_uninitialized_variables
from ....runtime.config import ConfigProto, RunOptions
from ....runtime.session.session import Session
from ....train.global_step import global_step as value_of_step
from ....train.loops.coordinator import Coordinator, LooperThread
from ....train.loops.queue_runner import QueueRunner
from ....train.loops.scaffold import Scaffold
from ....train.loops.session_manager import RETRY_S, SessionManager
from ....train.saving.meta_graph import write_training_graph
from ....train.saving.saver import Saver
from .services import CheckpointService, StepCounterService, SummaryService, session_log

logger = logging.getLogger(__name__)

USE_DEFAULT: Any = 0
"""Stands for: what the graph's collections hold, or what is usual."""

_VARIABLES = frozenset(("VariableV2", "VarHandleOp"))


class Supervisor:
    """Makes a training program's sessions, and runs what goes on beside its steps.

    All nodes must have been made: it finalises the graph.

    Args:
        graph: the graph; None: the default one.
        ready_op, ready_for_local_init_op: give the names of variables without a value; None: not checked.
        is_chief: whether this process initialises, saves and writes summaries.
        init_op, init_feed_dict, init_fn: initialise the variables: a node, what to feed it, and `init_fn(session)` after it.
        local_init_op, local_init_run_options: initialise what each process has for itself.
        logdir: folder of checkpoints, summaries and the graph (`graph.pbtxt`), which all tasks see; the chief makes it. None: none of
            these is written.
        summary_op: the summaries to write, as one string tensor. saver: a `Saver`. global_step: the global step. Of these, and of the
            nodes above, `USE_DEFAULT` means what the graph's collections hold, or what is usual; None means none.
        save_summaries_secs, save_model_secs: how often summaries, and checkpoints, are written, in seconds; 0: never.
        recovery_wait_secs: how long workers wait between two looks whether the chief has initialised.
        stop_grace_secs: how long threads have to end. checkpoint_basename: how checkpoints are called.
        session_manager: a `SessionManager`; None: one of the above.
        summary_writer: a `summary.FileWriter`; `USE_DEFAULT`: one for `logdir`; None: none.

    Raises:
        ValueError: this is not the chief, and a variable has no device: it would be each worker's own.

    >>> sv = Supervisor(is_chief=task == 0, logdir="/shared/run", global_step=global_step)
    >>> with sv.managed_session(server.target) as session:
    ...     while not sv.should_stop() and session.run(global_step) < 1000:
    ...         session.run(train_op)
    """

    USE_DEFAULT = USE_DEFAULT

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: Mapping[Any, Any] | None = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: str | None = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = RETRY_S,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: SessionManager | None = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Any], Any] | None = None,
        local_init_run_options: RunOptions | None = None,
    ) -> None:
        self._graph = get_default_graph() if graph is None else graph
        self._coord = Coordinator()
        self._is_chief = is_chief
        self._init_feed_dict, self._init_fn = init_feed_dict, init_fn
        self._logdir = logdir
        self._save_path = str(Path(logdir) / checkpoint_basename) if logdir else None
        self._save_summaries_secs = save_summaries_secs if logdir else None
        self._save_model_secs = save_model_secs if logdir else None
        self._grace_s = stop_grace_secs
        self._graph_written = False
        self._services: list[LooperThread] = []
        _check_variables_have_devices(self._graph, is_chief)
        keys = GraphKeys
        with self._graph.as_default():
            self._ready_op = _or_default(ready_op, keys.READY_OP, report_uninitialized_variables)
            self._ready_for_local_init_op = _or_default(
                ready_for_local_init_op, keys.READY_FOR_LOCAL_INIT_OP, lambda: None
            )
            self._local_init_op = _or_default(local_init_op, keys.LOCAL_INIT_OP, Scaffold.default_local_init_op)
            self._init_op = _or_default(init_op, keys.INIT_OP, global_variables_initializer)
            self._summary_op = _or_default(summary_op, keys.SUMMARY_OP, _all_summaries)
            self._saver = _or_default(saver, keys.SAVERS, lambda: Saver() if global_variables() else None)
            self._global_step = _or_default(global_step, GraphKeys.GLOBAL_STEP, _step_by_name)
            if self._saver is not None:
                self._saver.build()
        if logdir and is_chief:
            Path(logdir).mkdir(parents=True, exist_ok=True)
        if self._local_init_op is None:
            self._ready_for_local_init_op = None
        self._summary_writer = summary_writer
        if summary_writer is USE_DEFAULT:
            self._summary_writer = _writer(logdir) if is_chief and logdir else None
        self._manager = session_manager or SessionManager(
            self._local_init_op,
            self._ready_op,
            self._ready_for_local_init_op,
            self._graph,
            recovery_wait_secs,
            local_init_run_options,
        )
        self._graph.finalize()

    # --- what it is made of -----------------------------------------------------------------------------------------

    @property
    def is_chief(self) -> bool:
        """Whether this process initialises, saves and writes summaries."""
        return self._is_chief

    @property
    def session_manager(self) -> SessionManager:
        """What makes the sessions."""
        return self._manager

    @property
    def coord(self) -> Coordinator:
        """What all threads listen to."""
        return self._coord

    @property
    def init_op(self) -> Any:
        """Initialises the variables."""
        return self._init_op

    @property
    def init_feed_dict(self) -> Mapping[Any, Any] | None:
        """What to feed `init_op`."""
        return self._init_feed_dict

    @property
    def ready_op(self) -> Any:
        """Names of variables without a value."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        """Names of what `local_init_op` needs and has no value."""
        return self._ready_for_local_init_op

    @property
    def local_init_op(self) -> Any:
        """Initialises what each process has for itself."""
        return self._local_init_op

    @property
    def summary_writer(self) -> Any:
        """Writes summaries; None: none are written, or this is not the chief."""
        return self._summary_writer

    @property
    def summary_op(self) -> Any:
        """The summaries to write; None: there are none."""
        return self._summary_op

    @property
    def save_summaries_secs(self) -> float | None:
        """How often summaries are written, in seconds."""
        return self._save_summaries_secs

    @property
    def global_step(self) -> Any:
        """The global step; None: the graph has none."""
        return self._global_step

    @property
    def saver(self) -> Any:
        """What saves and restores; None: nothing does."""
        return self._saver

    @property
    def save_model_secs(self) -> float | None:
        """How often a checkpoint is written, in seconds."""
        return self._save_model_secs

    @property
    def save_path(self) -> str | None:
        """Where checkpoints go: the name that the step's number follows."""
        return self._save_path

    # --- sessions ---------------------------------------------------------------------------------------------------

    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Session:
        """A session that is ready: on the chief initialised or restored, elsewhere once the chief has done that.

        Args:
            master: the session's target. config: a `ConfigProto`.
            wait_for_checkpoint: whether the chief waits until there is a checkpoint.
            max_wait_secs: how long to wait, in seconds.
            start_standard_services: also start the services, on the chief, and the threads that fill queues.

        Raises:
            RuntimeError: the variables have no values even so. DeadlineExceededError: the chief is not ready in time.
        """
        self._coord.clear_stop()
        if self._is_chief:
            if self._summary_writer is not None:
                self._summary_writer.reopen()
            session = self._manager.prepare_session(
                master,
                self._init_op,
                self._saver,
                self._logdir,
                wait_for_checkpoint=wait_for_checkpoint,
                max_wait_secs=max_wait_secs,
                config=config,
                init_feed_dict=self._init_feed_dict,
                init_fn=self._init_fn,
            )
            self._write_graph()
            if start_standard_services:
                self.start_standard_services(session)
        else:
            session = self._manager.wait_for_session(master, config, max_wait_secs)
        if start_standard_services:
            self.start_queue_runners(session)
        return session

    PrepareSession = prepare_or_wait_for_session

    @contextlib.contextmanager
    def managed_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Session]:
        """A session as of `prepare_or_wait_for_session`, for a `with` block, at whose end all threads stop and the session is closed.

        An error in the block, or in a thread, stops all and is raised at its end; `OutOfRangeError` only stops: the input is exhausted.
        """
        session: Session | None = None
        try:
            session = self.prepare_or_wait_for_session(master, config, start_standard_services=start_standard_services)
            yield session
        except Exception as e:
            self.request_stop(e)
        finally:
            if session is not None:
                self._close(session)
            self.stop(close_summary_writer=close_summary_writer)

    # --- services ---------------------------------------------------------------------------------------------------

    def start_standard_services(self, sess: Session) -> list[LooperThread] | None:
        """Start the threads that write summaries, count steps and save checkpoints; gives them. None: there is no `logdir`.

        Raises:
            RuntimeError: this is not the chief.
        """
        self._check_chief("start_standard_services")
        if not self._logdir:
            logger.warning("Standard services need a 'logdir' passed to the Supervisor.")
            return None
        writer, step = self._summary_writer, self._global_step
        services: list[LooperThread] = []
        if writer is not None:
            session_log(writer, "START")
            if self._summary_op is not None and self._save_summaries_secs:
                services.append(
                    SummaryService(self._coord, self._save_summaries_secs, sess, self._summary_op, step, writer)
                )
            if step is not None and self._save_summaries_secs:
                services.append(StepCounterService(self._coord, self._save_summaries_secs, sess, step, writer))
        if self._saver is not None and self._save_model_secs:
            assert self._save_path is not None
            services.append(
                CheckpointService(self._coord, self._save_model_secs, sess, self._saver, self._save_path, step, writer)
            )
        for service in services:
            service.start()
        self._services = services
        return services

    StartStandardServices = start_standard_services

    def start_queue_runners(self, sess: Session, queue_runners: Iterable[QueueRunner] | None = None) -> list[Thread]:
        """Start the threads of queue runners: of those given, or of all in the graph's collection. Gives the threads."""
        if queue_runners is None:
            queue_runners = self._graph.get_collection(GraphKeys.QUEUE_RUNNERS)
        return [
            t for runner in queue_runners for t in runner.create_threads(sess, self._coord, daemon=True, start=True)
        ]

    StartQueueRunners = start_queue_runners

    def loop(
        self,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Start a thread that calls a function every so many seconds, or without a pause, until all stop."""
        looper = LooperThread(self._coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    Loop = loop

    def summary_computed(self, sess: Session, summary: bytes, global_step: int | None = None) -> None:
        """Write a summary that the program computed: what a summary node gave.

        Args:
            sess: asked for the global step where that is not given. summary: what a summary node gave. global_step: its step.

        Raises:
            RuntimeError: this is not the chief, or there is no summary writer.
        """
        self._check_chief("summary_computed")
        if self._summary_writer is None:
            raise RuntimeError("Writing a summary requires a summary writer: pass a logdir to the Supervisor")
        if global_step is None and self._global_step is not None:
            global_step = value_of_step(sess, self._global_step)
        self._summary_writer.add_summary(summary, global_step)

    SummaryComputed = summary_computed

    # --- the end ----------------------------------------------------------------------------------------------------

    def stop(
        self,
        threads: Iterable[Thread] | None = None,
        close_summary_writer: bool = True,
        ignore_live_threads: bool = False,
    ) -> None:
        """Stop all threads and wait for them; does not close the session.

        Args:
            threads: those to wait for; None: all that are registered with the coordinator.
            close_summary_writer: close it. ignore_live_threads: no error for threads that do not end in time.

        Raises:
            RuntimeError: threads go on. Exception: what ended one of them, or the block of `managed_session`.
        """
        self._coord.request_stop()
        try:
            self._coord.join(threads, stop_grace_period_secs=self._grace_s, ignore_live_threads=ignore_live_threads)
        finally:
            if close_summary_writer and self._summary_writer is not None:
                session_log(self._summary_writer, "STOP")
                self._summary_writer.close()
                self._graph_written = False

    Stop = stop

    def request_stop(self, ex: Any = None) -> None:
        """Ask all threads to stop; `ex` is raised where they are waited for."""
        self._coord.request_stop(ex)

    RequestStop = request_stop

    def should_stop(self) -> bool:
        """Whether all are to stop."""
        return self._coord.should_stop()

    ShouldStop = should_stop

    def stop_on_exception(self) -> contextlib.AbstractContextManager[None]:
        """A block of a thread: an error in it stops all."""
        return self._coord.stop_on_exception()

    StopOnException = stop_on_exception

    def wait_for_stop(self) -> None:
        """Wait until somebody asks all to stop."""
        self._coord.wait_for_stop()

    WaitForStop = wait_for_stop

    # --- inside -----------------------------------------------------------------------------------------------------

    def _close(self, session: Session) -> None:
        """Close a session while threads use it: services end what they are doing, then waiting for anything ends.

        A thread that hands out tokens waits for gradients of workers that have ended. It ends with the session only.
        """
        self._coord.request_stop()
        for service in self._services:
            service.join(self._grace_s)
        self._coord.wait_for_closers()
        with contextlib.suppress(OpError):
            session.close()

    def _check_chief(self, what: str) -> None:
        if not self._is_chief:
            raise RuntimeError(f"Only chief supervisor can call {what}(): give is_chief=True to one of them")

    def _write_graph(self) -> None:
        """The graph into the folder and the event file, once per file."""
        if self._logdir and not self._graph_written:
            write_training_graph(self._graph, self._logdir, self._summary_writer)
            self._graph_written = True


def basic_train_loop(
    supervisor: Supervisor,
    train_step_fn: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    master: str = "",
) -> None:
    """Call `train_step_fn(session, *args, **kwargs)` until the supervisor stops; a task that restarts means a new session.

    Args:
        supervisor: makes the sessions. args, kwargs: for the function, behind the session. master: the session's target.

    >>> basic_train_loop(Supervisor(logdir="/tmp/run"), lambda session: session.run(train_op))
    """
    while True:
        try:
            with supervisor.managed_session(master) as session:
                while not supervisor.should_stop():
                    train_step_fn(session, *(args or ()), **(kwargs or {}))
            return
        except AbortedError as e:
            logger.warning("A task was restarted; making a new session. %s", e)


def _or_default(given: Any, collection: str | None, make: Callable[[], Any]) -> Any:
    """What was given; else the first that the collection holds, or what `make` makes, which is then kept there."""
    if given is not USE_DEFAULT:
        return given
    graph = get_default_graph()
    kept = graph.get_collection(collection) if collection is not None else []
    if kept:
        return kept[0]
    made = make()
    if made is not None and collection is not None:
        graph.add_to_collection(collection, made)
    return made


def _step_by_name() -> Any:
    """The graph's variable `global_step`, of one element and an integer type; None: there is none."""
    graph = get_default_graph()
    if GraphKeys.GLOBAL_STEP not in graph:
        return None
    found = graph.get_tensor_by_name(f"{GraphKeys.GLOBAL_STEP}:0")
    return found if found.dtype.base.is_integer else None


def _all_summaries() -> Any:
    from ....interop.tensorboard import merge_all

    return merge_all()


def _writer(logdir: str) -> Any:
    """A writer; None, and a word in the log, where nothing can write event files."""
    from ....graph.core.errors import UnimplementedError
    from ....interop.tensorboard import FileWriter

    try:
        return FileWriter(logdir)
    except UnimplementedError as e:
        logger.warning("No summaries are written to %s: %s", logdir, e)
        return None


def _check_variables_have_devices(graph: Graph, is_chief: bool) -> None:
    """ValueError for the first variable without a device: a worker would wait for ever for its own to be initialised."""
    if is_chief:
        return
    for node in graph.get_operations():
        if node.type in _VARIABLES and not node.device:
            raise ValueError(
                f"When using replicas, all Variables must have their device set: '{node.name}', created at {node.source}, has none. "
                "Make it in a `with tf.device(tf.train.replica_device_setter(cluster=cluster)):` block"
            )


__all__ = ["Supervisor", "basic_train_loop"]
