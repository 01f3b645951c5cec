"""`Estimator`: a model function, and a folder; training, evaluating and predicting each build a graph of their own."""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ....distribute.context import outside_strategies
from ....graph.core.default_graph import GraphKeys
from ....graph.core.errors import UnimplementedError
from ....graph.core.graph import Graph, Node, Tensor
from ....graph.formats.atomic_files import path_of
from ....graph.ops.array.identity_and_placeholders import group
from ....interop.tensorboard import FileWriterCache, scalar
from ....interop.tensorflow import saved_model
from ....io.files import Copy
from ....train.global_step import create_global_step, get_global_step
from ....train.loops.basic_session_run_hooks import FinalOpsHook, LoggingTensorHook, NanTensorHook, StopAtStepHook
from ....train.loops.checkpoint_hooks import CheckpointSaverListener
from ....train.loops.monitored_session import MonitoredSession
from ....train.loops.session_manager import ChiefSessionCreator
from ....train.loops.session_run_hook import SessionRunContext, SessionRunHook, SessionRunValues
from ....train.saving.checkpoint_state import latest_checkpoint, list_variables, load_variable
from ....train.saving.saver import Saver
from ..metrics import mean
from .building import Builder, check_model_fn
from .export import new_folder, signatures_of
from .run_config import RunConfig
from .sessions import in_step, saver_hooks, training_session
from .spec import EstimatorSpec, ModeKeys
from .warm_start import WarmStartSettings, warm_started

logger = logging.getLogger(__name__)


