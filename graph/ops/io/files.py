"""Reading and writing whole files on the client's machine. These nodes run in the process that built the graph, like a `py_func`."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.dtypes import Array, string, text_array
from ...core.errors import NotFoundError, PermissionDeniedError
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, define_on_host, typed_attr
from ...resources.resource_manager import Context
from ..control.python_function import process_nonce
from ..math.static_operands import as_bytes
from ..state.queues import need_scalar


def check_own(process: str, context: Context) -> None:
    """PermissionDeniedError unless the node runs in the process that built its graph."""
    if process != process_nonce():
        raise PermissionDeniedError(
            context.node_name, None,
            "Files are read and written only by the client's process, which built the graph, and this is another process. "
            "Put the node on the client's task, or feed the content of the file.",
        )  # fmt: skip


def as_text(value: str | bytes) -> Array:
    """A string scalar."""
    return text_array([as_bytes(value)], ())


def _infer_file(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "process", str)
    for t in inputs:
        need_scalar(t, (string,), "a file's name or content")
    return [(string, ())]


def _infer_matching(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "process", str)
    if inputs[0].dtype.base is not string:
        raise TypeError(f"a pattern must be a string, not {inputs[0].dtype.base.name}")
    return [(string, (None,))]


def _infer_write(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _infer_file(inputs, attrs)
    return []


def name_of(value: Any) -> str:
    """The filename in a scalar string array."""
    item = value.item() if isinstance(value, np.ndarray) else value
    return as_bytes(item).decode()


def _read_file(context: Context, filename: Array, *, process: str) -> Array:
    check_own(process, context)
    try:
        return as_text(Path(name_of(filename)).read_bytes())
    except OSError as e:
        raise NotFoundError(context.node_name, None, f"{name_of(filename)}; {e.strerror}") from e


def _write_file(context: Context, filename: Array, contents: Array, *, process: str) -> tuple[()]:
    check_own(process, context)
    path, item = Path(name_of(filename)), contents.item()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_bytes(item))
    except OSError as e:
        raise NotFoundError(context.node_name, None, f"{path}; {e.strerror}") from e
    return ()


def _matching(context: Context, pattern: Array, *, process: str) -> Array:
    check_own(process, context)
    found = sorted({name for p in pattern.reshape(-1) for name in glob.glob(name_of(p)) if Path(name).is_file()})  # noqa: PTH207
    return text_array(name.encode() for name in found)


for _name, _infer, _of_files in (
    ("ReadFile", _infer_file, _read_file),
    ("WriteFile", _infer_write, _write_file),
    ("MatchingFiles", _infer_matching, _matching),
):
    define_on_host(_name, _infer, _of_files, traits=Trait.HOST_ONLY)


def read_file(filename: TensorLike, name: str | None = None) -> Tensor:
    """The content of a file on the client's machine, a scalar string. NotFoundError in a step if it cannot be read.

    >>> image = read_file("digit.raw")
    """
    return apply("ReadFile", (convert(filename, string, name="filename"),), {"process": process_nonce()}, name)


def write_file(filename: TensorLike, contents: TensorLike, name: str | None = None) -> Node:
    """A node that writes a file on the client's machine. It creates missing folders."""
    operands = convert(filename, string, name="filename"), convert(contents, string, name="contents")
    return make("WriteFile", operands, {"process": process_nonce()}, name)


def matching_files(pattern: TensorLike, name: str | None = None) -> Tensor:
    """The names of the client's files that match one of several glob patterns, sorted: string `[n]`.

    >>> matching_files("/data/*.csv")
    """
    return apply("MatchingFiles", (convert(pattern, string, name="pattern"),), {"process": process_nonce()}, name)
