"""Readers of files whose names come from a queue, whole files, and lines of values."""

from __future__ import annotations

import threading
import zlib

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def queue_of(names, closed=True):
    """A queue of names, and what fills it."""
    queue = tf.FIFOQueue(100, tf.string, shapes=())
    fill = queue.enqueue_many([tf.constant([str(n) for n in names], tf.string, [len(names)])])
    return queue, [fill, queue.close()] if closed else [fill]


def run_in_turn(session, nodes):
    for node in nodes:
        session.run(node)


def all_of(reader, names):
    """All records of some files, as (key, record)."""
    queue, fill = queue_of(names)
    key, value = reader.read(queue)
    found = []
    with tf.Session() as session:
        run_in_turn(session, fill)
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                found.append(session.run([key, value]))
        counts = session.run([reader.num_records_produced(), reader.num_work_units_completed()])
    assert counts == [len(found), len(names)]
    return [(k.decode(), v) for k, v in found]


def test_lines(tmp_path):
    a, b, empty = tmp_path / "a", tmp_path / "b", tmp_path / "empty"
    a.write_bytes(b"head\nx,1\r\n\ny")
    b.write_bytes(b"head\nz\n")
    empty.write_bytes(b"")
    assert all_of(tf.TextLineReader(skip_header_lines=1), [a, empty, b]) == [
        (f"{a}:2", b"x,1"), (f"{a}:3", b""), (f"{a}:4", b"y"), (f"{b}:2", b"z"),
    ]  # fmt: skip
    assert [v for _, v in all_of(tf.TextLineReader(name="all"), [a])] == [b"head", b"x,1", b"", b"y"]
    a.write_bytes(b"a\rb\r\nc\n\rd\r\r\n\n\r")
    assert [v for _, v in all_of(tf.TextLineReader(name="returns"), [a])] == [b"a\rb", b"c", b"\rd\r", b""]


def test_records_whole_files_and_names(tmp_path):
    path = tmp_path / "records"
    with tf.io.TFRecordWriter(path, "ZLIB") as writer:
        for record in (b"abc", b"", b"de"):
            writer.write(record)
    assert all_of(tf.TFRecordReader(options=tf.io.TFRecordOptions("ZLIB")), [path]) == [
        (f"{path}:0", b"abc"), (f"{path}:19", b""), (f"{path}:35", b"de"),
    ]  # fmt: skip
    other = tmp_path / "other"
    other.write_bytes(b"\0\1\xff")
    assert all_of(tf.WholeFileReader(), [other]) == [(str(other), b"\0\1\xff")]
    assert all_of(tf.IdentityReader(), ["x", "y"]) == [("x", b"x"), ("y", b"y")]


def test_records_of_one_size(tmp_path):
    path, packed = tmp_path / "fixed", tmp_path / "packed"
    path.write_bytes(b"HaabbccF")
    packed.write_bytes(zlib.compress(b"aabb"))
    reader = tf.FixedLengthRecordReader(2, header_bytes=1, footer_bytes=1)
    assert all_of(reader, [path]) == [(f"{path}:0", b"aa"), (f"{path}:1", b"bb"), (f"{path}:2", b"cc")]
    hopping = tf.FixedLengthRecordReader(3, header_bytes=1, footer_bytes=1, hop_bytes=2, name="hop")
    assert [v for _, v in all_of(hopping, [path])] == [b"aab", b"bbc"]
    assert [v for _, v in all_of(tf.FixedLengthRecordReader(2, encoding="ZLIB", name="zip"), [packed])] == [
        b"aa",
        b"bb",
    ]
    queue, fill = queue_of([path])
    _, value = tf.FixedLengthRecordReader(5, name="wrong").read(queue)
    with tf.Session() as session:
        run_in_turn(session, fill)
        with pytest.raises(tf.errors.InvalidArgumentError, match="not an exact multiple of the record length"):
            session.run(value)
    for arguments in (
        {"record_bytes": 0},
        {"record_bytes": 1, "header_bytes": -1},
        {"record_bytes": 1, "encoding": "BZIP"},
    ):
        with pytest.raises(ValueError):
            tf.FixedLengthRecordReader(**arguments)


