"""Graphs, a checkpoint and a saved model as TensorFlow writes them, with what it computes: `python record.py` where it is installed.

Each graph is `NAME.pb`, its variables made constants, beside `NAME.npz`: what is fed (`feed_x:0`), the names of outputs, their values.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).parent
tf1 = tf.compat.v1
tf1.disable_v2_behavior()
tf1.disable_control_flow_v2()


def images() -> list[Any]:
    """Convolutions, poolings, normalisations, and what is several nodes elsewhere."""
    x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
    y = tf.nn.conv2d(x, tf1.get_variable("w", [5, 5, 1, 6]), [1, 1, 1, 1], "SAME")
    y = tf1.nn.lrn(tf.nn.max_pool2d(tf.nn.relu(tf.nn.bias_add(y, tf1.get_variable("b", [6]))), 2, 2, "VALID"))
    scale, offset = tf1.get_variable("g", [6]), tf1.get_variable("be", [6])
    y = tf1.nn.fused_batch_norm(y, scale, offset, tf.zeros([6]), tf.ones([6]), is_training=False)[0]
    y = tf1.image.resize_nearest_neighbor(tf1.image.resize_bilinear(y, [9, 7]), [8, 8])
    filters = tf1.get_variable("dw", [3, 3, 24, 1]), tf1.get_variable("pw", [1, 1, 24, 8])
    y = tf.nn.avg_pool2d(
        tf1.nn.separable_conv2d(tf1.space_to_depth(y, 2), *filters, [1, 1, 1, 1], "SAME"), 2, 2, "SAME"
    )
    y = tf.reshape(y, [tf.shape(y)[0], 32])
    return [
        tf.nn.softmax(tf.matmul(y, tf1.get_variable("wo", [32, 10])), name="out"),
        tf.argmax(y, 1),
        tf.nn.top_k(y, 3)[0],
    ]


def loops() -> list[Any]:
    """A loop with a list of tensors, and a branch."""
    x = tf1.placeholder(tf.float32, [None, 7, 5], name="x")
    w = tf1.get_variable("w", [11, 6])

    def body(i: Any, h: Any, states: Any) -> Any:
        h = tf.tanh(tf.concat([x[:, i], h], 1) @ w)
        return i + 1, h, states.write(i, h)

    start = [0, tf.zeros([tf.shape(x)[0], 6]), tf.TensorArray(tf.float32, 7)]
    _, h, states = tf1.while_loop(lambda i, h, s: i < 7, body, start)
    branch = tf1.cond(tf.reduce_sum(h) > 0, lambda: h * 2, lambda: -h)
    return [h, tf.transpose(states.stack(), [1, 0, 2]), branch]


def many() -> list[Any]:
    """One node or so of many ops."""
    x, i = tf1.placeholder(tf.float32, [4, 6], name="x"), tf1.placeholder(tf.int32, [3], name="i")
    e, u, unique = tf.einsum("ij,kj->ik", x, x), tf.unstack(x, axis=1), tf.unique(i)
    found = [
        e, tf.stack(u[:2], 1), tf.split(x, [1, 2, 3], 1)[2], tf.gather(x, i, axis=1), tf1.gather_nd(x, [[0, 1], [2, 3]]),
        tf.one_hot(i, 5), tf.scatter_nd([[1], [3]], x[:2], [5, 6]), tf.math.unsorted_segment_sum(x, [0, 1, 0, 2], 3),
        tf1.where(x > 0, x, tf.zeros_like(x)), tf.cumsum(x, 1, exclusive=True, reverse=True),
        tf.pad(x, [[1, 1], [0, 2]], constant_values=2.0), tf.pad(x, [[1, 1], [2, 2]], mode="REFLECT"),
        tf.matmul(tf.reshape(x, [2, 2, 6]), tf.reshape(x, [2, 6, 2])), tf.cast(x * 3, tf.int32) // 2,
        tf.tile(x[:, 1:3], [2, 1])[::2, ::-1], tf.nn.l2_normalize(x, 1), tf.nn.moments(x, [0])[1], tf.reverse(x, [1]),
        tf.strided_slice(x, [0, -1], [4, 0], [2, -2]), tf.reduce_max(x, 1, keepdims=True), tf.reduce_logsumexp(x, 1),
        tf.bitwise.bitwise_xor(i, 3), tf.strings.as_string(i), tf.nn.leaky_relu(x, 0.1),
        tf.floor(x) + tf.math.floormod(x, 2.0) + tf.sign(x) * tf.math.erf(x) + tf.nn.softplus(x) + tf.nn.elu(x) + tf.math.atan2(x, x + 1),
        tf1.nn.batch_normalization(x, *tf.nn.moments(x, [0]), None, None, 1e-3), tf1.nn.in_top_k(x, [1, 2, 3, 0], 2),
        unique[0], unique[1], tf.squeeze(tf.expand_dims(x, 0)), tf1.div(i, 2), tf1.nn.l2_loss(x), tf.linalg.band_part(e, 1, 0),
        tf.linalg.inv(e + 10 * tf.eye(4)), tf.linalg.trace(e), tf.clip_by_value(x, -0.5, 0.5),
        tf1.nn.softmax_cross_entropy_with_logits_v2(labels=tf.nn.softmax(x), logits=x * 2),
        tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=[1, 2, 3, 0], logits=x),
        tf1.nn.sigmoid_cross_entropy_with_logits(labels=tf.nn.sigmoid(x), logits=x),
    ]  # fmt: skip
    return [tf.identity(v) if v.op.type == "Const" else v for v in found]


def gradients() -> list[Any]:
    """TensorFlow's own gradients, whose ops are partly its own."""
    x, w, f = (
        tf1.placeholder(tf.float32, [5, 8], name="x"),
        tf1.get_variable("w", [8, 8]),
        tf1.get_variable("f", [3, 3, 1, 4]),
    )
    h = tf.nn.relu(x @ w)
    c = tf.nn.max_pool2d(tf.nn.conv2d(tf.reshape(h, [5, 8, 1, 1]) * tf.ones([1, 1, 8, 1]), f, 1, "SAME"), 2, 2, "SAME")
    y = tf1.nn.fused_batch_norm(c, tf.ones([4]), tf.zeros([4]))[0]
    loss = tf.reduce_mean(tf.square(y) * tf.nn.sigmoid(y)) + tf.reduce_sum(tf.tanh(tf.nn.log_softmax(h))[:, :2])
    return [loss, *tf1.gradients(loss, [w, f, x])]


