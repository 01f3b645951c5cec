"""Keyword arguments and attributes that a function or an object does not have: the error says which it has instead.

PyTorch, JAX and TensorFlow 1 name the same argument differently (`dim`, `axis`; `lr`, `learning_rate`). Python's own error names
only the argument that was given. `explains_arguments` adds the name to use. It costs a call of a function, so it is for functions that
people of other libraries know, not for every op.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

FOREIGN = {
    "betas": ("beta1", "beta2"),
    "dim": ("axis",),
    "dims": ("axis",),
    "dynamic": ("symbolic_batch",),
    "eps": ("epsilon",),
    "input": ("input_tensor", "inputs", "logits"),
    "keepdim": ("keepdims",),
    "lr": ("learning_rate",),
    "p": ("rate",),
    "params": ("var_list",),
    "parameters": ("var_list",),
}
"""An argument of other libraries -> its names here. A function has some of them."""
_STATIC = (
    "leave it out. None, texts, booleans and functions are constants of the trace; functools.partial makes a number one"
)
LEFT_OUT = {
    **dict.fromkeys(("static_argnums", "static_argnames"), _STATIC),
    **dict.fromkeys(("donate_argnums", "donate_argnames"), "leave it out. Memory that is read for the last time is used again anyway"),
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
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"{text}: did you mean {close[0]}?" if close else f"{text}; its arguments are {', '.join(known)}"


def check_arguments(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """TypeError with an explanation: a function does not have a keyword argument that is given.

    Args:
        name: how the error calls the function.
        given: the keyword arguments of the call.
    """
    parameters = [p for n, p in inspect.signature(function).parameters.items() if n != "self"]
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = set(given) - set(known)
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(explanation(name, unknown, known)) from None


def no_attribute(owner: object, name: str, instead: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that an object does not have: it says what to use, where `instead` or a close name tells.

    >>> no_attribute(plan, "show", {"show": "print(plan)"})
    AttributeError("'Plan' object has no attribute 'show': use print(plan)")
    """
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)  # a property of its own failed: raise what it raised
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in instead:
        text += f": use {instead[name]}"
    elif name[:1] != "_" and (close := difflib.get_close_matches(name, [n for n in dir(type(owner)) if n[0] != "_"], n=1, cutoff=0.7)):
        text += f": did you mean {close[0]}?"
    return AttributeError(text, name=name, obj=owner)


def explains_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: a call with a keyword argument that the function does not have names the one to use."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            check_arguments(function.__name__, function, kwargs)
            raise

    return checked
