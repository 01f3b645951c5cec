"""`train_and_evaluate`: the same call in every task of a cluster, and each does what its role is.

| role | what it does |
| --- | --- |
| chief, or the first worker where none is named | trains, saves checkpoints, writes summaries |
| worker | trains |
| ps | serves variables until it is stopped |
| evaluator | evaluates each new checkpoint, until that of the last step |
| none: there is no cluster | trains, and evaluates when a checkpoint was saved |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ....distribute.multi_worker import server_of
from ....distribute.resolvers import roles
from ....graph.core.default_graph import GraphKeys
from ....graph.formats.atomic_files import path_of
from ....graph.formats.checkpoints import checkpoint_exists
from ....train.loops.basic_session_run_hooks import SecondOrStepTimer
from ....train.loops.checkpoint_hooks import CheckpointSaverListener
from ....train.loops.session_run_hook import SessionRunHook
from ....train.saving.checkpoint_state import load_variable, wait_for_new_checkpoint
from .estimator import Estimator
from .sessions import in_step, wait_for_workers

logger = logging.getLogger(__name__)

POLL_S = 0.2  # how often the evaluator looks for a new checkpoint: a look reads one small file


class Exporter:
    """Is told of each evaluation, and puts the model somewhere: base of your own."""

    name = "exporter"

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> Any:
        """Write the model to `export_path`; what is returned comes back from `train_and_evaluate`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """How to train.

    Attributes:
        input_fn: as of `Estimator.train`.
        hooks: as of `Estimator.train`.
        saving_listeners: as of `Estimator.train`.
        max_steps: up to which global step; None: until the input ends.

    Raises:
        ValueError: `max_steps` is not positive. TypeError: what is no hook or no function.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Iterable[SessionRunHook] | None = None
    saving_listeners: Iterable[CheckpointSaverListener] | None = None

    def __post_init__(self) -> None:
        if self.max_steps is not None and self.max_steps <= 0:
            raise ValueError(f"Must specify max_steps > 0, given: {self.max_steps}")
        object.__setattr__(self, "hooks", _checked(self.input_fn, self.hooks))
        object.__setattr__(self, "saving_listeners", tuple(self.saving_listeners or ()))


@dataclass(frozen=True, slots=True)
class EvalSpec:
    """How to evaluate.

    Attributes:
        input_fn: as of `Estimator.evaluate`.
        name: as of `Estimator.evaluate`.
        hooks: as of `Estimator.evaluate`.
        steps: how many batches; None: until the input ends.
        exporters: `Exporter`s that are told of each evaluation.
        start_delay_secs: the evaluator begins so long after its start.
        throttle_secs: evaluations begin so long after each other at least. The last step's checkpoint is evaluated at once.

    Raises:
        ValueError: a number that is too small. TypeError: what is no hook or no function.
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Iterable[SessionRunHook] | None = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {self.steps}")
        for name in ("start_delay_secs", "throttle_secs"):
            if getattr(self, name) < 0:
                raise ValueError(f"Must specify {name} >= 0, given: {getattr(self, name)}")
        object.__setattr__(self, "hooks", _checked(self.input_fn, self.hooks))
        given = self.exporters
        found = () if given is None else (given,) if hasattr(given, "export") else tuple(given)
        names = [e.name for e in found]
        if len(set(names)) != len(names):
            raise ValueError(f"`exporters` must have unique names: {names}")
        object.__setattr__(self, "exporters", found)


def _checked(input_fn: Any, hooks: Iterable[SessionRunHook] | None) -> tuple[SessionRunHook, ...]:
    if not callable(input_fn):
        raise TypeError(f"input_fn must be callable, given: {input_fn!r}")
    found = tuple(hooks or ())
    for hook in found:
        if not isinstance(hook, SessionRunHook):
            raise TypeError(f"All hooks must be `SessionRunHook` instances, given: {hook!r}")
    return found


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any]] | None:
    """Train and evaluate an estimator: as this task's role in the cluster of TF_CONFIG wants it.

    Call it in every task. A task of job `ps` does not return. Others return when the global step is `train_spec.max_steps`, or
    their input ends; the evaluator, when it has evaluated the checkpoint of that step.

    Returns:
        without a cluster: the last evaluation's metrics, and what the exporters gave; else None.

    Raises:
        ValueError: a task type that there is not; an evaluator without `max_steps` would never end, but that is allowed.

    >>> train_and_evaluate(
    ...     Estimator(model_fn, "/shared/run"),
    ...     TrainSpec(train_input_fn, max_steps=10_000),
    ...     EvalSpec(test_input_fn, steps=None, start_delay_secs=0, throttle_secs=10),
    ... )
    """
    for what, kind in ((estimator, Estimator), (train_spec, TrainSpec), (eval_spec, EvalSpec)):
        if not isinstance(what, kind):
            raise TypeError(f"{kind.__name__} is needed, not {what!r}")
    config = estimator.config
    if config.task_type == roles.EVALUATOR:
        _Evaluator(estimator, train_spec, eval_spec).follow()
        return None
    if not config.cluster_spec:
        return _locally(estimator, train_spec, eval_spec)
    strategy = config.train_distribute
    server = getattr(strategy, "server", None)  # a strategy of a cluster has started it
    if server is None and not in_step(strategy) and config.master:
        server = server_of(config.cluster_spec, config.task_type, config.task_id)
    if config.task_type == "ps":
        assert server is not None  # there is another task, or this one would be no cluster's
        server.join()
        return None
    if in_step(strategy):
        wait_for_workers(config)
    estimator.train(
        train_spec.input_fn, train_spec.hooks, max_steps=train_spec.max_steps,
        saving_listeners=train_spec.saving_listeners,
    )  # fmt: skip
    return None


