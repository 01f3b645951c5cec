"""Command line flags, under TensorFlow 1's names (`dt.flags`, `dt.app.flags`).

>>> flags.DEFINE_string("job_name", "", "One of ps, worker")
>>> FLAGS = flags.FLAGS
>>> FLAGS.job_name
''
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any


class FlagValues:
    """The values of all flags, as attributes. The first one asked for reads the command line."""

    def __init__(self) -> None:
        self.__dict__["_parser"] = argparse.ArgumentParser(allow_abbrev=False)
        self.__dict__["_required"] = set()
        self.__dict__["_names"] = set()
        self.__dict__["_values"] = None

    def __call__(self, argv: Sequence[str] | None = None) -> list[str]:
        """Read a command line: the program's name and what is no flag."""
        argv = sys.argv if argv is None else list(argv)
        found, rest = self._parser.parse_known_args(argv[1:])
        kept = self.__dict__["_values"]
        self.__dict__["_values"] = vars(found)
        if kept:  # what the program has set itself, before, stays
            self._values.update(kept.get("__set__", {}))
        missing = sorted(n for n in self._required if self._values.get(n) is None)
        if missing:
            self._parser.error(f"flag --{missing[0]}=None: Flag --{missing[0]} must have a value other than None.")
        return [argv[0] if argv else "", *rest]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"There is no flag {name!r}; flags: {', '.join(sorted(self._names)) or 'none'}")
        if self.__dict__["_values"] is None or name not in self.__dict__["_values"]:
            self()
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._names:
            raise AttributeError(f"There is no flag {name!r}")
        if self.__dict__["_values"] is None:
            self()
        self._values[name] = value
        self._values.setdefault("__set__", {})[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Any:
        return iter(sorted(self._names))

    def flag_values_dict(self) -> dict[str, Any]:
        """All flags with their values."""
        return {name: getattr(self, name) for name in self}

    def _define(self, name: str, default: Any, help: str | None, **how: Any) -> None:
        if name in self._names:
            raise ValueError(f"The flag {name!r} is defined twice.")
        text = (help or "").replace("%", "%%")
        self._parser.add_argument(f"--{name}", dest=name, default=default, help=text, **how)
        self._names.add(name)
        if self._values is not None:  # defined after the first was read: read again
            self()


FLAGS = FlagValues()
"""The flags of this program."""


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "t", "1", "yes"):
        return True
    if text.lower() in ("false", "f", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _with_type(kind: Callable[[str], Any]) -> Callable[..., None]:
    def define(name: str, default: Any, help: str | None = None) -> None:
        FLAGS._define(name, default, help, type=kind)

    return define


DEFINE_string = _with_type(str)
"""`DEFINE_string(name, default, help)`: a flag whose value is text."""
DEFINE_integer = _with_type(int)
"""`DEFINE_integer(name, default, help)`: a flag whose value is a whole number."""
DEFINE_float = _with_type(float)
"""`DEFINE_float(name, default, help)`: a flag whose value is a number."""


def DEFINE_boolean(name: str, default: Any, help: str | None = None) -> None:
    """A flag that is true or false: `--flag`, `--noflag`, `--flag=false`."""
    FLAGS._define(name, default, help, type=_boolean, nargs="?", const=True)
    FLAGS._parser.add_argument(f"--no{name}", dest=name, action="store_const", const=False, default=argparse.SUPPRESS)


DEFINE_bool = DEFINE_boolean


def DEFINE_enum(name: str, default: Any, enum_values: Sequence[str], help: str | None = None) -> None:
    """A flag whose value is one of several texts."""
    FLAGS._define(name, default, help, choices=list(enum_values))


def DEFINE_list(name: str, default: Any, help: str | None = None) -> None:
    """A flag whose value is a list, written with commas."""
    if isinstance(default, str):
        default = _split(default)
    FLAGS._define(name, default, help, type=_split)


def _split(text: str) -> list[str]:
    return [t.strip() for t in text.split(",")] if text else []


def _several(kind: Callable[[str], Any]) -> Callable[..., None]:
    def define(name: str, default: Any, help: str | None = None) -> None:
        FLAGS._define(name, default, help, type=kind, action="append")

    return define


DEFINE_multi_string = _several(str)
"""`DEFINE_multi_string(name, default, help)`: a flag that may be given several times; its value is a list."""
DEFINE_multi_integer = _several(int)
"""The same for whole numbers."""
DEFINE_multi_float = _several(float)
"""The same for numbers."""


def mark_flags_as_required(flag_names: Sequence[str]) -> None:
    """As `mark_flag_as_required`, for several."""
    for name in flag_names:
        mark_flag_as_required(name)


def mark_flag_as_required(flag_name: str) -> None:
    """Let the program end with a message when this flag has no value."""
    FLAGS._required.add(flag_name)


__all__ = [
    "FLAGS",
    "DEFINE_bool",
    "DEFINE_boolean",
    "DEFINE_enum",
    "DEFINE_float",
    "DEFINE_integer",
    "DEFINE_list",
    "DEFINE_multi_float",
    "DEFINE_multi_integer",
    "DEFINE_multi_string",
    "DEFINE_string",
    "FlagValues",
    "mark_flag_as_required",
    "mark_flags_as_required",
]
