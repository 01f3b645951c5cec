"""`dt.compat.v1`: the names of `dt`, for programs that say which version's names they use.

>>> import dovetail.compat.v1 as tf
>>> tf.disable_v2_behavior()
>>> with tf.Session() as session: ...
"""

from importlib import import_module
from typing import Any

from .table import old_names

__version__ = "1.15.0"
"""As `dt.VERSION`: TensorFlow's version whose names these are, for programs that ask for it; `dt.__version__` is Dovetail's own."""


def __getattr__(name: str) -> Any:
    try:
        return getattr(import_module("dovetail"), name)
    except AttributeError as error:
        raise AttributeError(str(error).replace("'dovetail'", "'dovetail.compat.v1'", 1)) from None


def __dir__() -> list[str]:
    return sorted({*import_module("dovetail").__all__, *old_names("dovetail")})
