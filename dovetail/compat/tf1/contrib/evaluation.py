"""Evaluation of `tf.contrib.training` and slim: a model's metrics over many batches, of one checkpoint or of each new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ....graph.core.default_graph import GraphKeys, get_default_graph
from ....graph.core.dtypes import int64
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.state.variables import assign_add
from ....graph.variables.initializers import zeros_initializer
from ....graph.variables.scope import get_variable
from ....interop.tensorboard import FileWriter, merge_all
from ....runtime.config import ConfigProto
from ....train.global_step import get_global_step
from ....train.loops.basic_session_run_hooks import FinalOpsHook
from ....train.loops.monitored_session import MonitoredSession
from ....train.loops.scaffold import Scaffold
from ....train.loops.session_manager import ChiefSessionCreator
from ....train.loops.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from ....train.saving.checkpoint_state import checkpoints_iterator, wait_for_new_checkpoint

logger = logging.getLogger(__name__)

EVAL_STEP = "eval_step"


def get_or_create_eval_step() -> Any:
    """A local variable that counts the batches of an evaluation."""
    graph = get_default_graph()
    found = graph.get_collection(EVAL_STEP)
    if len(found) > 1:
        raise ValueError("Multiple eval step tensors: only one eval step is allowed per graph")
    if found:
        return found[0]
    return get_variable(
        EVAL_STEP, [], int64, zeros_initializer(), trainable=False, collections=[GraphKeys.LOCAL_VARIABLES, EVAL_STEP]
    )


class StopAfterNEvalsHook(SessionRunHook):
    """Stops after so many batches.

    Args:
        num_evals: how many; None: when the data ends. log_progress: whether each is logged.
    """

    def __init__(self, num_evals: int | None, log_progress: bool = True) -> None:
        self._num_evals, self._log_progress = num_evals, log_progress
        self._count: Any = None

    def begin(self) -> None:
        """See `SessionRunHook.begin`."""
        with get_default_graph().name_scope(None):
            self._count = identity(assign_add(get_or_create_eval_step(), 1))

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See `SessionRunHook.before_run`."""
        return SessionRunArgs({"evals": self._count})

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See `SessionRunHook.after_run`."""
        done = int(run_values.results["evals"])
        if self._log_progress:
            logger.info("Evaluation [%d%s]", done, "" if self._num_evals is None else f"/{self._num_evals}")
        if self._num_evals is not None and done >= self._num_evals:
            run_context.request_stop()


class SummaryAtEndHook(SessionRunHook):
    """Writes summaries when the evaluation ends.

    Args:
        log_dir: folder of the event file; or summary_writer: what writes it.
        summary_op: None: all summaries of the graph. feed_dict: what it is fed.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        summary_writer: Any = None,
        summary_op: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        self._log_dir, self._writer, self._op, self._feeds = log_dir, summary_writer, summary_op, feed_dict
        self._is_own = summary_writer is None
        self._step: Any = None

    def begin(self) -> None:
        """See `SessionRunHook.begin`."""
        if self._op is None:
            self._op = merge_all()
        self._step = get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See `SessionRunHook.after_create_session`."""
        if self._writer is None and self._log_dir:
            self._writer = FileWriter(self._log_dir)

    def end(self, session: Any) -> None:
        """See `SessionRunHook.end`."""
        if self._op is not None and self._writer is not None:
            step = None if self._step is None else int(session.run(self._step))
            self._writer.add_summary(session.run(self._op, self._feeds), step)
            self._writer.flush()
        if self._is_own and self._writer is not None:
            self._writer.close()
            self._writer = None


def evaluate_once(
    checkpoint_path: str | None,
    master: str = "",
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    final_ops: Any = None,
    final_ops_feed_dict: Mapping[Any, Any] | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    config: ConfigProto | None = None,
) -> Any:
    """Evaluate one checkpoint; gives the values of `final_ops`.

    Args:
        checkpoint_path: None: the variables are initialised. master, config: the session's. scaffold: as of a monitored session.
        eval_ops, feed_dict: what runs until a hook asks to stop (`StopAfterNEvalsHook`) or the data ends; None: nothing.
        final_ops, final_ops_feed_dict: what is fetched at the end.

    >>> evaluate_once(path, eval_ops=list(updates), final_ops=values, hooks=[StopAfterNEvalsHook(100)])
    """
    final = FinalOpsHook(final_ops, final_ops_feed_dict)
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_filename_with_path=checkpoint_path)
    with MonitoredSession(creator, [*(hooks or ()), final]) as session:
        while eval_ops is not None and not session.should_stop():
            session.run(eval_ops, feed_dict)
    return final.final_ops_values


def evaluate_repeatedly(
    checkpoint_dir: str,
    master: str = "",
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    final_ops: Any = None,
    final_ops_feed_dict: Mapping[Any, Any] | None = None,
    eval_interval_secs: float = 60,
    hooks: Sequence[SessionRunHook] | None = None,
    config: ConfigProto | None = None,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Any:
    """Evaluate each new checkpoint of a folder, as `evaluate_once`; gives what the last one gave.

    Args:
        eval_interval_secs: at least so long between two. max_number_of_evaluations: None: until `timeout`.
        timeout: how long to wait for a checkpoint, in seconds; None: for ever. timeout_fn: then says whether to end.
    """
    found = None
    paths: Iterator[str] = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn)
    for number, path in enumerate(paths, 1):
        logger.info("Starting evaluation of %s", path)
        found = evaluate_once(
            path, master, scaffold, eval_ops, feed_dict, final_ops, final_ops_feed_dict, hooks, config
        )
        if max_number_of_evaluations is not None and number >= max_number_of_evaluations:
            break
    return found


__all__ = [
    "EVAL_STEP",
    "StopAfterNEvalsHook",
    "SummaryAtEndHook",
    "checkpoints_iterator",
    "evaluate_once",
    "evaluate_repeatedly",
    "get_or_create_eval_step",
    "wait_for_new_checkpoint",
]
