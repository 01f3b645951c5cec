"""Text: what TensorFlow 2.21 answers to the same questions, properties of buckets, what is refused."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.farmhash import fingerprint, hash64, hashes, keyed_hash


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def run(fetches):
    with tf.Session() as session:
        return session.run(fetches)


def plain(value):
    return [plain(v) for v in value] if isinstance(value, tuple) else np.asarray(value).tolist()


ANSWERS = {
    "floats": (lambda: tf.as_string([1.5, -2, float("inf"), 1e10]), [b"1.500000", b"-2.000000", b"inf", b"10000000000.000000"]),
    "zeros": (lambda: tf.as_string([1.5, -22.25], precision=2, width=8, fill="0"), [b"00001.50", b"-0022.25"]),
    "scientific": (lambda: tf.as_string([1234.5], scientific=True, precision=3), [b"1.234e+03"]),
    "shortest": (lambda: tf.as_string([1234567.5, 0.1], shortest=True), [b"1.23457e+06", b"0.1"]),
    "truth": (lambda: tf.as_string([True, False]), [b"true", b"false"]),
    "blanks": (lambda: tf.as_string([3, -4], width=5), [b"    3", b"   -4"]),
    "left": (lambda: tf.as_string(np.array([7]), width=4, fill="-"), [b"7   "]),
    "signed zeros": (lambda: tf.as_string([-5], width=4, fill="0"), [b"-005"]),
    "zeros before digits": (
        lambda: tf.as_string([-1.5, float("inf"), -float("inf"), float("nan")], precision=1, width=5, fill="0"),
        [b"-01.5", b"  inf", b" -inf", b"  nan"],
    ),
    "truth is not padded": (lambda: tf.as_string([True, False], width=7), [b"true", b"false"]),
    "numbers": (lambda: tf.string_to_number(["1", "-2.5", " 3 ", "1e3"]), [1.0, -2.5, 3.0, 1000.0]),
    "whole numbers": (lambda: tf.string_to_number(["7"], tf.int64), [7]),
    "no number": (lambda: tf.string_to_number(["x"]), "could not correctly convert string: x"),
    "nothing": (lambda: tf.string_to_number([""]), "could not correctly convert string"),
    "joined": (lambda: tf.string_join(["a", ["b", "c"]], separator="-"), [b"a-b", b"a-c"]),
    "added": (lambda: tf.constant([["a"], ["b"]]) + np.array(["x", "y"]), [[b"ax", b"ay"], [b"bx", b"by"]]),
    "all": (lambda: tf.reduce_join([["a", "b"], ["c", "d"]]), b"abcd"),
    "in order": (lambda: tf.reduce_join([["a", "b"], ["c", "d"]], [0, 1], separator=","), b"a,c,b,d"),
    "kept": (lambda: tf.reduce_join([["a", "b"], ["c", "d"]], -1, keep_dims=True), [[b"ab"], [b"cd"]]),
    "words": (lambda: tf.string_split(["a b  c", ""]), [[[0, 0], [0, 1], [0, 2]], [b"a", b"b", b"c"], [2, 3]]),
    "characters end": (lambda: tf.string_split(["a,b;c,,"], ",;"), [[[0, 0], [0, 1], [0, 2]], [b"a", b"b", b"c"], [1, 3]]),
    "bytes": (lambda: tf.string_split(["ab"], ""), [[[0, 0], [0, 1]], [b"a", b"b"], [1, 2]]),
    "empty words": (
        lambda: tf.string_split(["a  b", "", " "], skip_empty=False),
        [[[0, 0], [0, 1], [0, 2], [2, 0], [2, 1]], [b"a", b"", b"b", b"", b""], [3, 3]],
    ),
    "any blanks": (lambda: tf.strings.split(["a b  c ", ""]), [[[0, 0], [0, 1], [0, 2]], [b"a", b"b", b"c"], [2, 3]]),
    "most": (lambda: tf.strings.split(["a::b::c"], sep="::", maxsplit=1), [[[0, 0], [0, 1]], [b"a", b"b::c"], [1, 2]]),
    "part": (lambda: tf.substr(["hello", "ab"], 1, 3), [b"ell", b"b"]),
    "from the end": (lambda: tf.substr("hello", -3, 2), b"ll"),
    "outside": (lambda: tf.substr("abc", 5, 1), "pos 5 out of range for string 'abc'"),
    "character": (lambda: tf.substr("häö", 1, 1, unit="UTF8_CHAR"), "ä".encode()),
    "each its own": (lambda: tf.substr(["abcd", "efgh"], [0, 3], [2, 9]), [b"ab", b"h"]),
    "replaced": (lambda: tf.regex_replace(["aabbaa", "x"], "a+", r"<\0>"), [b"<aa>bb<aa>", b"x"]),
    "groups": (lambda: tf.regex_replace("a1b2", "([a-z])([0-9])", r"\2\1", replace_global=False), b"1ab2"),
    "empty": (lambda: tf.regex_replace(["abc", "", "äb"], "", "x"), [b"xaxbxcx", b"x", "xäxbx".encode()]),
    "stars": (lambda: tf.regex_replace("baaac", "a*", "<\\0>"), b"<>b<aaa>c<>"),
    "beginnings": (lambda: tf.regex_replace("aaa", "^a", "b"), b"baa"),
    "classes": (lambda: tf.regex_replace("AbCdE", r"\p{Ll}", r"\\."), b"A\\.C\\.E"),
    "tensors": (lambda: tf.regex_replace("aXb", tf.constant("[A-Z]"), tf.constant(r"\0\0")), b"aXXb"),
    "match_tensors": (lambda: tf.strings.regex_full_match([["abc"], ["d"]], tf.constant("[a-c]+")), [[True], [False]]),
    "linear": (lambda: tf.strings.regex_full_match("a" * 5_000 + "b", "(a+)+$"), False),
    "match": (lambda: tf.strings.regex_full_match(["abc", "abcd"], "[a-c]+"), [True, False]),
    "stripped": (lambda: tf.string_strip(["  a b ", "\tc\n"]), [b"a b", b"c"]),
    "length": (lambda: tf.strings.length(["häö", ""]), [5, 0]),
    "characters": (lambda: tf.strings.length(["häö"], unit="UTF8_CHAR"), [3]),
    "hexadecimal": (lambda: tf.string_to_number(["0xF", "-0x1p3"], tf.float64), [15.0, -8.0]),
    "no axes": (lambda: tf.reduce_join([["a", "b"]], [], keep_dims=True), [[b"a", b"b"]]),
    "axes of a tensor": (lambda: tf.reduce_join([["a", "b"]], tf.constant([1])), [b"ab"]),
    "small letters": (lambda: tf.strings.lower(["ÓËz"], encoding="utf-8"), ["óëz".encode()]),
    "capital letters": (lambda: tf.strings.upper(["óëz"], encoding="utf-8"), ["ÓËZ".encode()]),
    "padded in part": (lambda: tf.decode_base64(["YQ="]), "Invalid base64"),
    "another alphabet": (lambda: tf.decode_base64(["a+b/"]), "Invalid base64"),
    "small": (lambda: tf.strings.lower(["ABc"]), [b"abc"]),
    "capital": (lambda: tf.strings.upper(["aBc"]), [b"ABC"]),
    "base64": (lambda: tf.encode_base64(["a\xff?>", "ab"]), [b"YcO_Pz4", b"YWI"]),
    "filled up": (lambda: tf.encode_base64(["a"], pad=True), [b"YQ=="]),
    "back": (lambda: tf.decode_base64(["YQ", "YWI="]), [b"a", b"ab"]),
    "no base64": (lambda: tf.decode_base64(["!"]), "Invalid base64"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_tensorflows(name):
    ask, wanted = ANSWERS[name]
    if isinstance(wanted, str):
        with pytest.raises(tf.errors.InvalidArgumentError, match=wanted):
            run(ask())
    else:
        assert plain(run(ask())) == wanted


FIRST = [3, 5, 0, 2, 1, 6]


def test_buckets_are_spread_and_depend_on_the_key():
    words = [f"word {i}" for i in range(2000)]
    fast, first, keyed, other = run([
        tf.string_to_hash_bucket_fast(words, 7), tf.strings.to_hash_bucket(words, 7),
        tf.string_to_hash_bucket_strong(words, 7, [1, 2]), tf.string_to_hash_bucket_strong(words, 7, [1, 3]),
    ])  # fmt: skip
    assert fast[:6].tolist() == FIRST  # written down once: they stay so in all processes and versions
    for buckets in (fast, first, keyed, other):
        assert np.bincount(buckets, minlength=7).min() > 200
    assert len({tuple(b) for b in (fast, first, keyed, other)}) == 4


def test_hashes_are_the_published_ones():
    assert [hash64(t) for t in (b"a", b"b")] == [2996632905371535868, 5795986006276551370]
    key = tuple(int.from_bytes(bytes(range(i, i + 8)), "little") for i in (0, 8))
    assert keyed_hash(bytes(range(15)), key) == 0xA129CA6149BE45E5  # the example of SipHash's authors
    assert run(tf.string_to_hash_bucket(["a", "b"], 10)).tolist() == [8, 0]


def test_delimiters_may_come_late():
    ends = tf.placeholder(tf.string, [])
    with tf.Session() as session:
        found = session.run(tf.string_split(["a|b,c"], ends).values, {ends: "|"})
        assert found.tolist() == [b"a", b"b,c"]
    with pytest.raises(ValueError, match="rank 0"):
        tf.string_split(["a"], ["|", ""])


def test_texts_are_added():
    with tf.Session() as session:
        assert session.run(tf.constant(["a", "b"]) + "c").tolist() == [b"ac", b"bc"]
        added = tf.scatter_nd([[1], [1], [0]], ["a", "b", "c"], [3])
        assert session.run(added).tolist() == [b"c", b"ab", b""]


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda: tf.string_to_hash_bucket_fast(["a"], 0), ValueError, "at least 1"),
        (lambda: tf.string_to_hash_bucket_strong(["a"], 3, [1]), ValueError, "two numbers"),
        (lambda: tf.string_to_hash_bucket_fast([1], 3), TypeError, "text"),
        (lambda: tf.string_to_number(["1"], tf.int8), TypeError, "out_type"),
        (lambda: tf.as_string([1], precision=2), ValueError, "for floats"),
        (lambda: tf.as_string([1.0], scientific=True, shortest=True), ValueError, "both"),
        (lambda: tf.as_string([1.0], fill="ab"), ValueError, "fill"),
        (lambda: tf.regex_replace("a", ["("], ""), ValueError, "scalar"),
        (lambda: tf.regex_replace("a", 1, ""), TypeError, "Expected text"),
        (lambda: tf.strings.length("a", unit="WORDS"), ValueError, "unit"),
        (lambda: tf.string_split([["a"]]), ValueError, "a vector"),
        (lambda: tf.strings.split(["a"], result_type="RaggedTensor"), ValueError, "ragged"),
        (lambda: tf.string_join([["a"], ["b", "c"]]), ValueError, "not compatible"),
        (lambda: tf.substr(["a", "b"], [0], [1, 1]), ValueError, "not compatible"),
        (lambda: tf.strings.lower("a", encoding="latin"), ValueError, "encoding"),
        (lambda: tf.string_join([]), ValueError, "nothing to join"),
        (lambda: tf.substr("a", 0.5, 1), TypeError, "int32 or int64"),
    ],
)
def test_what_is_refused(ask, error, text):
    with pytest.raises(error, match=text):
        ask()


@pytest.mark.parametrize("pattern", ["A[", tf.constant])
@pytest.mark.parametrize(
    ("rewrite", "text"),
    [("x", "Invalid pattern: A., error: missing"), (r"\2", "Invalid rewrite"), ("\\", "Invalid rewrite")],
)
def test_patterns_and_rewrites_that_are_none(pattern, rewrite, text):
    wrong = "A[" if rewrite == "x" else "A(.)"
    x = tf.regex_replace("A", wrong if isinstance(pattern, str) else pattern(wrong), rewrite)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(x)


def test_texts_are_joined_along_axes_that_only_the_step_knows():
    axes = tf.placeholder(tf.int32)
    joined = tf.reduce_join([["a", "b"], ["c", "d"]], axes)
    assert joined.shape.ndims is None
    assert tf.reduce_join([["a", "b"]], axes, keep_dims=True).shape.as_list() == [None, None]
    with tf.Session() as session:
        for given, expected in ((0, [b"ac", b"bd"]), ([1], [b"ab", b"cd"]), ([1, 0], b"abcd"), ([0, 1], b"acbd")):
            np.testing.assert_array_equal(session.run(joined, {axes: given}), np.array(expected, object))
        for given, text in ((-3, "Invalid reduction dimension"), ([0, -2], "Duplicate reduction dimension")):
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                session.run(joined, {axes: given})


def test_shapes_are_known():
    x = tf.placeholder(tf.string, [None, 3])
    assert tf.string_join([x, "a"]).shape.as_list() == [None, 3]
    assert tf.reduce_join(x, 1).shape.as_list() == [None]
    assert tf.reduce_join(x, 1, keep_dims=True).shape.as_list() == [None, 1]
    assert tf.reduce_join(x).shape.as_list() == []
    assert tf.substr(x, 0, 1).shape.as_list() == [None, 3]
    assert tf.string_split(tf.placeholder(tf.string, [None])).values.shape.as_list() == [None]


@pytest.mark.parametrize(
    "hashed", [fingerprint, hash64, partial(keyed_hash, key=(1 << 63, 7))], ids=["fast", "old", "keyed"]
)
def test_hashes_of_many_strings_are_those_of_each(hashed) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.bytes(length) for length in range(200) for _ in range(20 if length % 3 else 3)]
    rng.shuffle(texts)
    texts += [b"\xff" * length for length in range(150)]
    assert hashes(texts, hashed).tolist() == [hashed(text) for text in texts]
    assert hashes([], hashed).shape == (0,)
