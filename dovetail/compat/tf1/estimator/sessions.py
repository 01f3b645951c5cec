"""The sessions in which an `Estimator` trains: the chief's, another worker's, and those of workers that go in step."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from ....distribute.multi_worker import MultiWorkerMirroredStrategy
from ....distribute.strategy import Strategy
from ....graph.core.default_graph import get_default_graph
from ....graph.core.errors import UnavailableError
from ....graph.core.graph import Graph
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.variables.store import global_variables
from ....runtime.config import ConfigProto
from ....runtime.session.session import Session
from ....train.loops.basic_session_run_hooks import StepCounterHook, SummarySaverHook
from ....train.loops.checkpoint_hooks import CheckpointSaverHook
from ....train.loops.monitored_session import MonitoredSession
from ....train.loops.scaffold import Scaffold
from ....train.loops.session_manager import ChiefSessionCreator, SessionCreator, SessionManager, WorkerSessionCreator
from ....train.loops.session_run_hook import SessionRunHook
from ....train.saving.checkpoint_state import get_checkpoint_state, latest_checkpoint
from .run_config import RunConfig

logger = logging.getLogger(__name__)


def in_step(strategy: Strategy | None) -> bool:
    """Whether workers of several processes train in step, each with its own copies of the variables."""
    return isinstance(strategy, MultiWorkerMirroredStrategy) and strategy.num_replicas_in_sync > len(
        strategy.extended.worker_devices
    )


class InStepSessionCreator:
    """Makes the sessions of workers that go in step.

    All of them, always, do the same: initialize, which is done together; the chief restores the latest checkpoint, where there is
    one; and all take over its values. So it does not matter who sees which checkpoint when, and only the chief needs to see any.
    """

    def __init__(self, strategy: Any, scaffold: Scaffold, config: ConfigProto, model_dir: str, is_chief: bool) -> None:
        self._strategy, self._scaffold, self._config = strategy, scaffold, config
        self._folder, self._is_chief = model_dir, is_chief
        with strategy.scope():
            taken = [
                v.assign(strategy._broadcast_first(v.value()), read_value=False)
                for v in global_variables()
                if not getattr(v, "_on_read", False)
            ]
            self._take_over = group(*taken, name="take_over")

    def create_session(self) -> Session:
        """A session with the same values as the others'."""
        s = self._scaffold.finalize()
        manager = SessionManager(
            s.local_init_op, s.ready_op, s.ready_for_local_init_op, get_default_graph(),
            local_init_feed_dict=s.local_init_feed_dict,
        )  # fmt: skip
        return manager.prepare_session(
            self._strategy.session_target, s.init_op, config=self._config, init_feed_dict=s.init_feed_dict,
            init_fn=self._agree,
        )  # fmt: skip

    def _agree(self, session: Session) -> None:
        found = latest_checkpoint(self._folder) if self._is_chief else None
        if found is not None:
            self._scaffold.saver.restore(session, found)
            state = get_checkpoint_state(self._folder)
            if state is not None:
                self._scaffold.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        elif self._scaffold.init_fn is not None:
            self._scaffold.init_fn(session)
        session.run(self._take_over)


class _LeaveTogether(SessionRunHook):
    """At the end, waits until all workers have finished: a server runs as long as another worker may need it."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def begin(self) -> None:
        with self._strategy.scope():
            self._barrier = self._strategy.barrier()

    def end(self, session: Any) -> None:
        session.run(self._barrier)


def training_session(
    config: RunConfig,
    scaffold: Scaffold,
    hooks: Sequence[SessionRunHook],
    chief_only_hooks: Sequence[SessionRunHook],
    model_dir: str,
) -> MonitoredSession:
    """The session of a training loop, as the strategy and this task's role want it."""
    strategy = config.train_distribute
    options = config.session_config
    if strategy is not None:
        options = strategy.update_config_proto(options)
    together = in_step(strategy)
    creator: SessionCreator
    if together:
        creator = InStepSessionCreator(strategy, scaffold, options, model_dir, config.is_chief)
    elif config.is_chief:
        creator = ChiefSessionCreator(scaffold, config.master, options, model_dir)
    else:
        creator = WorkerSessionCreator(scaffold, config.master, options, config.session_creation_timeout_secs)
    chosen = list(hooks)
    if config.is_chief:
        chosen = [*chief_only_hooks, *_recorders(config, scaffold, model_dir), *hooks]
    if together:
        chosen.append(_LeaveTogether(strategy))
    return MonitoredSession(creator, chosen)


def _recorders(config: RunConfig, scaffold: Scaffold, folder: str) -> list[SessionRunHook]:
    """What the chief writes besides checkpoints: steps per second, and summaries."""
    found: list[SessionRunHook] = []
    if config.log_step_count_steps:
        found.append(StepCounterHook(config.log_step_count_steps, output_dir=folder))
    if config.save_summary_steps:
        found.append(SummarySaverHook(config.save_summary_steps, output_dir=folder, scaffold=scaffold))
    return found


def saver_hooks(config: RunConfig, scaffold: Scaffold, folder: str, given: Sequence[Any]) -> list[CheckpointSaverHook]:
    """What saves: a hook of the user's, or one as the config says; or none."""
    found = [h for h in given if isinstance(h, CheckpointSaverHook)]
    if found or not (config.save_checkpoints_secs or config.save_checkpoints_steps):
        return found
    every = config.save_checkpoints_secs, config.save_checkpoints_steps
    graphs = config.checkpoint_save_graph_def
    return [CheckpointSaverHook(folder, *every, scaffold=scaffold, save_graph_def=graphs)]


def wait_for_workers(config: RunConfig) -> None:
    """Wait until the servers of all chiefs and workers have started; the log says who is missing.

    Raises:
        UnavailableError: one has not, after `session_creation_timeout_secs`.
    """
    jobs = [job for job in ("chief", "worker") if job in config.cluster_spec.jobs]
    began = time.monotonic()
    while True:
        options = ConfigProto(device_filters=[f"/job:{job}" for job in jobs])
        try:
            with Session(config.master, Graph(), options):
                return
        except UnavailableError as e:
            if time.monotonic() - began > config.session_creation_timeout_secs:
                raise
            logger.warning("Workers have not started yet; waiting on. %s", e)


__all__ = ["InStepSessionCreator", "in_step", "saver_hooks", "training_session", "wait_for_workers"]
