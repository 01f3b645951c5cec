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
    """A message for debugging."""
    _logger.debug(msg, *args)


def info(msg: str, *args: Any) -> None:
    """A message that all is well."""
    _logger.info(msg, *args)


def warning(msg: str, *args: Any) -> None:
    """A message that something may be wrong."""
    _logger.warning(msg, *args)


warn = warning

_seen: dict[str, int] = {}  # how often a message was asked for


def vlog(level: int, msg: str, *args: Any) -> None:
    """As `log`."""
    log(level, msg, *args)


def log_if(level: int, msg: str, condition: Any, *args: Any) -> None:
    """A message, if the condition holds."""
    if condition:
        log(level, msg, *args)


def log_every_n(level: int, msg: str, n: int, *args: Any) -> None:
    """A message, the first of every `n` times."""
    count = _seen[msg] = _seen.get(msg, -1) + 1
    log_if(level, msg, count % n == 0, *args)


def log_first_n(level: int, msg: str, n: int, *args: Any) -> None:
    """A message, the first `n` times."""
    count = _seen[msg] = _seen.get(msg, -1) + 1
    log_if(level, msg, count < n, *args)


def flush() -> None:
    """Let what was said be written."""
    for handler in _logger.handlers:
        handler.flush()


def get_logger() -> _logging.Logger:
    """The logger: `dovetail` of Python's own logging."""
    return _logger


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
    "flush",
    "get_logger",
    "get_verbosity",
    "info",
    "log",
    "log_every_n",
    "log_first_n",
    "log_if",
    "set_verbosity",
    "vlog",
    "warn",
    "warning",
]
