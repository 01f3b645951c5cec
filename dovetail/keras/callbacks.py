"""`dt.keras.callbacks`: what happens beside training, told of each epoch and batch."""

from .callback import Callback, CallbackList, History, LambdaCallback, TerminateOnNaN
from .progress import ProgbarLogger
from .watching import EarlyStopping, LearningRateScheduler, ModelCheckpoint, ReduceLROnPlateau
from .writing import CSVLogger, TensorBoard

__all__ = [
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
