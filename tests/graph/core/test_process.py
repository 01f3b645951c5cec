"""Which process this is."""

from __future__ import annotations

import os

import pytest

from dovetail.graph.core.interpreter_state import process_id


def test_it_is_this_one() -> None:
    assert process_id() == os.getpid()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_knows_that_it_is_another_one() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if process_id() == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert process_id() == os.getpid()
