"""Graphs, clusters and GPUs that tests of the runtime share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import dovetail as tf

if TYPE_CHECKING:
    from fake_driver import FakeDriver


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


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    """A GPU that is a stand-in, with kernels that are interpreted."""
    from gpu_programs import interpreted_gpus  # which few of the tests here need

    with interpreted_gpus() as made:
        yield made


@pytest.fixture
def launch_by_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches do not become CUDA graphs."""
    monkeypatch.setenv("DOVETAIL_CUDA_GRAPHS", "0")
