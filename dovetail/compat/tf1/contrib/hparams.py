"""`HParams`: a model's hyperparameters, each with a type, which can be given on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_ASSIGNED = re.compile(
    r"\s*(?P<name>[a-zA-Z][\w.]*)(\[\s*(?P<index>\d+)\s*\])?\s*=\s*(?P<value>\[[^\]]*\]|[^,\[]*)\s*($|,)"
)
_TRUE, _FALSE = ("true", "1"), ("false", "0")


class HParams:
    """Hyperparameters as attributes. The first value of each says its type: a number, text, a bool, or a list of such.

    >>> hparams = HParams(learning_rate=0.1, units=[64, 32])
    >>> hparams.parse("learning_rate=0.01,units[1]=16")
    >>> hparams.learning_rate, hparams.units
    (0.01, [64, 16])
    """

    def __init__(self, hparam_def: None = None, model_structure: Any = None, **kwargs: Any) -> None:
        if hparam_def is not None:
            raise ValueError("hyperparameters of a protocol buffer are not read here: give them as keyword arguments")
        self._hparam_types: dict[str, tuple[type, bool]] = {}  # name -> type of a value, and whether it is a list
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """A hyperparameter that was not there. ValueError: it was; or the value is an empty list."""
        if hasattr(self, name):
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
            self._hparam_types[name] = type(value[0]), True
        else:
            self._hparam_types[name] = type(value), False
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Another value. KeyError: there is no such one. ValueError: the value is of another type."""
        self.override_from_dict({name: value})

    def del_hparam(self, name: str) -> None:
        """Take one away, if it is there."""
        if name in self._hparam_types:
            delattr(self, name)
            del self._hparam_types[name]

    def parse(self, values: str) -> HParams:
        """Other values, as text: `name=value,list=[value,value],list[1]=value`; gives itself.

        Raises:
            ValueError: the text is not such, names what is not there, or gives one twice. Nothing has changed then.
        """
        found: dict[str, Any] = {}
        at = 0
        while at < len(values):
            m = _ASSIGNED.match(values, at)
            if m is None:
                raise ValueError(f"Malformed hyperparameter value: {values[at:]}")
            at = m.end()
            name, index, text = m["name"], m["index"], m["value"].strip()
            if name not in self._hparam_types:
                raise ValueError(f"Unknown hyperparameter type for {name}")
            kind, is_list = self._hparam_types[name]
            if name in found and (index is None or not isinstance(found[name], dict) or int(index) in found[name]):
                raise ValueError(f"Multiple assignments to variable '{name}' in {values}")
            if index is not None:
                if not is_list or text.startswith("["):
                    raise ValueError(f"Could not parse hparam {name!r} with value {text!r} in {values}")
                found.setdefault(name, {})[int(index)] = _read(name, kind, text)
            elif text.startswith("["):
                if not is_list:
                    raise ValueError(f"Must not pass a list for single-valued parameter: {name}.")
                found[name] = [_read(name, kind, part.strip()) for part in text[1:-1].split(",") if part.strip()]
            else:
                value = _read(name, kind, text)
                found[name] = [value] if is_list else value
        for name, value in list(found.items()):
            if isinstance(value, dict):
                found[name] = list(getattr(self, name))
                for i, item in value.items():
                    if i >= len(found[name]):
                        raise ValueError(f"{name} has {len(found[name])} values, and {name}[{i}] is given")
                    found[name][i] = item
        return self.override_from_dict(found)

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Other values; gives itself. KeyError, ValueError: as of `set_hparam`, and nothing has changed then."""
        for name, value in {n: self._checked(n, v) for n, v in values_dict.items()}.items():
            setattr(self, name, value)
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Other values, from a JSON object."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """All values as a JSON object; functions are left out."""
        plain = {k: v for k, v in self.values().items() if not callable(v)}
        return json.dumps(plain, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """All values by name."""
        return {n: getattr(self, n) for n in self._hparam_types}

    def get(self, key: str, default: Any = None) -> Any:
        """A value; the default where there is none of that name. ValueError: the default is of another type."""
        if key not in self._hparam_types:
            return default
        if default is not None:
            kind, is_list = self._hparam_types[key]
            if isinstance(default, list) != is_list:
                raise ValueError(f"Hparam '{key}' is {'a list' if is_list else 'no list'}, and default={default!r}")
            for v in default if is_list else [default]:
                _cast(key, kind, v)
        return getattr(self, key)

    def get_model_structure(self) -> Any:
        """As given."""
        return self._model_structure

    def set_model_structure(self, model_structure: Any) -> None:
        """Another one."""
        self._model_structure = model_structure

    def __contains__(self, key: str) -> bool:
        return key in self._hparam_types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"HParams({self})"

    def _checked(self, name: str, value: Any) -> Any:
        """A value that one of this name may have."""
        if name not in self._hparam_types:
            known = ", ".join(self._hparam_types) or "none"
            raise KeyError(f"There is no hyperparameter {name!r}; there are {known}")
        kind, is_list = self._hparam_types[name]
        if isinstance(value, list) != is_list:
            which = "Must pass a list for multi" if is_list else "Must not pass a list for single"
            raise ValueError(f"{which}-valued parameter: {name}.")
        return [_cast(name, kind, v) for v in value] if is_list else _cast(name, kind, value)


def _cast(name: str, kind: type, value: Any) -> Any:
    """A value as one of the type: whole numbers may become fractions, nothing else changes. ValueError: it is of another one."""
    if kind is type(None) or callable(value) or isinstance(value, kind) and (kind is bool) == isinstance(value, bool):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"Could not cast hparam '{name}' of type '{kind}' from value {value!r}")


def _read(name: str, kind: type, text: str) -> Any:
    """A value of the type from text."""
    if kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"Could not parse hparam {name!r} of type 'bool' with value {text!r}")
        return text.lower() in _TRUE
    try:
        return kind(text) if kind in (int, float, str) else text
    except ValueError:
        raise ValueError(f"Could not parse hparam {name!r} of type {kind.__name__!r} with value {text!r}") from None


__all__ = ["HParams"]
