"""Types of `dovetail.train`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.compat.tf1.queues.input import (
    batch as batch, batch_join as batch_join, input_producer as input_producer, limit_epochs as limit_epochs, maybe_batch as
    maybe_batch, maybe_batch_join as maybe_batch_join, maybe_shuffle_batch as maybe_shuffle_batch, maybe_shuffle_batch_join as
    maybe_shuffle_batch_join, range_input_producer as range_input_producer, shuffle_batch as shuffle_batch, shuffle_batch_join as
    shuffle_batch_join, slice_input_producer as slice_input_producer, string_input_producer as string_input_producer,
)
from dovetail.compat.tf1.sessions.supervisor import Supervisor as Supervisor, basic_train_loop as basic_train_loop
from dovetail.compat.tf1.training.learning_rates import (
    cosine_decay_restarts as cosine_decay_restarts, inverse_time_decay as inverse_time_decay, linear_cosine_decay as
    linear_cosine_decay, natural_exp_decay as natural_exp_decay, noisy_linear_cosine_decay as noisy_linear_cosine_decay,
    piecewise_constant as piecewise_constant, piecewise_constant as _piecewise_constant_decay, polynomial_decay as polynomial_decay,
)
from dovetail.compat.tf1.training.moving_averages import ExponentialMovingAverage as ExponentialMovingAverage
from dovetail.compat.tf1.training.optimizers import (
    AdagradDAOptimizer as AdagradDAOptimizer, ProximalAdagradOptimizer as ProximalAdagradOptimizer, ProximalGradientDescentOptimizer as
    ProximalGradientDescentOptimizer,
)
from dovetail.compat.tf1.training.warm_starting import (
    VocabInfo as VocabInfo, init_from_checkpoint as init_from_checkpoint, warm_start as warm_start,
)
from dovetail.graph.formats.checkpoints import (
    CheckpointReader as CheckpointReader, CheckpointReader as NewCheckpointReader, checkpoint_exists as checkpoint_exists,
)
from dovetail.interop.tensorboard.writer import summary_iterator as summary_iterator
from dovetail.io.files import match_filenames_once as match_filenames_once
from dovetail.placer.cluster.spec import ClusterDef as ClusterDef, ClusterSpec as ClusterSpec, JobDef as JobDef
from dovetail.placer.rules.replica_device_setter import (
    BalancedStrategy as BalancedStrategy, GreedyLoadBalancingStrategy as GreedyLoadBalancingStrategy, RandomStrategy as RandomStrategy,
    RoundRobinStrategy as RoundRobinStrategy, byte_size_load_fn as byte_size_load_fn, replica_device_setter as replica_device_setter,
)
from dovetail.runtime.server.server import Server as Server, ServerDef as ServerDef
from dovetail.train import experimental as experimental
from dovetail.train.distributed.pipeline_optimizer import PipelineOptimizer as PipelineOptimizer
from dovetail.train.distributed.sync_replicas_optimizer import SyncReplicasOptimizer as SyncReplicasOptimizer
from dovetail.train.global_step import (
    assert_global_step as assert_global_step, create_global_step as create_global_step, get_global_step as get_global_step,
    get_or_create_global_step as get_or_create_global_step, global_step as global_step,
)
from dovetail.train.loops import queue_runner as queue_runner
from dovetail.train.loops.basic_session_run_hooks import (
    FeedFnHook as FeedFnHook, FinalOpsHook as FinalOpsHook, GlobalStepWaiterHook as GlobalStepWaiterHook, LoggingTensorHook as
    LoggingTensorHook, NanLossDuringTrainingError as NanLossDuringTrainingError, NanTensorHook as NanTensorHook, ProfilerHook as
    ProfilerHook, SecondOrStepTimer as SecondOrStepTimer, StepCounterHook as StepCounterHook, StopAtStepHook as StopAtStepHook,
    SummarySaverHook as SummarySaverHook,
)
from dovetail.train.loops.checkpoint_hooks import (
    CheckpointSaverHook as CheckpointSaverHook, CheckpointSaverListener as CheckpointSaverListener,
)
from dovetail.train.loops.coordinator import Coordinator as Coordinator, LooperThread as LooperThread
from dovetail.train.loops.monitored_session import (
    MonitoredSession as MonitoredSession, MonitoredTrainingSession as MonitoredTrainingSession, SingularMonitoredSession as
    SingularMonitoredSession,
)
from dovetail.train.loops.queue_runner import (
    QueueRunner as QueueRunner, add_queue_runner as add_queue_runner, start_queue_runners as start_queue_runners,
)
from dovetail.train.loops.scaffold import Scaffold as Scaffold
from dovetail.train.loops.session_manager import (
    ChiefSessionCreator as ChiefSessionCreator, SessionCreator as SessionCreator, SessionManager as SessionManager, WorkerSessionCreator
    as WorkerSessionCreator,
)
from dovetail.train.loops.session_run_hook import (
    SessionRunArgs as SessionRunArgs, SessionRunContext as SessionRunContext, SessionRunHook as SessionRunHook, SessionRunValues as
    SessionRunValues,
)
from dovetail.train.optimizers import slot_creator as slot_creator
from dovetail.train.optimizers.adagrad import (
    AdadeltaOptimizer as AdadeltaOptimizer, AdagradOptimizer as AdagradOptimizer, RMSPropOptimizer as RMSPropOptimizer,
)
from dovetail.train.optimizers.adam import AdamOptimizer as AdamOptimizer, AdamWOptimizer as AdamWOptimizer
from dovetail.train.optimizers.gradient_descent import (
    FtrlOptimizer as FtrlOptimizer, GradientDescentOptimizer as GradientDescentOptimizer, MomentumOptimizer as MomentumOptimizer,
)
from dovetail.train.optimizers.large_batch import LAMBOptimizer as LAMBOptimizer, LARSOptimizer as LARSOptimizer
from dovetail.train.optimizers.learning_rate_decay import (
    cosine_decay as cosine_decay, exponential_decay as exponential_decay, linear_warmup as linear_warmup,
)
from dovetail.train.optimizers.loss_scale import (
    DynamicLossScale as DynamicLossScale, FixedLossScale as FixedLossScale, LossScaleOptimizer as LossScaleOptimizer,
)
from dovetail.train.optimizers.optimizer import Optimizer as Optimizer
from dovetail.train.saving.checkpoint_state import (
    CheckpointState as CheckpointState, checkpoints_iterator as checkpoints_iterator, generate_checkpoint_state_proto as
    generate_checkpoint_state_proto, get_checkpoint_mtimes as get_checkpoint_mtimes, get_checkpoint_state as get_checkpoint_state,
    latest_checkpoint as latest_checkpoint, list_variables as list_variables, load_checkpoint as load_checkpoint, load_variable as
    load_variable, remove_checkpoint as remove_checkpoint, update_checkpoint_state as update_checkpoint_state,
)
from dovetail.train.saving.import_meta_graph import import_meta_graph as import_meta_graph
from dovetail.train.saving.meta_graph import export_meta_graph as export_meta_graph, write_graph as write_graph
from dovetail.train.saving.saver import Saver as Saver
piecewise_constant_decay = _piecewise_constant_decay
BytesList: Any
Example: Any
Feature: Any
FeatureList: Any
FeatureLists: Any
Features: Any
FloatList: Any
Int64List: Any
SaverDef: Any
SequenceExample: Any
__all__ = [
    "AdadeltaOptimizer", "AdagradOptimizer", "AdamOptimizer", "AdamWOptimizer", "BalancedStrategy", "CheckpointReader",
    "CheckpointSaverHook", "CheckpointSaverListener", "CheckpointState", "ChiefSessionCreator", "ClusterDef", "ClusterSpec",
    "Coordinator", "DynamicLossScale", "FeedFnHook", "FinalOpsHook", "FixedLossScale", "FtrlOptimizer", "GlobalStepWaiterHook",
    "GradientDescentOptimizer", "GreedyLoadBalancingStrategy", "JobDef", "LAMBOptimizer", "LARSOptimizer", "LoggingTensorHook",
    "LooperThread", "LossScaleOptimizer", "MomentumOptimizer", "MonitoredSession", "MonitoredTrainingSession",
    "NanLossDuringTrainingError", "NanTensorHook", "NewCheckpointReader", "Optimizer", "PipelineOptimizer", "ProfilerHook",
    "QueueRunner", "RMSPropOptimizer", "RandomStrategy", "RoundRobinStrategy", "Saver", "Scaffold", "SecondOrStepTimer", "Server",
    "SessionCreator", "SessionManager", "SessionRunArgs", "SessionRunContext", "SessionRunHook", "SessionRunValues",
    "SingularMonitoredSession", "StepCounterHook", "StopAtStepHook", "SummarySaverHook", "SyncReplicasOptimizer",
    "WorkerSessionCreator", "add_queue_runner", "assert_global_step", "byte_size_load_fn", "checkpoint_exists", "checkpoints_iterator",
    "cosine_decay", "create_global_step", "experimental", "exponential_decay", "export_meta_graph", "generate_checkpoint_state_proto",
    "get_checkpoint_mtimes", "get_checkpoint_state", "get_global_step", "get_or_create_global_step", "global_step", "import_meta_graph",
    "latest_checkpoint", "linear_warmup", "list_variables", "load_checkpoint", "load_variable", "match_filenames_once",
    "remove_checkpoint", "replica_device_setter", "start_queue_runners", "summary_iterator", "update_checkpoint_state", "write_graph",
]
