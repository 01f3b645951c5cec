"""What each part of the CPU code generator is worth: programs with it, and without it, in one process, in turn.

A part is a compiler pass, a family of hand-written kernels, or a mechanism of launches or of loops. Each is measured on the workloads
that it was made for. `dovetail` is the program as it is, `peer` the same program without the part. Where a library can do the work of a
part, `peer` is the same program with OpenBLAS, by way of NumPy, or else the bare call of the library. A ratio of 0.5 says that the part
makes the workload twice as fast.

The rule: a part stays if it saves 10 % somewhere. The two are measured in turns, and medians are compared, so other work on the machine
slows both down. Before each turn there is a pause: OpenBLAS' threads spin for about 0.1 s after a product, on the cores that the other
side's threads need. Parts that matter after a pause (`PAUSED`) have one before each call. `python bench/ablation.py --only "top k"`
measures one part.

`python bench/ablation.py --runtime` measures the mechanisms of the runtime instead, on clusters (`_runtime_ablation.py`), and
`python bench/ablation.py --search` the parts of the placement search, by what they find (`_search_ablation.py`).
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

import _convolutions
import _models
from _harness import Row, main, row

TARGET = "ratio <= 0.9"
SPIN = 0.12  # seconds: threads of OpenBLAS spin for somewhat less after a product
TURN = 5  # samples
PAUSED = frozenset(("cores of helpers",))
"""Parts that are measured at single calls, each after a pause."""
CODEGEN = "dovetail.codegen"

Call = Callable[[], Any]


# --- workloads: each gives a call ----------------------------------------------------------------------------------------


def program(build: Callable[[Any], tuple[Any, Mapping[Any, Any]]]) -> Call:
    """A call of a program. `build(dt)` gives what to fetch, and the values of its placeholders."""
    import dovetail as dt

    graph = dt.Graph()
    with graph.as_default():
        fetches, feeds = build(dt)
        initial = dt.global_variables_initializer()
    session = dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend="auto"))
    session.run(initial)
    session.warmup(fetches, list(feeds))
    call = session.make_callable(fetches, list(feeds))
    return lambda: call(*feeds.values())


def model(name: str) -> Call:
    """A model or a convolution of bench/cpu.py."""
    import dovetail as dt

    config = dt.ConfigProto(kernel_backend="auto")
    if name in _models.MODELS:
        return _models.dovetail(name, config, True)
    return _convolutions.dovetail(name, config)


def function(make: Callable[..., Any], *values: Any) -> Call:
    """A function of arrays: `make(dt, *placeholders)`."""

    def build(dt: Any) -> tuple[Any, Mapping[Any, Any]]:
        feeds = {dt.placeholder(dt.as_dtype(v.dtype), v.shape): v for v in values}
        return make(dt, *feeds), feeds

    return program(build)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    """Random numbers."""
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def tiny(dt: Any, x: Any) -> Any:
    """60 operations, one after the other."""
    y = x
    for _ in range(20):
        y = dt.nn.tanh(y * 0.5) + x
    return y


def digits() -> Call:
    """A training step of the digits classifier, 64-256-256-10, batch 64."""

    def build(dt: Any) -> tuple[Any, Mapping[Any, Any]]:
        x, labels = dt.placeholder(dt.float32, [None, 64]), dt.placeholder(dt.int32, [None])
        h = x
        for a, b in ((64, 256), (256, 256), (256, 10)):
            h = dt.matmul(h, dt.Variable(numbers(a, b) / 16)) + dt.Variable(np.zeros(b, np.float32))
            h = dt.nn.relu(h) if b > 10 else h
        loss = dt.reduce_mean(dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=h))
        step = dt.train.GradientDescentOptimizer(0.01).minimize(loss)
        return [loss, step], {x: numbers(64, 64), labels: np.arange(64, dtype=np.int32) % 10}

    return program(build)


def adam(size: int, count: int) -> Call:
    """A step of Adam on `count` variables of `size` elements."""

    def build(dt: Any) -> tuple[Any, Mapping[Any, Any]]:
        x = dt.placeholder(dt.float32, [size])
        gradients = [(x * (i + 1.0), dt.Variable(numbers(size))) for i in range(count)]
        return dt.train.AdamOptimizer(0.01).apply_gradients(gradients), {x: numbers(size)}

    return program(build)


def embedding(optimizer: str) -> Call:
    """A step on a table of 20,000 x 64, of which 4,096 rows are looked up."""

    def build(dt: Any) -> tuple[Any, Mapping[Any, Any]]:
        ids = dt.placeholder(dt.int32, [4096])
        table = dt.Variable(numbers(20_000, 64))
        loss = dt.reduce_sum(dt.square(dt.nn.embedding_lookup(table, ids)))
        step = getattr(dt.train, optimizer)(0.01).minimize(loss)
        return step, {ids: np.random.default_rng(1).integers(0, 20_000, 4096).astype(np.int32)}

    return program(build)


def depthwise(shape: tuple[int, ...], what: str) -> Call:
    """A depthwise convolution with 3 x 3 taps, or one of its gradients."""

    def made(dt: Any, x: Any, w: Any) -> Any:
        y = dt.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")
        return y if what == "forward" else dt.gradients(y, x if what == "image" else w, dt.ones_like(y))

    return function(made, numbers(*shape), numbers(3, 3, shape[3], 1))


def normalized(shape: tuple[int, ...], what: str) -> Call:
    """A batch normalization of images and a ReLU: in training or not, and their gradients."""
    channels = shape[3]

    def made(dt: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        if what == "inference":
            return dt.nn.relu(dt.nn.fused_batch_norm(x, scale, offset, mean, variance, is_training=False)[0])
        y, *moments = dt.nn.fused_batch_norm(x, scale, offset)
        y = dt.nn.relu(y)
        return [y, *moments] if what == "training" else dt.gradients(dt.reduce_sum(y * y), [x, scale, offset])

    variance = np.abs(numbers(channels)) + 0.5
    return function(made, numbers(*shape), numbers(channels), numbers(channels), numbers(channels), variance)


def pooling(kind: str, shape: tuple[int, ...], taps: int, what: str) -> Call:
    """A pooling with stride 2, or its gradient."""

    def made(dt: Any, x: Any) -> Any:
        y = getattr(dt.nn, f"{kind}_pool")(x, taps, 2, "SAME")
        return y if what == "forward" else dt.gradients(y, x, dt.ones_like(y))

    return function(made, numbers(*shape))


def product(rows: int, inner: int, columns: int, dtype: str = "float32") -> Call:
    """A matrix product."""
    import dovetail as dt

    kind = dt.as_dtype(dtype).as_numpy_dtype
    return function(
        lambda dt, a, b: dt.matmul(a, b), numbers(rows, inner, dtype=kind), numbers(inner, columns, dtype=kind)
    )


def blas_product(rows: int, inner: int, columns: int) -> Call:
    """The same program, whose product OpenBLAS computes."""
    with disabled("matrix products"):
        return product(rows, inner, columns)


def top_k(rows: int, length: int, k: int) -> Call:
    """The k largest of each row."""
    return function(lambda dt, x: dt.nn.top_k(x, k), numbers(rows, length))


def numpy_top_k(rows: int, length: int, k: int) -> Call:
    """The same by `np.argpartition`, and a sort of the k."""
    x = numbers(rows, length)

    def call() -> Any:
        at = np.argpartition(x, length - k, -1)[:, length - k :]
        values = np.take_along_axis(x, at, -1)
        order = np.argsort(-values, -1)
        return np.take_along_axis(values, order, -1), np.take_along_axis(at, order, -1)

    return call


def joined(dt: Any, *parts: Any) -> Any:
    """A concatenation."""
    return dt.concat(parts, 1)


def chain(dt: Any, x: Any) -> Any:
    """The GELU function."""
    return 0.5 * x * (1 + dt.nn.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def norm(dt: Any, x: Any) -> Any:
    """A layer normalization."""
    mean = dt.reduce_mean(x, -1, keepdims=True)
    return (x - mean) * dt.math.rsqrt(dt.reduce_mean(dt.square(x - mean), -1, keepdims=True) + 1e-5)


def activation(rows: int, width: int, columns: int) -> Call:
    """A GELU before a product, and its gradient, which takes what the GELU computed on the way."""

    def made(dt: Any, x: Any, w: Any) -> Any:
        return dt.gradients(dt.reduce_sum(dt.square(dt.matmul(chain(dt, x), w))), [x, w])

    return function(made, numbers(rows, width), numbers(width, columns))


def unknown_batch(what: str) -> Call:
    """Gradients for a batch whose size is not known: of the mean of a GELU, or of a cross entropy that is written out."""

    def build(dt: Any) -> tuple[Any, Mapping[Any, Any]]:
        width = 1024 if what == "mean" else 10
        x = dt.placeholder(dt.float32, [None, width])
        if what == "mean":
            bias = dt.Variable(numbers(width))
            loss = dt.reduce_mean(dt.square(chain(dt, x + bias)))
            return [loss, *dt.gradients(loss, [x, bias])], {x: numbers(2048, width)}
        labels = dt.placeholder(dt.float32, [None, width])
        loss = dt.reduce_mean(-dt.reduce_sum(labels * dt.math.log(dt.nn.softmax(x)), 1))
        return [loss, *dt.gradients(loss, [x])], {x: numbers(65536, width), labels: np.abs(numbers(65536, width))}

    return program(build)


def narrowed(dt: Any, x: Any) -> Any:
    """Arithmetic, a transpose and a cast to a narrower type."""
    return dt.cast(dt.transpose(x * 2.0 + 1.0), dt.float16)


def in_place(move: Callable[[Any, Any], Any]) -> Call:
    """Arithmetic on the elements of images that `move` takes."""
    return function(lambda dt, x: dt.nn.relu(move(dt, x) * 2.0 + 1.0), numbers(8, 56, 56, 64))


def around(dt: Any, x: Any, bias: Any) -> Any:
    """Arithmetic on images in another order of axes, and back."""
    y = dt.nn.relu(dt.transpose(x, [0, 3, 1, 2]) * 1.5 + dt.reshape(bias, [1, 64, 1, 1]))
    return dt.transpose(y, [0, 2, 3, 1])


MODELS: dict[str, Callable[[], Call]] = {
    "digits training step": digits,
    **{name: partial(model, name) for name in _models.MODELS},
}
CONVOLUTIONS = {title: partial(model, name) for name, title in _convolutions.WORKLOADS.items()}
AFTER_A_PAUSE = {
    f"{title}, after a pause": partial(model, name)
    for name, title in _convolutions.WORKLOADS.items()
    if name.startswith(("conv-deep", "conv-point"))
}
SMALL: dict[str, Callable[[], Call]] = {
    "60 operations on 16 elements": partial(function, tiny, numbers(16)),
    **MODELS,
}
LOOPS: dict[str, Callable[[], Call]] = {
    "GELU chain, 1,000,000": partial(function, chain, numbers(1_000_000)),
    "softmax, 4096 x 1024": partial(function, lambda dt, x: dt.nn.softmax(x), numbers(4096, 1024)),
    "softmax, 65536 x 10": partial(function, lambda dt, x: dt.nn.softmax(x), numbers(65536, 10)),
    "layer norm, 4096 x 256": partial(function, norm, numbers(4096, 256)),
}
UPDATES: dict[str, Callable[[], Call]] = {
    "Adam, 1,000,000 elements": partial(adam, 1_000_000, 1),
    "Adam, 8 x 256 elements": partial(adam, 256, 8),
    "embedding, gradient descent": partial(embedding, "GradientDescentOptimizer"),
    "embedding, Adagrad": partial(embedding, "AdagradOptimizer"),
}
RANDOM: dict[str, Callable[[], Call]] = {
    "dropout of 1,000,000": partial(function, lambda dt, x: dt.nn.dropout(x, 0.9), numbers(1_000_000)),
    "1,000,000 normal numbers": partial(function, lambda dt, x: x + dt.random.normal([1_000_000]), numbers(1_000_000)),
}
COPIES: dict[str, Callable[[], Call]] = {
    "concat of 4 x 1 MiB": partial(function, joined, *[numbers(512, 512)] * 4),
    "concat of 4 x 16 MiB": partial(function, joined, *[numbers(2048, 2048)] * 4),
    "stack of 4 x 1 MiB": partial(function, lambda dt, *x: dt.stack(x), *[numbers(512, 512)] * 4),
    "transpose and reshape, 4 MiB": partial(
        function, lambda dt, x: dt.reshape(dt.transpose(x, [0, 2, 1, 3]), [8, 128, -1]), numbers(8, 16, 128, 64)
    ),
    "transpose and reshape, 64 MiB": partial(
        function, lambda dt, x: dt.reshape(dt.transpose(x, [0, 2, 1, 3]), [32, 512, -1]), numbers(32, 16, 512, 64)
    ),
}
DEPTHWISE = {
    f"depthwise {'x'.join(map(str, shape))}, {what}": partial(depthwise, shape, what)
    for shape in ((8, 56, 56, 64), (8, 14, 14, 512))
    for what in ("forward", "image", "filter")
}
POOLING = {
    f"{kind} pooling {'x'.join(map(str, shape))}, {taps} x {taps}, {what}": partial(pooling, kind, shape, taps, what)
    for kind in ("max", "avg")
    for shape, taps in (((64, 28, 28, 6), 2), ((8, 56, 56, 64), 3))
    for what in ("forward", "gradient")
}
NORMALIZED = {
    f"batch normalization and ReLU {'x'.join(map(str, shape))}, {what}": partial(normalized, shape, what)
    for shape in ((32, 28, 28, 64), (8, 14, 14, 512))
    for what in ("training", "gradient", "inference")
}
NEIGHBOURS: dict[str, Callable[[], Call]] = {
    "bias, relu and max pooling 8x56x56x64, 2 x 2": partial(
        function,
        lambda dt, x, b: dt.nn.max_pool(dt.nn.relu(x + b), 2, 2, "SAME"), numbers(8, 56, 56, 64), numbers(64),
    ),
    "depthwise 8x56x56x64, bias and relu6": partial(
        function,
        lambda dt, x, w, b: dt.nn.relu6(dt.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME") + b),
        numbers(8, 56, 56, 64), numbers(3, 3, 64, 1), numbers(64),
    ),
    "avg pooling 8x56x56x64, 3 x 3, scale and relu": partial(
        function,
        lambda dt, x, b: dt.nn.relu(dt.nn.avg_pool(x, 3, 1, "SAME") * b + 0.5), numbers(8, 56, 56, 64), numbers(64),
    ),
    "gradient of relu and max pooling 8x56x56x64, 3 x 3": partial(
        function,
        lambda dt, x: dt.gradients(dt.nn.max_pool(dt.nn.relu(x), 3, 2, "SAME"), x), numbers(8, 56, 56, 64),
    ),
}  # fmt: skip
PRODUCTS = {
    f"product {r} x {i} x {c}": (r, i, c)
    for r, i, c in ((128, 128, 128), (512, 512, 512), (64, 784, 1024), (1024, 256, 256), (1, 1024, 1024))
}
NARROW = {
    f"product 256 x 1024 x 1024 of {dtype}": partial(product, 256, 1024, 1024, dtype)
    for dtype in ("float16", "bfloat16")
}
TOP = {f"the {k} largest of {r} x {n}": (r, n, k) for r, n, k in ((256, 1000, 5), (64, 100_000, 10), (64, 10_000, 100))}
GRADIENTS: dict[str, Callable[[], Call]] = {
    f"GELU before a product, {r:,} x {w} to {c}": partial(activation, r, w, c)
    for r, w, c in ((250_000, 16, 16), (62_500, 16, 16), (2048, 1024, 256))
}
UNKNOWN: dict[str, Callable[[], Call]] = {
    "mean of a GELU, unknown batch": partial(unknown_batch, "mean"),
    "cross entropy, unknown batch": partial(unknown_batch, "cross entropy"),
}
MOVED: dict[str, Callable[[], Call]] = {
    "relu between two transposes": partial(function, around, numbers(8, 56, 56, 64), numbers(64)),
    "transposed arithmetic before a product": partial(
        function, lambda dt, x, w: dt.matmul(dt.transpose(x) * 2.0 + 1.0, w), numbers(256, 1024), numbers(256, 256)
    ),
    "transpose and cast to float16": partial(function, narrowed, numbers(2048, 1024)),
    "rows of a float16 table as float32": partial(
        function,
        lambda dt, x, at: dt.gather(dt.cast(x, dt.float32), at) * 2.0,
        numbers(20_000, 64, dtype=np.float16),
        np.arange(4096, dtype=np.int32),
    ),
}
PLACES: dict[str, Callable[[], Call]] = {
    "arithmetic behind a pad": partial(in_place, lambda dt, x: dt.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])),
    "arithmetic behind a concatenation": partial(in_place, lambda dt, x: dt.concat([x, x], 3)),
    "arithmetic behind a slice": partial(in_place, lambda dt, x: x[:, 4:-4, 4:-4]),
    "arithmetic behind a transpose": partial(in_place, lambda dt, x: dt.transpose(x, [0, 2, 1, 3])),
}


# --- parts ---------------------------------------------------------------------------------------------------------------


def disabled(name: str) -> AbstractContextManager[Any]:
    """Without a pass or a family of kernels."""
    from dovetail.codegen.options import without

    return without(name)


def replaced(where: str, what: Any) -> Callable[[], AbstractContextManager[Any]]:
    """With something else in the place of a function or a number."""
    return lambda: patch(f"{CODEGEN}.{where}", what)


def _alone(table: Any, threads: int, arrays: Any, patches: Any) -> bool:
    """Run a launch table without helper threads."""
    from dovetail.codegen.cpu.native.launches import run

    return run(table, 1, arrays, patches)


def _on_all_cores() -> AbstractContextManager[Any]:
    """Helper threads may run on the core of their caller."""
    from dovetail.codegen.cpu.native.launches import pool

    return patch.object(pool(os.getpid()), "_core_of", lambda: -1)


@contextmanager
def _without_ranges() -> Iterator[None]:
    """Maxima and exponentials of all numbers, where those of a softmax are less work."""
    from dovetail.codegen.cpu.emit.module import source_of

    emit, never = f"{CODEGEN}.cpu.emit", lambda *_: False
    source_of.cache_clear()
    with (
        patch(f"{emit}.expr.is_below_zero", never),
        patch(f"{emit}.rows.passes_over_nan", never),
    ):
        yield
    source_of.cache_clear()


@contextmanager
def _without_places() -> Iterator[None]:
    """Ops that only move elements copy them."""
    with _without_rules(lambda node: node.opdef.places is not None):
        yield


@contextmanager
def _without_windows() -> Iterator[None]:
    """Pooling and depthwise convolutions run on NumPy."""
    from dovetail.codegen.fusion import grouping

    with _without_rules(lambda node: node.type in grouping.WINDOW_OPS), disabled("steps of pooling gradients"):
        yield


@contextmanager
def _without_rules(chosen: Callable[[Any], bool]) -> Iterator[None]:
    """The chosen nodes have no loop nest."""
    from dovetail.codegen.fusion import grouping

    found = grouping.rule_of

    def rule_of(node: Any, is_view: bool = False) -> Any:
        if not is_view and chosen(node):
            raise grouping.NotFusibleError("it is turned off")
        return found(node, is_view)

    with patch.object(grouping, "rule_of", rule_of):
        yield


@contextmanager
def _windows_alone() -> Iterator[None]:
    """A kernel of windows does nothing else."""
    from dovetail.codegen.fusion import fuse
    from dovetail.codegen.fusion.grouping import Walk

    found = Walk.start

    def start(self: Any, node: Any, pattern: Any, sources: Any) -> None:
        found(self, node, pattern, sources)
        if pattern.window is not None:
            self.close_makers(node.outputs)

    with patch.object(Walk, "start", start), patch.object(fuse, "absorb_producers", lambda *_: None):
        yield


Switch = Callable[[], AbstractContextManager[Any]]
PARTS: dict[str, tuple[Switch, Mapping[str, Callable[[], Call]]]] = {
    **{
        name: (partial(disabled, name), workloads)
        for name, workloads in {
            "rewriting": SMALL | UNKNOWN | MOVED,
            "steps of batch normalization": NORMALIZED,
            "sums of products": {"unrolled": partial(model, "unrolled")},
            "mixed precision": NARROW,
            "counter-based random numbers": RANDOM,
            "fusion": SMALL | LOOPS,
            "native regions": SMALL | UPDATES,
            "copies": COPIES,
            "matrix products": MODELS | NARROW,
            "convolutions": CONVOLUTIONS,
            "top k": {k: partial(top_k, *v) for k, v in TOP.items()},
            "updates": UPDATES | MODELS,
        }.items()
    },
    "region-only kernels": (replaced("cpu.regions.formation.alone", lambda node: None), SMALL),
    "worker pool": (replaced("cpu.native.plans.run", _alone), MODELS | UPDATES),
    "cores of helpers": (_on_all_cores, AFTER_A_PAUSE),
    "rematerialization": (replaced("target.OPERATIONS_PER_BYTE", 0.0), GRADIENTS | MODELS),
    "rules: shapes": (replaced("passes.rewrite.shape_rules", ()), UNKNOWN | MODELS),
    "rules: moved transposes and casts": (replaced("passes.rewrite.moving_rules", ()), MOVED | MODELS),
    "constant folding": (replaced("passes.rewrite.Folding.may_fold", lambda *_: False), UNKNOWN | MODELS),
    "ranges of a softmax": (
        _without_ranges,
        {k: v for k, v in LOOPS.items() if "softmax" in k},
    ),
    "elements read in place": (_without_places, PLACES),
    "loops over windows": (_without_windows, {"lenet": partial(model, "lenet"), **DEPTHWISE, **POOLING}),
    "windows fused with neighbours": (_windows_alone, {"lenet": partial(model, "lenet"), **NEIGHBOURS}),
    "short rows": (replaced("cpu.schedule.short_row", lambda *group: 0), LOOPS),
}
LIBRARIES: dict[str, tuple[str, Mapping[str, tuple[Callable[[], Call], Callable[[], Call]]]]] = {
    "top k or argpartition": (
        "the library",
        {k: (partial(top_k, *v), partial(numpy_top_k, *v)) for k, v in TOP.items()},
    ),
    "matrix products or OpenBLAS": (
        "the same step with OpenBLAS",
        {k: (partial(product, *v), partial(blas_product, *v)) for k, v in PRODUCTS.items()},
    ),
}


def rows(part: str, quick: bool) -> Iterator[Row]:
    """One row per workload."""
    if part in LIBRARIES:
        peer, pairs = LIBRARIES[part]
        for title, (mine, theirs) in pairs.items():
            yield compared(f"{part}: {title}", mine(), theirs(), ExitStack, peer, quick)
        return
    switch, workloads = PARTS[part]
    for title, workload in workloads.items():
        with switch():
            other = workload()
        yield compared(f"{part}: {title}", workload(), other, switch, f"without {part}", quick, part in PAUSED)


def compared(
    title: str, mine: Call, other: Call, switch: Switch, peer: str, quick: bool, is_paused: bool = False
) -> Row:
    """The medians of samples that are taken in turns, as a row; the ratio of the medians of processor time is in its name."""
    calls = 1
    mine()
    while not is_paused and _sample(mine, calls)[0] * calls < 0.0005:
        calls *= 2
    samples: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    gc.collect()
    end = time.perf_counter() + (1.0 if quick else 4.0)
    while time.perf_counter() < end or len(samples[0]) < 3 * TURN:
        samples[0].extend(_turn(mine, calls, is_paused))
        with switch():
            samples[1].extend(_turn(other, calls, is_paused))
    (wall, processor), (other_wall, other_processor) = (
        [statistics.median(x) for x in zip(*s, strict=True)] for s in samples
    )
    title = f"{title} (processor time {processor / other_processor:.2f})"
    return row(title, "ms", wall * 1e3, other_wall * 1e3, peer, TARGET)


def _turn(call: Call, calls: int, is_paused: bool) -> list[tuple[float, float]]:
    """Some samples, after the threads of the other side's BLAS have gone to sleep, and its data has left the caches."""
    time.sleep(SPIN)
    call()
    samples = []
    for _ in range(TURN):
        if is_paused:
            time.sleep(SPIN)
        samples.append(_sample(call, calls))
    return samples


def _sample(call: Call, calls: int) -> tuple[float, float]:
    """Seconds of a call, and of processor time."""
    began, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls, (time.process_time() - processor) / calls


if __name__ == "__main__":
    if "--runtime" in sys.argv:
        import _runtime_ablation

        sys.argv.remove("--runtime")
        _runtime_ablation.main()
        sys.exit()
    if "--search" in sys.argv:
        import _search_ablation

        sys.argv.remove("--search")
        _search_ablation.run()
        sys.exit()
    main(
        "What each part of the CPU code generator is worth",
        {name: partial(rows, name) for name in (*PARTS, *LIBRARIES)},
    )
