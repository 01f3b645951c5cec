"""Variables that are found by one call, and found anew when their container was cleared."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.ir.program import Call, Loop, Program
from dovetail.codegen.lower.hoist_handles import CachedHandles, hoist_handles
from dovetail.codegen.reference import NumpyBackend
from dovetail.graph.core.source_location import UNKNOWN
from dovetail.graph.resources.resource_manager import Context, Resources, SessionState
from dovetail.runtime.session.local_backend import LocalBackend


def handle(slot: int, name: str, resources: Resources, frees: tuple[int, ...] = ()) -> Call:
    with dt.Graph().as_default():
        node = dt.Variable(np.zeros(2, np.float32), name=name).op
    kernel = NumpyBackend().kernel(node, Context(name, "", resources, SessionState()))
    return Call(kernel, (), (slot,), frees, name, node.type, UNKNOWN)


def other(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Call:
    return Call(lambda *x: x[0], inputs, outputs, (), "n", "Identity", UNKNOWN)


def program(*instructions: Call | Loop) -> Program:
    return Program("/cpu:0", instructions, (None,) * 9, (), ())


def test_places_are_found_where_the_first_of_them_stood() -> None:
    here = Resources()
    steps = other((), (7,)), handle(0, "a", here), other((0,), (1,)), handle(2, "b", here), other((2,), (3,))
    made = hoist_handles(program(*steps)).instructions
    assert made[0] is steps[0] and made[2:] == (steps[2], steps[4])
    (places,) = made[1:2]
    assert isinstance(places, Call) and isinstance(places.kernel, CachedHandles)
    assert (places.inputs, places.outputs, places.op) == ((), (0, 2), "Places of 2 variables")
    a, b = places.kernel()
    assert (a.name, b.name) == ("a", "b") and places.kernel() == (a, b)
    assert here.clear("") and places.kernel()[0] is not a


def test_what_may_not_be_put_together_stays() -> None:
    here = Resources()
    for steps in (
        (handle(0, "a", here),),
        (handle(0, "a", here), handle(1, "b", Resources())),  # of another session
        (handle(0, "a", here), handle(1, "b", here, frees=(1,))),
        (handle(0, "a", here), other((1,), (2,)), handle(1, "b", here)),  # the slot holds something else before
    ):
        assert hoist_handles(program(*steps)).instructions == steps
    loop = Loop("l", (), (), (handle(0, "a", here), handle(1, "b", here)), 2, (), (), (), ())
    (inside,) = hoist_handles(program(loop)).instructions
    assert isinstance(inside, Loop) and len(inside.head) == 1


def test_what_was_found_while_a_container_was_cleared_is_not_kept() -> None:
    here = Resources()
    key = handle(0, "a", here).kernel
    version = here.version
    here.clear("")
    here.keep_together(key, "old", version)
    assert key not in here.together


def test_a_session_finds_its_variables_anew_after_its_container_was_cleared() -> None:
    with dt.Graph().as_default() as graph:
        total = dt.Variable([1.0, 2.0], name="a") + dt.Variable([3.0, 4.0], name="b")
        start = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(start)
        for _ in range(3):
            assert session.run(total).tolist() == [4.0, 6.0]
        target = session._backend
        assert isinstance(target, LocalBackend)
        (resources,) = {s.resources for s in target._worker._sessions.values()}
        gone = weakref.ref(resources.find("localhost", "a"))
        target._worker.reset(["localhost"], [])
        gc.collect()
        assert gone() is None
        with pytest.raises(dt.errors.FailedPreconditionError, match="uninitialized value a"):
            session.run(total)
        session.run(start)
        assert session.run(total).tolist() == [4.0, 6.0]
