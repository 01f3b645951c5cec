"""Holding the cycle collector back while a large graph is made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.graph.core.interpreter_state import collector_paused


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    """As in a program; all tests together have frozen what there was when they began."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def is_old(thing: Any) -> bool:
    return any(x is thing for x in gc.get_objects(generation=2))


def test_it_is_off_inside_and_as_before_afterwards() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_many_objects_that_were_made_meanwhile_are_old_at_once() -> None:
    with collector_paused():
        made = [[i] for i in range(100_000)]
    assert is_old(made[0]) and is_old(made[-1])
    assert gc.get_freeze_count() < 1_000  # Python 3.12 freezes some hundred itself


def test_what_the_program_has_frozen_stays_frozen() -> None:
    many = [[i] for i in range(10_000)]
    gc.freeze()
    try:
        with collector_paused():
            made = [[i] for i in range(100_000)]
        assert gc.get_freeze_count() > len(many)  # a frozen object of another thread may have ended
        assert not is_old(many[0]) and len(made)
    finally:
        gc.unfreeze()
