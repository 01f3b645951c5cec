"""Command line flags, under TensorFlow 1's names (`dt.flags`, `dt.app.flags`).

>>> flags.DEFINE_string("job_name", "", "One of ps, worker")
>>> FLAGS = flags.FLAGS
>>> FLAGS.job_name
''
>>> FLAGS["job_name"].default
''
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Flag:
    """One flag: `FLAGS["name"]`.

    Attributes:
        name, help: what it was defined with. default, value: what it is without the command line, and now.
        present: how often the command line was read with it.
    """

    def __init__(self, name: str, default: Any, help: str | None) -> None:
        self.name, self.default, self.value, self.help = name, default, default, help
        self.present = 0

    @property
    def using_default_value(self) -> bool:
        """Whether neither the command line nor the program has set it."""
        return not self.present and self.value == self.default

    def __repr__(self) -> str:
        return f"<Flag --{self.name}={self.value!r}>"


class FlagValues:
    """The values of all flags, as attributes. The first one asked for reads the command line.

    `FLAGS["name"]` is the flag itself, and `FLAGS.__flags` holds them all by their names.
    """

    def __init__(self) -> None:
        # A flag may have any name, so nothing else is an attribute but what has an underscore in front.
        self.__dict__["__flags"] = {}
        self.__dict__["_parser"] = argparse.ArgumentParser(allow_abbrev=False, argument_default=argparse.SUPPRESS)
        self.__dict__["_argv"] = None
        self.__dict__["_checks"] = []

    def __call__(self, argv: Sequence[str] | None = None, known_only: bool = False) -> list[str]:
        """Read a command line: the program's name and what is no flag, which the program may read for itself."""
        argv = sys.argv if argv is None else list(argv)
        self.__dict__["_argv"] = argv
        found, rest = self._parser.parse_known_args(argv[1:])
        for name, value in vars(found).items():
            self[name].value = value
            self[name].present += 1
        for name, check, message in self._checks:
            if not check(self[name].value):
                self._parser.error(f"flag --{name}={self[name].value}: {message}")
        return [argv[0] if argv else "", *rest]

    def _parse_flags(self, args: Sequence[str] | None = None) -> None:
        """Read the command line: the name of TensorFlow before 1.5."""
        self(None if args is None else [sys.argv[0], *args])

    def is_parsed(self) -> bool:
        """Whether the command line was read."""
        return self._argv is not None

    def mark_as_parsed(self) -> None:
        """Leave the command line unread: flags have their defaults, or what the program sets."""
        self.__dict__["_argv"] = self._argv or [""]

    def unparse_flags(self) -> None:
        """Give all flags their defaults; the next one asked for reads the command line."""
        self.__dict__["_argv"] = None
        for flag in self.__dict__["__flags"].values():
            flag.value, flag.present = flag.default, 0

    def __getitem__(self, name: str) -> Flag:
        """The flag of that name. KeyError: there is none."""
        found: Flag = self.__dict__["__flags"][name]
        return found

    def _flag(self, name: str) -> Flag:
        known = self.__dict__["__flags"]
        if name not in known:
            raise AttributeError(f"There is no flag {name!r}; flags: {', '.join(sorted(known)) or 'none'}")
        if self._argv is None:
            self()
        return self[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and pickles ask for methods
            raise AttributeError(name)
        return self._flag(name).value

    def __setattr__(self, name: str, value: Any) -> None:
        self._flag(name).value = value

    def __delattr__(self, name: str) -> None:
        """Forget a flag, so that it can be defined again."""
        if self.__dict__["__flags"].pop(name, None) is None:
            raise AttributeError(f"There is no flag {name!r}")
        for action in [a for a in self._parser._actions if a.dest == name]:
            self._parser._remove_action(action)
            for option in action.option_strings:
                self._parser._option_string_actions.pop(option)

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__["__flags"]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.__dict__["__flags"]))

    def __len__(self) -> int:
        return len(self.__dict__["__flags"])

    def __dir__(self) -> list[str]:
        return list(self)

    def get_flag_value(self, name: str, default: Any) -> Any:
        """The flag's value; `default` where it is None or there is no such flag."""
        value = getattr(self, name) if name in self else None
        return default if value is None else value

    def set_default(self, name: str, value: Any) -> None:
        """Change what a flag is unless the command line or the program has set it."""
        flag = self[name]
        if flag.using_default_value:
            flag.value = value
        flag.default = value

    def flag_values_dict(self) -> dict[str, Any]:
        """All flags with their values."""
        return {name: getattr(self, name) for name in self}

    def flags_into_string(self) -> str:
        """All flags as they could stand on a command line, each on a line of its own."""
        return "".join(f"--{name}={value}\n" for name, value in self.flag_values_dict().items() if value is not None)

    def _define(self, name: str, default: Any, help: str | None, *options: tuple[str, dict[str, Any]]) -> None:
        if name in self:
            raise ValueError(f"The flag {name!r} is defined twice.")
        for option, how in options:
            self._parser.add_argument(option, dest=name, help=(help or "").replace("%", "%%"), **how)
        self.__dict__["__flags"][name] = Flag(name, default, help)
        if self._argv is not None:  # defined after the command line was read: read it for this one
            found = vars(self._parser.parse_known_args(self._argv[1:])[0])
            if name in found:
                self[name].value, self[name].present = found[name], 1


