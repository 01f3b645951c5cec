"""Changed messages at the decoder, on streams and at a running server: see `fuzz_wire.py`, which throws a million."""

from __future__ import annotations

import pytest
from fuzz_wire import Frames, fuzz_decode, fuzz_server, fuzz_stream, record

from dovetail.runtime.wire.messages import decode
from dovetail.runtime.wire.schema import KINDS


@pytest.fixture(scope="module")
def corpus() -> list[Frames]:
    return record()


def test_every_kind_of_message_is_in_the_corpus(corpus: list[Frames]) -> None:
    assert {decode(frames).kind for frames in corpus if len(frames[0]) < 4_096} >= set(KINDS)


@pytest.mark.slow
def test_the_decoder_survives_changed_messages(corpus: list[Frames]) -> None:
    outcomes = fuzz_decode(corpus, 30_000, seed=1)
    assert min(outcomes.values()) > 1_000  # enough of both: changes are neither harmless nor hopeless


@pytest.mark.slow
def test_a_stream_survives_changed_bytes(corpus: list[Frames]) -> None:
    outcomes = fuzz_stream(corpus, 5_000, seed=1)
    assert outcomes["messages"] > 500 and outcomes["ended"] > 500


@pytest.mark.slow
def test_a_server_survives_changed_messages(corpus: list[Frames]) -> None:
    outcomes = fuzz_server(corpus, 20_000, seed=1)
    assert outcomes["sent"] == 20_000 and outcomes["answers"] > 500 and outcomes["steps"] > 50
