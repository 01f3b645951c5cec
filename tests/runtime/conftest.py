"""Graphs, clusters and GPUs that tests of the runtime share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from other_process import OtherProcess

import dovetail as tf
from dovetail.graph.resources import shared_storage
from dovetail.runtime.shared_memory.pool import Pool

if TYPE_CHECKING:
    from echoing import Connection
    from gpu_backends import RecordedDriver

    from dovetail.runtime.transport.endpoint import Endpoint


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
def fake() -> Iterator[RecordedDriver]:
    """A GPU: a stand-in, or a real one (`tests/gpu/gpu_backends.py`)."""
    from gpu_programs import gpus_with_kernels  # which few of the tests here need

    with gpus_with_kernels() as made:
        yield made


@pytest.fixture
def two_gpus() -> Iterator[RecordedDriver]:
    """Two of them."""
    from gpu_programs import gpus_with_kernels

    with gpus_with_kernels(2) as made:
        yield made


@pytest.fixture
def launch_by_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches do not become CUDA graphs."""
    monkeypatch.setenv("DOVETAIL_CUDA_GRAPHS", "0")


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Memory of its own for the variables of a test."""
    used, made = list(shared_storage._used), Pool(64 << 20)
    shared_storage.use(made)
    yield made
    shared_storage._used[:] = used
    made.close()


@pytest.fixture
def other_process() -> Iterator[Callable[..., OtherProcess]]:
    """What starts other processes, which end with the test."""
    made: list[OtherProcess] = []

    def make(program: str, *given: str) -> OtherProcess:
        made.append(OtherProcess(program, *given))
        return made[-1]

    yield make
    for other in made:
        other.close()


@pytest.fixture
def echo() -> Iterator[Endpoint]:
    """A server's end that answers each message with itself."""
    from dovetail.runtime.transport.endpoint import Endpoint

    with Endpoint("localhost:0", lambda peer, message: endpoint.reply(peer, message)) as endpoint:
        yield endpoint


@pytest.fixture
def client(echo: Endpoint) -> Iterator[Connection]:
    """A connection to it."""
    from echoing import Connection

    with Connection(echo.address) as connection:
        yield connection
