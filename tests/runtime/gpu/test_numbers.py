"""Numbers of single families of ops on GPUs that are stand-ins: images, rows, random numbers, boxes. They are the CPU's.

Kernels run in Triton's interpreter, and as late as they may (`tests/gpu/gpu_backends.py`).
"""

import numpy as np
import pytest
from gpu_programs import agree, matrix

import dovetail as dt

pytestmark = pytest.mark.gpu

# --- images ----------------------------------------------------------------------------------------------------------

IMAGES, FILTERS, DEEP = matrix(2, 9, 8, 3), matrix(3, 3, 3, 4), matrix(3, 3, 3, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: dt.nn.conv2d(x, dt.constant(FILTERS), strides=[1, 2, 2, 1], padding="SAME"),
        lambda x: dt.nn.depthwise_conv2d(x, dt.constant(DEEP), strides=[1, 1, 1, 1], padding="VALID"),
        lambda x: dt.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
        lambda x: dt.nn.avg_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"),
        lambda x: dt.nn.relu(dt.nn.fused_batch_norm(x, [0.5, 1.0, -2.0], [0.1, 0.2, 0.3])[0] + x),
        lambda x: dt.nn.relu(dt.nn.fused_batch_norm(x, *[[0.5, 1.0, 2.0]] * 4, is_training=False)[0] + x),
    ],
    ids=["conv2d", "depthwise", "max_pool", "avg_pool", "batch norm", "batch norm of a trained model"],
)
def test_images_and_their_gradients(fake, make):
    def build():
        x = dt.placeholder(dt.float32, [None, 9, 8, 3])
        y = make(x)
        return [y, *dt.gradients(dt.reduce_sum(y * y), [x])], {x: IMAGES}

    names = agree(build)
    assert fake.launches() and not any("host" in name for name in names)
    assert [c[0] for c in fake.copies()].count("to host") == 2


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64])
def test_the_filters_gradient(fake, dtype):
    def build():
        x, w = dt.placeholder(dtype, [None, 9, 8, 3]), dt.placeholder(dtype, FILTERS.shape)
        y = dt.nn.conv2d(x, w, strides=[1, 1, 1, 1], padding="SAME") + 1.0
        return dt.gradients(dt.reduce_sum(y * y), [w]), {x: IMAGES.astype(dtype.np), w: FILTERS.astype(dtype.np)}

    agree(build)
    assert [c[0] for c in fake.copies()].count("to host") == 1


def test_attention_that_is_spelled_out_is_one_kernel(fake):
    q, k, v = (matrix(2, 2, 20, 16) for _ in range(3))

    def build():
        given = [dt.placeholder(dt.float32, [2, 2, None, 16]) for _ in range(3)]
        scores = dt.matmul(given[0], given[1], transpose_b=True) / 4.0
        return [dt.matmul(dt.nn.softmax(scores), given[2])], dict(zip(given, (q, k, v), strict=True))

    agree(build)
    assert [x[1] for x in fake.launches()] == ["attention_turned", "attention"]


# --- rows, random numbers --------------------------------------------------------------------------------------------

TABLE, PICKED = matrix(50, 6), np.array([[3, 49], [3, 0], [7, 7]])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: dt.cumsum(x, 1, exclusive=True),
        lambda x: dt.math.cumprod(x, 0, reverse=True),
        lambda x: dt.argmax(x, 1),
        lambda x: dt.argmin(x, 0, output_type=dt.int32),
        lambda x: dt.nn.top_k(x, 3)[0],
        lambda x: dt.cast(dt.nn.top_k(x, 3)[1], dt.float32),
        lambda x: dt.gather(x, dt.constant(PICKED), axis=0),
        lambda x: dt.gather(x, dt.constant([5, 1]), axis=1),
        lambda x: dt.math.unsorted_segment_sum(x, dt.constant(np.arange(50) % 7), 7),
        lambda x: dt.math.unsorted_segment_max(x, dt.constant(np.arange(50) % 7), 9),
        lambda x: dt.math.unsorted_segment_min(x, dt.constant(np.arange(50) % 7), 7),
        lambda x: dt.math.unsorted_segment_prod(x, dt.constant(np.arange(50) % 7), 7),
    ],
    ids=[
        "cumsum",
        "cumprod",
        "argmax",
        "argmin",
        "top_k",
        "places",
        "gather",
        "gather columns",
        "segment_sum",
        "segment_max",
        "segment_min",
        "segment_prod",
    ],
)
def test_rows(fake, make):
    def build():
        x = dt.placeholder(dt.float32, [None, 6])
        return [make(x)], {x: TABLE}

    agree(build)
    assert len(fake.launches()) >= 1  # none of it on the host
    assert [c[0] for c in fake.copies()].count("to host") == 1


@pytest.mark.parametrize("draw", [dt.random_uniform, dt.random_normal])
def test_random_numbers_are_the_cpus(fake, draw):
    def build():
        dt.set_random_seed(7)
        return [draw([40, 5], seed=3) * 1.0], {}

    agree(build, 2)
    assert [c[0] for c in fake.copies()] == ["to device", "to device", "to host"] * 2  # the stream's key and draw
    assert len(fake.launches()) == 2


