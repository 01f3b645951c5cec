"""The wire: what goes in comes out, and whatever is malformed ends in `WireError`, nothing else."""

from __future__ import annotations

import struct
import threading
import time

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.graph.core import dtypes
from dovetail.runtime.wire import messages as wire
from dovetail.runtime.wire.messages import Message, decode, encode
from dovetail.runtime.wire.schema import KINDS, RECORDS, Record, WireError
from dovetail.runtime.wire.tensors import BORROW_BYTES, MAX_DIM

V = wire.VERSION
HUGE = [MAX_DIM] * 3 + [0]  # no elements, but no NumPy shape either
TYPES = [t.np for t in dtypes.ALL if t.np.kind != "O"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)


def tensors() -> st.SearchStrategy[np.ndarray]:
    """Arrays of every element type, filled with any bytes that the type allows."""

    def fill(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = np.random.default_rng(seed).integers(0, 2 if dtype == np.bool_ else 256, size, np.uint8)
        return np.ndarray(shape, dtype, raw.tobytes())

    return st.builds(fill, st.sampled_from(TYPES), SHAPES, st.integers(0, 2**32))


def strings() -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(object, SHAPES, elements=st.binary(max_size=9))


INTS = st.integers(-(2**63), 2**64 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OF_TYPE = {
    "bool": st.booleans(), "int": INTS, "uint": st.integers(0, 2**63 - 1), "float": st.floats(allow_nan=False), "str": st.text(),
    "bytes": st.binary(), "dict": st.dictionaries(st.text(), PLAIN), "channel": INTS | st.text(),
}  # fmt: skip


def values(wanted: str) -> st.SearchStrategy[object]:
    """Any value of a type of the table."""
    if wanted.endswith("[]"):
        return st.lists(values(wanted[:-2]), max_size=3)
    if wanted.endswith("?"):
        return values(wanted[:-1]) | st.none()
    if wanted not in RECORDS:
        return OF_TYPE[wanted]
    record = RECORDS[wanted]
    fields = {
        name: values(t) if name in record.required else values(t) | st.none() for name, t in record.fields.items()
    }
    if record.is_list:
        return st.tuples(*fields.values()).map(list)
    required = {name: fields.pop(name) for name in record.required}
    return st.fixed_dictionaries(required, optional=fields)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message that the table allows."""
    schema = draw(st.sampled_from(list(KINDS.values())))
    fields = {}
    for name, wanted in schema.content.fields.items():
        if name in schema.numbers:
            fields[name] = draw(st.integers(-(2**63), 2**63 - 1))
        elif name in schema.content.required or draw(st.booleans()):
            fields[name] = draw(values(wanted))
    attached = draw(st.lists(tensors() | strings(), max_size=4)) if schema.tensors else []
    return Message(schema.kind, fields, tuple(attached))


def same(a: object, b: object) -> bool:
    """Bit by bit: NaNs count, and so do the signs of zeros."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


def carry(*attached: object) -> tuple[np.ndarray, ...]:
    return decode(encode(Message("tensors", {"step": 1, "channels": [2], "without": []}, attached))).tensors


# What goes in comes out.


@given(messages())
def test_a_message_survives_the_journey(message: Message) -> None:
    arrived = decode([bytes(frame) for frame in encode(message)])
    assert arrived.kind == message.kind
    assert arrived.fields == message.fields
    assert len(arrived.tensors) == len(message.tensors)
    assert all(map(same, arrived.tensors, message.tensors))
    assert not any(tensor.flags.writeable for tensor in arrived.tensors)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_element_type_travels_in_every_form(dtype: np.dtype) -> None:
    whole = np.arange(24).reshape(4, 6).astype(dtype)
    forms = [
        whole,
        whole.T,
        whole[::2, 1::2],
        whole[0, 0],
        whole[:0],
        whole.reshape(-1)[3:4].reshape(()),
        dtype.type(1),
    ]
    for sent, got in zip(forms, carry(*forms), strict=True):
        assert same(got, sent)
        assert got.flags.c_contiguous


def test_the_element_types_are_those_of_the_graph() -> None:
    assert {str(d) for d in TYPES} >= {
        "bool",
        "int8",
        "uint64",
        "float16",
        "float64",
        "bfloat16",
        "float8_e4m3fn",
    }


def test_strings_travel_as_bytes() -> None:
    sent = [
        np.array([["a", b"\0\xff"], ["", "é"]], object),
        np.array(["xy", "z"]),
        np.array([b"q"]),
        np.array("s", object),
    ]
    want = [[[b"a", b"\0\xff"], [b"", "é".encode()]], [b"xy", b"z"], [b"q"], b"s"]
    got = carry(*sent)
    assert [g.tolist() for g in got] == want
    assert all(g.dtype == object for g in got)


def test_foreign_byte_order_is_turned() -> None:
    (got,) = carry(np.array([1, 2, 3], ">i4"))
    assert got.dtype == np.int32 and got.tolist() == [1, 2, 3]


def test_large_tensors_are_not_copied_either_way() -> None:
    array = np.zeros(BORROW_BYTES // 4, np.float32)
    frames = encode(Message("tensors", {"step": 1, "channels": ["c"], "without": []}, (array,)))
    got = decode(frames).tensors[0]
    assert np.shares_memory(got, array)
    array[5] = 7
    assert got[5] == 7


def test_small_tensors_are_snapshots() -> None:
    array = np.zeros(10)
    frames = encode(Message("tensors", {"step": 1, "channels": ["c"], "without": []}, (array,)))
    array[:] = 1
    assert decode(frames).tensors[0].sum() == 0


def test_arrays_are_aligned_wherever_the_frame_starts() -> None:
    for size in (4, 4096):  # in the header, and in a frame
        frames = encode(Message("tensors", {"step": 1, "channels": [1], "without": []}, (np.arange(float(size)),)))
        assert len(frames) == (1 if size == 4 else 2)
        for offset in range(1, 8):
            shifted = [memoryview(b"x" * offset + bytes(frame))[offset:] for frame in frames]
            got = decode(shifted).tensors[0]
            assert got.flags.aligned and not got.flags.writeable and got.tolist() == list(range(size))


def test_fields_of_bytes_stay_out_of_the_header() -> None:
    graph = bytes(5 << 20)
    message = Message("extend", {"request": 1, "session": "s", "from_version": 0, "graph": graph})
    frames = encode(message)
    assert len(frames[0]) < 100 and frames[1] is graph
    assert decode(frames).fields == message.fields


def test_threads_do_not_share_a_packer() -> None:
    wrong: list[int] = []

    def work(n: int) -> None:
        for i in range(2_000):
            message = Message("abort", {"step": n * i, "code": "ABORTED", "reason": "r" * (n * 37)})
            if decode(encode(message)).fields != message.fields:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_message_prints_short() -> None:
    text = repr(Message("extend", {"graph": bytes(10_000), "session": "s" * 500}, (np.zeros((2, 3), np.int8),)))
    assert text.startswith("Message('extend', graph=<10000 bytes>, session='sss") and text.endswith("int8[2, 3])")
    assert len(text) < 200


def test_each_record_is_in_a_message() -> None:
    def inside(record: Record) -> set[str]:
        found: set[str] = set()
        for wanted in record.fields.values():
            name = wanted.rstrip("[]?")
            if name in RECORDS:
                found |= {name} | inside(RECORDS[name])
        return found

    assert set().union(*(inside(row.content) for row in KINDS.values())) == set(RECORDS)


# What may not leave.


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("pong ", {}), "no message kind"),
        (Message("ping", {}), "missing required field `seq`"),
        (Message("ping", {"seq": True}), r"Expected `int`, got `bool` - at `\$\.seq`"),
        (Message("ping", {"seq": np.int64(1)}), "Expected `int`, got `numpy.int64`"),
        (Message("ping", {"seq": 1, "more": 1}), "unknown field `more`"),
        (Message("ping", {"seq": 2**63}), "cannot be packed"),
        (Message("ping", {"seq": 1, "request": 2**64}), "cannot be packed"),
        (Message("ping", {"seq": 1}, (np.zeros(1),)), "carries no tensors"),
        (Message("abort", {"step": 1, "code": "\ud800", "reason": ""}), "cannot be packed"),
        (Message("create_session", {"request": 1, "config": {1: 2}}), "Expected `str`"),
        (Message("create_session", {"request": 1, "config": {"a": object()}}), "object is unsupported"),
        (Message("tensors", {"step": 1, "channels": 1.5, "without": []}), "Expected `array`, got `float`"),
        (Message("tensors", {"step": 1, "channels": [1], "without": []}, ([1, 2],)), "is a list, not a NumPy array"),
        (Message("tensors", {"step": 1, "channels": [1], "without": []}, (np.zeros(1, "M8[s]"),)), "cannot travel"),
        (Message("tensors", {"step": 1, "channels": [1], "without": []}, (np.zeros(1, "i4,i4"),)), "cannot travel"),
        (Message("tensors", {"step": 1, "channels": [1], "without": []}, (np.array([1, None], object),)), "holds a int"),
        (Message("tensors", {"step": 1, "channels": [1], "without": []}, (np.array(["\ud800"], object),)), "surrogates"),
        (Message("tensors", {"step": 1, "channels": [1], "without": []}, (np.zeros(1),) * (wire.MAX_TENSORS + 1)), "at most"),
        (Message("error", {"request": 1, "code": "c", "message": "m" * (17 << 20)}), "more than the"),
        (Message("ping", [1]), "Expected `object`, got `array`"),
    ],
)  # fmt: skip
def test_a_wrong_message_does_not_leave(message: Message, says: str) -> None:
    with pytest.raises(WireError, match=says):
        encode(message)
    assert decode(encode(Message("ping", {"seq": 5}))).fields == {"seq": 5}  # nothing is left over


