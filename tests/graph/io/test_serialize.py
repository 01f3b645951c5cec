"""Graphs as bytes and files: what is kept, and that nothing malformed gets in."""

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from reference_interpreter import Interpreter

from dovetail.graph.core import dtypes
from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Graph
from dovetail.graph.core.opdef import define, registered
from dovetail.graph.core.printing import diff, format_graph
from dovetail.graph.core.verify import verify
from dovetail.graph.formats import record_format
from dovetail.graph.io.serialization import extend_from_bytes, graph_to_bytes, load, save
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.variables.variable import Variable

if "TestAnyAttrs" not in registered():
    define("TestAnyAttrs", infer=lambda inputs, attrs: [], reference=lambda **attrs: ())


def sample():
    """A graph with some of everything."""
    graph = Graph()
    graph.seed = 87
    with graph.as_default():
        with (
            graph.device("/job:ps"),
            graph.device(lambda node: "/job:ps/task:1/gpu:0"),
            graph.container("kept"),
        ):
            v = Variable(np.arange(6.0, dtype="f4").reshape(2, 3), name="v")
        r = Variable([1.0, 2.0, 3.0], name="r", use_resource=True)
        x = placeholder("float32", [None, 3], name="x")
        with graph.name_scope("net"), graph.control_dependencies([v.initializer]), graph.device("/gpu:1"):
            y = x * r + v
        y.set_shape([2, 3])
        constant([b"text", b""], name="words")
    return graph


def same(a, b):
    assert not diff(a, b)
    verify(b)
    for m, n in zip(a.nodes, b.nodes, strict=True):
        assert (m.name, m.index, m.device, m.colocation, m.container) == (
            n.name,
            n.index,
            n.device,
            n.colocation,
            n.container,
        )
        assert m.source == n.source
        assert [t.dims for t in m.outputs] == [t.dims for t in n.outputs]
        mine, theirs = m.blocks, n.blocks
        while mine is not None:
            assert (mine.spec, mine.describe(), mine.source) == (
                theirs.spec,
                theirs.describe(),
                theirs.source,
            )
            mine, theirs = mine.outer, theirs.outer
        assert theirs is None


def test_bytes_give_the_same_graph():
    graph, copy = sample(), Graph()
    nodes = extend_from_bytes(copy, graph_to_bytes(graph))
    same(graph, copy)
    assert nodes == list(copy.nodes)
    assert copy.seed == 87


def test_a_copy_computes_the_same():
    graph, copy = sample(), Graph()
    extend_from_bytes(copy, graph_to_bytes(graph))
    for g in (graph, copy):
        run = Interpreter(g)
        run.run(["v/Assign", "r/Assign"])
        np.testing.assert_array_equal(
            run.run("net/add:0", {"x:0": np.ones((2, 3))}), np.float32([[1, 3, 5], [4, 6, 8]])
        )


def test_a_graph_grows_step_by_step():
    graph, copy = Graph(), Graph()
    with graph.as_default():
        a = constant(1.0)
        extend_from_bytes(copy, graph_to_bytes(graph))
        seen = graph.version
        a + a
        extend_from_bytes(copy, graph_to_bytes(graph, seen))
    same(graph, copy)
    assert extend_from_bytes(copy, graph_to_bytes(graph, graph.version)) == []


def test_new_nodes_in_a_copy_get_other_names():
    copy = Graph()
    extend_from_bytes(copy, graph_to_bytes(sample()))
    with copy.as_default():
        assert constant(1.0, name="X").name == "X_1:0"


