"""The verifier, which runs between passes in all tests, finds what a broken pass leaves, and names the pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import dovetail as dt
from dovetail.codegen import pipeline
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.pipeline import Compilation, Pass
from dovetail.graph.core.errors import InternalError


def graph_pass(change: Callable[[PartitionGraph], PartitionGraph]) -> Callable[[Compilation], None]:
    def run(c: Compilation) -> None:
        c.graph = change(c.graph)

    return run


def program_pass(change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[[Compilation], None]:
    def run(c: Compilation) -> None:
        assert c.program is not None
        c.program = replace(c.program, instructions=change(c.program.instructions))

    return run


def freed_too_early(steps: tuple[Any, ...]) -> tuple[Any, ...]:
    last = steps[-1]
    return (*steps[:-2], replace(steps[-2], frees=(*steps[-2].frees, last.inputs[0])), last)


BROKEN = {
    "steps in another order": (
        "rewriting",
        graph_pass(lambda g: replace(g, steps=tuple(reversed(g.steps)))),
        "which a later step makes",
    ),
    "a fetched step is gone": ("rewriting", graph_pass(lambda g: replace(g, steps=g.steps[:-1])), "which is fetched"),
    "a step is there twice": ("rewriting", graph_pass(lambda g: replace(g, steps=g.steps * 2)), "made by two steps"),
    "instructions in another order": (
        "send buffers",
        program_pass(lambda steps: tuple(reversed(steps))),
        "which is empty there",
    ),
    "a slot is freed too early": ("send buffers", program_pass(freed_too_early), "which is empty there"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_pass_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    after, run, message = BROKEN[what]
    given = pipeline.passes_of

    def passes(backend: Any) -> tuple[Pass, ...]:
        listed = given(backend)
        at = [p.name for p in listed].index(after) + 1
        return (*listed[:at], Pass("a broken one", run), *listed[at:])

    monkeypatch.setattr(pipeline, "passes_of", passes)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [3])
        y = dt.cumsum(dt.nn.top_k(dt.cumsum(x), 2)[0])
        with dt.Session() as session, pytest.raises(InternalError, match=f"'a broken one' is broken.*{message}"):
            session.run(y, {x: [1.0, 2.0, 3.0]})
