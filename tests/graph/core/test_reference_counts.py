"""Counts of references: an object that one place refers to, and one that a second place does, too, on this Python."""

from sys import getrefcount
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.graph.core.reference_counts import ONLY_ATTRIBUTE, ONLY_ITEM
from dovetail.graph.resources.buffer_pool import LARGE, Buffers


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize("make", [Slotted, lambda value: SimpleNamespace(value=value)], ids=["slot", "dictionary"])
def test_attributes(make: Any) -> None:
    x = make(bytearray(1))
    alone = [getrefcount(x.value) for _ in range(200)]  # the interpreter specialises what it runs often
    other = x.value
    shared = getrefcount(x.value)
    del other
    assert set(alone) == {ONLY_ATTRIBUTE} and shared > ONLY_ATTRIBUTE


def test_items() -> None:
    items = [bytearray(1) for _ in range(200)]
    assert all(getrefcount(items[i]) == ONLY_ITEM for i in range(len(items)))
    other = items[7]
    assert [i for i in range(len(items)) if getrefcount(items[i]) > ONLY_ITEM] == [7] and other is items[7]


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    pool = Buffers()
    first = pool.empty((LARGE,), np.dtype(np.uint8))
    address = first.ctypes.data
    second = pool.empty((LARGE,), first.dtype)
    assert second.ctypes.data != address
    del first
    assert pool.empty((LARGE,), second.dtype).ctypes.data == address
