"""Each test of models builds in a graph of its own."""

from collections.abc import Iterator

import pytest

import dovetail as dt


@pytest.fixture(autouse=True)
def graph() -> Iterator[dt.Graph]:
    with dt.Graph().as_default() as fresh:
        dt.set_random_seed(1)
        yield fresh