def test_a_file_gives_the_same_graph(tmp_path):
    graph = sample()
    save(graph, tmp_path / "graph")
    same(graph, load(tmp_path / "graph"))
    assert [p.name for p in tmp_path.iterdir()] == ["graph"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    save(sample(), tmp_path / "graph")
    old = (tmp_path / "graph").read_bytes()
    bad = Graph()
    bad.create("TestAnyAttrs", (), {"value": object()}, "odd")
    with pytest.raises(InvalidArgumentError, match=r"Node 'odd'.*created at .*test_serialize.py.*object"):
        save(bad, tmp_path / "graph")
    assert (tmp_path / "graph").read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["graph"]


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as e:
        save(sample(), tmp_path / folder / "graph")
    assert e.value.filename == str(tmp_path / folder / "graph")


@pytest.mark.parametrize("size", [10, 1000, 4096])
def test_large_constants_travel_in_pieces(monkeypatch, tmp_path, size):
    monkeypatch.setattr(record_format, "CHUNK", 1024)
    graph = Graph()
    rng = np.random.default_rng(0)
    with graph.as_default():
        for shape in ((size,), (2, size // 2), ()):
            constant(rng.standard_normal(shape))
    save(graph, tmp_path / "graph")
    copy = load(tmp_path / "graph")
    for m, n in zip(graph.nodes, copy.nodes, strict=True):
        np.testing.assert_array_equal(m.attrs["value"], n.attrs["value"])


@pytest.mark.parametrize("dtype", [t for t in dtypes.ALL if t not in (dtypes.resource, dtypes.variant, dtypes.string)])
def test_constants_of_every_type(dtype):
    graph, copy = Graph(), Graph()
    values = [np.array([[0, 1]], dtype.np), np.array(1, dtype.np), np.zeros((0, 3), dtype.np)]
    for value in values:
        graph.create("Const", (), {"value": value})
    extend_from_bytes(copy, graph_to_bytes(graph))
    for value, node in zip(values, copy.nodes, strict=True):
        assert node.outputs[0].dtype is dtype
        assert node.attrs["value"].shape == value.shape
        assert node.attrs["value"].tobytes() == value.tobytes()


attr_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(dtypes.ALL),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), attr_values))
def test_attrs_of_every_kind(attrs):
    graph, copy = Graph(), Graph()
    graph.create("TestAnyAttrs", (), attrs)
    extend_from_bytes(copy, graph_to_bytes(graph))
    assert copy.nodes[0].attrs == attrs
    assert graph_to_bytes(copy) == graph_to_bytes(graph)


def test_late_control_edges_are_kept():
    graph, copy = Graph(), Graph()
    with graph.as_default():
        a, b = constant(1.0, name="a"), constant(2.0, name="b")
    a.op._add_control_input(b.op)
    extend_from_bytes(copy, graph_to_bytes(graph))
    assert copy.nodes[0].control_inputs == [copy.nodes[1]]
    with pytest.raises(ValueError, match="cycle"):
        copy.nodes[1]._add_control_input(copy.nodes[0])