def test_a_field_that_contains_itself_does_not_leave() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(WireError, match="cannot be packed.*recursion"):
        encode(Message("create_session", {"request": 1, "config": {"a": endless}}))


# What may not enter.


def header(version: int, kind: object, fields: object, *specs: object) -> bytes:
    """A header; what of its fields are the numbers of its kind travels as such, if it is an int."""
    numbers: list[int] = []
    if isinstance(kind, str) and kind in KINDS and isinstance(fields, dict):
        fields = dict(fields)
        for name in KINDS[kind].numbers:
            if type(fields.get(name)) is not int:
                break
            numbers.append(fields.pop(name))
    return raw(numbers, msgpack.packb([kind, fields, *specs]), version=version)


def raw(
    numbers: list[int], description: bytes, values: bytes = b"", version: int = V, size: int | None = None
) -> bytes:
    """A header of these parts."""
    size = len(description) if size is None else size
    return struct.pack(f"<BBBxI{len(numbers)}q", 0x94, version, len(numbers), size, *numbers) + description + values


def tensor_message(spec: object, frame: bytes) -> list[bytes]:
    if isinstance(spec, list) and len(spec) == 2:
        spec = [*spec, "frame"]
    return [header(V, "tensors", {"step": 1, "channels": [1], "without": []}, [spec]), frame]


