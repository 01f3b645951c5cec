"""Errors for keyword arguments and attributes that do not exist. They name the ones to use instead.

PyTorch, JAX and TensorFlow 1 have different names for the same argument (`dim`, `axis`; `lr`, `learning_rate`). Python's own error gives
only the wrong name. The decorator `explains_arguments` adds the right one. It costs 0.1 us per call, little compared with the creation of a
node. `explain_members` decorates the public functions of `graph/ops` after they have been imported, so calls between them cost nothing.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

FOREIGN = {
    "betas": ("beta1", "beta2"),
    "bias": ("use_bias",),
    "dim": ("axis",),
    "dims": ("axis",),
    "drop_last": ("drop_remainder",),
    "dynamic": ("symbolic_batch",),
    "eps": ("epsilon",),
    "input": ("input_tensor", "inputs", "logits"),
    "init": ("initializer",),
    "keepdim": ("keepdims",),
    "lr": ("learning_rate",),
    "num_classes": ("depth",),
    "out_channels": ("filters",),
    "out_features": ("units",),
    "p": ("rate",),
    "params": ("var_list",),
    "parameters": ("var_list",),
    "std": ("stddev",),
    "stride": ("strides",),
}
"""An argument of other libraries -> its names here. A function has some of them."""
_STATIC = (
    "leave it out. None, texts, booleans and functions are constants of the trace; functools.partial makes a number one"
)
LEFT_OUT = {
    **dict.fromkeys(("static_argnums", "static_argnames"), _STATIC),
    **dict.fromkeys(
        ("donate_argnums", "donate_argnames"),
        "leave it out. Memory that is read for the last time is used again anyway",
    ),
    "fullgraph": "leave it out. The whole function is one graph",
}
"""An argument of `jax.jit` or `torch.compile` that has no counterpart -> what to do."""


def explanation(function: str, unknown: Collection[str], known: Collection[str]) -> str:
    """The text of the TypeError for keyword arguments that a function does not have.

    >>> explanation("reduce_sum", ["dim"], ["input_tensor", "axis"])
    "reduce_sum() has no argument 'dim': use axis"
    """
    name = sorted(unknown)[0]
    text = f"{function}() has no argument {name!r}"
    if found := [n for n in FOREIGN.get(name, ()) if n in known]:
        return f"{text}: use {' and '.join(found)}"
    if name in LEFT_OUT:
        return f"{text}: {LEFT_OUT[name]}"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7) or [n for n in known if name in n.split("_")]
    return f"{text}: did you mean {' or '.join(close)}?" if close else f"{text}; its arguments are {', '.join(known)}"


def check_arguments(
    name: str, function: Callable[..., Any], given: Mapping[str, Any], after: Sequence[Callable[..., Any]] = ()
) -> None:
    """TypeError with an explanation if a function does not have a keyword argument.

    Args:
        name: the function's name in the error.
        function: the function.
        given: the keyword arguments of the call.
        after: functions to which `**kwargs` is passed on: by the function to the first of them, by that to the second, and so on.
    """
    known: list[str] = []
    for f in (function, *after):
        parameters = [p for n, p in inspect.signature(f).parameters.items() if n != "self"]
        known += [
            p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in known
        ]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            if unknown := set(given) - set(known):
                raise TypeError(explanation(name, unknown, known)) from None
            return


def check_flags(**given: object) -> None:
    """TypeError if a boolean argument has another value, such as "no", which Python counts as true."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")


def no_attribute(owner: object, name: str, instead: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that does not exist. It names the one to use, from `instead` or by a similar name.

    >>> no_attribute(plan, "show", {"show": "print(plan)"})
    AttributeError("'Plan' object has no attribute 'show': use print(plan)")
    """
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)  # a property has raised AttributeError: raise that
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in instead:
        text += f": use {instead[name]}"
    elif name[:1] != "_" and (
        close := difflib.get_close_matches(name, [n for n in dir(type(owner)) if n[0] != "_"], n=1, cutoff=0.7)
    ):
        text += f": did you mean {close[0]}?"
    return AttributeError(text, name=name, obj=owner)


def explains_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator that explains errors of wrong keyword arguments. An `__init__` may pass its `**kwargs` to that of a base class."""
    name = function.__name__

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            if name == "__init__":
                kind = type(args[0])
                inits: list[Any] = [init for c in kind.__mro__ if isinstance(init := vars(c).get(name), FunctionType)]
                check_arguments(kind.__name__, function, kwargs, inits[inits.index(checked) + 1 :])
            else:
                check_arguments(name, function, kwargs)
            raise

    return checked


def explain_members(owner: ModuleType | type, helpers: bool = True) -> None:
    """Decorate the public functions that a module or a class defines, and `__init__`, by `explains_arguments`.

    `helpers`: also functions without optional arguments, which in modules of ops are helpers.
    """
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    made: dict[FunctionType, Any] = {}  # one function may have several names
    for name, value in list(vars(owner).items()):
        is_public = name[0] != "_" or name == "__init__"
        if (
            is_public
            and isinstance(value, FunctionType)
            and value.__module__ == module
            and (helpers or value.__defaults__ or value.__kwdefaults__)
            and not hasattr(value, "__wrapped__")
        ):
            setattr(owner, name, made.setdefault(value, explains_arguments(value)))
