"""Clusters that tests of the runtime share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def fresh_graph() -> Iterator[None]:
    """Each test builds in a default graph of its own."""
    with tf.Graph().as_default():
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[tf.LocalCluster]:
    """One ps and two workers in processes of their own; tests that kill tasks make their own cluster."""
    with tf.LocalCluster({"ps": 1, "worker": 2}) as running:
        yield running