# --- one process ------------------------------------------------------------------------------------------------------


def _locally(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any]]:
    evaluator = _Evaluator(estimator, train_spec, eval_spec)
    listener = _EvaluateWhenSaved(evaluator, eval_spec.throttle_secs)
    estimator.train(
        train_spec.input_fn, train_spec.hooks, max_steps=train_spec.max_steps,
        saving_listeners=[*(train_spec.saving_listeners or ()), listener],
    )  # fmt: skip
    if evaluator.result is None:  # there was nothing left to train
        evaluator.evaluate(final=True)
    return evaluator.result, evaluator.exported


class _EvaluateWhenSaved(CheckpointSaverListener):
    """Evaluates after a save, the first one left out, when the last time is long enough ago; and at the end."""

    def __init__(self, evaluator: _Evaluator, throttle_s: float) -> None:
        self._evaluator, self._timer = evaluator, SecondOrStepTimer(every_secs=throttle_s)
        self._evaluated: int | None = None

    def begin(self) -> None:
        self._timer.reset()

    def after_save(self, session: Any, global_step_value: int) -> None:
        if self._timer.last_triggered_step() is None:  # nothing is trained yet
            self._timer.update_last_triggered_step(global_step_value)
        elif self._timer.should_trigger_for_step(global_step_value):
            self._evaluate(global_step_value, final=False)
            self._timer.update_last_triggered_step(global_step_value)

    def end(self, session: Any, global_step_value: int) -> None:
        if global_step_value != self._evaluated:
            self._evaluate(global_step_value, final=True)

    def _evaluate(self, step: int, final: bool) -> None:
        self._evaluator.evaluate(final)
        self._evaluated = step


# --- the evaluator ----------------------------------------------------------------------------------------------------


class _Evaluator:
    """Evaluates checkpoints.

    Attributes:
        result: the metrics of the last evaluation; None: there was none. exported: what the exporters gave then.
    """

    def __init__(self, estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
        self._estimator, self._spec = estimator, eval_spec
        self._last_step = train_spec.max_steps
        self._seen: str | None = None
        self.result: dict[str, Any] | None = None
        self.exported: list[Any] = []

    def evaluate(self, final: bool) -> None:
        """Evaluate the newest checkpoint, and tell the exporters."""
        path = self._estimator.latest_checkpoint()
        if path is None:
            return
        spec = self._spec
        found = self._estimator.evaluate(spec.input_fn, spec.steps, spec.hooks, path, spec.name)
        self._seen, self.result = path, found
        folder = path_of(self._estimator.model_dir) / "export"
        final = final or self._is_last(found[GraphKeys.GLOBAL_STEP])
        self.exported = [e.export(self._estimator, str(folder / e.name), path, found, final) for e in spec.exporters]

    def follow(self) -> None:
        """Evaluate each new checkpoint, until that of the last step."""
        self._wait(self._spec.start_delay_secs)
        while self.result is None or not self._is_last(self.result[GraphKeys.GLOBAL_STEP]):
            path = wait_for_new_checkpoint(self._estimator.model_dir, self._seen, POLL_S, timeout=30)
            if path is None:
                logger.info("Waiting for a new checkpoint in %s.", self._estimator.model_dir)
                continue
            began = time.monotonic()
            try:
                self.evaluate(final=False)
            except Exception:
                if checkpoint_exists(path):
                    raise
                logger.info("%s was removed before it was evaluated.", path)  # there are newer ones by now
                continue
            self._wait(self._spec.throttle_secs - (time.monotonic() - began))

    def _is_last(self, step: Any) -> bool:
        return self._last_step is not None and int(step) >= self._last_step

    def _wait(self, seconds: float) -> None:
        """Wait so long, or until the last step's checkpoint is there."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            path = self._estimator.latest_checkpoint()
            if path is not None and self._has_ended(path):
                return
            time.sleep(min(POLL_S, left))

    def _has_ended(self, path: str) -> bool:
        """Whether it is the last step's checkpoint."""
        if self._last_step is None:
            return False
        try:
            return self._is_last(load_variable(path, GraphKeys.GLOBAL_STEP))
        except Exception:
            if checkpoint_exists(path):
                raise
            return False  # it was removed: there is a newer one


__all__ = ["EvalSpec", "Exporter", "TrainSpec", "train_and_evaluate"]