def functions() -> list[Any]:
    """Ops that are functions elsewhere, and gradients with ops of their own."""
    x, i = tf1.placeholder(tf.float32, [4, 6], name="x"), tf1.placeholder(tf.int32, [3], name="i")
    t, w = tf1.placeholder(tf.string, [3], name="t"), tf.reshape(tf.range(12.0), [6, 2]) / 10
    sparse = tf.SparseTensor([[0, 2], [2, 0], [2, 1]], x[0, :3], [4, 3])
    filled, empty = tf.sparse.fill_empty_rows(sparse, 0.5)
    shaped = tf.sparse.reshape(sparse, [2, -1])
    rows, ids = tf.constant([1, 0, 3, 1]), tf.constant([0, 0, 1, 3])
    means = tf1.sparse_segment_mean(x, rows, ids), tf1.sparse_segment_sqrt_n(x, rows, ids, num_segments=5)
    joined = tf.concat([x[:, :2], tf.square(x)], 1)
    _, looped = tf1.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * y * 0.1 + x), [0, x])
    frozen = tf1.nn.fused_batch_norm(
        tf.reshape(x, [2, 2, 3, 2]), [1.0, 2.0], [0.0, 1.0], [0.1, 0.2], [0.5, 4.0], is_training=False
    )[0]
    images = tf.reshape(x, [1, 4, 3, 2])
    hits = tf.raw_ops.ComputeAccidentalHits(
        true_classes=tf.cast(tf.reshape(i, [3, 1]), tf.int64),
        sampled_candidates=tf.constant([2, 0], tf.int64),
        num_true=1,
    )
    example = tf.train.Example()
    example.features.feature["a"].float_list.value.extend([1.5, 2.5])
    example.features.feature["b"].bytes_list.value.append(b"text")
    example.features.feature["c"].int64_list.value.extend([7, 8, 9])
    data = tf.constant([example.SerializeToString(), b""])
    parsed = tf1.parse_example(data, {
        "a": tf1.FixedLenFeature([2], tf.float32, [0.0, -1.0]), "b": tf1.VarLenFeature(tf.string),
        "c": tf1.FixedLenSequenceFeature([], tf.int64, True), "d": tf1.VarLenFeature(tf.float32),
    })  # fmt: skip
    words, parts = tf1.string_split(t, " "), tf.raw_ops.StringSplitV2(input=t, sep="", maxsplit=1)
    outputs = [
        tf.clip_by_value(x, -0.5, 0.5), tf.reverse_sequence(x, [1, 3, 6, 2], 1), tf.norm(x, axis=1), tf.math.reduce_euclidean_norm(x, 0),
        tf.math.xlogy(tf.abs(x), tf.abs(x)), tf.math.xdivy(x, x + 3), tf.math.bessel_i0(x), tf.math.bessel_i1(x), *means,
        filled.indices, filled.values, empty, shaped.indices, shaped.dense_shape, tf.sparse.reorder(sparse).values,
        tf.sparse.softmax(sparse).values, tf.sparse.sparse_dense_matmul(sparse, w[:3]), looped, frozen, *hits, *parts,
        tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 0.5]), tf.linalg.cross(x[:, :3], x[:, 3:]),
        tf1.image.resize_bicubic(images, [6, 5]), tf1.image.resize_area(images, [2, 3]),
        tf1.extract_image_patches(images, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 2, 1], "SAME"), words.values, t + ["!", "?", ""],
        tf1.reduce_join([t, t], 0, separator="-"), tf.raw_ops.EuclideanNorm(input=x, axis=[1], keep_dims=True),
        parsed["a"], parsed["b"].indices, parsed["b"].values, parsed["b"].dense_shape, parsed["c"], parsed["d"].dense_shape,
        tf.strings.as_string(x * 100, precision=1, width=8), tf.TensorArray(tf.float32, 4).unstack(x[:, None]).concat(),
    ]  # fmt: skip
    for y in (joined, means[0], means[1], filled.values, looped, frozen, tf.reverse_sequence(x, [1, 3, 6, 2], 1)):
        outputs += tf1.gradients(tf.reduce_sum(tf.sin(y)), x)
    return [tf.identity(v) for v in outputs]


