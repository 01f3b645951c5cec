"""`dt.keras.models`."""

from .model import Model, Sequential
from .saving import load_model, save_model

__all__ = ["Model", "Sequential", "load_model", "save_model"]