def values_message(spec: list[object], values: bytes) -> list[bytes]:
    fields = {"step": 1, "channels": [1], "without": []}
    return [header(V, "tensors", fields, [spec if len(spec) == 3 else [*spec, "here"]]) + values]


def extend(graph: object, *frames: bytes) -> list[bytes]:
    fields = {"request": 1, "session": "", "from_version": 0} | ({} if graph is None else {"graph": graph})
    return [header(V, "extend", fields, []), *frames]


MALFORMED: list[tuple[str, list[bytes], str]] = [
    ("no frames", [], "empty message"),
    ("empty header", [b""], "not a message"),
    ("not ours", [b"GET / HTTP/1.1"], "not a message"),
    ("version alone", [bytes([0x94, V, 0])], "cut off"),
    ("cut off", [header(V, "abort", {"step": 1, "code": "c", "reason": "r"}, [])[:-3]], "not msgpack"),
    ("numbers cut off", [header(V, "ping", {"seq": 1}, [])[:12]], "header is not"),
    ("more numbers than any kind has", [raw([1] * 100, b"")], "header is not"),
    ("the fourth byte", [raw([], b"")[:3] + b"\1" + raw([], b"")[4:]], "header is not"),
    ("trailing bytes", [header(V, "ping", {"seq": 1}, []) + b"\0"], "was announced"),
    ("trailing bytes of tensors", [header(V, "tensors", {"step": 1, "channels": [], "without": []}, [["int8", [1], "here"]]) + b"12"],
     "was announced"),
    ("bytes in the description", [raw([1], msgpack.packb(["ping", {}, []]) + b"\0")], "not msgpack"),
    ("a description that goes on", [raw([1], msgpack.packb(["ping", {}, []]), size=1 << 31)], "was announced"),
    ("a number too many", [raw([1, 2], msgpack.packb(["ping", {}, []]))], "has 1 numbers, 2 came"),
    ("a number too few", [raw([], msgpack.packb(["ping", {}, []]))], "has 1 numbers, 0 came"),
    ("a number twice", [raw([1], msgpack.packb(["ping", {"seq": 2}, []]))], "unknown field `seq`"),
    ("two parts", [raw([1], msgpack.packb(["ping", {}]))], "the description is not"),
    ("four parts", [raw([1], msgpack.packb(["ping", {}, [], 0]))], "the description is not"),
    ("a map", [raw([1], msgpack.packb({"ping": 1, "a": 2, "b": 3}))], "the description is not"),
    ("newer version", [header(V + 1, "ping", {"seq": 1}, [])], f"version {V}.*same release"),
    ("older version", [msgpack.packb([1, "ping", {"seq": 1}, []])], "version 1.*same release"),
    ("kind is a number", [header(V, 7, {}, [])], "the description is not"),
    ("kind is a list", [header(V, [], {}, [])], "the description is not"),
    ("fields are a list", [header(V, "ping", [], [])], "Expected `object`, got `array`"),
    ("tensors are a map", [header(V, "ping", {"seq": 1}, {})], "the description is not"),
    ("unknown kind", [header(V, "exec", {}, [])], "no message kind 'exec'"),
    ("missing field", [header(V, "abort", {"step": 1, "code": "c"}, [])], "missing required field `reason`"),
    ("unknown field", [header(V, "ping", {"seq": 1, "x": 1}, [])], "unknown field `x`"),
    ("key of bytes", [header(V, "ping", {b"seq": 1}, [])], "Expected `str`"),
    ("key of int", [header(V, "ping", {1: 1}, [])], "Expected `str`"),
    ("wrong type", [header(V, "touch", {"session": 1}, [])], "Expected `str`, got `int`"),
    ("bool for int", [header(V, "ping", {"seq": 1, "request": True}, [])], r"Expected `int \| null`, got `bool`"),
    ("None for a required field", [header(V, "touch", {"session": None}, [])], "Expected `str`, got `None`"),
    ("timestamp", [header(V, "touch", {"session": msgpack.Timestamp(1)}, [])], "Expected `str`, got `ext`"),
    ("bad utf-8", [raw([], b"\x93\xa5touch\x81\xa7session\xa2\xff\xff\x90")], "(?i)utf-8"),
    ("an element of another type", [header(V, "waiting", {"request": 1, "tasks": ["a", 1]}, [])], r"got `int` - at `\$\.tasks\[1\]`"),
    ("a record of another type", [header(V, "published", {"request": 1, "incarnation": 1, "places": [None, {}]}, [])],
     r"Expected `array \| null`, got `object` - at `\$\.places\[1\]`"),
    ("a record that is too short", [header(V, "map_memory", {"request": 1, "page": [1, 2]}, [])], "at least length 5, got 2"),
    ("a part below zero", [header(V, "map_memory", {"request": 1, "page": [1, 2, 3, -4, 5]}, [])], r"`int` >= 0 - at `\$\.page\[3\]`"),
    ("a part of 64 bits", [header(V, "map_memory", {"request": 1, "page": [1, 2, 3, 1 << 63, 5]}, [])], "`int` <= 9223372036854775807"),
    ("a record that lacks a field", [header(V, "prepared", {"request": 1, "parts": [{"task": "t"}]}, [])],
     r"missing required field `address` - at `\$\.parts\[0\]`"),
    ("an unknown field of a record", [header(V, "prepared", {"request": 1, "parts": [{"odd": 1}]}, [])],
     r"unknown field `odd` - at `\$\.parts\[0\]`"),
    ("a record in a record", [header(V, "publish", {"request": 1, "session": "", "seed": 1, "isolated": True, "changed": True,
     "names": [["", "v", None], ["", "a", ["float32", [2, "x"], "mean"]]]}, [])],
     r"Expected `int`, got `str` - at `\$\.names\[1\]\[2\]\[1\]\[1\]`"),
    ("far too deep", [raw([], b"\x93\xa7waiting\x81\xa5tasks" + b"\x91" * 9_999 + b"\x90\x90")], "recursion"),
    ("announces too much", [raw([], b"\x93\xa7waiting\x81\xa5tasks\xdd\xff\xff\xff\xff\x90")], "not msgpack"),
    ("header too large", [header(V, "devices", {"x": bytes(wire.MAX_HEADER)}, [])], "larger"),
    ("tensor for ping", [header(V, "ping", {"seq": 1}, [["int8", [1], "frame"]]), b"1"], "carries no tensors"),
    ("a frame too many", [header(V, "ping", {"seq": 1}, []), b""], "0 frames announced, 1 came"),
    ("a frame too few", tensor_message(["int8", [1]], b"1")[:1], "1 frames announced, 0 came"),
    ("too many tensors", [header(V, "tensors", {}, [["int8", [0], "here"]] * (wire.MAX_TENSORS + 1))], "at most"),
    ("spec is no list", tensor_message(1, b""), "the description is not"),
    ("spec is too long", tensor_message(["int8", [1], "here", 0], b"1"), "the description is not"),
    ("an unknown place", tensor_message(["int8", [1], "there"], b"1"), "Invalid enum value 'there'"),
    ("a place of another type", tensor_message(["int8", [1], []], b"1"), "Expected `str`, got `array`"),
    ("strings that are lent", values_message(["string", [1], "lent"], b"1"), "cannot lie in shared memory"),
    ("values and a frame", tensor_message(["int8", [1], "here"], b"1"), "0 frames announced, 1 came"),
    ("memory and a frame", tensor_message(["int8", [1], "lent"], b"1"), "0 frames announced, 1 came"),
    ("dtype is no str", tensor_message([[], [1]], b"1"), "the description is not"),
    ("shape is no list", tensor_message(["int8", 1], b"1"), "the description is not"),
    ("unknown dtype", tensor_message(["object", [1]], b"12345678"), "Invalid enum value 'object'"),
    ("NumPy's other dtypes", tensor_message(["M8[s]", [1]], b"12345678"), "Invalid enum value"),
    ("a reference dtype", tensor_message(["float32_ref", [1]], b"1234"), "Invalid enum value"),
    ("dimension below zero", tensor_message(["int8", [-1]], b""), ">= 0"),
    ("dimension of another type", tensor_message(["int8", [1.0]], b"1"), "got `float`"),
    ("dimension of bool", tensor_message(["int8", [True]], b"1"), "got `bool`"),
    ("dimension too large", tensor_message(["int8", [MAX_DIM + 1, 0]], b""), "<= 1099511627776"),
    ("shape that overflows", tensor_message(["int8", HUGE], b""), "cannot be made"),
    ("shape that overflows here", values_message(["int8", HUGE], b""), "cannot be made"),
    ("rank too large", tensor_message(["int8", [1] * 65], b"1"), "length <= 64"),
    ("values too short", values_message(["float32", [2]], b"1234567"), "was announced"),
    ("values too long", values_message(["float32", [2]], b"123456789"), "was announced"),
    ("values of a bool", values_message(["bool", [3]], b"\0\1\2"), "neither 0 nor 1"),
    ("values of strings", values_message(["string", [3]], b"\0" * 11), "3 strings need 12 bytes"),
    ("values of strings that claim more", values_message(["string", [1]], b"\4\0\0\0abc"), "needs"),
    ("values of strings that claim less", values_message(["string", [1]], b"\2\0\0\0abc"), "1 bytes too many"),
    ("values of strings that overflow", values_message(["string", [2]], b"\xff" * 8), "needs"),
    ("lent to nobody", values_message(["int8", [1], "lent"], b"1" * 40), "cannot lie in shared memory here"),
    ("frame too short", tensor_message(["float32", [2]], b"1234567"), "needs 8 bytes, 7 came"),
    ("frame too long", tensor_message(["float32", [2]], b"123456789"), "needs 8 bytes, 9 came"),
    ("frame for nothing", tensor_message(["float32", [0]], b"1"), "needs 0 bytes"),
    ("bool that is neither", tensor_message(["bool", [3]], b"\0\1\2"), "neither 0 nor 1"),
    ("strings without lengths", tensor_message(["string", [3]], b"\0" * 11), "3 strings need 12 bytes"),
    ("strings that claim more", tensor_message(["string", [1]], b"\4\0\0\0abc"), "needs"),
    ("strings that claim less", tensor_message(["string", [1]], b"\2\0\0\0abc"), "needs"),
    ("strings that overflow", tensor_message(["string", [2]], b"\xff" * 8), "needs"),
    ("strings of nothing", tensor_message(["string", [0]], b"abc"), "needs"),
    ("strings of impossible shape", tensor_message(["string", HUGE], b""), "made"),
    ("graph without frame", extend(None), "1 frames announced, 0 came"),
    ("graph in the description", extend(b"1", b"1"), "unknown field `graph`"),
    ("graph and more", extend(None, b"1", b""), "1 frames announced, 2 came"),
]  # fmt: skip


