"""Tables: filled once, looked up in steps, of this process and of a cluster."""

from __future__ import annotations

import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def table_of(default=-1, **options):
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), default, **options)


def test_a_table_is_filled_then_looked_up():
    table = table_of()
    dense = table.lookup(tf.constant([["b", "z"], ["a", "b"]]))
    some = table.lookup(tf.SparseTensor([[0, 1], [1, 0]], ["a", "q"], [2, 2]))
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="tables_initializer"):
            session.run(dense)
        session.run(tf.tables_initializer())
        session.run(table.init)  # again with the same
        values, sparse, size = session.run([dense, some, table.size()])
    assert (values.tolist(), sparse.values.tolist(), int(size)) == ([[2, -1], [1, 2]], [1, -1], 2)
    assert (table.key_dtype, table.value_dtype) == (tf.string, tf.int32)


def test_tables_from_words_to_ids_and_back(tmp_path):
    path = tmp_path / "words"
    path.write_text("x\ny\nz\n", encoding="utf-8")
    lookup = tf.contrib.lookup
    words = tf.constant(["z", "q", "x"])
    exact = lookup.index_table_from_tensor(["x", "y", "z"])
    buckets = lookup.index_table_from_file(str(path), num_oov_buckets=4)
    back = lookup.index_to_string_table_from_tensor(["x", "y", "z"])
    only = tf.lookup.StaticVocabularyTable(None, 5)
    first = lookup.index_table_from_file(str(path), vocab_size=1)
    fetches = [t.lookup(words) for t in (exact, buckets, first, only)], [t.size() for t in (exact, buckets, first)]
    named = back.lookup(tf.constant([1, 7], tf.int64))
    with tf.train.MonitoredSession() as session:  # which fills tables by itself
        found, sizes = session.run(fetches)
        assert session.run(named).tolist() == [b"y", b"UNK"]
    assert [found[0].tolist(), found[2].tolist()] == [[2, -1, 0], [-1, -1, 0]]
    assert (found[1][[0, 2]].tolist(), 3 <= found[1][1] < 7, sizes) == ([2, 0], True, [3, 7, 1])
    assert all(0 <= i < 5 for i in found[3])


def test_hash_buckets_follow_the_hasher():
    lookup, words = tf.contrib.lookup, ["b", "unknown", "other", "7"]
    made = {
        spec: lookup.index_table_from_tensor(["a", "b"], num_oov_buckets=1000, hasher_spec=spec)
        for spec in (lookup.FastHashSpec, lookup.StrongHashSpec((1, 2)), lookup.StrongHashSpec((3, 4)), None)
    }
    ids = [table.lookup(tf.constant(words)) for table in made.values()]
    fast = tf.string_to_hash_bucket_fast(words, 1000)
    strong = [tf.string_to_hash_bucket_strong(words, 1000, key) for key in ((1, 2), (3, 4))]
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        for found, bucket in zip(session.run(ids), session.run([fast, *strong, fast]), strict=True):
            assert found.tolist() == [1, *(bucket[1:] + 2)]
    unknown = lookup.index_table_from_tensor(["a"], num_oov_buckets=1, hasher_spec=lookup.HasherSpec("md5", None))
    with pytest.raises(ValueError, match="md5"):
        unknown.lookup(tf.constant(words))
    with pytest.raises(TypeError, match="HasherSpec"):
        lookup.index_table_from_tensor(["a"], num_oov_buckets=1, hasher_spec=1)
    for key, error in (((1,), ValueError), ((1, "2"), TypeError)):
        with pytest.raises(error, match="key"):
            lookup.StrongHashSpec(key)


def test_columns_of_a_file(tmp_path):
    path = tmp_path / "table"
    path.write_text("7 a 0.5\n8 b 1.5\n", encoding="utf-8")
    fill = tf.lookup.TextFileInitializer(str(path), tf.int64, 0, tf.float32, 2, delimiter=" ")
    table = tf.lookup.StaticHashTable(fill, 0.0)
    with tf.Session() as session:
        session.run(table.initializer)
        assert session.run(table.lookup(tf.constant([8, 7, 6], tf.int64))).tolist() == [1.5, 0.5, 0.0]
    for arguments, text in (
        ((tf.int64, 3, tf.string, 0), "expected 4 got 3"), ((tf.int64, 1, tf.string, 0), "not a valid int64"),
        ((tf.string, 1, tf.string, 0, 3), "has 2 lines"),
    ):  # fmt: skip
        bad = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(str(path), *arguments, delimiter=" "), "")
        with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=text):
            session.run(bad.initializer)
    missing = tf.contrib.lookup.index_table_from_file(str(tmp_path / "none"))
    with tf.Session() as session, pytest.raises(tf.errors.NotFoundError):
        session.run(missing.initializer)
    for file, rest, text in (
        (str(path), (tf.string, -3), "key index"),
        ("", (tf.string, 0), "Filename"),
        (path, (tf.string, -1), "number"),
    ):
        with pytest.raises(ValueError, match=text):
            tf.lookup.TextFileInitializer(file, *rest, tf.int64, -1)
    with pytest.raises(ValueError, match="vocab_size must be greater than 0, got 0"):
        tf.contrib.lookup.index_table_from_file(str(path), vocab_size=0)


