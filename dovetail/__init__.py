"""Dovetail: build a dataflow graph, see where each part will run and why, and run it across processes.

The public names are those of TensorFlow 1: an old program starts with `import dovetail as tf`. The engine has four packages. Each imports
only those after it: `runtime` runs plans, `placer` places nodes, `codegen` compiles them, and `graph` defines graphs and ops.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# In a checkout these packages lie beside this folder. The path entry lets Python find them there, so that a checkout needs no install.
# The links in this folder (`graph` and so on) are only for type checkers. An installed package has no pyproject.toml beside it.
_beside = Path(__file__).resolve().parent.parent
if (_beside / "pyproject.toml").is_file():
    __path__.insert(0, str(_beside))
del _beside

from . import public_paths

public_paths.install()

from .graph.core.interpreter_state import collector_paused as _collector_paused
from .graph.core.source_location import hide_own_frames_when_uncaught as _hide_own_frames_when_uncaught

with _collector_paused():  # garbage collection would take a tenth of the import time and find nothing to free
    from . import data, distribute, io, train
    from .api import errors, nest
    from .api.ops import debugging, initializers, linalg, lookup, math, nn, random, sparse, strings
    from .compiled_function import compile
    from .graph.control_flow.cond_while import case, cond, while_loop
    from .graph.control_flow.functional import map_fn, scan
    from .graph.core.build import constant, convert_to_tensor, placeholder
    from .graph.core.default_graph import (
        colocate_with,
        control_dependencies,
        device,
        get_default_graph,
        name_scope,
        reset_default_graph,
    )
    from .graph.core.dtypes import (
        DType,
        bfloat16,
        bool_ as bool,
        float16,
        float32,
        float64,
        int8,
        int32,
        int64,
        string,
        uint8,
    )
    from .graph.core.graph import Graph, Node as Operation, Tensor
    from .graph.core.hooks import hooks as _hooks
    from .graph.core.shape import TensorShape
    from .graph.gradients.custom import custom_gradient
    from .graph.gradients.reverse import gradients
    from .graph.io.serialization import load as load_graph, save as save_graph
    from .graph.ops.array.concat_stack import concat, split, stack, unstack
    from .graph.ops.array.creation import fill, ones, ones_like, zeros, zeros_like
    from .graph.ops.array.gather import gather, gather_nd, one_hot, reverse
    from .graph.ops.array.identity_and_placeholders import (
        group,
        identity,
        no_op,
        placeholder_with_default,
        stop_gradient,
    )
    from .graph.ops.array.padding import pad, tile
    from .graph.ops.array.ranges import range
    from .graph.ops.array.shapes import broadcast_to, expand_dims, reshape, shape, size, squeeze, transpose
    from .graph.ops.array.slicing import slice
    from .graph.ops.control.tensor_array import TensorArray
    from .graph.ops.linalg.einsum import einsum
    from .graph.ops.linalg.linalg import matmul
    from .graph.ops.math.arithmetic import maximum, minimum, sqrt, square
    from .graph.ops.math.cast import cast
    from .graph.ops.math.clip import clip_by_value
    from .graph.ops.math.compare import equal, where
    from .graph.ops.math.elementwise import exp
    from .graph.ops.math.reduce import reduce_max, reduce_mean, reduce_min, reduce_sum
    from .graph.ops.math.scan import argmax
    from .graph.ops.strings.printing import print_v2 as print
    from .graph.tensors.indexed_slices import IndexedSlices
    from .graph.variables.scope import get_variable, variable_scope
    from .graph.variables.store import AUTO_REUSE, global_variables, global_variables_initializer, trainable_variables
    from .graph.variables.variable import Variable
    from .interop import tensorboard as summary
    from .placer.pipeline import place
    from .placer.plan import Plan
    from .runtime.config import ConfigProto, RunMetadata, RunOptions
    from .runtime.session.session import Session

newaxis = None
"""An axis of size 1 in an index, as in `tensor[:, dt.newaxis]`."""

_LOADED_WHEN_USED = {  # names whose modules import ZeroMQ, or which many programs never use
    "LocalCluster": ".runtime.server.local_cluster",
    "Profile": ".placer.cost.profile",
    "RayCluster": ".distribute.launchers.ray_cluster",
    "profile": ".runtime.session.profiling",
    "simulate": ".placer.simulate",
}


def _old_name(module: str, name: str) -> Any:
    """A name that only TensorFlow 1 programs use, in this module or a submodule. AttributeError: there is no such name."""
    return import_module(".compat.tf1.names.table", __name__).find(module, name)


def _instead_of_attribute(name: str) -> str:
    """What to use instead of an attribute that tensors do not have."""
    text: str = import_module(".api.unknown_names", __name__).instead_of_attribute(name)
    return text


def _define_old_ops() -> None:
    import_module(".compat.tf1.ops", __name__).define_all()


public_paths.register_old_names(_old_name)
_hooks.define_old_ops = _define_old_ops
_hooks.instead_of_attribute = _instead_of_attribute
_hide_own_frames_when_uncaught()
for _part in ("data", "debugging", "distribute", "errors", "initializers", "io", "linalg", "lookup", "math", "nest", "random",
              "sparse", "strings", "summary", "train"):  # fmt: skip
    public_paths.explain_unknown_names(globals()[_part], f"{__name__}.{_part}")

if not TYPE_CHECKING:  # type checkers read __init__.pyi, where an unknown name is an error

    def __getattr__(name: str) -> Any:
        """A name that is only loaded when it is used: large parts and old names."""
        if name in _LOADED_WHEN_USED:
            value = getattr(import_module(_LOADED_WHEN_USED[name], __name__), name)
        else:
            value = _old_name(__name__, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "AUTO_REUSE", "ConfigProto", "DType", "Graph", "IndexedSlices", "LocalCluster", "Operation", "Plan", "Profile",
    "RayCluster", "RunMetadata", "RunOptions", "Session", "Tensor", "TensorArray", "TensorShape", "Variable", "argmax",
    "bfloat16", "bool", "broadcast_to", "case", "cast", "clip_by_value", "colocate_with", "compile", "concat", "cond",
    "constant", "control_dependencies", "convert_to_tensor", "custom_gradient", "data", "debugging", "device", "distribute",
    "einsum", "equal", "errors", "exp", "expand_dims", "fill", "float16", "float32", "float64", "gather", "gather_nd",
    "get_default_graph", "get_variable", "global_variables", "global_variables_initializer", "gradients", "group", "identity",
    "initializers", "int32", "int64", "int8", "io", "linalg", "load_graph", "lookup", "map_fn", "math", "matmul", "maximum",
    "minimum", "name_scope", "nest", "newaxis", "nn", "no_op", "one_hot", "ones", "ones_like", "onnx", "pad", "place",
    "placeholder", "placeholder_with_default", "print", "profile", "random", "range", "reduce_max", "reduce_mean", "reduce_min",
    "reduce_sum", "reset_default_graph", "reshape", "reverse", "save_graph", "saved_model", "scan", "shape", "simulate", "size",
    "slice", "sparse", "split", "sqrt", "square", "squeeze", "stack", "stop_gradient", "string", "strings", "summary", "tile",
    "train", "trainable_variables", "transpose", "uint8", "unstack", "variable_scope", "where", "while_loop", "zeros",
    "zeros_like",
]  # fmt: skip
