"""`slim.evaluation`: a model's metrics over many batches, with summaries of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .....graph.core.default_graph import GraphKeys, get_default_graph
from .....runtime.config import ConfigProto
from .....train.loops.scaffold import Scaffold
from .....train.loops.session_run_hook import SessionRunHook
from .....train.saving.saver import Saver
from ..evaluation import (
    StopAfterNEvalsHook,
    SummaryAtEndHook,
    checkpoints_iterator,
    evaluate_once as _evaluate_once,
    evaluate_repeatedly,
    wait_for_new_checkpoint,
)

USE_DEFAULT: Any = 0
"""Stands for: all summaries of the graph."""


def evaluate_once(
    master: str,
    checkpoint_path: str,
    logdir: str | None,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Mapping[Any, Any] | None = None,
    eval_op: Any = None,
    eval_op_feed_dict: Mapping[Any, Any] | None = None,
    final_op: Any = None,
    final_op_feed_dict: Mapping[Any, Any] | None = None,
    summary_op: Any = USE_DEFAULT,
    summary_op_feed_dict: Mapping[Any, Any] | None = None,
    variables_to_restore: Sequence[Any] | None = None,
    session_config: ConfigProto | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
) -> Any:
    """Evaluate one checkpoint; gives the values of `final_op`.

    Args:
        master: the session's target. checkpoint_path: the checkpoint. logdir: folder of summaries; None: none are written.
        num_evals: how often `eval_op` runs. initial_op: what runs before; variables that are not restored need it.
        final_op: what is fetched at the end. summary_op: the summaries; `USE_DEFAULT`: all of the graph; None: none.
        variables_to_restore: None: all that are saved. session_config: the session's configuration.

    >>> names, updates = slim.metrics.aggregate_metric_map({"accuracy": dt.metrics.accuracy(labels, predictions)})
    >>> slim.evaluation.evaluate_once("", path, "/tmp/eval", 100, eval_op=list(updates.values()))
    """
    scaffold = _scaffold(initial_op, initial_op_feed_dict, variables_to_restore)
    wanted = _hooks(num_evals, logdir, summary_op, summary_op_feed_dict, hooks)
    return _evaluate_once(
        checkpoint_path,
        master,
        scaffold,
        eval_op,
        eval_op_feed_dict,
        final_op,
        final_op_feed_dict,
        wanted,
        session_config,
    )


def evaluation_loop(
    master: str,
    checkpoint_dir: str,
    logdir: str | None,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Mapping[Any, Any] | None = None,
    init_fn: Callable[..., Any] | None = None,
    eval_op: Any = None,
    eval_op_feed_dict: Mapping[Any, Any] | None = None,
    final_op: Any = None,
    final_op_feed_dict: Mapping[Any, Any] | None = None,
    summary_op: Any = USE_DEFAULT,
    summary_op_feed_dict: Mapping[Any, Any] | None = None,
    variables_to_restore: Sequence[Any] | None = None,
    eval_interval_secs: float = 60,
    max_number_of_evaluations: int | None = None,
    session_config: ConfigProto | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
) -> Any:
    """Evaluate each new checkpoint of a folder; arguments as of `evaluate_once` and `dt.contrib.training.evaluate_repeatedly`.

    Args:
        init_fn: called as `init_fn(scaffold, session)` after each restoring.
    """
    return evaluate_repeatedly(
        checkpoint_dir, master, _scaffold(initial_op, initial_op_feed_dict, variables_to_restore, init_fn), eval_op,
        eval_op_feed_dict, final_op, final_op_feed_dict, eval_interval_secs,
        _hooks(num_evals, logdir, summary_op, summary_op_feed_dict, hooks), session_config, max_number_of_evaluations, timeout,
        timeout_fn,
    )  # fmt: skip


def _scaffold(
    init: Any,
    feeds: Mapping[Any, Any] | None,
    variables: Sequence[Any] | None,
    init_fn: Callable[..., Any] | None = None,
) -> Scaffold:
    saver = None if variables is None else Saver(variables)
    return Scaffold(init_op=init, init_feed_dict=feeds, init_fn=init_fn, saver=saver)


def _hooks(
    num_evals: int,
    logdir: str | None,
    summary_op: Any,
    feeds: Mapping[Any, Any] | None,
    given: Sequence[SessionRunHook] | None,
) -> list[SessionRunHook]:
    found = [StopAfterNEvalsHook(num_evals), *(given or ())]
    some = bool(get_default_graph().get_collection(GraphKeys.SUMMARIES))
    if logdir is not None and summary_op is not None and (summary_op is not USE_DEFAULT or some):
        op = None if summary_op is USE_DEFAULT else summary_op
        found.append(SummaryAtEndHook(logdir, summary_op=op, feed_dict=feeds))
    return found


__all__ = [
    "StopAfterNEvalsHook",
    "SummaryAtEndHook",
    "checkpoints_iterator",
    "evaluate_once",
    "evaluate_repeatedly",
    "evaluation_loop",
    "wait_for_new_checkpoint",
]
