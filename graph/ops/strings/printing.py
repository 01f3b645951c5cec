"""Formatting and printing values in a step: `tf.strings.format`, `tf.print`."""

from __future__ import annotations

import logging
import os
import pprint
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert, make
from ...core.dtypes import Array, string, text_array
from ...core.graph import Node, Tensor
from ...core.nest import flatten, pack
from ...core.opdef import Attrs, Output, define, define_on_host, typed_attr
from ...resources.resource_manager import Context
from ...tensors.sparse_tensor import SparseTensor
from ..math.static_operands import need_rank, op_scope

_LEVELS = {"log(info)": logging.INFO, "log(warning)": logging.WARNING, "log(error)": logging.ERROR}
_LEVELS_BY_NAME = {"info": "log(info)", "warn": "log(warning)", "warning": "log(warning)", "error": "log(error)"}
_LOGGER = logging.getLogger("dovetail")


# --- formatting -------------------------------------------------------------------------------------------------------


def summary_of(value: Array, ends: int) -> str:
    """An array as text, with the first and last `ends` elements of each axis. -1 means all.

    >>> summary_of(np.arange(10), 3)
    '[0 1 2 ... 7 8 9]'
    """
    return "".join(_pieces(value, 0, value.ndim, ends))


def _pieces(value: Array, axis: int, rank: int, ends: int) -> Iterator[str]:
    if axis == rank:
        yield _element(value[()])
        return
    between = " " if axis == rank - 1 else "\n" * (rank - 1 - axis) + " " * (axis + 1)
    count = len(value)
    head = count if ends < 0 else min(ends, count)
    tail = max(count - ends, head) if ends >= 0 else count
    yield "["
    for i in (*range(head), *range(tail, count)):
        if i == tail and tail > head:
            yield f"{between if head else ''}..."
        yield between if i else ""
        yield from _pieces(value[i, ...], axis + 1, rank, ends)
    yield "]"


def _element(value: Any) -> str:
    if isinstance(value, bytes):
        return f'"{value.decode(errors="replace")}"'
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    if isinstance(value, (float, np.floating)) or value.dtype.kind == "V":
        return f"{float(value):g}"
    return str(value)


def _format_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    count = typed_attr(attrs, "template", str).count(typed_attr(attrs, "placeholder", str))
    if count != len(inputs):
        raise ValueError(f"the template has {count} placeholders, there are {len(inputs)} inputs")
    typed_attr(attrs, "summarize", int)
    return [(string, ())]


def _format(*values: Array, template: str, placeholder: str, summarize: int) -> Array:
    first, *others = template.split(placeholder)
    text = first + "".join(summary_of(v, summarize) + rest for v, rest in zip(values, others, strict=True))
    return text_array([text.encode()], ())


define("StringFormat", _format_rule, _format, device_types=("CPU",))


def string_format(
    template: str, inputs: Any, placeholder: str = "{}", summarize: int = 3, name: str | None = None
) -> Tensor:
    """A scalar string: a template in which each placeholder is replaced by the value of a tensor.

    Args:
        template: the template.
        inputs: a tensor, or a list with a tensor for each placeholder.
        placeholder: the placeholder in the template.
        summarize: the number of elements shown at both ends of each axis. -1 means all.
        name: name of the node.

    Raises:
        ValueError: the numbers of placeholders and inputs differ.

    >>> string_format("tensor: {}", range(10))   # evaluates to b"tensor: [0 1 2 ... 7 8 9]"
    """
    given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    with op_scope(name, "StringFormat", *given) as scope:
        attrs = {"template": template, "placeholder": placeholder, "summarize": int(summarize)}
        return make("StringFormat", [convert(v, name="inputs") for v in given], attrs, scope).outputs[0]


# --- printing ---------------------------------------------------------------------------------------------------------


def _print_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (text,) = inputs
    need_rank(text.dims, 0, "the text to print")
    typed_attr(attrs, "end", str)
    _writer(typed_attr(attrs, "output_stream", str))
    return []


