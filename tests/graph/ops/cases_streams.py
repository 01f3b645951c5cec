"""Random draws in two steps: what comes out is what the whole ops draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_table import ScriptCase
from reference_interpreter import Interpreter

from dovetail.graph.core.build import apply, constant, placeholder
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.dtypes import FLOATS
from dovetail.graph.core.graph import Tensor
from dovetail.graph.core.philox import Stream, key_from
from dovetail.graph.ops.random import stateless_random
from dovetail.graph.resources.resource_manager import SessionState


def _create(op: str, inputs: tuple[Tensor, ...], attrs: dict[str, Any], name: str) -> Any:
    return get_default_graph().create(op, inputs, attrs, name=name)


def _streams() -> None:
    given = _create("RandomStream", (), {"seed": 7, "seed2": 2**31}, "given").outputs
    free = _create("RandomStream", (), {"seed": 0, "seed2": 0}, "free").outputs
    shape = constant([3, 5])
    run = Interpreter(get_default_graph(), session_state=SessionState(4), check=True).run
    for op, draw in (("UniformOfStream", Stream.uniform), ("NormalOfStream", Stream.normal)):
        for dtype in FLOATS:
            made = [_create(op, (shape, *s), {"dtype": dtype}, f"{op}_{dtype.name}").outputs[0] for s in (given, free)]
            assert [(t.dtype, t.dims) for t in made] == [(dtype, (3, 5))] * 2
            values = run([*made, given[1]])
            step = int(values[2])
            for value, key in zip(values, ((7, 2**31), key_from(4, "free")), strict=False):
                np.testing.assert_array_equal(value, draw(Stream(key, step), (3, 5), dtype.np))
    assert step == 2 * len(FLOATS) - 1


def _seeded() -> None:
    seed = constant(np.array([2**40 + 3, -5]))
    key, draw = _create("SeededStream", (seed,), {}, "seeded").outputs
    shape = constant([33])
    mine = apply("UniformOfStream", (shape, key, draw), {"dtype": FLOATS[0]})
    theirs = stateless_random.stateless_random_uniform(shape, seed, dtype=FLOATS[0])
    run = Interpreter(get_default_graph(), check=True).run
    np.testing.assert_array_equal(*run([mine, theirs]))


def _errors() -> None:
    key = constant(np.uint64(1))
    with pytest.raises(TypeError, match="the draw must be uint64, not int64"):
        apply("UniformOfStream", (constant([2]), key, constant(np.int64(1))), {"dtype": FLOATS[0]})
    with pytest.raises(ValueError, match="the key"):
        apply("NormalOfStream", (constant([2]), placeholder("uint64", [2]), key), {"dtype": FLOATS[0]})
    with pytest.raises(ValueError, match="attr seed must be an int of 32 bits"):
        _create("RandomStream", (), {"seed": -1, "seed2": 0}, "bad")


CASES = [
    ScriptCase(("RandomStream", "UniformOfStream", "NormalOfStream"), _streams, "random streams"),
    ScriptCase(("SeededStream", "UniformOfStream"), _seeded, "seeded streams"),
    ScriptCase((), _errors, "random streams' errors"),
]