def test_a_file_named_by_a_sender_is_never_read(tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("password\n")
    graph = Graph()
    graph.create("NoOp", origin=(str(secret), 1))
    copy = Graph()
    (node,) = extend_from_bytes(copy, graph_to_bytes(graph))
    assert (node.source.file, node.source.line, node.source.text) == (str(secret), 1, "")


# --- what must not get in --------------------------------------------------------------------------------


def stream(*records, start=0, end=None):
    count = sum(r[0] == "n" for r in records)
    all_records = [("dovetail-graph", 1, start, None), *records, ("end", count if end is None else end)]
    return b"".join(msgpack.packb(r, default=serialize_default) for r in all_records)


def serialize_default(value):
    if isinstance(value, dtypes.DType):
        return msgpack.ExtType(1, value.name.encode())
    raise TypeError(value)


TEXTS = (("s", "NoOp"), ("s", ""), ("s", "Placeholder"), ("s", "Identity"))
NO_OP, EMPTY, PLACEHOLDER, IDENTITY = range(4)


def node(name="n", op=NO_OP, inputs=(), **other):
    """A record of a node; `other` replaces what it says besides."""
    parts = {
        "controls": (),
        "attrs": {},
        "device": EMPTY,
        "colocation": (),
        "container": EMPTY,
        "file": EMPTY,
        "line": 0,
        "shapes": (),
        "block": -1,
    }
    return ("n", name, op, inputs, *(parts | other).values())


FLOAT = {"dtype": dtypes.float32, "shape": (2,)}


def source(name="p", **more):
    return node(name, PLACEHOLDER, attrs=FLOAT, shapes=((2,),), **more)


def test_the_streams_of_these_tests_are_good():
    graph = Graph()
    extend_from_bytes(
        graph,
        stream(*TEXTS, source(), node("i", IDENTITY, inputs=(0, 0), shapes=((2,),)), node("n", controls=(0,))),
    )
    assert format_graph(graph).splitlines()[-2:] == ["i = Identity(p) : float32 (2,)", "n = NoOp(^p)"]


def array(dtype, shape, raw):
    return {"value": msgpack.ExtType(2, msgpack.packb((dtype, shape, raw)))}


CONST = ("s", "Const")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "end too early"),
        (b"\xc1", "Malformed"),
        (b"\x93", "Malformed"),
        (msgpack.packb(3), "not an array"),
        (msgpack.packb(("hello", 1, 0, None)), "no graph"),
        (msgpack.packb(("dovetail-graph", 99, 0, None)), "version 99"),
        (msgpack.packb(("dovetail-graph", 1, 0, "seed")), "seed"),
        (stream(start=3), "3 nodes, this one has 0"),
        (stream(("zzz",)), "unknown record 'zzz'"),
        (stream(("s", 3)), "unknown record 's'"),
        (stream(*TEXTS, node(), end=2), "1 nodes arrived, 2 were sent"),
        (stream(*TEXTS) + msgpack.packb(("s", "more")), "follows the end"),
        (stream(*TEXTS, node("")), "no node's name"),
        (stream(*TEXTS, node("a:0")), "no node's name"),
        (stream(*TEXTS, node("a\nb")), "no node's name"),
        (stream(*TEXTS, node("a"), node("a")), "'a' exists already"),
        (stream(*TEXTS, node("n", op=99)), "'n'.*text number 99"),
        (stream(*TEXTS, node("n", op=True)), "'n'"),
        (stream(("s", "NoSuchOp"), node("n", op=0)), "'n'.*NoSuchOp"),
        (stream(*TEXTS, node("n", IDENTITY, inputs=(0, 0), shapes=(None,))), "'n'.*node number 0"),
        (
            stream(*TEXTS, source(), node("n", IDENTITY, inputs=(-1, 0), shapes=(None,))),
            "'n'.*node number -1",
        ),
        (stream(*TEXTS, source(), node("n", IDENTITY, inputs=(0, 1), shapes=(None,))), "'n'.*output 1"),
        (stream(*TEXTS, source(), node("n", IDENTITY, inputs=(0,), shapes=(None,))), "'n'.*inputs"),
        (stream(*TEXTS, source(), node("n", IDENTITY, inputs=(0, 0, 0, 0), shapes=(None,))), "'n'"),
        (stream(*TEXTS, source(), node("n", IDENTITY, inputs=(0, 0), shapes=((3,),))), "'n'.*not compatible"),
        (stream(*TEXTS, source(), node("n", IDENTITY, inputs=(0, 0), shapes=())), "'n'.*1 outputs"),
        (stream(*TEXTS, source(), node("n", IDENTITY, inputs=(0, 0), shapes=((-5,),))), "'n'.*shape"),
        (stream(*TEXTS, node("n", controls=(5,))), "node number 5"),
        (stream(*TEXTS, node("n", controls=("a",))), "'n'.*control"),
        (stream(*TEXTS, node("a", controls=(1,)), node("b", controls=(0,))), "cycle: [ab] -> [ab] -> [ab]"),
        (stream(*TEXTS, node("a", controls=(0,))), "cycle: a -> a"),
        (stream(*TEXTS, node("n", attrs={"a": {"b": 1}})), "'n'.*attr a"),
        (stream(*TEXTS, node("n", attrs={3: 1})), "Malformed"),
        (stream(*TEXTS, node("n", attrs={"a b": 1})), "'n'.*'a b'"),
        (stream(*TEXTS, node("n", attrs={"a": (((((((((((1,),),),),),),),),),),)})), "'n'.*attr a"),
        (stream(*TEXTS, node("n", attrs={"a": msgpack.Timestamp(0, 0)})), "'n'.*Timestamp"),
        (stream(*TEXTS, node("n", attrs={"a": msgpack.ExtType(9, b"")})), "unknown extension type 9"),
        (stream(*TEXTS, node("n", attrs={"a": msgpack.ExtType(1, b"float99")})), "float99"),
        (stream(*TEXTS, node("n", device=77)), "'n'.*text number 77"),
        (stream(*TEXTS, ("s", "/job:\n"), node("n", device=4)), "'n'.*device"),
        (stream(*TEXTS, node("n", colocation=(1,))), "'n'.*colocation"),
        (stream(*TEXTS, node("n", line=-1)), "'n'"),
        (stream(*TEXTS, node("n", block=0)), "'n'"),
        (stream(*TEXTS, ("b", 0, None, "", EMPTY, 1)), "device block"),
        (stream(*TEXTS, ("b", -1, 5, "", EMPTY, 1)), "device block"),
        (stream(*TEXTS, node("n", PLACEHOLDER, attrs={}, shapes=(None,))), "'n'"),
        (stream(*TEXTS, node("n", PLACEHOLDER, attrs={"dtype": 5, "shape": None}, shapes=(None,))), "'n'"),
        (stream(*TEXTS, node("n", PLACEHOLDER, attrs=FLOAT | {"shape": "x"}, shapes=("x",))), "'n'"),
        (
            stream(CONST, *TEXTS, node("n", 0, attrs=array("float32", (2,), b"1234"), shapes=((2,),))),
            "8 bytes",
        ),
        (stream(CONST, *TEXTS, node("n", 0, attrs=array("float32", (-1,), b""), shapes=((2,),))), "shape"),
        (
            stream(CONST, *TEXTS, node("n", 0, attrs=array("float32", (1 << 40, 1 << 40), b""), shapes=(None,))),
            "bytes",
        ),
        (stream(CONST, *TEXTS, node("n", 0, attrs=array("bool", (1,), b"\x07"), shapes=((1,),))), "bool"),
        (
            stream(CONST, *TEXTS, node("n", 0, attrs=array("resource", (1,), b"12345678"), shapes=((1,),))),
            "no constant",
        ),
        (stream(CONST, *TEXTS, node("n", 0, attrs=array("string", (2,), [b""]), shapes=((2,),))), "text"),
        (stream(CONST, *TEXTS, node("n", 0, attrs=array("string", (1,), [3]), shapes=((1,),))), "text"),
        (stream(("c", "text")), "not bytes"),
        (
            stream(CONST, node("n", 0, attrs={"value": msgpack.ExtType(3, msgpack.packb(("int8", (1,), 1)))})),
            "pieces of a constant are missing",
        ),
    ],
)
def test_malformed_data_are_refused_and_change_nothing(data, words):
    graph = Graph()
    with pytest.raises(InvalidArgumentError, match=words):
        extend_from_bytes(graph, data)
    assert len(graph) == 0
    assert graph.get_all_collection_keys() == []
    with graph.as_default():
        assert constant(1.0, name="n").name == "n:0"  # no name was taken either


