"""`slim.learning`: the training op, and a loop around it, for one process or for a cluster's workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .....graph.core.default_graph import GraphKeys, get_default_graph
from .....graph.core.errors import OutOfRangeError
from .....graph.core.graph import Graph, Tensor
from .....graph.ops.array.identity_and_placeholders import group
from .....graph.ops.math.arithmetic import floormod
from .....graph.ops.math.compare import equal, greater_equal
from .....graph.variables.store import local_variables_initializer
from .....runtime.config import ConfigProto, RunMetadata, RunOptions
from .....runtime.observability.timeline import Timeline
from .....train.global_step import get_or_create_global_step
from .....train.optimizers.optimizer import Optimizer
from .....train.saving.saver import Saver
from ...sessions.supervisor import USE_DEFAULT, Supervisor
from ..training import (
    USE_GLOBAL_STEP,
    Pairs,
    add_gradients_summaries,
    clip_gradient_norms,
    create_train_op as _create_train_op,
    multiply_gradients,
)

logger = logging.getLogger(__name__)

WAIT_S = 1.0
"""How often a worker that starts later looks at the global step."""


def create_train_op(
    total_loss: Tensor,
    optimizer: Any,
    global_step: Any = USE_GLOBAL_STEP,
    update_ops: Iterable[Any] | None = None,
    variables_to_train: Sequence[Any] | None = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gate_gradients: int = Optimizer.GATE_OP,
    aggregation_method: int | None = None,
    colocate_gradients_with_ops: bool = False,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    check_numerics: bool = True,
) -> Tensor:
    """As `dt.contrib.training.create_train_op`, and:

    Args:
        clip_gradient_norm: no gradient is longer than this; 0: as long as it is.
        gradient_multipliers: as of `dt.contrib.training.multiply_gradients`.
    """

    def transform(pairs: Pairs) -> Pairs:
        if gradient_multipliers:
            pairs = multiply_gradients(pairs, gradient_multipliers)
        if clip_gradient_norm > 0:
            pairs = clip_gradient_norms(pairs, clip_gradient_norm)
        return pairs

    return _create_train_op(
        total_loss, optimizer, global_step, update_ops, variables_to_train, transform, summarize_gradients, gate_gradients,
        aggregation_method, colocate_gradients_with_ops, check_numerics,
    )  # fmt: skip


def train_step(sess: Any, train_op: Any, global_step: Any, train_step_kwargs: Mapping[str, Any]) -> tuple[Any, bool]:
    """One step of `train`: the loss, and whether that was enough.

    Args:
        train_step_kwargs: "should_stop", "should_log", "should_trace": bool tensors; "logdir": where traces are written.
    """
    began = time.perf_counter()
    options = metadata = None
    if "should_trace" in train_step_kwargs and sess.run(train_step_kwargs["should_trace"]):
        if "logdir" not in train_step_kwargs:
            raise ValueError("logdir must be present in train_step_kwargs when should_trace is present")
        options, metadata = RunOptions(trace_level=RunOptions.FULL_TRACE), RunMetadata()
    loss, step = sess.run([train_op, global_step], options=options, run_metadata=metadata)
    took = time.perf_counter() - began
    if metadata is not None:
        to = Path(train_step_kwargs["logdir"]) / f"tf_trace-{int(step)}.json"
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(Timeline(metadata.step_stats).generate_chrome_trace_format(show_memory=True))
        logger.info("Writing trace to %s", to)
    if "should_log" in train_step_kwargs and sess.run(train_step_kwargs["should_log"]):
        logger.info("global step %d: loss = %.4f (%.3f sec/step)", step, loss, took)
    should_stop = "should_stop" in train_step_kwargs and bool(sess.run(train_step_kwargs["should_stop"]))
    return loss, should_stop


def train(
    train_op: Any,
    logdir: str | None,
    train_step_fn: Callable[..., tuple[Any, Any]] = train_step,
    train_step_kwargs: Any = USE_DEFAULT,
    log_every_n_steps: int = 1,
    graph: Graph | None = None,
    master: str = "",
    is_chief: bool = True,
    global_step: Any = None,
    number_of_steps: int | None = None,
    init_op: Any = USE_DEFAULT,
    init_feed_dict: Mapping[Any, Any] | None = None,
    local_init_op: Any = USE_DEFAULT,
    init_fn: Callable[[Any], Any] | None = None,
    ready_op: Any = USE_DEFAULT,
    summary_op: Any = USE_DEFAULT,
    save_summaries_secs: float = 600,
    summary_writer: Any = USE_DEFAULT,
    startup_delay_steps: int = 0,
    saver: Saver | None = None,
    save_interval_secs: float = 600,
    sync_optimizer: Any = None,
    session_config: ConfigProto | None = None,
    session_wrapper: Callable[[Any], Any] | None = None,
    trace_every_n_steps: int | None = None,
    ignore_live_threads: bool = False,
) -> Any:
    """Train until `number_of_steps`, or until the data has ended; gives the last loss.

    Args:
        train_op: a tensor that makes a step and is the loss: `create_train_op`.
        logdir: folder of checkpoints, summaries and traces; None: none are written.
        train_step_fn, train_step_kwargs: makes a step, as `train_step`; `USE_DEFAULT`: what the arguments here ask for.
        log_every_n_steps, trace_every_n_steps: how often the loss is logged, and a step traced; 0 or None: never.
        graph: None: the default one. master: the session's target. is_chief: whether this process initialises and saves.
        global_step: None: the graph's own, made where there is none.
        number_of_steps: the global step to stop at; None: the data ends it.
        init_op, init_feed_dict, local_init_op, init_fn, ready_op, summary_op, save_summaries_secs, summary_writer, saver: as of
            `dt.train.Supervisor`.
        save_interval_secs: how often a checkpoint is written.
        startup_delay_steps: a worker that is not the chief begins when the global step is so far.
        sync_optimizer: a `SyncReplicasOptimizer`, whose threads the chief runs; or several.
        session_config: configuration of the session. session_wrapper: makes another session of it, for `train_step_fn`.
        ignore_live_threads: accepted: threads have the time that `Supervisor` gives them.

    Raises:
        ValueError: no training op; or the arguments contradict each other.

    >>> slim.learning.train(train_op, "/tmp/run", master=server.target, is_chief=task == 0, number_of_steps=10000)
    """
    if train_op is None:
        raise ValueError("train_op cannot be None.")
    if logdir is None:
        if summary_op is not USE_DEFAULT and summary_op is not None:
            raise ValueError("Cannot provide summary_op because logdir=None")
        if trace_every_n_steps is not None:
            raise ValueError("Cannot provide trace_every_n_steps because logdir=None")
    if sync_optimizer is not None and startup_delay_steps > 0:
        raise ValueError("startup_delay_steps must be zero when sync_optimizer is supplied.")
    if number_of_steps is not None and number_of_steps <= 0:
        raise ValueError("`number_of_steps` must be either None or a positive number.")
    graph = graph or get_default_graph()
    optimizers = (
        []
        if sync_optimizer is None
        else sync_optimizer
        if isinstance(sync_optimizer, (list, tuple))
        else [sync_optimizer]
    )
    with graph.as_default():
        if global_step is None:
            global_step = get_or_create_global_step()
        runners = [o.get_chief_queue_runner() for o in optimizers] if is_chief else []
        tokens = [o.get_init_tokens_op() for o in optimizers] if is_chief else []
        local_inits = [o.chief_init_op if is_chief else o.local_step_init_op for o in optimizers]
        if local_inits:
            local_init_op = _with(local_init_op, local_inits)
            ready_for_local = optimizers[0].ready_for_local_init_op
        else:
            ready_for_local = USE_DEFAULT
        if train_step_kwargs is USE_DEFAULT:
            train_step_kwargs = _kwargs(global_step, number_of_steps, log_every_n_steps, trace_every_n_steps, logdir)
        saver = saver or Saver()
        supervisor = Supervisor(
            graph=graph, is_chief=is_chief, logdir=logdir, init_op=init_op, init_feed_dict=init_feed_dict,
            local_init_op=local_init_op, ready_for_local_init_op=ready_for_local, ready_op=ready_op,
            summary_op=None if logdir is None else summary_op, summary_writer=None if logdir is None else summary_writer,
            global_step=global_step, saver=saver, save_summaries_secs=save_summaries_secs,
            save_model_secs=save_interval_secs, init_fn=init_fn,
        )  # fmt: skip
    loss: Any = None
    services: list[Any] = []
    with supervisor.managed_session(master, session_config, start_standard_services=False) as session:
        logger.info("Starting Session.")
        if session_wrapper is not None:
            session = session_wrapper(session)
        if is_chief:
            if logdir:
                services = supervisor.start_standard_services(session) or []
        elif startup_delay_steps > 0:
            _wait_for_step(
                supervisor, session, global_step, min(startup_delay_steps, number_of_steps or startup_delay_steps)
            )
        supervisor.start_queue_runners(session)
        if runners:
            supervisor.start_queue_runners(session, runners)
            session.run(tokens)
        try:
            while not supervisor.should_stop():
                loss, should_stop = train_step_fn(session, train_op, global_step, train_step_kwargs)
                if should_stop:
                    logger.info("Stopping Training.")
                    supervisor.request_stop()
                    break
        except OutOfRangeError as e:  # the data has ended
            logger.info("Caught OutOfRangeError. Stopping Training. %s", e)
        if logdir and supervisor.is_chief:
            supervisor.request_stop()
            for service in services:  # a checkpoint that one of them is writing must not become the latest
                service.join()
            logger.info("Finished training! Saving model to disk.")
            supervisor.saver.save(session, supervisor.save_path, global_step=supervisor.global_step)
    return loss


def _with(given: Any, more: Sequence[Any]) -> Any:
    """A local init op with others, in the place of the usual one where none is given."""
    if given is not USE_DEFAULT:
        return group(*([] if given is None else [given]), *more)
    tables = get_default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
    return group(local_variables_initializer(), *tables, *more)


def _kwargs(global_step: Any, stop: int | None, log: int, trace: int | None, logdir: str | None) -> dict[str, Any]:
    """What `train_step` is told."""
    found: dict[str, Any] = {}
    if stop:
        found["should_stop"] = greater_equal(global_step, stop)
    if log:
        found["should_log"] = equal(floormod(global_step, log), 0)
    if trace:
        found["should_trace"] = equal(floormod(global_step, trace), 0)
        found["logdir"] = logdir
    return found


def _wait_for_step(supervisor: Supervisor, session: Any, global_step: Any, step: int) -> None:
    """Wait until the others have made so many steps, or training is over."""
    while not supervisor.should_stop():
        if session.run(global_step) >= step:
            return
        time.sleep(WAIT_S)


__all__ = [
    "add_gradients_summaries",
    "clip_gradient_norms",
    "create_train_op",
    "multiply_gradients",
    "train",
    "train_step",
]
