"""`dovetail ops`: searches the public functions that create ops, and shows their signatures."""

from __future__ import annotations

import difflib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Annotated, NamedTuple

import typer

from ...compat.tf1.names.table import old_names
from ...graph.core.errors import UnimplementedError
from ...placer.render.text import WIDTH
from .common import FailedError, errors_explained, print_text

MODULES = ("", "nn", "math", "linalg", "random", "image", "strings", "sparse", "sets", "bitwise", "losses", "metrics")


class _Unquoted(str):
    """An annotation that a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Entry(NamedTuple):
    """A public function.

    Attributes:
        names: the function's names, such as `mean` and `reduce_mean`.
        signature: its parameters with types and defaults, and its return type.
        about: the first paragraph of its docstring.
    """

    names: tuple[str, ...]
    signature: str
    about: str

    def __str__(self) -> str:
        also = f" Also {', '.join(f'dt.{name}' for name in self.names[1:])}." * (len(self.names) > 1)
        call = textwrap.wrap(
            f"dt.{self.names[0]}{self.signature}", WIDTH, subsequent_indent="        ", break_long_words=False
        )
        about = textwrap.wrap(
            self.about + also, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False
        )
        return "\n".join((*call, *about))


def ops(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Words in the name or the description: softmax; cross entropy; BiasAdd. Default: all ops."),
    ] = None,
) -> None:
    """List the functions that create ops, with their signatures. All words must match. Functions that match by name come first.

    Exit status: 0 found, 1 nothing matches, 2 wrong use.
    """
    with errors_explained():
        found = list(public_functions())
        wanted = [_plain(word) for word in words or ()]
        by_name = [e for e in found if all(any(a in _plain(n) for n in e.names) for a in wanted)]
        by_text = [
            e for e in found if e not in by_name and all(a in _plain(" ".join((*e.names, e.about))) for a in wanted)
        ]
        if not (by_name or by_text):
            names: dict[str, str] = {}
            for name in (name for e in found for name in e.names):
                names.setdefault(name.rpartition(".")[2], name)
            close = [names[n] for word in words or () for n in difflib.get_close_matches(word.lower(), names, n=1)]
            hint = f": did you mean {', '.join(f'dt.{name}' for name in close)}?" if close else ""
            raise FailedError(f"No op matches {' and '.join(map(repr, words or ()))}{hint}")
        exact = "".join(wanted)
        by_name.sort(key=lambda e: all(_plain(n.rpartition(".")[2]) != exact for n in e.names))
        print_text("\n".join(map(str, (*by_name, *by_text))))


def public_functions() -> Iterator[Entry]:
    """Yields the public functions of the modules of ops. A function with several names appears once."""
    names: dict[FunctionType, list[str]] = {}
    for space in MODULES:
        module = importlib.import_module(f"dovetail.{space}" if space else "dovetail")
        for name in (*module.__all__, *old_names(module.__name__)):
            try:
                value = getattr(module, name)
            except (ImportError, UnimplementedError):  # it needs a package that is not installed
                continue
            if isinstance(value, FunctionType):
                names.setdefault(value, []).append(f"{space}.{name}" if space else name)
    for function, found in sorted(names.items(), key=lambda item: item[1][0].rpartition(".")[2].lower()):
        about = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        yield Entry(tuple(found), _signature(function), about)


def _signature(function: FunctionType) -> str:
    """Returns the signature as in the source: `(x: TensorLike, name: str | None = None) -> Tensor`."""
    found = inspect.signature(function)
    shown = [p.replace(annotation=_shown(p.annotation)) for p in found.parameters.values()]
    return str(found.replace(parameters=shown, return_annotation=_shown(found.return_annotation)))


def _shown(annotation: object) -> object:
    return _Unquoted(annotation) if isinstance(annotation, str) else annotation


def _plain(text: str) -> str:
    """Returns a normal form in which `BiasAdd`, `bias_add` and `bias add` are equal."""
    return text.lower().replace("_", "").replace(" ", "")