def test_several_records_at_once_end_with_their_file(tmp_path):
    for name, lines in (("a", "1\n2\n3\n"), ("b", "4\n")):
        (tmp_path / name).write_text(lines)
    queue, fill = queue_of([tmp_path / "a", tmp_path / "b"])
    reader = tf.TextLineReader()
    keys, values = reader.read_up_to(queue, 2)
    with tf.Session() as session:
        run_in_turn(session, fill)
        found = [session.run(values).tolist() for _ in range(3)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(keys)
        with pytest.raises(tf.errors.InvalidArgumentError, match="at least 1"):
            session.run(reader.read_up_to(queue, 0))
        session.run(reader.reset())
        assert session.run(reader.num_records_produced()) == 0
    assert found == [[b"1", b"2"], [b"3"], [b"4"]]


def test_a_reader_waits_for_a_name_and_a_step_that_ends_takes_none(tmp_path):
    (tmp_path / "a").write_text("1\n2\n")
    queue, fill = queue_of([tmp_path / "a"], closed=False)
    _, value = tf.TextLineReader().read(queue)
    with tf.Session() as session:
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(value, options=tf.RunOptions(timeout_in_ms=50))
        found = []
        waiting = threading.Thread(target=lambda: found.append(session.run(value)))
        waiting.start()
        run_in_turn(session, fill)
        waiting.join(60)
        assert [*found, session.run(value)] == [b"1", b"2"]
        assert session.run(queue.size()) == 0


def test_many_threads_share_the_records(tmp_path):
    for i in range(5):
        (tmp_path / str(i)).write_text("".join(f"{i}.{j}\n" for j in range(20)))
    queue, fill = queue_of(sorted(tmp_path.iterdir()))
    _, value = tf.TextLineReader().read(queue)
    found: list[bytes] = []

    def work(session):
        try:
            while True:
                found.append(session.run(value))
        except tf.errors.OutOfRangeError:
            pass

    with tf.Session() as session:
        run_in_turn(session, fill)
        threads = [threading.Thread(target=work, args=(session,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(found) == sorted(f"{i}.{j}".encode() for i in range(5) for j in range(20))


def test_a_file_that_is_not_there():
    queue, fill = queue_of(["/nowhere/at/all"])
    _, value = tf.TextLineReader().read(queue)
    with tf.Session() as session:
        run_in_turn(session, fill)
        with pytest.raises(tf.errors.NotFoundError, match="/nowhere/at/all"):
            session.run(value)
        with pytest.raises(tf.errors.NotFoundError, match="/nowhere/at/all"):
            session.run(tf.read_file("/nowhere/at/all"))


def test_whole_files_are_read_and_written_and_found(tmp_path):
    with tf.Session() as session:
        session.run([tf.write_file(str(tmp_path / "new" / name), name) for name in ("b.txt", "a.txt", "c.bin")])
        assert session.run(tf.read_file(str(tmp_path / "new" / "a.txt"))) == b"a.txt"
        found = session.run(tf.matching_files([str(tmp_path / "*" / "*.txt"), str(tmp_path / "new" / "a*")]))
        assert found.tolist() == [str(tmp_path / "new" / n).encode() for n in ("a.txt", "b.txt")]
        once = tf.train.match_filenames_once(str(tmp_path / "new" / "*.bin"))
        session.run(tf.local_variables_initializer())
        (tmp_path / "new" / "d.bin").write_bytes(b"")
        assert len(session.run(once)) == 1


def test_a_pipeline_of_files_trains_from_batches(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.csv").write_text("x,label\n" + "".join(f"{i}.{j},w{j}\n" for j in range(4)))
    names = tf.train.string_input_producer(
        tf.train.match_filenames_once(str(tmp_path / "*.csv")), num_epochs=2, shuffle=False
    )
    _, line = tf.TextLineReader(skip_header_lines=1).read(names)
    x, label = tf.decode_csv(line, [[0.0], [""]])
    batch = tf.train.batch([x, label], batch_size=5, allow_smaller_final_batch=True)
    xs, labels = [], []
    with tf.train.MonitoredSession() as session, pytest.raises(tf.errors.OutOfRangeError):
        while True:
            some, named = session.run(batch)
            xs += some.tolist()
            labels += named.tolist()
    once = [float(np.float32(f"{i}.{j}")) for i in range(3) for j in range(4)]
    assert (xs, labels) == (2 * once, 6 * [b"w0", b"w1", b"w2", b"w3"])


@pytest.mark.slow
def test_files_are_read_by_the_own_process_only(tmp_path):
    (tmp_path / "a").write_text("secret\n")
    with tf.device("/job:worker/task:0"):
        queue, fill = queue_of([tmp_path / "a"])
        _, value = tf.TextLineReader().read(queue)
        whole = tf.read_file(str(tmp_path / "a"))
    with tf.LocalCluster({"worker": 1}) as cluster, tf.Session(cluster.target("worker", 0)) as session:
        run_in_turn(session, fill)
        for node in (value, whole, tf.write_file(str(tmp_path / "b"), "x"), tf.matching_files("/*")):
            with pytest.raises(tf.errors.PermissionDeniedError, match="only by the client's process"):
                session.run(node)
    assert not (tmp_path / "b").exists()
    server = tf.train.Server({"worker": ["127.0.0.1:0"]}, job_name="worker", task_index=0)
    with server, tf.Session(server.target) as session:
        run_in_turn(session, fill)
        assert session.run([value, whole]) == [b"secret", b"secret\n"]


# --- lines of values --------------------------------------------------------------------------------------------------


def columns(lines, defaults, **options):
    with tf.Session() as session:
        return [np.asarray(c).tolist() for c in session.run(tf.decode_csv(lines, defaults, **options))]


def test_columns_have_the_types_of_their_defaults():
    lines = tf.constant([['1.5,2,"a,""b""",7', ",,c,"], ["1e3,-4,,8", "2,5,d e,9"]])
    found = columns(lines, [[0.5], [3], ["none"], tf.constant([1], tf.int64)])
    assert found == [
        [[1.5, 0.5], [1000.0, 2.0]],
        [[2, 3], [-4, 5]],
        [[b'a,"b"', b"c"], [b"none", b"d e"]],
        [[7, 1], [8, 9]],
    ]
    assert columns("1;NA;x", [[0], [7], [""]], field_delim=";", na_value="NA") == [1, 7, b"x"]
    assert columns("1,2,3,4", [[0], [0]], select_cols=[1, 3]) == [2, 4]
    assert columns('a"b,c', [[""], [""]], use_quote_delim=False) == [b'a"b', b"c"]


@pytest.mark.parametrize(
    ("line", "defaults", "text"),
    [("1", [[0], [0]], "Expect 2 fields but have 1 in record 0"), ("x", [[0]], "Field 0 in record 0 is not a valid int32: x"),
     ("99999999999", [[0]], "not a valid int32"), ("1_000", [[0]], "not a valid int32"),
     (",1", [np.zeros(0, np.float32), [0]], "Field 0 is required but missing"),
     ('"a,1', [[""], [0]], "Quoted field")],
)  # fmt: skip
def test_lines_that_do_not_fit(line, defaults, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        columns(line, defaults)


def test_descriptions_of_columns_that_are_refused():
    for defaults, options, error in (
        ([], {}, ValueError), ([[True]], {}, TypeError), ([[0, 1]], {}, ValueError), ([[0]], {"field_delim": "ab"}, ValueError),
        ([[0], [0]], {"select_cols": [1, 0]}, ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            tf.decode_csv("1", defaults, **options)


def test_lines_of_values_that_are_wrong():
    line = ["1,2,3"]
    for columns, text in (
        ([0], "do not match"),
        ([-1, 0], "negative"),
        ([1, 0], "strictly increasing"),
        ([0, 0], "strictly increasing"),
    ):
        with pytest.raises(ValueError, match=text):
            tf.decode_csv(line, [[0], [0]], select_cols=columns)
    with tf.Session() as session:
        assert session.run(tf.decode_csv(['"1,""a",2'], [[""], [0]]))[0].tolist() == [b'1,"a']
        for record in ('a"bc', 'a,b"', '1,"a"b'):
            with pytest.raises(tf.errors.InvalidArgumentError, match="Unquoted fields|Quoted field"):
                session.run(tf.decode_csv([record], [[""]] * (1 + record.count(","))))
        assert session.run(tf.decode_csv(['a"bc'], [[""]], use_quote_delim=False))[0].tolist() == [b'a"bc']
