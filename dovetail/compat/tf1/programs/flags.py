"""Command line flags, under TensorFlow 1's names (`dt.flags`, `dt.app.flags`): those of absl-py, shared with programs that use absl.

One thing differs from absl, as in TensorFlow: the first value asked for reads the command line, where absl raises an error. And the
arguments of the `DEFINE` functions have their names from before TensorFlow 1.5, too.

>>> flags.DEFINE_string("job_name", "", "One of ps, worker")
>>> FLAGS = flags.FLAGS
>>> FLAGS.job_name
''
>>> FLAGS["job_name"].default
''
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags as absl
from absl.flags import (
    DuplicateFlagError,
    Flag,
    FlagValues,
    IllegalFlagValueError,
    UnparsedFlagAccessError,
    UnrecognizedFlagError,
    ValidationError,
    mark_flag_as_required,
    mark_flags_as_required,
    register_validator,
    validator,
)

# Of arguments, before TensorFlow 1.5.
_OLD_NAMES = {
    "flag_name": "name",
    "default_value": "default",
    "docstring": "help",
}


class ImplicitlyParsed:
    """Flag values; reading one reads the command line first, if that was not done. Arguments that are no flags are left alone."""

    def __init__(self, values: FlagValues) -> None:
        self.__dict__["_values"] = values

    def __call__(self, argv: Sequence[str] | None = None, known_only: bool = False) -> list[str]:
        """Read a command line; returns the program's name and the arguments that are no flags."""
        return list(self.__dict__["_values"](sys.argv if argv is None else list(argv), known_only=known_only))

    def _parse_flags(self, args: Sequence[str] | None = None) -> None:
        """Read the command line: the name of TensorFlow before 1.5."""
        self(None if args is None else [sys.argv[0], *args], known_only=True)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__["_values"]
        if name in values and not values.is_parsed():
            self(known_only=True)
        return values.__dict__["__flags"] if name == "__flags" else getattr(values, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_values"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_values"], name)

    def __getitem__(self, name: str) -> Flag[Any]:
        return self.__dict__["_values"][name]  # type: ignore[no-any-return]

    def __setitem__(self, name: str, flag: Flag[Any]) -> None:
        self.__dict__["_values"][name] = flag

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__["_values"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["_values"])

    def __len__(self) -> int:
        return len(self.__dict__["_values"])

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_values"])


FLAGS = ImplicitlyParsed(absl.FLAGS)
"""The flags of this program."""


def _old_names(define: Callable[..., Any]) -> Callable[..., Any]:
    """`define` with the arguments' old names, too, and `help` optional."""
    position = list(inspect.signature(define).parameters).index("help")

    @functools.wraps(define)
    def renamed(*args: Any, **named: Any) -> Any:
        arguments = {_OLD_NAMES.get(name, name): value for name, value in named.items()}
        if len(args) <= position:
            arguments.setdefault("help", None)
        return define(*args, **arguments)

    return renamed


DEFINE_string = _old_names(absl.DEFINE_string)
DEFINE_integer = _old_names(absl.DEFINE_integer)
DEFINE_float = _old_names(absl.DEFINE_float)
DEFINE_list = _old_names(absl.DEFINE_list)
DEFINE_boolean = DEFINE_bool = _old_names(absl.DEFINE_boolean)
DEFINE_enum = _old_names(absl.DEFINE_enum)
DEFINE_multi_string = _old_names(absl.DEFINE_multi_string)
DEFINE_multi_integer = _old_names(absl.DEFINE_multi_integer)
DEFINE_multi_float = _old_names(absl.DEFINE_multi_float)

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
    "DuplicateFlagError",
    "Flag",
    "FlagValues",
    "IllegalFlagValueError",
    "UnparsedFlagAccessError",
    "UnrecognizedFlagError",
    "ValidationError",
    "mark_flag_as_required",
    "mark_flags_as_required",
    "register_validator",
    "validator",
]
