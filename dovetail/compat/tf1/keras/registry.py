"""How a thing is found by its name, and written down as plain values: layers, losses, initializers and their like.

`{"class_name": "Dense", "config": {...}}` is the written form of an object, a name that of a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ....graph.core.argument_names import explains_arguments
from .backend import snake_case

_custom: dict[str, Any] = {}


def get_custom_objects() -> dict[str, Any]:
    """Name -> class or function that a saved model may name; add your own."""
    return _custom


@contextmanager
def custom_object_scope(custom_objects: Mapping[str, Any] | None) -> Iterator[None]:
    """A block in which saved models may name these classes and functions, too."""
    before = dict(_custom)
    _custom.update(custom_objects or {})
    try:
        yield
    finally:
        _custom.clear()
        _custom.update(before)


def register_keras_serializable(package: str = "Custom", name: str | None = None) -> Callable[[Any], Any]:
    """A decorator that lets saved models name a class or function."""

    def register(found: Any) -> Any:
        _custom[name or found.__name__] = found
        return found

    return register


class Configured:
    """What is written down as the arguments that it was made with."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The errors of Keras' own classes name the argument to use for one that they do not have; users' classes stay as they are."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls) and cls.__module__.startswith(__package__.rpartition(".")[0]):
            cls.__init__ = explains_arguments(cls.__init__)  # type: ignore[method-assign]

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal one, as plain values."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The one with these arguments."""
        return cls(**config)


class Registry:
    """The known classes and functions of one kind; names may be written in either style, `HeNormal` or `he_normal`."""

    def __init__(self, kind: str, *known: Any, **also: Any) -> None:
        self._kind = kind
        self._known: dict[str, Any] = {}
        for found in known:
            self.add(found.__name__, found)
        for name, found in also.items():
            self.add(name, found)

    def add(self, name: str, found: Any) -> None:
        """Let `found` be known by a name."""
        self._known[name] = found
        self._known.setdefault(snake_case(name), found)

    def find(self, name: str) -> Any:
        """The class or function of that name. ValueError: there is none."""
        found = _custom.get(name, self._known.get(name))
        if found is None:
            names = ", ".join(sorted({n for n in self._known if n == snake_case(n)}))
            raise ValueError(
                f"Unknown {self._kind}: {name!r}. Known: {names}. Your own: in custom_objects={{{name!r}: ...}}, or the object itself"
            )
        return found

    def get(self, identifier: Any) -> Any:
        """What is meant: by name, by its written form, as a class, or as it is; None is None."""
        if identifier is None:
            return None
        if isinstance(identifier, Mapping):
            return self.deserialize(identifier)
        if isinstance(identifier, str):
            identifier = self.find(identifier)
        if inspect.isclass(identifier):
            return identifier()
        if callable(identifier):
            return identifier
        hint = ""
        if isinstance(identifier, int) and self._kind == "activation":
            hint = (
                f". The layer takes the size of its output alone, and finds that of its input: dense(x, {identifier})"
            )
        raise TypeError(f"Cannot tell which {self._kind} is meant by {identifier!r}{hint}")

    def serialize(self, found: Any) -> Any:
        """The written form."""
        if found is None:
            return None
        if hasattr(found, "get_config"):
            return {"class_name": type(found).__name__, "config": found.get_config()}
        name = getattr(found, "__name__", None)
        if name is None or name == "<lambda>":
            raise ValueError(f"A {self._kind} without a name cannot be saved: {found!r}. Define it with `def`")
        return name

    def deserialize(self, written: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """What a written form says."""
        with custom_object_scope(custom_objects):
            if not isinstance(written, Mapping):
                return self.get(written)
            found = self.find(written["class_name"])
            config = dict(written.get("config") or {})
            return found.from_config(config) if hasattr(found, "from_config") else found(**config)


LAYERS = Registry("layer")
"""The layers and models that a written form may name. `layers` and `model` add theirs."""


__all__ = [
    "LAYERS",
    "Configured",
    "Registry",
    "custom_object_scope",
    "get_custom_objects",
    "register_keras_serializable",
]
