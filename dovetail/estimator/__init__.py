"""Estimators: a model function, and what trains, evaluates and uses it, on one machine or on a cluster (`dt.estimator`)."""

from . import inputs
from .estimator import Estimator
from .run_config import DistributeConfig, RunConfig
from .spec import EstimatorSpec, ModeKeys
from .training import EvalSpec, Exporter, TrainSpec, train_and_evaluate
from .warm_start import WarmStartSettings

__all__ = [
    "DistributeConfig",
    "EstimatorSpec",
    "Estimator",
    "EvalSpec",
    "Exporter",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "inputs",
    "train_and_evaluate",
]
