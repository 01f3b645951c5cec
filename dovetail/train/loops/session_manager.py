"""`SessionManager`, which creates sessions whose variables have values, and the session creators of monitored sessions.

The chief's session creator restores or initializes the variables. A worker's session creator waits until the chief has done so.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ...graph.core.default_graph import get_default_graph
from ...graph.core.errors import DeadlineExceededError, FailedPreconditionError, OpError
from ...graph.core.graph import Graph
from ...runtime.config import ConfigProto
from ...runtime.session.session import Session
from ..global_step import get_global_step, global_step
from ..saving.checkpoint_state import get_checkpoint_state, latest_checkpoint
from .scaffold import Scaffold

logger = logging.getLogger(__name__)

# Polling interval in seconds. TensorFlow's is 30 s, but a poll is cheap.
RETRY_S = 1.0


class SessionManager:
    """Creates sessions whose variables have values.

    Args:
        local_init_op: initializes state of each process; it runs in every session, also after a restore.
        ready_op: returns the names of variables without a value, or raises FailedPreconditionError if there are any. The session is ready
            when there are none. None: always ready.
        ready_for_local_init_op: like `ready_op`, for the variables that `local_init_op` needs.
        graph: the graph; None: the default one.
        recovery_wait_secs: polling interval of `wait_for_session`, in seconds.
        local_init_run_options: `RunOptions` for `local_init_op`.
        local_init_feed_dict: feeds of `local_init_op`.

    Raises:
        ValueError: `ready_for_local_init_op` is given without `local_init_op`.
    """

    def __init__(
        self,
        local_init_op: Any = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = RETRY_S,
        local_init_run_options: Any = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        if ready_for_local_init_op is not None and local_init_op is None:
            raise ValueError(
                "If you pass a ready_for_local_init_op you must also pass a local_init_op; "
                f"ready_for_local_init_op [{ready_for_local_init_op}]"
            )
        self._local_init_op = local_init_op
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._graph = get_default_graph() if graph is None else graph
        self._wait_s = recovery_wait_secs
        self._local_options = local_init_run_options
        self._local_feeds = local_init_feed_dict

    def prepare_session(
        self,
        master: str,
        init_op: Any = None,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: ConfigProto | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Any], Any] | None = None,
    ) -> Session:
        """Returns a session whose variables are restored from a checkpoint or, if there is none, initialized.

        On a cluster with replicated variables (`DOVETAIL_PS_REPLICAS=2`), the variables are unchanged if all of them have values.

        Args:
            master: the session's target.
            init_op: initializes the variables.
            init_feed_dict: feeds of `init_op`.
            init_fn: called with the session after `init_op`.
            saver: the `Saver` that restores.
            checkpoint_dir: the folder whose latest checkpoint is restored; give this or `checkpoint_filename_with_path`.
            checkpoint_filename_with_path: the checkpoint.
            wait_for_checkpoint: wait until the folder has a checkpoint.
            max_wait_secs: how many seconds to wait.
            config: the session's configuration.

        Raises:
            ValueError: both a folder and a checkpoint are given.
            RuntimeError: no argument initializes the variables, or some have no value afterwards.
        """
        sess, restored = self._restored(
            master, saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs, config
        )
        try:
            if not restored:
                if init_op is None and init_fn is None and self._local_init_op is None:
                    raise RuntimeError("Model is not initialized and no init_op or init_fn or local_init_op was given")
                if init_op is not None:
                    sess.run(init_op, feed_dict=init_feed_dict)
                if init_fn is not None:
                    init_fn(sess)
            what = f"Init op: {getattr(init_op, 'name', init_op)}, init fn: {init_fn}"
            local = f"local_init_op: {getattr(self._local_init_op, 'name', self._local_init_op)}"
            problem = self._local_init(sess)
            if problem:
                raise RuntimeError(
                    f"Init operations did not make model ready for local_init.  {what}, {local}, error: {problem}"
                )
            problem = not_ready_reason(self._ready_op, sess, "Model not ready")
            if problem:
                raise RuntimeError(f"Init operations did not make model ready.  {what}, {local}, error: {problem}")
        except BaseException:
            sess.close()
            raise
        return sess

    def _restore(self, sess: Session, saver: Any, path: str) -> None:
        """Restores a checkpoint. Logs a warning if the variables on the cluster are at a later step."""
        step = get_global_step(self._graph) if sess.sess_str else None
        before = None
        if step is not None:
            with contextlib.suppress(FailedPreconditionError):  # the global step has no value
                before = global_step(sess, step)
        saver.restore(sess, path)
        if step is not None and before is not None and (now := global_step(sess, step)) < before:
            logger.warning(
                "Restored step %d from %s; the variables on the cluster were at step %d. To lose less, save more often "
                "(save_checkpoint_secs)", now, path, before,
            )  # fmt: skip

    def recover_session(
        self,
        master: str,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: ConfigProto | None = None,
    ) -> tuple[Session, bool]:
        """Returns a session, and whether its variables were restored from a checkpoint. Arguments as in `prepare_session`."""
        sess, restored = self._restored(
            master, saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs, config
        )
        try:
            problem = self._local_init(sess)
            if not restored:
                return sess, False
            problem = problem or not_ready_reason(self._ready_op, sess, "Model not ready")
        except BaseException:
            sess.close()
            raise
        if problem:
            logger.info("Restoring did not make the model ready: %s", problem)
        return sess, not problem

    def wait_for_session(
        self, master: str, config: ConfigProto | None = None, max_wait_secs: float | None = None
    ) -> Session:
        """Wait until another task has initialized the variables, and return a session.

        Raises:
            DeadlineExceededError: they are not initialized within `max_wait_secs`. The message names variables without a value.
        """
        deadline = float("inf") if max_wait_secs is None else time.monotonic() + max_wait_secs
        while True:
            sess = Session(master, graph=self._graph, config=config)
            try:
                problem = self._local_init(sess) or not_ready_reason(self._ready_op, sess, "Model not ready")
            except BaseException:
                sess.close()
                raise
            if not problem:
                return sess
            with contextlib.suppress(OpError):
                sess.close()
            if time.monotonic() + self._wait_s > deadline:
                raise DeadlineExceededError.of(f"Session was not ready after waiting {max_wait_secs} secs: {problem}")
            logger.info("Waiting for model to be ready: %s", problem)
            time.sleep(self._wait_s)

    def _restored(
        self,
        master: str,
        saver: Any,
        folder: str | None,
        path: str | None,
        wait: bool,
        max_wait_s: float,
        config: ConfigProto | None,
    ) -> tuple[Session, bool]:
        """Returns a session, and whether its variables were restored."""
        if folder and path:
            raise ValueError("Can not provide both checkpoint_dir and checkpoint_filename_with_path.")
        sess = Session(master, graph=self._graph, config=config)
        try:
            op = self._ready_op if self._ready_for_local_init_op is None else self._ready_for_local_init_op
            kept = sess.is_replicated and op is not None and not not_ready_reason(op, sess, "Model not ready")
            if kept:
                logger.info(
                    "Nothing is restored: the variables have values, which the cluster keeps when a task is lost"
                )
            if saver is None or not (folder or path):
                return sess, kept
            if path:
                if not kept:
                    self._restore(sess, saver, path)
                return sess, True
            assert folder is not None
            deadline = time.monotonic() + max_wait_s
            while (found := latest_checkpoint(folder)) is None:
                if kept or not wait or time.monotonic() > deadline:
                    return sess, kept
                logger.info("Waiting for checkpoint to be available in %s", folder)
                time.sleep(min(self._wait_s, 1.0))
            if not kept:
                self._restore(sess, saver, found)
            state = get_checkpoint_state(folder)
            if state is not None:
                saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
            return sess, True
        except BaseException:
            sess.close()
            raise

    def _local_init(self, sess: Session) -> str | None:
        """Runs `local_init_op`. Returns the reason if it cannot run, or None."""
        if self._local_init_op is None:
            return None
        problem = not_ready_reason(self._ready_for_local_init_op, sess, "Model not ready for local init")
        if problem is None:
            sess.run(self._local_init_op, feed_dict=self._local_feeds, options=self._local_options)
        return problem


def not_ready_reason(op: Any, sess: Any, what: str) -> str | None:
    """Returns the reason why a session is not ready, according to `op`. None: it is ready."""
    if op is None:
        return None
    try:
        missing = np.asarray(sess.run(op))
    except FailedPreconditionError as e:
        if "uninitialized" not in str(e):
            raise
        return f"{what}: {e}"
    names = [n.decode() for n in missing.ravel() if isinstance(n, bytes)]
    return f"{what}: Variables not initialized: {', '.join(names)}" if names else None


class SessionCreator(Protocol):
    """Interface of session creators, which create sessions whose variables have values."""

    def create_session(self) -> Session:
        """Returns a new session."""


class ChiefSessionCreator:
    """Creates the chief's sessions: restores the latest checkpoint, or initializes the variables.

    Args:
        scaffold: a `Scaffold`; None: the defaults.
        master: the session's target.
        config: a `ConfigProto`.
        checkpoint_dir: folder whose latest checkpoint is restored.
        checkpoint_filename_with_path: the checkpoint to restore instead.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master, self._config = master, config
        self._folder, self._path = checkpoint_dir, checkpoint_filename_with_path

    def create_session(self) -> Session:
        """Returns a session whose variables are restored or initialized."""
        s = self._scaffold.finalize()
        return _manager(s).prepare_session(
            self._master, s.init_op, s.saver, self._folder, self._path, config=self._config,
            init_feed_dict=s.init_feed_dict, init_fn=s.init_fn,
        )  # fmt: skip


class WorkerSessionCreator:
    """Creates the sessions of other workers: waits until the chief has initialized the variables.

    Args:
        scaffold: as in `ChiefSessionCreator`.
        master: as in `ChiefSessionCreator`.
        config: as in `ChiefSessionCreator`.
        max_wait_secs: seconds to wait.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        max_wait_secs: float = 30 * 60,
    ) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master, self._config, self._max_wait_s = master, config, max_wait_secs

    def create_session(self) -> Session:
        """Returns a session whose variables the chief has initialized."""
        s = self._scaffold.finalize()
        return _manager(s).wait_for_session(self._master, self._config, self._max_wait_s)


def _manager(s: Scaffold) -> SessionManager:
    return SessionManager(
        s.local_init_op, s.ready_op, s.ready_for_local_init_op, get_default_graph(),
        local_init_feed_dict=s.local_init_feed_dict,
    )  # fmt: skip