def test_a_name_that_the_graph_has_already_is_refused():
    graph = sample()
    other = Graph()
    with other.as_default():
        for _ in range(len(graph)):
            other.create("NoOp")
        constant(1.0, name="x")
    before = format_graph(graph)
    with pytest.raises(InvalidArgumentError, match="'x' exists already"):
        extend_from_bytes(graph, graph_to_bytes(other, len(graph)))
    assert format_graph(graph) == before


def test_a_finalized_graph_does_not_grow():
    graph = Graph()
    graph.finalize()
    with pytest.raises(InvalidArgumentError, match="finalized"):
        extend_from_bytes(graph, stream(*TEXTS, node()))


GOOD = graph_to_bytes(sample())


@settings(max_examples=300)
@given(st.integers(0, len(GOOD) - 1), st.binary(max_size=6), st.integers(0, 6))
def test_damaged_data_either_load_or_are_refused(at, new, cut):
    data = GOOD[:at] + new + GOOD[at + cut :]
    graph = Graph()
    try:
        extend_from_bytes(graph, data)
    except InvalidArgumentError:
        assert len(graph) == 0
    else:
        verify(graph)


@settings(max_examples=200)
@given(st.integers(0, len(GOOD) - 1))
def test_data_that_were_cut_are_refused(length):
    with pytest.raises(InvalidArgumentError):
        extend_from_bytes(Graph(), GOOD[:length])
