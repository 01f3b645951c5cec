"""Several arrays as one flat one that nobody makes."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.runtime.collectives.shared_memory_algorithms import GatherList


@pytest.mark.parametrize("seed", range(10))
def test_what_lies_between_is_what_the_arrays_joined_have_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [rng.random(tuple(rng.integers(0, 5, rng.integers(1, 4)))) for _ in range(rng.integers(1, 6))]
    joined = np.concatenate([v.reshape(-1) for v in values])
    pieces = GatherList(values)
    assert (pieces.size, pieces.dtype, pieces.nbytes) == (joined.size, joined.dtype, joined.nbytes)
    for begin in range(joined.size + 1):
        for end in range(begin, joined.size + 1):
            found = list(pieces.between(begin, end))
            starts = np.cumsum([0, *[part.size for _, part in found]])
            assert [at for at, _ in found] == starts[:-1].tolist() and starts[-1] == end - begin
            place = np.empty(end - begin)
            pieces.copy_to(place, begin)
            np.testing.assert_array_equal(place, joined[begin:end])
            assert all(any(np.shares_memory(part, v) for v in values) for _, part in found)  # nothing was copied


def test_an_array_that_is_not_contiguous_is_copied() -> None:
    value = np.arange(12.0).reshape(3, 4).T
    ((_, part),) = GatherList([value]).between(0, 12)
    np.testing.assert_array_equal(part, value.reshape(-1))
