"""`tf.contrib.tpu` for programs that can also do without a TPU: `TPUEstimator(use_tpu=False)`, and what it needs.

Such a program is an `Estimator`'s, with three differences: batch sizes are given to the estimator, which hands them to the input
function as `params["batch_size"]`; metrics are a function of tensors; and settings of TPUs stand in its config, where they do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

from ....graph.core.nest import flatten
from ....train.loops.session_run_hook import SessionRunArgs, SessionRunHook
from ..estimator import estimator as _estimator, run_config as _run_config
from ..estimator.building import Builder, arguments_of
from ..estimator.spec import EstimatorSpec, ModeKeys
from ..names.inner_modules import absent


class InputPipelineConfig:
    """Where the input pipelines of TPUs run. Without a TPU it does nothing."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4


class TPUConfig(NamedTuple):
    """Settings of TPUs. Without a TPU they do nothing."""

    iterations_per_loop: int = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None


class RunConfig(_run_config.RunConfig):
    """A `dt.estimator.RunConfig` with settings of TPUs, which do nothing.

    Args:
        tpu_config: a `TPUConfig`.
        evaluation_master: accepted: evaluation runs in this process.
        master: address of the session; None: as `TF_CONFIG` says.
        cluster: must be None.
        kwargs: arguments of `dt.estimator.RunConfig`.

    Raises:
        ValueError: a cluster or a master is given.
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        **kwargs: Any,
    ) -> None:
        if master or cluster is not None:
            raise ValueError(
                "There are no TPUs to be reached by `master` or `cluster`: TF_CONFIG names the tasks of a cluster"
            )
        super().__init__(**kwargs)
        self.tpu_config = tpu_config or TPUConfig()


@dataclass(frozen=True)
class TPUEstimatorSpec:
    """A model, as the model function of a `TPUEstimator` has built it.

    Attributes:
        mode, predictions, loss, train_op, export_outputs, training_hooks, evaluation_hooks, prediction_hooks: as of an `EstimatorSpec`.
        eval_metrics: a function that makes metrics, and its arguments: a list, or a dictionary by their names.
        scaffold_fn: makes the `Scaffold`.
        host_call: a function, and its arguments; what it gives runs in each training step.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metrics: tuple[Callable[..., Any], Any] | None = None
    export_outputs: Mapping[str, Any] | None = None
    scaffold_fn: Callable[[], Any] | None = None
    host_call: tuple[Callable[..., Any], Any] | None = None
    training_hooks: Iterable[SessionRunHook] | None = None
    evaluation_hooks: Iterable[SessionRunHook] | None = None
    prediction_hooks: Iterable[SessionRunHook] | None = None

    def as_estimator_spec(self) -> EstimatorSpec:
        """The same model for an `Estimator`."""
        hooks = [*(self.training_hooks or ())]
        if self.host_call is not None and self.mode == ModeKeys.TRAIN:
            hooks.append(_EachStep(_called(self.host_call)))
        return EstimatorSpec(
            self.mode,
            self.predictions,
            self.loss,
            self.train_op,
            _called(self.eval_metrics) if self.eval_metrics is not None and self.mode == ModeKeys.EVAL else None,
            self.export_outputs,
            training_hooks=hooks,
            scaffold=self.scaffold_fn() if self.scaffold_fn is not None else None,
            evaluation_hooks=self.evaluation_hooks,
            prediction_hooks=self.prediction_hooks,
        )


def _called(call: tuple[Callable[..., Any], Any]) -> Any:
    """What a function gives for its arguments."""
    function, arguments = call
    return function(**arguments) if isinstance(arguments, Mapping) else function(*arguments)


class _EachStep(SessionRunHook):
    """Runs nodes in each step."""

    def __init__(self, nodes: Any) -> None:
        self._nodes = flatten(nodes)

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return SessionRunArgs(self._nodes)


class TPUEstimator(_estimator.Estimator):
    """An `Estimator` whose batch sizes are its own, for programs that were written for TPUs: here it trains on CPUs and GPUs.

    Args:
        model_fn: as of an `Estimator`; it may also give a `TPUEstimatorSpec`. `params["use_tpu"]` is False.
        model_dir, params, warm_start_from: as of an `Estimator`.
        config: a `RunConfig`.
        use_tpu: must be False.
        train_batch_size, eval_batch_size, predict_batch_size: what input functions get as `params["batch_size"]`.
        batch_axis, eval_on_tpu, export_to_tpu: accepted: they are of TPUs.

    Raises:
        ValueError: a TPU is asked for, or `params` holds a batch size.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        warm_start_from: Any = None,
    ) -> None:
        if use_tpu:
            raise ValueError(
                "TPUEstimator(use_tpu=True): there are no TPUs; with use_tpu=False it runs on CPUs and GPUs"
            )
        if "batch_size" in (params or {}):
            raise ValueError(
                "batch_size are reserved keys of params: give train_batch_size, eval_batch_size and predict_batch_size"
            )
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        takes_params = "params" in arguments_of(model_fn)

        @wraps(model_fn)
        def as_estimators(*args: Any, **kwargs: Any) -> Any:
            found = model_fn(*args, **kwargs)
            return found.as_estimator_spec() if isinstance(found, TPUEstimatorSpec) else found

        super().__init__(as_estimators, model_dir, config, params if takes_params else None, warm_start_from)

    def _builder(self, input_fn: Callable[..., Any], mode: str, strategy: Any) -> Builder:
        params = {**self.params, "use_tpu": False}
        if self._batch_sizes[mode] is not None:
            params["batch_size"] = self._batch_sizes[mode]
        return Builder(input_fn, self._model_fn, mode, params, self._config, strategy)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise absent("contrib.tpu", name)


__all__ = ["InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec"]