class Estimator:
    """Trains, evaluates and uses a model that a function builds.

    Args:
        model_fn: builds the model: a function of `features`, and, if it asks for them by these names, `labels`, `mode` (one of
            `ModeKeys`), `params` and `config`. It gives an `EstimatorSpec`.
        model_dir: the folder of checkpoints and summaries; None: the config's, or a new one for the time being. What is there is
            gone on with.
        config: a `RunConfig`; None: one of defaults.
        params: what the model function is given as `params`.
        warm_start_from: a checkpoint, its folder, or a `WarmStartSettings`: where variables get their first values from.

    Raises:
        ValueError: the model function has arguments of other names, or two folders are named.

    >>> classifier = Estimator(model_fn, "/tmp/model", params={"units": 64})
    >>> classifier.train(train_input_fn, steps=1000)
    >>> classifier.evaluate(test_input_fn)["accuracy"]
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        if config is not None and not isinstance(config, RunConfig):
            raise ValueError(f"config must be an instance of RunConfig, but provided {config!r}.")
        check_model_fn(model_fn, params)
        config = config or RunConfig()
        if model_dir is not None and config.model_dir not in (None, str(model_dir)):
            raise ValueError(
                f"`model_dir` are set both in constructor and `RunConfig`, but with different values: {model_dir!r} and "
                f"{config.model_dir!r}"
            )
        folder = str(model_dir) if model_dir is not None else config.model_dir
        if folder is None:
            folder = tempfile.mkdtemp()
            logger.warning("Using temporary folder as model directory: %s", folder)
        self._model_fn = model_fn
        self._config = config if config.model_dir == folder else config.replace(model_dir=folder)
        self._params = copy.deepcopy(dict(params or {}))
        self._warm_start = WarmStartSettings.of(warm_start_from)

    @property
    def model_dir(self) -> str:
        """The folder of checkpoints and summaries."""
        folder: str = self._config.model_dir or ""
        return folder

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self._config

    @property
    def params(self) -> dict[str, Any]:
        """A copy of what the model function is given as `params`."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model function, as a function of features, labels, mode and config."""

        def call(features: Any, labels: Any, mode: str, config: Any) -> Any:
            return self._builder(lambda: None, mode, None)._model(features, labels, mode)

        return call

    def latest_checkpoint(self) -> str | None:
        """The newest checkpoint; None: there is none."""
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """The names of what the newest checkpoint holds. ValueError: there is none."""
        return [name for name, _ in list_variables(self._checkpoint())]

    def get_variable_value(self, name: str) -> np.ndarray[Any, Any]:
        """What the newest checkpoint holds under a name. ValueError: there is none."""
        return np.asarray(load_variable(self._checkpoint(), name))

    def eval_dir(self, name: str | None = None) -> str:
        """The folder of an evaluation's summaries."""
        return str(path_of(self.model_dir) / ("eval" if not name else f"eval_{name}"))

    def _checkpoint(self) -> str:
        found = self.latest_checkpoint()
        if found is None:
            raise ValueError(f"Could not find trained model in model_dir: {self.model_dir}.")
        return found

    # --- graphs -----------------------------------------------------------------------------------------------------

    def _builder(self, input_fn: Callable[..., Any], mode: str, strategy: Any) -> Builder:
        return Builder(input_fn, self._model_fn, mode, self.params, self._config, strategy)

    @contextmanager
    def _graph(self, config: RunConfig, strategy: Any) -> Iterator[Graph]:
        """A new graph, with a global step, in which to build. It may be made while another one is trained under a strategy."""
        with outside_strategies(), Graph().as_default() as graph, ExitStack() as blocks:
            graph.seed = config.tf_random_seed
            if strategy is not None:
                blocks.enter_context(strategy.scope())
            elif config.device_fn is not None:
                blocks.enter_context(graph.device(config.device_fn))
            create_global_step(graph)
            yield graph

    # --- training ---------------------------------------------------------------------------------------------------

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Iterable[SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Train, from the newest checkpoint on where there is one.

        Args:
            input_fn: gives a `Dataset` of (features, labels), or these as tensors; it may ask for `mode`, `params`, `config` and
                `input_context`. Under a strategy it is called once in each process, and each replica takes batches of its own.
            hooks: `SessionRunHook`s.
            saving_listeners: `CheckpointSaverListener`s.
            steps: how many steps.
            max_steps: or up to which global step; neither: until the input ends.

        Raises:
            ValueError: both are given, or one is not positive.
            NanLossDuringTrainingError: the loss is NaN.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise ValueError(f"Must specify {name} > 0, given: {value}")
        if max_steps is not None and self._latest_step() >= max_steps:
            logger.info("Skipping training since max_steps has already saved.")
            return self
        chosen = _checked_hooks(hooks)
        if steps is not None or max_steps is not None:
            chosen.append(StopAtStepHook(steps, max_steps))
        loss = self._train(input_fn, chosen, list(saving_listeners or []))
        logger.info("Loss for final step: %s.", loss)
        return self

    def _latest_step(self) -> int:
        found = self.latest_checkpoint()
        return -1 if found is None else int(np.asarray(load_variable(found, GraphKeys.GLOBAL_STEP)))

    def _train(self, input_fn: Callable[..., Any], hooks: list[SessionRunHook], listeners: list[Any]) -> Any:
        config = self._config
        path_of(self.model_dir).mkdir(parents=True, exist_ok=True)
        with self._graph(config, config.train_distribute) as graph:
            spec = self._builder(input_fn, ModeKeys.TRAIN, config.train_distribute).build()
            assert spec.scaffold is not None
            if not any(t.op.name == "loss" for t in graph.get_collection(GraphKeys.SUMMARIES)):
                scalar("loss", spec.loss)
            hooks = [*hooks, NanTensorHook(spec.loss), *(spec.training_hooks or ())]
            if config.log_step_count_steps:
                shown = {"loss": spec.loss, "step": get_global_step(graph)}
                hooks.append(LoggingTensorHook(shown, every_n_iter=config.log_step_count_steps))
            self._add_saver(graph, spec)
            scaffold = warm_started(spec.scaffold, self._warm_start) if self._warm_start else spec.scaffold
            chief_hooks = list(spec.training_chief_hooks or ())
            savers = saver_hooks(config, scaffold, self.model_dir, [*hooks, *chief_hooks])
            if listeners and not savers:
                raise ValueError(
                    "There should be a CheckpointSaverHook to use saving_listeners. Please set one of the RunConfig.save_checkpoints_steps "
                    "or RunConfig.save_checkpoints_secs."
                )
            if listeners:
                savers[0].add_listeners(listeners)
            chief_hooks += [h for h in savers if h not in hooks and h not in chief_hooks]
            fetches = [spec.train_op, spec.loss]
            loss = None
            with training_session(config, scaffold, hooks, chief_hooks, self.model_dir) as session:
                while not session.should_stop():
                    _, loss = session.run(fetches)
            return loss

    def _add_saver(self, graph: Graph, spec: EstimatorSpec) -> None:
        """A saver as the config wants it, unless the model has one."""
        assert spec.scaffold is not None
        if spec.scaffold.saver is None and not graph.get_collection(GraphKeys.SAVERS):
            saver = Saver(
                sharded=True, max_to_keep=self._config.keep_checkpoint_max, defer_build=True, save_relative_paths=True,
                keep_checkpoint_every_n_hours=self._config.keep_checkpoint_every_n_hours,
            )  # fmt: skip
            graph.add_to_collection(GraphKeys.SAVERS, saver)

    # --- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint: its metrics over all batches.

        Args:
            input_fn: as of `train`.
            steps: how many batches; None: until the input ends.
            hooks: `SessionRunHook`s.
            checkpoint_path: the checkpoint; None: the newest; where there is none, first values.
            name: of the evaluation, where there are several: summaries go to `eval_dir(name)`.

        Returns:
            the value of each metric by its name, and `loss` and `global_step`.

        Raises:
            ValueError: steps is not positive, or a metric is called `global_step`.
            UnimplementedError: the strategy has replicas in several processes: let an evaluator evaluate.
        """
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        strategy = self._config.eval_distribute
        if in_step(strategy):
            raise UnimplementedError(
                None, None,
                "Workers of several processes do not evaluate in step: leave eval_distribute out, or give it a MirroredStrategy, "
                "and run a task of type 'evaluator'",
            )  # fmt: skip
        path = checkpoint_path or self.latest_checkpoint()
        if path is None:
            logger.info(
                "Could not find trained model in model_dir: %s, running initialization to evaluate.", self.model_dir
            )
        config = self._config.local()
        with self._graph(config, strategy) as graph:
            builder = self._builder(input_fn, ModeKeys.EVAL, strategy)
            spec = builder.build()
            values, updates = _evaluated(spec, builder.batches)
            if GraphKeys.GLOBAL_STEP in values:
                raise ValueError("Metric with name `global_step` is not allowed, because Estimator already defines it.")
            values[GraphKeys.GLOBAL_STEP] = get_global_step(graph)
            final = FinalOpsHook(values)
            chosen = [*_checked_hooks(hooks), *(spec.evaluation_hooks or ()), final]
            if steps is not None:
                chosen.append(_StopAfter(steps))
            options = config.session_config
            if strategy is not None:
                options = strategy.update_config_proto(options)
            creator = ChiefSessionCreator(
                spec.scaffold, config.evaluation_master, options, checkpoint_filename_with_path=path
            )
            with MonitoredSession(creator, chosen) as session:
                while not session.should_stop():
                    session.run(updates)
        found: dict[str, Any] = final.final_ops_values
        _write_values(self.eval_dir(name), found)
        logger.info("Saving dict for global step %d: %s", found[GraphKeys.GLOBAL_STEP], _text(found))
        return found

    # --- prediction -------------------------------------------------------------------------------------------------

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Iterable[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Predictions for what the input gives, one after the other, until it ends.

        Args:
            input_fn: as of `train`; labels are left out.
            predict_keys: which of the predictions to give; None: all.
            hooks: `SessionRunHook`s.
            checkpoint_path: the checkpoint; None: the newest.
            yield_single_examples: one example at a time; False: one batch.

        Raises:
            ValueError: there is no checkpoint, none of the keys is there, or predictions have different numbers of rows.
        """
        path = checkpoint_path or self._checkpoint()
        config = self._config.local()
        with self._graph(config, None):
            builder = self._builder(input_fn, ModeKeys.PREDICT, None)
            features, _ = builder._next_of(builder._inputs(), 1)()
            spec = builder._model(features, None, ModeKeys.PREDICT)
            predictions = _chosen(spec.predictions, predict_keys)
            creator = ChiefSessionCreator(
                spec.scaffold, config=config.session_config, checkpoint_filename_with_path=path
            )
            hooks = [*_checked_hooks(hooks), *(spec.prediction_hooks or ())]
            session = MonitoredSession(creator, hooks)
        with session:
            while not session.should_stop():
                batch = session.run(predictions)
                if not yield_single_examples:
                    yield batch
                elif isinstance(batch, dict):
                    for i in range(_rows(batch)):
                        yield {key: value[i] for key, value in batch.items()}
                else:
                    yield from batch

    # --- serving ----------------------------------------------------------------------------------------------------

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = True,
    ) -> str:
        """Write the model that predicts as a saved model for serving.

        Args:
            export_dir_base: a folder, in which one is made that is named by the time.
            serving_input_receiver_fn: gives a `dt.estimator.export.ServingInputReceiver`: what is fed, and the features made of it.
            assets_extra: name in the folder `assets.extra` -> a file to copy there.
            as_text: write the graph as text.
            checkpoint_path: the checkpoint; None: the newest.
            strip_default_attrs: accepted.

        Returns:
            the new folder.

        Raises:
            ValueError: there is no checkpoint, or it is not told which of several outputs is the default.
            UnimplementedError: the package `protobuf` is not installed.

        >>> receive = export.build_raw_serving_input_receiver_fn({"x": dt.placeholder(dt.float32, [None, 4])})
        >>> classifier.export_saved_model("/tmp/models", receive)
        """
        path = checkpoint_path or self._checkpoint()
        config = self._config.local()
        with self._graph(config, None):
            receiver = serving_input_receiver_fn()
            spec = self._builder(lambda: None, ModeKeys.PREDICT, None)._model(receiver.features, None, ModeKeys.PREDICT)
            assert spec.scaffold is not None  # an EstimatorSpec has one
            signatures = signatures_of(spec, receiver)
            creator = ChiefSessionCreator(
                spec.scaffold, config=config.session_config, checkpoint_filename_with_path=path
            )
            session = creator.create_session()
            folder = new_folder(export_dir_base)
            with session:
                builder = saved_model.Builder(folder)
                builder.add_meta_graph_and_variables(
                    session,
                    [saved_model.tag_constants.SERVING],
                    signatures,
                    session.graph.get_collection(GraphKeys.ASSET_FILEPATHS),
                    main_op=spec.scaffold.local_init_op,
                )
                builder.save(as_text)
        for name, source in (assets_extra or {}).items():
            target = folder / "assets.extra" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            Copy(source, str(target), overwrite=True)
        return str(folder)

    export_savedmodel = export_saved_model

    def __repr__(self) -> str:
        return f"<dt.estimator.{type(self).__name__} in {self.model_dir}>"


