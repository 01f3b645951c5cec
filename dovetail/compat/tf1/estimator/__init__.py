"""Estimators: a model function, and what trains, evaluates and uses it, on one machine or on a cluster (`dt.estimator`)."""

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
