"""`dt.keras.callbacks`: what happens beside training, told of each epoch and batch."""

from .backup import BackupAndRestore
from .callback import Callback, CallbackList, History, LambdaCallback, TerminateOnNaN
from .progress import ProgbarLogger
from .watching import EarlyStopping, LearningRateScheduler, ModelCheckpoint, ReduceLROnPlateau
from .writing import CSVLogger, TensorBoard

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "TensorBoard",
    "TerminateOnNaN",
]
