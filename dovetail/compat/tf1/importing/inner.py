"""What old programs take from TensorFlow's inside and no public name gives."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import dovetail as tf

_UIDS = itertools.count(1)
_PRINT_DEPRECATION_WARNINGS = False  # programs set it; there are none to print


class DeviceAttributes(NamedTuple):
    """A device, as `device_lib.list_local_devices` tells of it."""

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str
    locality: Any = None
    incarnation: int = 0


def list_local_devices(session_config: tf.ConfigProto | None = None) -> list[DeviceAttributes]:
    """The devices of this machine."""
    with tf.Session(graph=tf.Graph(), config=session_config) as session:
        found = [(str(d.name), d) for d in session.list_devices()]
    return [DeviceAttributes(n[n.index("/device:") :], d.device_type, d.memory_bytes or 0, n) for n, d in found]


FileIO = tf.gfile.GFile
copy = tf.gfile.Copy
create_dir = tf.gfile.MkDir
delete_file = tf.gfile.Remove
delete_recursively = tf.gfile.DeleteRecursively
file_exists = tf.gfile.Exists
is_directory = tf.gfile.IsDirectory
list_directory = tf.gfile.ListDirectory
recursive_create_dir = tf.gfile.MakeDirs


def get_matching_files(filename: str | Sequence[str]) -> list[str]:
    """Files whose names fit a pattern, or one of several."""
    patterns = [filename] if isinstance(filename, str) else filename
    return [found for pattern in patterns for found in tf.gfile.Glob(pattern)]


def read_file_to_string(filename: str, binary_mode: bool = False) -> Any:
    """All that is in a file."""
    with tf.gfile.GFile(filename, "rb" if binary_mode else "r") as file:
        return file.read()


def write_string_to_file(filename: str, file_content: str | bytes) -> None:
    """Write a file anew."""
    Path(filename).write_bytes(tf.compat.as_bytes(file_content))


def smart_constant_value(pred: Any) -> Any:
    """What a condition is, where the graph need not run to know; else None."""
    if not isinstance(pred, tf.Tensor):
        return bool(pred)
    known = tf.contrib.util.constant_value(pred)
    return None if known is None else bool(known)


def smart_cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """As `tf.cond`, but one branch alone where it is known now which."""
    if true_fn is None or false_fn is None:
        raise TypeError("smart_cond takes two functions: true_fn and false_fn")
    known = smart_constant_value(pred)
    if known is None:
        return tf.cond(pred, true_fn, false_fn, name=name)
    return true_fn() if known else false_fn()


constant_value = smart_constant_value


def with_dependencies(dependencies: Sequence[Any], output_tensor: Any, name: str | None = None) -> Any:
    """The tensor, which has its value after all of the dependencies have run."""
    with tf.control_dependencies(dependencies), tf.colocate_with(output_tensor):
        return tf.identity(output_tensor, name=name)


def unknown_shape(rank: int | None = None, ndims: int | None = None) -> tf.TensorShape:
    """A shape of which nothing, or only the number of axes, is known."""
    rank = ndims if rank is None else rank
    return tf.TensorShape(None if rank is None else [None] * rank)


def as_shape(shape: Any) -> tf.TensorShape:
    """Anything that can be a shape, as one."""
    return shape if isinstance(shape, tf.TensorShape) else tf.TensorShape(shape)


def scalar() -> tf.TensorShape:
    """The shape of a single number."""
    return tf.TensorShape([])


def vector(length: int | None) -> tf.TensorShape:
    """The shape of a vector."""
    return tf.TensorShape([length])


def matrix(rows: int | None, cols: int | None) -> tf.TensorShape:
    """The shape of a matrix."""
    return tf.TensorShape([rows, cols])


def dimension_value(dimension: Any) -> int | None:
    """The size of an axis as a number; None: unknown."""
    size: int | None = dimension.value if isinstance(dimension, tf.Dimension) else dimension
    return size


def convert_to_tensor(
    value: Any,
    dtype: Any = None,
    name: str | None = None,
    as_ref: bool = False,
    preferred_dtype: Any = None,
    **kwargs: Any,
) -> tf.Tensor:
    """`tf.convert_to_tensor`, which here also takes what TensorFlow's inside hands to functions that convert."""
    return tf.convert_to_tensor(value, dtype, name, preferred_dtype or kwargs.get("dtype_hint"))


def uid() -> int:
    """A number that no call before has given."""
    return next(_UIDS)


