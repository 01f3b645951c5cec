"""CONTRIBUTING.md, "Adding an op": an op, a reduction and a pooling that a newcomer adds have compiled kernels on CPUs
and GPUs, in under 40 lines each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("", "tests/codegen", "tests/gpu", "tests/runtime")  # of the modules that tests share

ELEMENTWISE = '''
from dovetail.graph.core.build import TensorLike
from dovetail.graph.core.dtypes import FLOATS
from dovetail.graph.core.graph import Tensor
from dovetail.graph.ops.math.common import define_elementwise, unary

define_elementwise("Softshrink", lambda m, x: x - m.minimum(m.maximum(x, -0.5), 0.5), FLOATS, flops=3.0)


def new_op(x: TensorLike, name: str | None = None) -> Tensor:
    """Zero up to 0.5, and nearer to zero by as much beyond."""
    return unary("Softshrink", x, name)
'''

REDUCTION = '''
import numpy as np

from dovetail.codegen.fusion import op_rules
from dovetail.codegen.ir import index_maps
from dovetail.graph.core.build import TensorLike
from dovetail.graph.core.dtypes import NUMBERS
from dovetail.graph.core.graph import Tensor
from dovetail.graph.core.opdef import define
from dovetail.graph.ops.math import reduce


def _squares(x, axis, keepdims):
    return np.sum(x * x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _rule(node, x):
    return (x * x).reduced("sum")


define("SumOfSquares", reduce._reduction_rule(NUMBERS), reduce._reduction(_squares, True))
index_maps.REDUCTIONS |= {"SumOfSquares"}
op_rules._rules["SumOfSquares"] = _rule


def new_op(x: TensorLike, axis: int = -1, name: str | None = None) -> Tensor:
    """The sum of the squares along an axis."""
    return reduce._reduce("SumOfSquares", x, axis, False, name, None, None)
'''

POOLING = '''
from dovetail.codegen.fusion import window_loops
from dovetail.codegen.ir.windows import WINDOW_OPS, WindowOp
from dovetail.graph.core.build import TensorLike
from dovetail.graph.core.dtypes import FLOATS
from dovetail.graph.core.graph import Tensor
from dovetail.graph.core.opdef import define
from dovetail.graph.ops.nn import pooling
from dovetail.graph.ops.nn.conv_geometry import channels_last, patches, window_of


def _sum_pool(x, **attrs):
    seen = patches(channels_last(x, attrs["data_format"]), window_of(attrs, attrs["ksize"][1:3]))
    return seen.sum((4, 5), dtype=x.dtype)


def sum_pool(loops, dtype):
    return loops.over_taps("sum", lambda i, j: loops.read(0, dtype, loops.seen(i, j), window_loops.IMAGE))


define("SumPool", pooling._pool_rule(FLOATS), _sum_pool)
WINDOW_OPS["SumPool"] = WindowOp(("image",))
window_loops.WINDOW_LOOPS["SumPool"] = sum_pool


def new_op(x: TensorLike, name: str | None = None) -> Tensor:
    """The sum of the pixels that each window of 2 x 2 sees."""
    return pooling._pool("SumPool", x, 2, 2, "VALID", "NHWC", name, None)
'''

USE = """
import numpy as np

import dovetail as dt

from gpu_programs import gpus_with_kernels

x = np.random.default_rng(0).standard_normal((4, 6, 6, 8)).astype(np.float32)
results = {}
with gpus_with_kernels():
    for device, backend in (("cpu:0", "numpy"), ("cpu:0", "numba"), ("gpu:0", "numba")):
        with dt.Graph().as_default(), dt.device(device):
            given = dt.placeholder(dt.float32, x.shape)
            y = dt.nn.relu(new_op(given * 1.5))
            with dt.Session(config=dt.ConfigProto(kernel_backend=backend, kernel_check=2)) as session:
                results[device, backend] = session.run(y, {given: x})
                kernels = session.plan(y).kernels(device)
        compiled = {node for k in (*kernels, *kernels.own, *kernels.compiled) for node in k.nodes}
        assert backend == "numpy" or {y.op.name, y.op.inputs[0].op.name} <= compiled, str(kernels)
wanted = results.pop(("cpu:0", "numpy"))
for made in results.values():
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("lines", [ELEMENTWISE, REDUCTION, POOLING], ids=["elementwise", "reduction", "pooling"])
def test_a_newcomers_op_is_compiled(lines: str) -> None:
    assert lines.count("\n") < 40
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in FOLDERS)}
    command = [sys.executable, "-c", lines + USE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
