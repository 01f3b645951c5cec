"""Estimators: a model function, and what trains, evaluates and uses it, on one machine or on a cluster (`dt.estimator`).

- `estimator`: `Estimator`. `spec`, `building`: what a model function gives; the graph that is made with it. `inputs`: input functions.
- `training`, `sessions`, `run_config`, `rounds`: `train_and_evaluate` in a cluster, its sessions, settings, and batches of replicas.
- `canned`, `heads`: ready-made models. `warm_start`: values from another checkpoint. `export`, `exporters`: saved models.

Only `contrib` imports it, and programs do.
"""

from ....train import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    ProfilerHook,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from . import export, inputs
from .canned import DNNClassifier, DNNRegressor, LinearClassifier, LinearRegressor
from .estimator import Estimator
from .exporters import BestExporter, FinalExporter, LatestExporter
from .run_config import DistributeConfig, RunConfig
from .spec import EstimatorSpec, ModeKeys
from .training import EvalSpec, Exporter, TrainSpec, train_and_evaluate
from .warm_start import WarmStartSettings

__all__ = [
    "BestExporter",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "DNNClassifier",
    "DNNRegressor",
    "DistributeConfig",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FeedFnHook",
    "FinalExporter",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LatestExporter",
    "LinearClassifier",
    "LinearRegressor",
    "LoggingTensorHook",
    "ModeKeys",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "RunConfig",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrainSpec",
    "WarmStartSettings",
    "export",
    "inputs",
    "train_and_evaluate",
]