def test_lines_of_a_vocabulary_end_with_newlines_only(tmp_path):
    path = tmp_path / "words"

    def table(content: bytes):
        path.write_bytes(content)
        return tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(str(path), tf.string, -2, tf.int64, -1), -1)

    found = table(b"a\rb\r\nc\x0bd\x0ce\nf\x1cg\xe2\x80\xa8h\n\xff\n\r")
    with tf.Session() as session:
        session.run(found.initializer)
        keys, values = session.run(found.export())
    assert sorted(zip(values.tolist(), keys.tolist(), strict=True)) == [
        (0, b"a\rb"), (1, b"c\x0bd\x0ce"), (2, b"f\x1cg\xe2\x80\xa8h"), (3, b"\xff"),
    ]  # fmt: skip
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="line 2 is empty"):
        session.run(table(b"a\n\nb\n").initializer)


def test_a_file_whose_name_is_fed_and_one_of_columns(tmp_path):
    path = tmp_path / "words"
    path.write_text("x\t5\ny\t7\n", encoding="utf-8")
    name = tf.placeholder(tf.string, [])
    columns = {"key_column_index": 0, "value_column_index": 1}
    fed = tf.contrib.lookup.index_table_from_file(name, 2, **columns)
    back = tf.contrib.lookup.index_to_string_table_from_file(path, key_column_index=1, value_column_index=0)
    found = fed.lookup(tf.constant(["y", "x", "other"]))
    words = back.lookup(tf.constant([7, 3], tf.int64))
    with tf.Session() as session:
        session.run([fed.initializer, back.initializer], {name: str(path)})
        ids, strings = session.run([found, words])
    assert ids[:2].tolist() == [7, 5] and 2 <= ids[2] < 4 and strings.tolist() == [b"y", b"UNK"]


def test_tables_behind_buckets_and_keys_of_int32():
    lookup = tf.contrib.lookup
    numbers = lookup.index_table_from_tensor([42, 1, -1000], 1, dtype=tf.int32)
    only = lookup.IdTableWithHashBuckets(None, 3, key_dtype=tf.int64)
    inner = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [0], value_dtype=tf.int64), -1, name="inner"
    )
    outer = lookup.IdTableWithHashBuckets(inner, 2)
    keys, values = inner.export()
    with tf.Session() as session:
        session.run([tf.tables_initializer(), only.initializer])
        found = session.run(
            [numbers.lookup([1, 7]), only.lookup(tf.constant([5], tf.int64)), outer.lookup(["a"]), keys, values]
        )
    assert [f.tolist() for f in (found[0], *found[2:])] == [[1, 3], [0], [b"a"], [0]] and 0 <= found[1][0] < 3
    assert (inner.name, only.resource_handle, outer.resource_handle) == ("inner", None, inner.resource_handle)
    with pytest.raises(TypeError, match="Invalid key_dtype"):
        lookup.IdTableWithHashBuckets(None, 3, key_dtype=tf.float32)


def test_a_table_made_within_a_loop():
    def body(x):
        return table_of().lookup(x)

    found = tf.map_fn(body, tf.constant(["b", "q"]), dtype=tf.int32)
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        assert session.run(found).tolist() == [2, -1]


def test_a_table_that_changes():
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, [0.0, -1.0], empty_key=-1, deleted_key=-2)
    keys = tf.placeholder(tf.int64, [None])
    insert, remove = (
        table.insert(keys, tf.stack([tf.to_float(keys), tf.ones_like(keys, tf.float32)], 1)),
        table.remove(keys),
    )
    found, size, (all_keys, all_values) = table.lookup(keys), table.size(), table.export()
    assert found.shape.as_list() == [None, 2]
    with tf.Session() as session:
        assert session.run(size) == 0
        session.run(insert, {keys: [7, 8, 7]})
        assert session.run([found, size], {keys: [8, 9]})[0].tolist() == [[8, 1], [0, -1]]
        session.run(remove, {keys: [8, 100]})
        assert [session.run(x).tolist() for x in (size, all_keys, all_values)] == [1, [7], [[7, 1]]]
        for key in (-1, -2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="as a table key is not allowed"):
                session.run(insert, {keys: [key]})


def changing(name, **arguments):
    return tf.lookup.experimental.DenseHashTable(
        tf.string, tf.float32, [0.0, -1.0], empty_key="", deleted_key="-", name=name, **arguments
    )


