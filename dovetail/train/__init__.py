"""Training, under TensorFlow 1's names (`dt.train`).

- `optimizers`: optimizers, learning rate schedules, loss scaling. `experimental`: loss scaling under its names of TensorFlow 1.15.
- `saving`: checkpoints and meta graphs.
- `loops`: training sessions and their hooks.
- `global_step`: the variable that counts steps.
- `distributed`: optimizers that need several tasks.

`compat`, `tools` and `dt.compile` may import it. It imports `distribute`, `interop` and `io`, which do not import it.
"""

from ..graph.formats.checkpoints import CheckpointReader, CheckpointReader as NewCheckpointReader, checkpoint_exists
from ..graph.formats.protos import EXAMPLES as _EXAMPLES, message as _message
from ..interop.tensorboard.writer import summary_iterator
from ..io.files import match_filenames_once
from ..placer.cluster.spec import ClusterDef, ClusterSpec, JobDef
from ..placer.rules.replica_device_setter import (
    BalancedStrategy,
    GreedyLoadBalancingStrategy,
    RandomStrategy,
    RoundRobinStrategy,
    byte_size_load_fn,
    replica_device_setter,
)
from ..public_paths import exported as _exported, old_name as _old_name
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
    ProfilerHook,
    SecondOrStepTimer,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from .loops.checkpoint_hooks import CheckpointSaverHook, CheckpointSaverListener
from .loops.coordinator import Coordinator, LooperThread
from .loops.monitored_session import MonitoredSession, MonitoredTrainingSession, SingularMonitoredSession
from .loops.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from .loops.scaffold import Scaffold
from .loops.session_manager import ChiefSessionCreator, SessionCreator, SessionManager, WorkerSessionCreator
from .loops.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from .optimizers import slot_creator as slot_creator
from .optimizers.adagrad import AdadeltaOptimizer, AdagradOptimizer, RMSPropOptimizer
from .optimizers.adam import AdamOptimizer, AdamWOptimizer
from .optimizers.gradient_descent import FtrlOptimizer, GradientDescentOptimizer, MomentumOptimizer
from .optimizers.large_batch import LAMBOptimizer, LARSOptimizer
from .optimizers.learning_rate_decay import cosine_decay, exponential_decay, linear_warmup
from .optimizers.loss_scale import DynamicLossScale, FixedLossScale, LossScaleOptimizer
from .optimizers.optimizer import Optimizer
from .saving.checkpoint_state import (
    CheckpointState,
    checkpoints_iterator,
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
from .saving.import_meta_graph import import_meta_graph
from .saving.meta_graph import export_meta_graph, write_graph
from .saving.saver import Saver

_MESSAGES = (*_EXAMPLES, "SaverDef")  # protobuf is loaded when one is used


def __getattr__(name: str) -> object:
    """Loads the names that need ZeroMQ or protobuf, and old names, when they are used."""
    if name == "Server":
        from ..runtime.server.server import Server  # loads ZeroMQ

        return Server
    if name == "ServerDef":
        from ..runtime.server.server import ServerDef  # loads ZeroMQ

        return ServerDef
    if name in _MESSAGES:
        return _message(name)
    return _old_name("dovetail.train", name)


__all__ = _exported(globals(), "Server", "experimental")
