"""Single operations beside TensorFlow, each alone in a step, on one thread: so that no operation is forgotten.

Operands are variables, mostly of 512 x 512, and nothing is fetched. So a step is the operation, some microseconds of dispatch, and the
memory of the result. Both systems take turns in processes of their own. The quickest of many calls counts, because other processes only
ever make one slower. `--only FAMILY` measures a part of it anew; all of it takes about six minutes.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from _harness import Row, main, peer_python, row
from _processes import Conversation, answer, load, version_of

N, CHANNELS = 512, 32
IMAGE = (8, 32, 32, CHANNELS)
ROUNDS, SAMPLE_S, WARM_CALLS = 2, 0.3, 10

# --- the operands, the same for both ---------------------------------------------------------------------------------


def reals(*shape: int) -> Any:
    return np.random.default_rng(0).random(shape, np.float32) + np.float32(0.1)


def whole(below: int, *shape: int) -> Any:
    return np.random.default_rng(1).integers(0, below, shape).astype(np.int32)


def ordered(below: int, count: int) -> Any:
    return np.sort(whole(below, count))


def chosen(*shape: int) -> Any:
    return np.random.default_rng(2).random(shape) < 0.5


X, Y, IDS, MASK = reals(N, N), reals(N, N)[::-1].copy(), whole(N, N), chosen(N, N)
SEGMENTS, SORTED = whole(N // 4, N), ordered(N // 4, N)
PIXELS, TAPS, DEPTHWISE = reals(*IMAGE), reals(3, 3, CHANNELS, CHANNELS), reals(3, 3, CHANNELS, 1)

# --- the operations --------------------------------------------------------------------------------------------------


def _elementwise(tf: Any) -> dict[str, Any]:
    one = ["abs", "atan", "erf", "exp", "floor", "lgamma", "log", "log1p", "negative", "reciprocal", "round", "rsqrt", "sigmoid", "sign",
           "sin", "sqrt", "square", "tanh"]  # fmt: skip
    two = [
        "add",
        "atan2",
        "floordiv",
        "floormod",
        "greater",
        "maximum",
        "multiply",
        "pow",
        "squared_difference",
        "subtract",
        "truediv",
    ]
    made: dict[str, Any] = {name: (getattr(tf.math, name), (X,)) for name in one}
    made |= {name: (getattr(tf.math, name), (X, Y)) for name in two}
    return made | {
        "where": (tf.where, (MASK, X, Y)),
        "relu": (tf.nn.relu, (X,)),
        "elu": (tf.nn.elu, (X,)),
        "bias_add": (tf.nn.bias_add, (X, X[0])),
        "clip_by_value": (lambda x: tf.clip_by_value(x, 0.3, 0.7), (X,)),
        "cast to float16": (lambda x: tf.cast(x, tf.float16), (X,)),
        "cast to int32": (lambda x: tf.cast(x, tf.int32), (X,)),
        "cast from uint8": (lambda x: tf.cast(x, tf.float32), (whole(255, N, N).astype(np.uint8),)),
        "GELU": (lambda x: 0.5 * x * (1 + tf.tanh(0.79788456 * (x + 0.044715 * x * x * x))), (X,)),
    }


def _reductions(tf: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for axis in (None, 0, 1):
        for name in ("reduce_sum", "reduce_max", "reduce_mean", "reduce_logsumexp"):
            made[f"{name}, axis {axis}"] = partial(getattr(tf, name), axis=axis), (X,)
        made[f"reduce_all, axis {axis}"] = partial(tf.reduce_all, axis=axis), (MASK,)
    for axis in (0, 1):
        made[f"argmax, axis {axis}"] = partial(tf.argmax, axis=axis), (X,)
        made[f"cumsum, axis {axis}"] = partial(tf.cumsum, axis=axis), (X,)
    return made | {
        "softmax": (tf.nn.softmax, (X,)),
        "softmax, masked": (lambda x, m: tf.nn.softmax(tf.where(m, x, x - 1e9)), (X, MASK)),
        "log_softmax": (tf.nn.log_softmax, (X,)),
        "cross entropy": (lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x), (X, IDS)),
        "moments": (lambda x: tf.nn.moments(x, [0])[1], (X,)),
        "l2_normalize": (lambda x: tf.nn.l2_normalize(x, 1), (X,)),
        "clip_by_norm": (lambda x: tf.clip_by_norm(x, 1.0), (X,)),
        "in_top_k": (lambda x, y: tf.nn.in_top_k(x, y, 5), (X, IDS)),
        "top_k": (lambda x: tf.nn.top_k(x, 5)[0], (X,)),
        "sort": (lambda x: tf.sort(x, axis=-1), (X,)),
    }


def _arranging(tf: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for axis in (0, 1):
        made[f"concat, axis {axis}"] = lambda x, y, axis=axis: tf.concat([x, y], axis), (X, Y)
        made[f"stack, axis {axis}"] = lambda x, y, axis=axis: tf.stack([x, y], axis), (X, Y)
        made[f"reverse, axis {axis}"] = lambda x, axis=axis: tf.reverse(x, [axis]), (X,)
        made[f"gather, axis {axis}"] = lambda x, i, axis=axis: tf.gather(x, i, axis=axis), (X, IDS)
    return made | {
        "transpose": (tf.transpose, (X,)),
        "tile": (lambda x: tf.tile(x, [2, 2]), (X,)),
        "pad": (lambda x: tf.pad(x, [[1, 1], [2, 2]]), (X,)),
        "mirror pad": (lambda x: tf.pad(x, [[1, 1], [2, 2]], mode="REFLECT"), (X,)),
        "strided slice": (lambda x: x[::2, ::-1], (X,)),
        "one_hot": (lambda i: tf.one_hot(i, N), (IDS,)),
        "boolean_mask": (tf.boolean_mask, (X, MASK)),
        "where, indices": (tf.where, (MASK,)),
        "gather, batched": (lambda x, i: tf.gather(x, i, batch_dims=1), (reals(64, 64, 64), whole(64, 64, 10))),
        "gather_nd": (tf.gather_nd, (X, whole(N, 4 * N, 2))),
        "scatter_nd": (lambda i, x: tf.scatter_nd(i, x, [N, N]), (IDS[:, None], X)),
        "segment_sum": (tf.segment_sum, (X, SORTED)),
        "segment_max": (tf.segment_max, (X, SORTED)),
        "unsorted_segment_sum": (lambda x, i: tf.unsorted_segment_sum(x, i, N // 4), (X, SEGMENTS)),
        "unsorted_segment_max": (lambda x, i: tf.unsorted_segment_max(x, i, N // 4), (X, SEGMENTS)),
        "unique": (lambda i: tf.unique(i)[0], (whole(N, N * N),)),
        "bincount": (lambda i: tf.bincount(i, minlength=N), (whole(N, N * N),)),
        "matrix_band_part": (lambda x: tf.matrix_band_part(x, -1, 0), (X,)),
        "transpose to NCHW, times 2": (lambda x: 2.0 * tf.transpose(x, [0, 3, 1, 2]), (PIXELS,)),
        "non_max_suppression": (
            lambda b, s: tf.image.non_max_suppression(tf.concat([b[:, :2], b[:, :2] + b[:, 2:]], 1), s, 50),
            (reals(N, 4), reals(N)),
        ),
        "hash of text": (lambda i: tf.string_to_hash_bucket_fast(tf.as_string(i), N), (IDS,)),
        "random_uniform": (lambda: tf.random_uniform([N, N]), ()),
        "random_normal": (lambda: tf.random_normal([N, N]), ()),
        "dropout": (lambda x: tf.nn.dropout(x, rate=0.5), (X,)),
        "random_shuffle": (tf.random_shuffle, (X,)),
    }


def _products(tf: Any) -> dict[str, Any]:
    same = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    return {
        "matmul": (tf.matmul, (X, Y)),
        "matmul, first transposed": (lambda x, y: tf.matmul(x, y, transpose_a=True), (X, Y)),
        "matmul of float64": (tf.matmul, (X.astype(np.float64), Y.astype(np.float64))),
        "matrix times vector": (tf.matmul, (X, Y[:, :1].copy())),
        "vector times matrix": (tf.matmul, (X[:1], Y)),
        "batch matmul": (tf.matmul, (reals(8, 64, N), reals(8, N, 64))),
        "einsum": (lambda x, y: tf.einsum("bthd,bshd->bhts", x, y), (reals(4, 64, 8, 32), reals(4, 64, 8, 32))),
        "conv2d, 3 x 3": (lambda x, k: tf.nn.conv2d(x, k, **same), (PIXELS, TAPS)),
        "conv2d, 1 x 1": (lambda x, k: tf.nn.conv2d(x, k, **same), (PIXELS, TAPS[:1, :1].copy())),
        "depthwise_conv2d": (lambda x, k: tf.nn.depthwise_conv2d(x, k, **same), (PIXELS, DEPTHWISE)),
        "depthwise_conv2d, gradients": (
            lambda x, k: tf.add_n([*map(tf.reduce_sum, tf.gradients(tf.nn.depthwise_conv2d(x, k, **same), [x, k]))]),
            (PIXELS, DEPTHWISE),
        ),
        "conv3d": (
            lambda x, k: tf.nn.conv3d(x, k, [1] * 5, "SAME"), (reals(2, 16, 32, 32, 8), reals(3, 3, 3, 8, 16)),
        ),
        "cholesky": (
            lambda x: tf.cholesky(tf.matmul(x, x, transpose_b=True) + 64.0 * tf.eye(64)), (reals(16, 64, 64),),
        ),
        "conv2d_transpose": (lambda x, k: tf.nn.conv2d_transpose(x, k, list(IMAGE), **same), (PIXELS, TAPS)),
    }  # fmt: skip


def _images(tf: Any) -> dict[str, Any]:
    return {
        "max_pool": (lambda x: tf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"), (PIXELS,)),
        "avg_pool": (lambda x: tf.nn.avg_pool(x, [1, 3, 3, 1], [1, 1, 1, 1], "SAME"), (PIXELS,)),
        "batch normalization": (
            lambda x, s, o: tf.nn.fused_batch_norm(x, s, o)[0], (PIXELS, reals(CHANNELS), reals(CHANNELS)),
        ),
        "lrn": (tf.nn.lrn, (PIXELS,)),
        "resize_bilinear": (lambda x: tf.image.resize_bilinear(x, [64, 64]), (PIXELS,)),
        "resize_nearest_neighbor": (lambda x: tf.image.resize_nearest_neighbor(x, [64, 64]), (PIXELS,)),
        "space_to_depth": (lambda x: tf.space_to_depth(x, 2), (PIXELS,)),
        "mean of each image": (lambda x: tf.reduce_mean(x, [1, 2]), (PIXELS,)),
    }  # fmt: skip


FAMILIES: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "elementwise": _elementwise,
    "reductions": _reductions,
    "arranging": _arranging,
    "products": _products,
    "images": _images,
}

# --- one system ------------------------------------------------------------------------------------------------------


def serve(system: str) -> None:
    """Answer `{"family": ..., "op": ...}` with the seconds of a call, warm."""

    def begin() -> tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        tf = load(system)
        config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)

        def respond(request: dict[str, Any]) -> dict[str, Any]:
            function, arrays = FAMILIES[request["family"]](tf)[request["op"]]
            with tf.Graph().as_default(), tf.Session(config=config) as session:
                operands = [tf.get_variable(f"v{i}", initializer=a, use_resource=True) for i, a in enumerate(arrays)]
                target = function(*[v.read_value() for v in operands]).op
                session.run(tf.global_variables_initializer())
                if system == "dovetail":
                    session.warmup(target)  # kernels are compiled now, and not beside the first steps
                return {"seconds": _quickest(session.make_callable(target))}

        return version_of(tf), respond

    answer(begin)


def _quickest(run: Callable[[], object]) -> float:
    """Seconds of a call, the least of all calls in a while; the first calls warm up."""
    seconds: list[float] = []
    end = time.perf_counter() + SAMPLE_S
    while time.perf_counter() < end or len(seconds) < WARM_CALLS:
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds[WARM_CALLS // 2 :])


# --- both in turn ----------------------------------------------------------------------------------------------------


def rows(family: str, quick: bool) -> Iterator[Row]:
    """A row for each operation of a family."""
    with (
        Conversation(__file__, "dovetail") as ours,
        Conversation(__file__, "tensorflow", peer_python(), CUDA_VISIBLE_DEVICES="") as theirs,
    ):
        if theirs.missing:
            print(f"TensorFlow left out: {theirs.missing}", file=sys.stderr)
        for op in list(FAMILIES[family](load("dovetail")))[: 3 if quick else None]:
            found: list[list[float]] = [[], []]
            for _ in range(1 if quick else ROUNDS):
                for times, system in zip(found, (ours, theirs), strict=True):
                    if not system.missing:
                        times.append(system.ask(family=family, op=op)["seconds"] * 1e6)
            yield row(op, "µs", min(found[0]), min(found[1], default=None), theirs.title, "ratio <= 2")


if __name__ == "__main__":
    if sys.argv[1:2] in (["dovetail"], ["tensorflow"]):
        serve(sys.argv[1])
    else:
        main("Single operations", {family: partial(rows, family) for family in FAMILIES})