def test_savers_keep_changing_tables(tmp_path):
    """A table comes back as it was saved: what was put in later goes, what was taken out returns."""
    with tf.Graph().as_default(), tf.Session() as session:
        table, _ = changing("t"), tf.Variable(1.0, name="v")
        changing("not_kept", checkpoint=False)
        saver = tf.train.Saver()
        session.run([tf.global_variables_initializer(), table.insert(["a", "b"], [[1, 2], [3, 4]])])
        path = saver.save(session, str(tmp_path / "all"))
        session.run(table.insert(["a", "c"], [[9, 9], [5, 6]]))
        session.run(table.remove(["b"]))
        assert saver.restore(session, path).restored == ("v", "t-keys", "t-values")
        words = table.lookup(["a", "b", "c"])
        assert session.run(words).tolist() == [[1, 2], [3, 4], [0, -1]]
    assert dict(tf.train.list_variables(path)) == {"t-keys": [2], "t-values": [2, 2], "v": []}
    # Alone, under another name, before anything is put in.
    with (
        tf.Graph().as_default() as graph,
        tf.Session() as session,
    ):
        other = changing("other")
        report = tf.train.Saver({"t": other}).restore(session, path)
        assert (report.restored, report.unused) == (("t-keys", "t-values"), ("v",))
        assert sorted(session.run(other.export())[0].tolist()) == [b"a", b"b"]
        assert graph.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS) == [other]
    with tf.Graph().as_default() as graph, tf.Session() as session:  # by the saver that the meta graph tells of
        saver = tf.train.import_meta_graph(f"{path}.meta", import_scope="again")
        size = tf.get_default_graph().create_op(
            "LookupTableSizeV2", [graph.get_tensor_by_name("again/t:0")], [tf.int64]
        )
        saver.restore(session, path)
        assert session.run(size.outputs[0]) == 2


def test_a_table_is_restored_whole_or_not_at_all(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.Variable(["a", "b"], name="t-keys")
        tf.Variable(1.0, name="v")
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "half"))
    with tf.Graph().as_default(), tf.Session() as session:
        table, _ = changing("t"), tf.Variable(2.0, name="v")
        saver = tf.train.Saver()
        session.run(table.insert(["z"], [[7, 8]]))
        with pytest.raises(tf.errors.NotFoundError, match="t-values"):
            saver.restore(session, path)
        report = saver.restore(session, path, partial=True)
        assert (report.restored, report.missing) == (("v",), ("t-values",))
        assert session.run(table.export())[0].tolist() == [b"z"]


def test_a_changing_table_of_vectors_as_keys():
    table = tf.lookup.experimental.DenseHashTable(tf.string, tf.int32, -1, empty_key=["", ""], deleted_key=["-", "-"])
    insert, found = table.insert([["a", "b"], ["c", "d"]], [1, 2]), table.lookup([[["c", "d"]], [["c", "b"]]])
    same = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, 4, 4)
    with tf.Session() as session:
        session.run(insert)
        assert session.run(found).tolist() == [[2], [-1]]
        with pytest.raises(tf.errors.InvalidArgumentError, match="must not be equal"):
            session.run(same.size())
        with pytest.raises(tf.errors.InvalidArgumentError, match="Expected key shape"):
            session.run(table.lookup(tf.placeholder_with_default(["a"], None)))


def test_what_is_refused():
    with pytest.raises(TypeError, match="string"):
        table_of().lookup(tf.constant([1]))
    with pytest.raises(ValueError, match="oov_buckets"):
        tf.lookup.StaticVocabularyTable(None, 0)
    with pytest.raises(TypeError, match="expected int64"):
        tf.lookup.StaticVocabularyTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), 1)
    with pytest.raises(ValueError, match="a value for each key"):
        tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1, 2]), 0)
    twice = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "a"], [1, 2]), 0)
    other = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), 0, shared_name="t")
    changed = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [2]), 0, shared_name="t")
    typed = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], ["b"]), "", shared_name="t")
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="different value for same key"):
            session.run(twice.initializer)
        session.run(other.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError, match="already initialized"):
            session.run(changed.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError, match="from string to int32, not from string to string"):
            session.run(typed.initializer)


@pytest.mark.slow
def test_a_table_of_a_server_is_shared_by_sessions():
    with tf.device("/job:ps/task:0"):
        table = table_of(shared_name="words")
        found = table.lookup(tf.constant(["b"]))
    with tf.LocalCluster({"ps": 1, "worker": 1}) as cluster:
        with tf.Session(cluster.target("worker", 0)) as session:
            session.run(tf.tables_initializer())
        with tf.Session(cluster.target("ps", 0)) as session:
            assert session.run(found).tolist() == [2]