def _print(context: Context, text: Array, *, output_stream: str, end: str) -> Sequence[Array]:
    _writer(output_stream)(bytes(text.item()).decode(errors="replace"), end)
    return ()


def _writer(stream: str) -> Callable[[str, str], None]:
    """A function that writes a string and its end to a stream. ValueError if there is no such stream."""
    if stream in ("stdout", "stderr"):
        return lambda text, end: print(text, end=end, file=getattr(sys, stream), flush=True)
    if stream in _LEVELS:
        return lambda text, end: _LOGGER.log(_LEVELS[stream], "%s", text)
    if stream.startswith("file://"):

        def append(text: str, end: str) -> None:
            with Path(stream.removeprefix("file://")).open("a", encoding="utf-8") as file:
                file.write(text + end)

        return append
    raise ValueError(f"Unknown output stream: {stream}")


define_on_host("PrintV2", _print_rule, _print)


def print_v2(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int | None = 3,
    sep: str = " ",
    end: str = os.linesep,
    name: str | None = None,
) -> Node:
    """A node that prints in each step in which it runs. Use `control_dependencies` to run it with other nodes.

    Args:
        inputs: strings, tensors, sparse tensors, and nested structures of them.
        output_stream: `sys.stderr` (also None), `sys.stdout`, `dt.logging.info`, `dt.logging.warning`, `dt.logging.error`, or
            "file://path", of the task that runs the node.
        summarize: the number of elements shown at both ends of each axis. None means 3. -1 means all.
        sep: the separator between inputs.
        end: what follows the last input.
        name: name of the node.

    Raises:
        ValueError: there is no such stream.

    >>> with control_dependencies([dt.print("x:", x, output_stream=sys.stdout)]):
    ...     y = 3 * x
    """
    stream = _stream(output_stream)
    attrs = {"output_stream": stream, "end": end}
    if len(inputs) == 1 and isinstance(inputs[0], Tensor) and inputs[0].dtype.base is string and inputs[0].dims == ():
        return make("PrintV2", inputs, attrs, name)
    placeholder = "{}"
    while any(placeholder in str(leaf) for leaf in flatten(list(inputs)) if not isinstance(leaf, Tensor)):
        placeholder = "{" + placeholder + "}"
    tensors: list[TensorLike] = []
    text = sep.join(_template(v, placeholder, tensors) for v in inputs)
    shown = string_format(
        text, tensors, placeholder, 3 if summarize is None else summarize, f"{name}_format" if name else None
    )
    return make("PrintV2", (shown,), attrs, name)


def _template(value: Any, placeholder: str, tensors: list[TensorLike]) -> str:
    """The template of one argument. Its tensors are appended to the list `tensors`."""
    if isinstance(value, str):
        return value

    def leaf(x: Any) -> Any:
        if isinstance(x, SparseTensor):
            tensors.extend(x._tensors())
            return f"SparseTensor(indices={placeholder}, values={placeholder}, shape={placeholder})"
        if isinstance(x, Tensor) or hasattr(x, "_as_tensor"):
            tensors.append(x)
            return placeholder
        return x

    if isinstance(value, SparseTensor):
        return pprint.pformat(leaf(value))
    text = pprint.pformat(pack(value, [leaf(x) for x in flatten(value)]))
    return text.replace(f"'{placeholder}'", placeholder)


def _stream(given: Any) -> str:
    if given is None or given is sys.stderr:
        return "stderr"
    if given is sys.stdout:
        return "stdout"
    if isinstance(given, str) and given.startswith("file://"):
        return given
    if isinstance(given, int):
        found = next((name for name, level in _LEVELS.items() if level == given), None)
    else:
        found = _LEVELS_BY_NAME.get(getattr(given, "__name__", ""))
    if found is None:
        raise ValueError(
            f"Unsupported output stream, logging level, or file: {given!r}. There are sys.stdout, sys.stderr, dt.logging.info, "
            "dt.logging.warning, dt.logging.error, and 'file://<path>'."
        )
    return found