def alias_inplace_update(x: Any, i: Any, v: Any) -> tf.Tensor:
    """`x` with `v` in place of row `i`, or of the rows `i`."""
    return _with_rows(tf.tensor_scatter_update, x, i, v)


def alias_inplace_add(x: Any, i: Any, v: Any) -> tf.Tensor:
    """`x` with `v` added to row `i`, or to the rows `i`."""
    return _with_rows(tf.tensor_scatter_add, x, i, v)


def alias_inplace_sub(x: Any, i: Any, v: Any) -> tf.Tensor:
    """`x` with `v` subtracted from row `i`, or from the rows `i`."""
    return _with_rows(tf.tensor_scatter_sub, x, i, v)


def _with_rows(change: Callable[..., Any], x: Any, i: Any, v: Any) -> tf.Tensor:
    rows = tf.convert_to_tensor(i)
    changed: tf.Tensor = change(x, tf.expand_dims(rows, -1), v)
    return changed


def Defun(*input_types: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for a function of tensors. Each call puts its nodes into the graph, where TensorFlow puts one node that calls it.

    Args:
        input_types: element types of the arguments; none: those that are given.

    Keyword Args:
        func_name (str): the name scope of each call; None: the function's name.
        python_grad_func (Callable): gives the gradients of the arguments, from an object with `inputs` and `outputs`, and the gradients
            of the results; None: they are derived.
        grad_func (Callable): the same from the arguments and then the gradients of the results.

    Other options, such as `shape_func` and `compiled`, are accepted and ignored.
    """
    of_call, of_arguments = options.get("python_grad_func"), options.get("grad_func")

    def decorated(f: Callable[..., Any]) -> Callable[..., Any]:
        def with_gradients(given: list[Any]) -> Any:
            """What `f` gives. Its gradients are given the tensors of the caller, of which others, too, may depend."""

            def forward(*inside: Any) -> Any:
                results = f(*inside)

                def gradients(*grads: Any) -> Any:
                    if of_call is None:
                        return of_arguments(*given, *grads)  # type: ignore[misc]
                    outputs = tf.contrib.framework.nest.flatten(results)
                    return of_call(SimpleNamespace(inputs=given, outputs=outputs), *grads)

                return results, gradients

            return tf.custom_gradient(forward)(*given)

        @wraps(f)
        def called(*args: Any, name: str | None = None) -> Any:
            with tf.name_scope(name or options.get("func_name") or f.__name__.strip("<>")):
                types = input_types or [None] * len(args)
                given = [tf.convert_to_tensor(a, dtype) for a, dtype in zip(args, types, strict=True)]
                found = f(*given) if of_call is None and of_arguments is None else with_gradients(given)
                return found[0] if isinstance(found, (list, tuple)) and len(found) == 1 else found

        return called

    return decorated


def GetContainingXLAContext(ctxt: Any) -> None:
    """None: no part of a graph is compiled by XLA."""


def skip_summary() -> bool:
    """False: summaries are written."""
    return False


def in_graph_mode() -> bool:
    """True: what is called makes nodes of a graph."""
    return True


def in_eager_mode() -> bool:
    """False: see `in_graph_mode`."""
    return False


def _unchanged(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """A decorator that leaves a function as it is."""
    return lambda decorated: decorated


tf_export = keras_export = deprecated = deprecated_args = deprecated_arg_values = should_use_result = _unchanged

__all__ = [
    "Defun",
    "DeviceAttributes",
    "FileIO",
    "GetContainingXLAContext",
    "alias_inplace_add",
    "alias_inplace_sub",
    "alias_inplace_update",
    "as_shape",
    "constant_value",
    "convert_to_tensor",
    "copy",
    "create_dir",
    "delete_file",
    "delete_recursively",
    "deprecated",
    "deprecated_arg_values",
    "deprecated_args",
    "dimension_value",
    "file_exists",
    "get_matching_files",
    "in_eager_mode",
    "in_graph_mode",
    "inspect",
    "is_directory",
    "keras_export",
    "list_directory",
    "list_local_devices",
    "matrix",
    "read_file_to_string",
    "recursive_create_dir",
    "scalar",
    "should_use_result",
    "skip_summary",
    "smart_cond",
    "smart_constant_value",
    "tf_export",
    "uid",
    "unknown_shape",
    "vector",
    "with_dependencies",
    "write_string_to_file",
]
