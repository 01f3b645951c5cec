"""The generator against the published vectors, its distributions against SciPy's, and its laws."""

import ml_dtypes
import numpy as np
import pytest
from scipy import stats

from dovetail.graph.core.philox import Stream, key_from, philox

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


# The rows "philox4x32 10" of kat_vectors in Random123, the authors' own library.
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_published_vectors(counter, key, words):
    c = np.array([int(w, 16) for w in counter.split()], np.uint32)
    k0, k1 = (int(w, 16) for w in key.split())
    assert " ".join(f"{w:08x}" for w in philox(c, (k0, k1))) == words


def test_a_block_does_not_depend_on_its_neighbours():
    counters = np.arange(40, dtype=np.uint32).reshape(10, 4)
    together = philox(counters, (7, 8))
    assert all((philox(c, (7, 8)) == t).all() for c, t in zip(counters, together, strict=True))


def test_words_count_blocks_in_the_lower_half_and_draws_in_the_upper():
    stream = Stream((5, 6), draw=(9 << 32) | 4)
    many = stream.words(4 * 20000 + 1)
    block = 17000  # beyond the first chunk
    assert (many[4 * block : 4 * block + 4] == philox(np.array([block, 0, 4, 9], np.uint32), (5, 6))).all()
    assert len(many) == 80001


def test_a_shorter_draw_is_a_prefix_of_a_longer_one():
    stream = Stream((1, 2), 3)
    for draw in (stream.uniform, stream.normal, stream.truncated_normal):
        for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
            assert (draw((1001,), dtype)[:37] == draw((37,), dtype)).all()


def test_keys_and_draws_give_other_numbers():
    seen = {Stream(key, draw).words(4).tobytes() for key in [(1, 2), (2, 1), (1, 3)] for draw in (0, 1, 1 << 32)}
    assert len(seen) == 9


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    x = Stream((11, 12)).uniform((200_000,), np.dtype(dtype))
    assert x.dtype == dtype
    wide = x.astype(np.float64)
    assert wide.min() >= 0
    assert wide.max() < 1
    # A coarse type has cells: compare with the uniform law after spreading each number over its cell.
    cell = 2.0 ** -(ml_dtypes.finfo(dtype).nmant + 1)
    spread = wide + cell * np.random.default_rng(0).random(len(wide))
    assert stats.kstest(spread, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal(dtype):
    x = Stream((13, 14)).normal((200_000,), np.dtype(dtype))
    assert x.dtype == dtype
    assert stats.kstest(x.astype(np.float64), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(x[0::2], x[1::2])[0, 1]) < 0.01  # the two numbers of a pair


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_truncated_normal(dtype):
    x = Stream((15, 16)).truncated_normal((200_000,), np.dtype(dtype))
    assert x.dtype == dtype
    assert np.abs(x).max() <= 2
    assert stats.kstest(x.astype(np.float64), stats.truncnorm(-2, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", FLOATS)
def test_narrow_types_are_the_wide_numbers_rounded(dtype):
    stream = Stream((3, 1))
    if dtype is not np.float64:  # rounding twice may differ from rounding once, rarely
        wide = stream.normal((999,), np.dtype(np.float32))
        assert (stream.normal((999,), np.dtype(dtype)) == wide.astype(dtype)).mean() > 0.98
    assert np.isfinite(stream.normal((9999,), np.dtype(dtype)).astype(float)).all()


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-3, 4, np.int32), (0, 6, np.int64), (250, 256, np.uint8), (-(2**31), 2**31 - 1, np.int32)],
)
def test_integers_are_even(low, high, dtype):
    x = Stream((17, 18)).integers((70_000,), low, high, np.dtype(dtype))
    assert x.dtype == dtype
    bins = min(high - low, 10)
    cells = ((x.astype(np.int64) - low) * bins) // (high - low)
    counts = np.bincount(cells, minlength=bins)
    assert len(counts) == bins
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("low", "high"), [(-(2**63), 2**63), (0, 2**63 + 12345678901), (2**63, 2**64)])
def test_integers_of_64_bits_are_exact_products(low, high):
    dtype = np.dtype(np.int64 if low < 0 else np.uint64)
    stream = Stream((1, 9))
    expected = [low + ((int(w) * (high - low)) >> 64) for w in stream.long_words(1000)]
    assert stream.integers((1000,), low, high, dtype).tolist() == expected


def test_permutation():
    p = Stream((19, 20)).permutation(1000)
    assert sorted(p) == list(range(1000))
    assert abs(stats.spearmanr(p, np.arange(1000)).statistic) < 0.1
    first = [Stream((19, 20), d).permutation(5)[0] for d in range(5000)]
    assert stats.chisquare(np.bincount(first)).pvalue > 1e-3


def test_keys_from_names():
    keys = {key_from(seed, name) for seed in (0, 1, 2**63) for name in ("a", "b", "a/b")}
    assert len(keys) == 9
    assert key_from(5, "x") == key_from(5, "x")
    assert all(0 <= w < 2**32 for key in keys for w in key)