def test_random_integers_and_wide_normal_numbers_are_the_hosts(fake):
    def build():
        dt.set_random_seed(7)
        return [
            dt.random_uniform([40, 5], -5, 1000, dtype=dt.int32, seed=3),
            dt.random_normal([40], dtype=dt.float64),
        ], {}

    agree(build, 2)
    assert [c[0] for c in fake.copies()] == [
        "to device",
        "to host",
    ] * 2  # of the normal numbers, which are scaled there


# --- boxes -----------------------------------------------------------------------------------------------------------

CUBE = matrix(6, 5, 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[1:5:2, ::-1, 3:],
        lambda x: x[..., 2, :],
        lambda x: x[:, None, -1],
        lambda x: dt.slice(x, [1, 0, 2], [3, -1, 4]),
        lambda x: dt.reverse(x, [0, 2]),
        lambda x: dt.pad(x, [[1, 0], [0, 2], [3, 3]]),
        lambda x: dt.roll(x, [2, -3, 9, 1], [0, 2, 1, -1]),
        lambda x: dt.concat([x, 2.0 * x[:, :2], x], 1),
        lambda x: dt.stack([x, x[:, ::-1] * 1.5], 2),
        lambda x: dt.add_n(dt.split(x, 4, axis=2)),
        lambda x: dt.split(x, [2, 3, 1], axis=0)[1],
        lambda x: dt.unstack(x, axis=1)[3],
    ],
    ids=[
        "strided",
        "picked",
        "new axis",
        "slice",
        "reverse",
        "pad",
        "roll",
        "concat",
        "stack",
        "split",
        "split_v",
        "unstack",
    ],
)
def test_boxes_and_their_gradients(fake, make):
    def build():
        x = dt.placeholder(dt.float32, [None, 5, 8])
        y = make(x)
        return [y, *dt.gradients(dt.reduce_sum(y * y), [x])], {x: CUBE}

    agree(build)
    assert [c[0] for c in fake.copies()].count("to host") == 2  # none of it on the host


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
def test_mirrored_padding(fake, mode):
    def build():
        x = dt.placeholder(dt.float32, [None, 5, 8])
        return [dt.pad(x, [[1, 5], [0, 4], [0, 0]], mode), dt.pad(x, [[0, 0], [2, 0], [1, 7]], mode)], {x: CUBE}

    agree(build)
    assert [c[0] for c in fake.copies()].count("to host") == 2  # none of it on the host


@pytest.mark.parametrize("tf32", [False, True])
def test_products_are_exact_unless_told_otherwise(fake, tf32):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x, w = dt.placeholder(dt.float32, [16, 32]), dt.constant(np.ones((32, 8), np.float32))
        image, taps = dt.reshape(x, [1, 4, 4, 32]), dt.constant(np.ones((1, 1, 32, 4), np.float32))
        queries = dt.reshape(x, [1, 1, 16, 32])
        mixed = dt.matmul(dt.nn.softmax(dt.matmul(queries, queries, transpose_b=True)), queries)
        fetches = [dt.nn.relu(dt.matmul(x, w)), dt.nn.conv2d(image, taps, [1, 1, 1, 1], "SAME"), mixed]
    with dt.Session(graph=graph, config=dt.ConfigProto(tf32=tf32)) as session:
        session.run(fetches, {x: np.ones((16, 32), np.float32)})
    texts = [kernel.text for kernel, _ in fake.kernels.values() if "tl.dot(" in kernel.text]
    expected = 'input_precision="tf32"' if tf32 else 'input_precision="ieee"'
    assert len(texts) == 3 and all(expected in text for text in texts)


def test_what_is_checked_is_exact(fake, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CHECK", "2")
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        product = dt.matmul(
            dt.placeholder_with_default(np.ones((16, 16), np.float32), [16, 16]), np.ones((16, 16), np.float32)
        )
    with dt.Session(graph=graph, config=dt.ConfigProto(tf32=True)) as session:
        session.run(product)
    assert not [k for k, _ in fake.kernels.values() if '"tf32"' in k.text]


def test_the_first_node_that_is_wrong_is_named(fake, monkeypatch):
    from dovetail.codegen.gpu.emit import expr

    monkeypatch.setenv("DOVETAIL_CHECK", "2")
    monkeypatch.setitem(expr.OPERATORS, "mul", "+")  # numbers that no other test has: texts of kernels are kept
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None, 7], name="x")
        right = dt.tanh(x + 4.5678, name="right")
        wrong = dt.multiply(right, 1.2345, name="wrong")
        result = dt.reduce_sum(dt.exp(wrong, name="later"), 1)
    with dt.Session(graph=graph) as session, pytest.raises(dt.errors.InternalError) as caught:
        session.run(result, {x: np.ones((3, 7), np.float32)})
    text = str(caught.value)
    assert "differs from the reference, first in 'wrong' (Mul), created at " in text and "test_numbers.py" in text
    assert "loops over d0, reducing d1" in text