def graph(build: Any, feeds: dict[str, Any]) -> None:
    """Record one graph."""
    with tf1.Graph().as_default() as g:
        tf1.set_random_seed(1)
        outputs = build()
        with tf1.Session() as s:
            s.run(tf1.global_variables_initializer())
            values = s.run(outputs, feeds)
            frozen = tf1.graph_util.convert_variables_to_constants(s, g.as_graph_def(), [o.op.name for o in outputs])
    (HERE / f"{build.__name__}.pb").write_bytes(frozen.SerializeToString())
    told = {"names": np.array([o.name for o in outputs])} | {
        f"value{i}": v.astype("S") if v.dtype == object else v for i, v in enumerate(values)
    }
    np.savez(HERE / f"{build.__name__}.npz", **told, **{f"feed_{k}": v for k, v in feeds.items()})


def checkpoint() -> None:
    """A checkpoint of variables of several types, one of them in parts."""
    folder = HERE / "partitioned"
    folder.mkdir(exist_ok=True)
    with tf1.Graph().as_default():
        tf1.set_random_seed(3)
        with tf1.variable_scope("p", partitioner=tf1.fixed_size_partitioner(3)):
            parts = tf1.get_variable("parts", [200, 5], use_resource=False)
        a = tf1.get_variable("a", [3, 4], use_resource=False)
        tf1.get_variable("b", [], tf.int64, initializer=tf1.zeros_initializer(), use_resource=False)
        tf1.get_variable("s", initializer=tf.constant(["x", "yy" * 200, ""]), use_resource=False)
        h = tf1.get_variable("h", initializer=tf.constant([1.5, 2], tf.bfloat16), use_resource=False)
        saver = tf1.train.Saver()
        with tf1.Session() as s:
            s.run(tf1.global_variables_initializer())
            saver.save(s, str(folder / "model.ckpt"), global_step=7, write_state=False)
            np.savez(
                folder / "values.npz",
                parts=s.run(tf.convert_to_tensor(parts)),
                a=s.run(a),
                h=s.run(tf.cast(h, tf.float32)),
            )