@pytest.mark.parametrize(("frames", "says"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_a_malformed_message_is_refused(frames: list[bytes], says: str) -> None:
    for form in (frames, [memoryview(frame) for frame in frames]):
        with pytest.raises(WireError, match=says):
            decode(form)


def test_what_was_seen_before_is_checked_as_if_it_were_new() -> None:
    fields = {"step": 1, "channels": [1], "without": []}
    for _ in range(2):
        good = header(V, "tensors", fields, [["bool", [2], "here"], ["string", [1], "here"]])
        assert decode([good + b"\0\1" + b"\1\0\0\0x"]).tensors[1].tolist() == [b"x"]
        for values in (b"", b"\0\2" + b"\1\0\0\0x", b"\0\1" + b"\2\0\0\0x", b"\0\1" + b"\1\0\0\0xx"):
            with pytest.raises(WireError):
                decode([good + values])
        with pytest.raises(WireError, match="1 came"):
            decode([good + b"\0\1" + b"\1\0\0\0x", b""])
        with pytest.raises(WireError, match="numbers, 0 came"):
            decode([raw([], good[16:] + b"\0\1", size=len(good) - 16)])


def test_messages_do_not_share_their_fields() -> None:
    frames = encode(Message("done", {"request": 1, "fetches": ("a",)}, (np.zeros(1),)))
    decode(frames).fields["fetches"] = None
    assert decode(frames).fields == {"request": 1, "fetches": ["a"]}


def test_what_is_remembered_of_others_is_bounded() -> None:
    for i in range(2 * wire.MOST_REMEMBERED):
        assert decode(encode(Message("done", {"request": i, "fetches": (f"fetch {i}",)}))).fields["request"] == i
        assert max(len(wire._packed), len(wire._known)) <= wire.MOST_REMEMBERED
    before = set(wire._packed), set(wire._known)
    decode(encode(Message("done", {"request": 1, "fetches": ("x" * wire.LONGEST_REMEMBERED,)})))
    decode(encode(Message("abort", {"step": 1, "code": "no tensors", "reason": "of no step"})))
    assert (set(wire._packed), set(wire._known)) == before


def test_the_error_names_the_request_when_it_can_be_read() -> None:
    with pytest.raises(WireError) as caught:
        decode([header(V, "status", {"request": 41, "odd": 1}, [])])
    assert caught.value.request == 41


def test_a_hostile_header_costs_little_time() -> None:
    frames = [raw([], b"\x93\xa7waiting\x81\xa5tasks\x90" + b"\x90" * (wire.MAX_HEADER - 100))]
    start = time.perf_counter()
    with pytest.raises(WireError):
        decode(frames)
    assert time.perf_counter() - start < 1.0


# Whatever arrives: a message, or WireError.


def survive(frames: list[bytes]) -> None:
    try:
        message = decode(frames)
    except WireError:
        return
    # What passed is a message like any other: it can be printed, used and sent on.
    assert message.kind in KINDS
    repr(message)
    for tensor in message.tensors:
        tensor.tolist()
    assert decode([bytes(frame) for frame in encode(message)]).fields.keys() == message.fields.keys()


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_bytes_are_survived(frames: list[bytes]) -> None:
    survive(frames)


@given(st.binary(max_size=100), st.lists(st.binary(max_size=20), max_size=2))
def test_random_bytes_behind_a_good_start_are_survived(tail: bytes, frames: list[bytes]) -> None:
    survive([raw([1], tail), *frames])
    survive([bytes([0x94, V]) + tail, *frames])


@given(st.sampled_from([*KINDS, "exec"]), st.dictionaries(st.text(max_size=9), PLAIN), PLAIN, st.binary())
def test_random_values_in_a_good_header_are_survived(kind: str, fields: object, specs: object, frame: bytes) -> None:
    survive([header(V, kind, fields, specs), frame])


@settings(max_examples=400)
@given(messages(), st.data())
def test_mutated_messages_are_survived(message: Message, data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in encode(message)]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frames) - 1)) if frames else 0
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "drop", "double", "swap"]))
        if not frames:
            break
        frame = frames[at]
        place = data.draw(st.integers(0, len(frame)))
        if change == "flip" and place < len(frame):
            frame[place] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del frame[place:]
        elif change == "insert":
            frame[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        elif change == "drop":
            del frames[at]
        elif change == "double":
            frames.insert(at, bytearray(frame))
        elif change == "swap":
            frames.reverse()
    survive([bytes(frame) for frame in frames])


def test_bfloat16_keeps_its_values() -> None:
    (got,) = carry(np.array([1.5, -2, np.nan], ml_dtypes.bfloat16))
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), [1.5, -2, np.nan])