# --- evaluating -------------------------------------------------------------------------------------------------------


class _StopAfter(SessionRunHook):
    """Stops after so many steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._done = 0

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._done += 1
        if self._done >= self._steps:
            run_context.request_stop()


def _evaluated(spec: EstimatorSpec, batches: Tensor | None) -> tuple[dict[str, Any], Node]:
    """The metrics' values by name, the loss among them, the mean over all batches; and one node for all updates."""
    metrics = dict(spec.eval_metric_ops or {})
    if "loss" in metrics:
        raise ValueError("Metric with name `loss` is not allowed, because Estimator already defines a default metric.")
    metrics["loss"] = mean(spec.loss, batches, name="mean_loss")
    updates = [u.op if isinstance(u, Tensor) else u for _, u in metrics.values()]
    together = group(*updates)
    assert isinstance(together, Node)
    return {name: value for name, (value, _) in metrics.items()}, together


def _write_values(folder: str, values: Mapping[str, Any]) -> None:
    """Summaries of an evaluation, where tensorboardX is installed."""
    try:
        writer = FileWriterCache.get(folder)
    except UnimplementedError as e:
        logger.warning("No summaries are written to %s: %s", folder, e)
        return
    for name, value in values.items():
        if name == GraphKeys.GLOBAL_STEP:
            continue
        if np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
            writer.add_scalar(name, float(value), int(values[GraphKeys.GLOBAL_STEP]))
        else:
            logger.info("No summary of %s is written: it is no number.", name)
    writer.flush()


def _text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {values[name]}" for name in sorted(values))


# --- small things -----------------------------------------------------------------------------------------------------


def _checked_hooks(hooks: Iterable[SessionRunHook] | None) -> list[SessionRunHook]:
    found = list(hooks or [])
    for hook in found:
        if not isinstance(hook, SessionRunHook):
            raise TypeError(f"Hooks must be a SessionRunHook, given: {hook!r}")
    return found


def _chosen(predictions: Any, keys: Any) -> Any:
    if not keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    found = {key: value for key, value in predictions.items() if key in wanted}
    if not found:
        raise ValueError(f"Expected to run at least one output from {list(predictions)}, provided {wanted}.")
    return found


def _rows(batch: Mapping[str, Any]) -> int:
    sizes = {key: np.shape(value)[:1] for key, value in batch.items()}
    if len(set(sizes.values())) != 1 or not next(iter(sizes.values())):
        raise ValueError(
            f"Batch length of predictions should be same, and they have a first axis; sizes: {sizes}. "
            "yield_single_examples=False gives whole batches"
        )
    (rows,) = next(iter(sizes.values()))
    return int(rows)


__all__ = ["Estimator"]
