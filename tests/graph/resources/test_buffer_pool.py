"""Memory of results: used again when nobody holds the result any more, and never before."""

import threading
from typing import Any

import numpy as np

from dovetail.graph.resources.buffer_pool import LARGE, Buffers

FLOAT = np.dtype(np.float32)


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_once_its_result_is_gone() -> None:
    buffers = Buffers()
    first = buffers.empty((1024, 1024), FLOAT)
    where = address(first)
    second = buffers.empty((1024, 1024), FLOAT)
    assert address(second) != where
    del first
    assert address(buffers.empty((512, 1500), FLOAT)) == where


def test_results_begin_with_a_line_of_the_cache() -> None:
    buffers = Buffers()
    held = [buffers.empty((LARGE + i,), FLOAT) for i in range(5)]
    assert {address(a) % 64 for a in held} == {0}


def test_a_view_keeps_the_memory() -> None:
    buffers = Buffers()
    view = buffers.empty((1024, 1024), FLOAT)[3:5].T
    view[...] = 7
    for _ in range(3):
        buffers.empty((1024, 1024), FLOAT)[...] = 0
    assert np.all(view == 7)


def test_a_memoryview_of_a_message_keeps_the_memory() -> None:
    buffers = Buffers()
    array = buffers.empty((1024, 1024), FLOAT)
    array[...] = 7
    frame = memoryview(array).cast("B")
    del array
    buffers.empty((1024, 1024), FLOAT)[...] = 0
    assert np.all(np.frombuffer(frame, FLOAT) == 7)


def test_small_arrays_own_their_memory() -> None:
    array = Buffers().empty((10,), FLOAT)
    assert array.base is None
    assert array.shape == (10,)
    assert Buffers().empty((LARGE,), np.dtype(bool)).base is not None


def test_no_more_is_kept_than_said() -> None:
    buffers = Buffers(kept=3 * LARGE)
    held = [buffers.empty((LARGE,), np.dtype(np.uint8)) for _ in range(5)]
    assert [a.base is not None for a in held] == [True, True, True, False, False]
    del held
    big = buffers.empty((3 * LARGE,), np.dtype(np.uint8))
    assert big.base is not None
    assert buffers.kept_bytes == 3 * LARGE


def test_nearly_equal_sizes_share() -> None:
    buffers = Buffers()
    for size in (5 * LARGE, 5 * LARGE - 100, 5 * LARGE - 1000):
        buffers.empty((size,), np.dtype(np.uint8))
    assert buffers.kept_bytes == 5 * LARGE


def test_threads_never_share() -> None:
    buffers = Buffers()
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            array = buffers.empty((LARGE,), np.dtype(np.uint8))
            array[:: LARGE // 16] = number
            if not np.all(array[:: LARGE // 16] == number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
