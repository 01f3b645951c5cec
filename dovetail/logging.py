"""Messages to the user, under TensorFlow 1's names (`dt.logging`): the logger `dovetail` of Python's own logging.

What training loops tell (checkpoints saved, steps per second, values of `LoggingTensorHook`) is at the level INFO:
`dt.logging.set_verbosity(dt.logging.INFO)` shows it.
"""

from __future__ import annotations

import logging as _logging
from typing import Any

DEBUG, INFO, WARN, ERROR, FATAL = _logging.DEBUG, _logging.INFO, _logging.WARNING, _logging.ERROR, _logging.CRITICAL

_logger = _logging.getLogger("dovetail")


def set_verbosity(v: int) -> None:
    """Show messages of this level and above, on standard error unless the program has set up logging itself."""
    if not _logger.handlers and not _logging.getLogger().handlers:
        handler = _logging.StreamHandler()
        handler.setFormatter(_logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
        _logger.addHandler(handler)
    _logger.setLevel(v)


def get_verbosity() -> int:
    """The level from which on messages are shown."""
    return _logger.getEffectiveLevel()


def log(level: int, msg: str, *args: Any) -> None:
    """A message of a level; `args` are put in by `%`."""
    _logger.log(level, msg, *args)


def debug(msg: str, *args: Any) -> None:
    """A message for whoever looks for an error."""
    _logger.debug(msg, *args)


def info(msg: str, *args: Any) -> None:
    """A message that all is well."""
    _logger.info(msg, *args)


def warning(msg: str, *args: Any) -> None:
    """A message that something may be wrong."""
    _logger.warning(msg, *args)


warn = warning


def error(msg: str, *args: Any) -> None:
    """A message that something is wrong."""
    _logger.error(msg, *args)


def fatal(msg: str, *args: Any) -> None:
    """A message that the program cannot go on."""
    _logger.critical(msg, *args)


__all__ = [
    "DEBUG",
    "ERROR",
    "FATAL",
    "INFO",
    "WARN",
    "debug",
    "error",
    "fatal",
    "get_verbosity",
    "info",
    "log",
    "set_verbosity",
    "warn",
    "warning",
]
