"""The part `numbers` of bench/gpu.py: one program of each kind, on the GPU and by NumPy."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from _gpu_timing import Case, gpu, normal
from _harness import Row, row


def _heads(x: Any) -> Any:
    import dovetail as dt

    return dt.transpose(dt.reshape(x[:256, :64], [4, 64, 4, 16]), [0, 2, 1, 3])


def _programs() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """From x, y [300, 257] and w [257, 129]."""
    import dovetail as dt

    rows = np.arange(300) % 7

    def picture(x: Any) -> Any:
        return dt.reshape(x[:, :256], [3, 100, 64, 4])

    def filters(w: Any) -> Any:
        return dt.reshape(w[:36, :8], [3, 3, 4, 8])

    def attention(x: Any, y: Any, w: Any) -> Any:
        return dt.matmul(dt.nn.softmax(dt.matmul(_heads(x), _heads(y), transpose_b=True) / 4.0), _heads(x * y))

    def convolution(x: Any, y: Any, w: Any) -> Any:
        return dt.nn.conv2d(picture(x), filters(w), [1, 2, 2, 1], "SAME")

    return {
        "pointwise chain": lambda x, y, w: dt.nn.tanh(x * y) + dt.exp(-x * x),
        "sums of rows": lambda x, y, w: dt.reduce_sum(x * y, 1),
        "sums of columns": lambda x, y, w: dt.reduce_sum(x * y, 0),
        "sum of all": lambda x, y, w: dt.reduce_sum(dt.exp(x)),
        "softmax": lambda x, y, w: dt.nn.softmax(3.0 * x),
        "loss of labels": lambda x, y, w: dt.nn.sparse_softmax_cross_entropy_with_logits(labels=rows, logits=x),
        "matrix product": lambda x, y, w: dt.matmul(x, w),
        "transposed product": lambda x, y, w: dt.matmul(x, y, transpose_a=True),
        "dense layer": lambda x, y, w: dt.nn.silu(dt.matmul(x, w) + w[0]),
        "gradient of a layer": lambda x, y, w: dt.gradients(dt.reduce_sum(dt.nn.relu(dt.matmul(x, w)) ** 2.0), [w])[0],
        "float64 product": lambda x, y, w: dt.matmul(dt.cast(x, dt.float64), dt.cast(w, dt.float64)),
        "transpose": lambda x, y, w: dt.transpose(x) * 2.0,
        "slices and padding": lambda x, y, w: dt.pad(x[3::2, ::-1], [[1, 2], [0, 3]]),
        "tiling": lambda x, y, w: dt.tile(x, [2, 3]),
        "attention": attention,
        "attention's gradient": lambda x, y, w: dt.gradients(dt.reduce_sum(attention(x, y, w) ** 2.0), [x])[0],
        "convolution": convolution,
        "convolution's gradients": lambda x, y, w: dt.gradients(dt.reduce_sum(convolution(x, y, w) ** 2.0), [w])[0],
        "pooling": lambda x, y, w: dt.nn.max_pool(picture(x), [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
        "running sums": lambda x, y, w: dt.math.cumsum(x, 1),
        "largest": lambda x, y, w: dt.nn.top_k(x, 20)[0],
        "places of the largest": lambda x, y, w: dt.cast(dt.argmax(x, 1), dt.float32),
        "long sort": lambda x, y, w: dt.sort(dt.reshape(x, [3, -1])),
        "picked rows": lambda x, y, w: dt.gather(x, rows),
        "added rows": lambda x, y, w: dt.math.unsorted_segment_sum(x, dt.constant(rows), 7),
        "rows picked in a kernel": lambda x, y, w: dt.nn.softmax(dt.gather(x, rows) * 2.0),
        "rows added in a kernel": lambda x, y, w: dt.math.unsorted_segment_sum(dt.exp(x) * y, dt.constant(rows), 257),
        "product of float8": lambda x, y, w: dt.matmul(
            *(dt.cast(dt.cast(v, dt.dtypes.float8_e4m3fn), dt.float32) for v in (x, w))
        ),
        "scattered rows": lambda x, y, w: dt.tensor_scatter_nd_max(x, rows[:, None], y),
        "random numbers": lambda x, y, w: dt.random.uniform([1000], seed=3) + dt.random.normal([1000], seed=4),
    }


def numbers(quick: bool) -> Iterator[Case]:
    """The largest relative difference from NumPy, for one program of each kind."""
    import dovetail as dt

    gpu()
    values = normal((300, 257)), normal((300, 257), seed=1), normal((257, 129), seed=2)

    def compared(name: str, make: Callable[[Any, Any, Any], Any]) -> Iterator[Row]:
        results = []
        for where in ("/gpu:0", "/cpu:0"):
            with dt.Graph().as_default() as graph, dt.device(where):
                dt.random.set_random_seed(5)
                given = [dt.placeholder(dt.float32, v.shape) for v in values]
                out = make(*given)
            with dt.Session(graph=graph) as session:
                results.append(session.run(out, dict(zip(given, values, strict=True))).astype(np.float64))
        mine, theirs = results
        worst = float(np.max(np.abs(mine - theirs)) / np.max(np.abs(theirs)))
        yield row(f"numbers: {name}", "difference", worst, target="dovetail <= 2e-5")

    def trained() -> Iterator[Row]:
        results = []
        for where in ("/gpu:0", "/cpu:0"):
            with dt.Graph().as_default() as graph, dt.device(where):
                table = dt.Variable(values[0])
                rows = dt.nn.embedding_lookup(table, [[3, 8, 3], [0, 3, 299]])
                step = dt.train.AdagradOptimizer(0.1).minimize(dt.reduce_sum(rows * rows))
                start = dt.global_variables_initializer()
            with dt.Session(graph=graph) as session:
                session.run(start)
                for _ in range(5):
                    session.run(step)
                results.append(session.run(table))
        worst = float(np.max(np.abs(results[0] - results[1])))
        yield row("numbers: sparse updates", "difference", worst, target="dovetail <= 2e-5")

    for name, make in _programs().items():
        yield name, partial(compared, name, make)
    yield "sparse updates", trained
