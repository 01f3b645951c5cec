"""Training: optimizers and what they need, under TensorFlow 1's names (`dt.train`)."""

from typing import TYPE_CHECKING, Any

from ..compat.tf1.queues.input import (
    batch,
    batch_join,
    input_producer,
    limit_epochs,
    maybe_batch,
    maybe_batch_join,
    maybe_shuffle_batch,
    maybe_shuffle_batch_join,
    range_input_producer,
    shuffle_batch,
    shuffle_batch_join,
    slice_input_producer,
    string_input_producer,
)
from ..compat.tf1.sessions.supervisor import Supervisor, basic_train_loop
from ..interop.tensorboard.writer import summary_iterator
from ..io.matching import match_filenames_once
from ..placer.cluster.spec import ClusterDef, ClusterSpec, JobDef
from ..placer.rules.replica_device_setter import (
    BalancedStrategy,
    GreedyLoadBalancingStrategy,
    RandomStrategy,
    RoundRobinStrategy,
    byte_size_load_fn,
    replica_device_setter,
)
from . import experimental
from .distributed.pipeline_optimizer import PipelineOptimizer
from .distributed.sync_replicas_optimizer import SyncReplicasOptimizer
from .global_step import assert_global_step, create_global_step, get_global_step, get_or_create_global_step, global_step
from .loops import queue_runner as queue_runner
from .loops.basic_session_run_hooks import (
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    SecondOrStepTimer,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from .loops.checkpoint_hooks import CheckpointSaverHook, CheckpointSaverListener
from .loops.coordinator import Coordinator, LooperThread
from .loops.monitored_session import MonitoredSession, MonitoredTrainingSession, SingularMonitoredSession
from .loops.profiler_hook import ProfilerHook
from .loops.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from .loops.scaffold import Scaffold
from .loops.session_creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from .loops.session_manager import SessionManager
from .loops.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from .optimizers import slot_creator as slot_creator
from .optimizers.adadelta import AdadeltaOptimizer
from .optimizers.adagrad import AdagradDAOptimizer, AdagradOptimizer
from .optimizers.adam import AdamOptimizer, AdamWOptimizer
from .optimizers.ftrl import FtrlOptimizer
from .optimizers.gradient_descent import GradientDescentOptimizer
from .optimizers.large_batch import LAMBOptimizer, LARSOptimizer
from .optimizers.learning_rate_decay import (
    cosine_decay,
    cosine_decay_restarts,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
    linear_warmup,
    natural_exp_decay,
    noisy_linear_cosine_decay,
    piecewise_constant,
    piecewise_constant as piecewise_constant_decay,
    polynomial_decay,
)
from .optimizers.loss_scale import DynamicLossScale, FixedLossScale, LossScaleOptimizer
from .optimizers.momentum import MomentumOptimizer
from .optimizers.moving_averages import ExponentialMovingAverage
from .optimizers.optimizer import Optimizer
from .optimizers.proximal import ProximalAdagradOptimizer, ProximalGradientDescentOptimizer
from .optimizers.rmsprop import RMSPropOptimizer
from .saving.checkpoint_state import (
    CheckpointReader,
    CheckpointReader as NewCheckpointReader,
    CheckpointState,
    checkpoint_exists,
    generate_checkpoint_state_proto,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
    remove_checkpoint,
    update_checkpoint_state,
)
from .saving.meta_graph import export_meta_graph, import_meta_graph, write_graph
from .saving.new_checkpoints import checkpoints_iterator
from .saving.saver import Saver
from .saving.vocabularies import VocabInfo
from .saving.warm_starting import init_from_checkpoint, warm_start

if TYPE_CHECKING:
    from ..runtime.server.server import Server


_ABSENT = {
    "Checkpoint": "dt.train.Saver saves and restores variables by name",
}


def __getattr__(name: str) -> Any:
    """`Server` needs ZeroMQ, and examples need protobuf: they are loaded when they are used."""
    if name == "Server":
        from ..runtime.server.server import Server

        return Server
    if name == "ServerDef":
        from ..runtime.server.server import ServerDef

        return ServerDef
    from ..graph.tensorflow.protos import EXAMPLES, message

    if name in EXAMPLES or name == "SaverDef":
        return message(name)
    hint = f": {_ABSENT[name]}" if name in _ABSENT else ""
    raise AttributeError(f"module 'dovetail.train' has no attribute {name!r}{hint}")


__all__ = [
    "AdadeltaOptimizer",
    "AdagradDAOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "AdamWOptimizer",
    "BalancedStrategy",
    "CheckpointReader",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointState",
    "ChiefSessionCreator",
    "ClusterDef",
    "ClusterSpec",
    "Coordinator",
    "DynamicLossScale",
    "ExponentialMovingAverage",
    "FeedFnHook",
    "FinalOpsHook",
    "FixedLossScale",
    "FtrlOptimizer",
    "GlobalStepWaiterHook",
    "GradientDescentOptimizer",
    "GreedyLoadBalancingStrategy",
    "JobDef",
    "LAMBOptimizer",
    "LARSOptimizer",
    "LoggingTensorHook",
    "LooperThread",
    "LossScaleOptimizer",
    "MomentumOptimizer",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "NewCheckpointReader",
    "Optimizer",
    "PipelineOptimizer",
    "ProfilerHook",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
    "QueueRunner",
    "RMSPropOptimizer",
    "RandomStrategy",
    "RoundRobinStrategy",
    "Saver",
    "Scaffold",
    "SecondOrStepTimer",
    "Server",
    "SessionCreator",
    "SessionManager",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "Supervisor",
    "SyncReplicasOptimizer",
    "VocabInfo",
    "WorkerSessionCreator",
    "add_queue_runner",
    "assert_global_step",
    "batch",
    "basic_train_loop",
    "batch_join",
    "byte_size_load_fn",
    "checkpoint_exists",
    "checkpoints_iterator",
    "cosine_decay",
    "cosine_decay_restarts",
    "create_global_step",
    "experimental",
    "exponential_decay",
    "export_meta_graph",
    "generate_checkpoint_state_proto",
    "get_checkpoint_mtimes",
    "get_checkpoint_state",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
    "import_meta_graph",
    "init_from_checkpoint",
    "input_producer",
    "inverse_time_decay",
    "latest_checkpoint",
    "limit_epochs",
    "linear_cosine_decay",
    "linear_warmup",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "match_filenames_once",
    "maybe_batch",
    "maybe_batch_join",
    "maybe_shuffle_batch",
    "maybe_shuffle_batch_join",
    "natural_exp_decay",
    "noisy_linear_cosine_decay",
    "piecewise_constant",
    "piecewise_constant_decay",
    "polynomial_decay",
    "range_input_producer",
    "remove_checkpoint",
    "replica_device_setter",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "start_queue_runners",
    "string_input_producer",
    "summary_iterator",
    "update_checkpoint_state",
    "warm_start",
    "write_graph",
]
