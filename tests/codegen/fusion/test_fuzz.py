"""Random graphs of random types and shapes, on every backend, against the reference evaluator.

Hypothesis draws a graph step by step, so a failing one shrinks to the few nodes that matter. Rounding may differ between backends,
so what is discontinuous (comparisons, rounding, casts to integers) is only put on values that are the same everywhere: fed ones,
and what moves, negates or chooses among those. `HYPOTHESIS_PROFILE=explore` draws many new graphs.
"""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from reference_interpreter import Interpreter

import dovetail as dt
from dovetail.codegen.check import agree, scale_of
from dovetail.codegen.options import BACKENDS

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

FLOATS = (dt.float32, dt.float64, dt.float16, dt.bfloat16)
INTEGERS = (dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.uint32, dt.uint64)
SIZES = (0, 1, 2, 3, 7, 13, 64, 257, 1009)  # none, one, even, odd, prime, a vector's length, large
MOST_ELEMENTS = 200_000

SMOOTH: dict[str, Any] = {
    "tanh": dt.tanh, "exp": lambda x: dt.exp(-abs(x)), "sqrt": lambda x: dt.sqrt(abs(x) + 0.5), "sigmoid": dt.sigmoid,
    "log1p": lambda x: dt.log1p(abs(x)), "erf": dt.erf, "sin": dt.sin, "cos": dt.cos, "atan": dt.atan, "half": lambda x: x * 0.5,
    "noise": lambda x: x + dt.random_uniform(dt.shape(x), seed=4, dtype=x.dtype),
    "square": lambda x: dt.square(x) * 0.25, "relu": dt.nn.relu, "gelu": dt.nn.gelu, "elu": dt.nn.elu, "cube": lambda x: (x * 0.5) ** 3,
}  # fmt: skip
BINARY: dict[str, Any] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "max": dt.maximum, "min": dt.minimum,
    "div": lambda x, y: x / (abs(y) + 1.0),
}  # fmt: skip
EXACT: dict[str, Any] = {
    "neg": lambda x: -x,
    "abs": abs,
    "identity": dt.identity,
    "plain": lambda x: dt.expand_dims(x, 0)[0],
}
MOVES: dict[str, Any] = {
    "transposed": dt.transpose,
    "joined": lambda x: dt.concat([x, -x], 0),
    "every other": lambda x: x[::2],
    "but the last": lambda x: x[..., :-1],
    "padded": lambda x: dt.pad(x, [[1, 2]] + [[0, 1]] * (len(x.shape) - 1)),
    "picked": lambda x: dt.gather(x, dt.range(dt.shape(x)[0])[::-1]),
    "looked up": lambda x: dt.gather(x * 0.5, dt.range(dt.shape(x)[0])[::-1] // 2) * 2.0 - x,
    "stacked": lambda x: dt.stack([x, x], -1),
}
REDUCTIONS: dict[str, Any] = {"mean": dt.reduce_mean, "max": dt.reduce_max, "min": dt.reduce_min, "sum": dt.reduce_sum}


@dataclass
class Drawn:
    """A graph as far as it is drawn.

    Attributes:
        feeds: placeholders and what is fed. values: tensors, each with whether all backends compute the same bits.
    """

    feeds: dict[Any, Any] = field(default_factory=dict)
    values: list[tuple[Any, bool]] = field(default_factory=list)

    def add(self, tensor: Any, exact: bool) -> None:
        self.values.append((tensor, exact))

    def of(self, dtypes: Any) -> list[tuple[Any, bool]]:
        return [(t, exact) for t, exact in self.values if t.dtype in dtypes]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    if dtype.is_floating:
        return rng.standard_normal(shape).astype(dtype.np)
    if dtype.is_bool:
        return rng.random(shape) < 0.5
    return rng.integers(0 if dtype.is_unsigned else -100, 100, shape).astype(dtype.np)


def draw_graph(draw: Any) -> Drawn:
    """Feeds and nodes in the current graph."""
    drawn = Drawn()
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rank = draw(st.integers(0, 3))
    sizes = [draw(st.sampled_from(SIZES if i == 0 else SIZES[:7])) for i in range(rank)]
    while np.prod(sizes or [1]) > MOST_ELEMENTS:
        sizes[int(np.argmax(sizes))] = 3
    floating, whole = draw(st.sampled_from(FLOATS)), draw(st.sampled_from(INTEGERS))
    for dtype in (floating, floating, floating, whole, whole, dt.bool):
        cut = draw(st.integers(0, rank))  # leading axes that are missing
        shape = [1 if draw(st.integers(0, 4)) == 0 else s for s in sizes[cut:]]
        static = [None if draw(st.booleans()) else s for s in shape]
        x = dt.placeholder(dtype, static)
        drawn.feeds[x] = numbers(rng, tuple(shape), dtype)
        drawn.add(x, True)
    for _ in range(draw(st.integers(1, 10))):
        draw_node(draw, drawn, floating, whole)
    return drawn


def draw_node(draw: Any, drawn: Drawn, floating: Any, whole: Any) -> None:
    kind = draw(
        st.sampled_from(
            (
                "smooth",
                "binary",
                "exact",
                "reduce",
                "softmax",
                "integer",
                "bool",
                "cast",
                "choose",
                "branch",
                "product",
                "move",
                "scan",
                "segments",
                "loop",
            )  # fmt: skip
        )
    )
    x, exact = draw(st.sampled_from(drawn.of((floating,))))
    if kind == "smooth":
        drawn.add(SMOOTH[draw(st.sampled_from(sorted(SMOOTH)))](x), False)
    elif kind == "exact":
        drawn.add(EXACT[draw(st.sampled_from(sorted(EXACT)))](x), exact)
    elif kind == "binary":
        name = draw(st.sampled_from(sorted(BINARY)))
        y, also = draw(st.sampled_from(drawn.of((floating,))))
        drawn.add(BINARY[name](x, y), exact and also and name in ("max", "min"))
    elif kind == "reduce" and x.dims:
        name = draw(st.sampled_from(sorted(REDUCTIONS)))
        axes = sorted(draw(st.sets(st.integers(0, len(x.dims) - 1), min_size=1)))
        if name in ("max", "min") and any(x.dims[a] == 0 for a in axes):
            return
        drawn.add(REDUCTIONS[name](x, axes, keepdims=draw(st.booleans())), exact and name in ("max", "min"))
    elif kind == "softmax" and x.dims:
        drawn.add(draw(st.sampled_from((dt.nn.softmax, dt.nn.log_softmax)))(x), False)
    elif kind == "integer":
        (a, _), (b, _) = (draw(st.sampled_from(drawn.of((whole,)))) for _ in range(2))
        made = draw(
            st.sampled_from(
                (
                    "a + b",
                    "a * b - a",
                    "dt.maximum(a, b)",
                    "-a",
                    "abs(a) - b",
                    "dt.reduce_max(a)",
                    "dt.reduce_sum(a * b)",
                )
            )
        )
        drawn.add(eval(made, {"a": a, "b": b, "dt": dt, "abs": abs}), True)
    elif kind == "bool":
        (p, _), ((a, _), (b, _)) = (
            draw(st.sampled_from(drawn.of((dt.bool,)))),
            (draw(st.sampled_from(drawn.of((whole,)))) for _ in range(2)),
        )
        drawn.add(
            draw(
                st.sampled_from(
                    (lambda: dt.logical_not(p), lambda: dt.less(a, b), lambda: dt.logical_and(p, dt.equal(a, b)))
                )
            )(),
            True,
        )
    elif kind == "cast":
        y, same = draw(st.sampled_from(drawn.values))
        target = draw(st.sampled_from((floating, whole, dt.bool)))
        if same and not (y.dtype.is_floating and target.is_unsigned):  # what does not fit is not defined
            drawn.add(dt.cast(y, target), True)
    elif kind == "choose":
        p, _ = draw(st.sampled_from(drawn.of((dt.bool,))))
        y, also = draw(st.sampled_from(drawn.of((floating,))))
        drawn.add(dt.where_v2(p, x, y), exact and also)
    elif kind == "product" and x.dims and len(x.dims) >= 2 and x.dims[-2] is not None and x.dims[-2] <= 64:
        flip = draw(st.booleans())
        made = (
            dt.matmul(x, x, transpose_a=True)
            if flip and (x.dims[-1] or 65) <= 64
            else dt.matmul(x, x, transpose_b=True)
        )
        drawn.add(dt.tanh(made * 0.01 + 0.5), False)  # a sum of squares: nothing cancels
    elif kind == "move" and x.dims:
        drawn.add(draw(st.sampled_from(sorted(MOVES.items())))[1](x), exact)
    elif kind == "scan" and x.dims:
        axis, exclusive, reverse = draw(st.integers(0, len(x.dims) - 1)), draw(st.booleans()), draw(st.booleans())
        drawn.add(dt.cumsum(abs(x) * 0.1, axis, exclusive, reverse) * 0.1, False)
    elif kind == "segments" and x.dims and x.dtype.size >= 4:
        places = dt.range(dt.shape(x)[0]) % 5 - draw(st.integers(0, 1))
        drawn.add(dt.math.unsorted_segment_sum(abs(x) * 0.1, places, 5), False)
    elif kind == "loop":
        times = draw(st.integers(0, 3))
        _, out = dt.while_loop(lambda i, _: i < times, lambda i, v: (i + 1, dt.tanh(v) * 0.5 + v), [0, x])
        drawn.add(out, False)
    elif kind == "branch":
        p = dt.reduce_all(draw(st.sampled_from(drawn.of((dt.bool,))))[0])
        y, _ = draw(st.sampled_from(drawn.of((floating,))))
        drawn.add(dt.cond(p, lambda: dt.tanh(x) * 0.5 - x, lambda: dt.exp(-abs(x)) + 1.0), False)


def fetched(draw: Any, drawn: Drawn) -> list[Any]:
    """The last value, a few others, and sometimes gradients."""
    made = [t for t, _ in drawn.values[6:]] or [drawn.values[0][0] * 0.5]
    fetches = [made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))]
    last = made[-1]
    if last.dtype.is_floating and last.dtype.size >= 4 and draw(st.booleans()):
        wanted = [x for x in drawn.feeds if x.dtype is last.dtype]
        fetches += [g for g in dt.gradients(dt.reduce_sum(last), wanted) if isinstance(g, dt.Tensor)]
    return list(dict.fromkeys(fetches))


def check(data: Any) -> None:
    with dt.Graph().as_default() as graph, np.errstate(all="ignore"):
        try:
            drawn = draw_graph(data.draw)
            fetches = fetched(data.draw, drawn)
            expected = Interpreter(graph).run(fetches, drawn.feeds)
            scale = max(1.0, scale_of([*drawn.feeds.values()]))
        except (ValueError, dt.errors.InvalidArgumentError):
            return  # shapes that do not fit: other tests look at errors
        for backend in BACKENDS:
            config = dt.ConfigProto(kernel_backend=backend)
            with dt.Session(graph=graph, config=config) as session:
                got = session.run(fetches, drawn.feeds)
            for tensor, mine, theirs in zip(fetches, got, expected, strict=True):
                assert np.asarray(mine).dtype == np.asarray(theirs).dtype
                assert agree(mine, theirs, scale), f"{tensor} on {backend}:\n{mine}\n{theirs}"


EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@given(st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=QUIET)
def test_random_graphs(data: Any) -> None:
    check(data)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=2000 if EXPLORES else 120, deadline=None, suppress_health_check=QUIET)
def test_more_random_graphs(data: Any) -> None:
    check(data)