def training() -> None:
    """A saved model and a checkpoint with its meta graph, after one step of Adam; and what it says before and after the second."""
    folder = HERE / "adam"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with tf1.Graph().as_default():
        tf1.set_random_seed(5)
        x = tf1.placeholder(tf.float32, [None, 4], name="x")
        w, v = tf1.get_variable("w", [4, 3], use_resource=False), tf1.get_variable("v", [3], use_resource=True)
        y = tf.tanh(x @ w + v, name="y")
        step = tf1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(y * y))
        saver = tf1.train.Saver()
        with tf1.Session() as s:
            ones = np.ones((2, 4), np.float32)
            s.run(tf1.global_variables_initializer())
            s.run(step, {x: ones})
            first = s.run(y, {x: ones})
            tf1.saved_model.simple_save(s, str(folder / "saved_model"), {"x": x}, {"y": y})
            saver.save(s, str(folder / "m"), write_state=False)
            s.run(step, {x: ones})
            np.savez(folder / "values.npz", first=first, second=s.run(y, {x: ones}))


def assets() -> None:
    """A saved model with tables filled from two files of one name, which are in its folder alone."""
    folder = HERE / "assets"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with tempfile.TemporaryDirectory() as made, tf1.Graph().as_default(), tf1.Session() as s:
        files = [Path(made, name, "v.txt") for name in ("a", "b")]
        for file, words in zip(files, ("a b c", "one two three"), strict=True):
            file.parent.mkdir()
            file.write_text("".join(f"{word}\n" for word in words.split()))
        x = tf1.placeholder(tf.string, [None], name="x")
        line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        ids = tf1.lookup.TextFileInitializer(str(files[0]), tf.string, line, tf.int64, number)
        words = tf1.lookup.TextFileInitializer(str(files[1]), tf.int64, number, tf.string, line)
        y = tf1.lookup.StaticHashTable(words, "?").lookup(tf1.lookup.StaticHashTable(ids, -1).lookup(x))
        fill = tf1.tables_initializer()
        s.run(fill)
        tf1.saved_model.simple_save(s, str(folder / "saved_model"), {"x": x}, {"y": y}, legacy_init_op=fill)
        fed = ["b", "q", "c"]
        np.savez(folder / "values.npz", x=np.array(fed), y=s.run(y, {x: fed}).astype(str))


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    graph(images, {"x:0": rng.standard_normal((2, 28, 28, 1)).astype(np.float32)})
    graph(loops, {"x:0": rng.standard_normal((3, 7, 5)).astype(np.float32)})
    graph(many, {"x:0": rng.standard_normal((4, 6)).astype(np.float32), "i:0": np.array([2, 0, 2], np.int32)})
    fed = {"x:0": rng.standard_normal((4, 6)).astype(np.float32), "i:0": np.array([2, 0, 2], np.int32)}
    graph(functions, fed | {"t:0": np.array([b"a b  c", b"", b" d"])})
    graph(gradients, {"x:0": rng.standard_normal((5, 8)).astype(np.float32)})
    checkpoint()
    training()
    assets()