FLAGS = FlagValues()
"""The flags of this program."""


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "t", "1", "yes", "y"):
        return True
    if text.lower() in ("false", "f", "0", "no", "n"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _split(text: str) -> list[str]:
    return [t.strip() for t in text.split(",")] if text else []


def _default(kind: Callable[[str], Any], value: Any) -> Any:
    """A default may be written as on the command line."""
    return kind(value) if isinstance(value, str) else value


_OLD_NAMES = {
    "flag_name": "name",
    "default_value": "default",
    "docstring": "help",
}  # of arguments, before TensorFlow 1.5


def _old_names(define: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(define)
    def renamed(*args: Any, **named: Any) -> None:
        define(*args, **{_OLD_NAMES.get(name, name): value for name, value in named.items()})

    return renamed


def _with_type(kind: Callable[[str], Any]) -> Callable[..., None]:
    @_old_names
    def define(
        name: str,
        default: Any,
        help: str | None = None,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
    ) -> None:
        FLAGS._define(name, _default(kind, default), help, (f"--{name}", {"type": kind}))
        if lower_bound is not None or upper_bound is not None:
            low, high = (
                (-math.inf if lower_bound is None else lower_bound),
                (math.inf if upper_bound is None else upper_bound),
            )
            register_validator(name, lambda x: x is None or low <= x <= high, f"It must lie in [{low}, {high}].")

    return define


DEFINE_string = _with_type(str)
"""`DEFINE_string(name, default, help)`: a flag whose value is text."""
DEFINE_integer = _with_type(int)
"""`DEFINE_integer(name, default, help, lower_bound, upper_bound)`: a flag whose value is a whole number."""
DEFINE_float = _with_type(float)
"""`DEFINE_float(name, default, help, lower_bound, upper_bound)`: a flag whose value is a number."""
DEFINE_list = _with_type(_split)
"""`DEFINE_list(name, default, help)`: a flag whose value is a list, written with commas."""


@_old_names
def DEFINE_boolean(name: str, default: Any, help: str | None = None) -> None:
    """A flag that is true or false: `--flag`, `--noflag`, `--flag=false`."""
    yes = {"type": _boolean, "nargs": "?", "const": True}
    no = {"action": "store_const", "const": False}
    FLAGS._define(name, _default(_boolean, default), help, (f"--{name}", yes), (f"--no{name}", no))


DEFINE_bool = DEFINE_boolean


@_old_names
def DEFINE_enum(name: str, default: Any, enum_values: Sequence[str], help: str | None = None) -> None:
    """A flag whose value is one of several texts."""
    FLAGS._define(name, default, help, (f"--{name}", {"choices": list(enum_values)}))


def _several(kind: Callable[[str], Any]) -> Callable[..., None]:
    @_old_names
    def define(name: str, default: Any, help: str | None = None) -> None:
        FLAGS._define(name, default, help, (f"--{name}", {"type": kind, "action": "append"}))

    return define


DEFINE_multi_string = _several(str)
"""`DEFINE_multi_string(name, default, help)`: a flag that may be given several times; its value is a list."""
DEFINE_multi_integer = _several(int)
"""The same for whole numbers."""
DEFINE_multi_float = _several(float)
"""The same for numbers."""


def register_validator(flag_name: str, checker: Callable[[Any], Any], message: str = "Flag validation failed") -> None:
    """Let the program end with the message when `checker(value)` is false after the command line was read."""
    FLAGS._checks.append((flag_name, checker, message))


def mark_flags_as_required(flag_names: Sequence[str]) -> None:
    """As `mark_flag_as_required`, for several."""
    for name in flag_names:
        mark_flag_as_required(name)


def mark_flag_as_required(flag_name: str) -> None:
    """Let the program end with a message when this flag has no value."""
    message = f"Flag --{flag_name} must have a value other than None."
    register_validator(flag_name, lambda value: value is not None, message)


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
    "Flag",
    "FlagValues",
    "mark_flag_as_required",
    "mark_flags_as_required",
    "register_validator",
]
