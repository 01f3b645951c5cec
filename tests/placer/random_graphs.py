"""Random graphs on random devices, and what one step of them asks for."""

import numpy as np
from hypothesis import strategies as st

import dovetail as dt
from dovetail.graph.core.opdef import define

define(
    "PartitionTwo",
    infer=lambda i, a: [(i[0].dtype.base, i[0].dims)] * 2,
    reference=lambda x: (x, x),
)

A0, A1 = (f"/job:a/replica:0/task:0/device:CPU:{i}" for i in (0, 1))
B0, B1 = (f"/job:b/replica:0/task:0/device:CPU:{i}" for i in (0, 1))
C0 = "/job:c/replica:0/task:0/device:CPU:0"
KINDS = ["const", "placeholder", "add", "add", "add", "two", "no_op", "var", "change", "raw"]


@st.composite
def placed_graphs(draw, devices=(A0, A1, B0, B1, C0), flow=False):
    """A random graph on random devices, with variables and late control edges, and what one step asks for.

    With `flow`, it has loops and branches whose bodies are on devices of their own.
    """
    kinds = [*KINDS, "loop", "branch"] if flow else KINDS
    with dt.Graph().as_default() as g:
        tensors, nodes, variables = [], [], []
        for i in range(draw(st.integers(1, 24))):
            with g.device(draw(st.sampled_from(devices))):
                kind = draw(st.sampled_from(kinds))
                before = draw(st.lists(st.sampled_from(nodes), max_size=2)) if nodes else []
                with g.control_dependencies(before):
                    if kind == "placeholder":
                        made = dt.placeholder("float32", [2], name=f"p{i}").op
                    elif kind == "no_op":
                        made = dt.no_op(f"n{i}")
                    elif kind == "var":
                        variables.append(dt.Variable(np.zeros(2, "float32"), name=f"v{i}"))
                        made = variables[-1].value().op
                    elif kind == "change" and variables and tensors:
                        v = draw(st.sampled_from(variables))
                        made = dt.assign_add(v, draw(st.sampled_from(tensors)), name=f"u{i}").op
                    elif kind == "raw" and variables:
                        made = g.create("Identity", [draw(st.sampled_from(variables)).handle], {}, f"r{i}")
                    elif kind in ("loop", "branch") and tensors:
                        made = _steered(kind, draw(st.sampled_from(tensors)), draw(st.sampled_from(devices))).op
                    elif kind == "two" and tensors:
                        made = g.create("PartitionTwo", [draw(st.sampled_from(tensors))], {}, f"t{i}")
                    elif kind == "add" and tensors:
                        made = dt.add(draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors)), name=f"a{i}").op
                    else:
                        made = dt.constant(np.ones(2, "float32"), name=f"c{i}").op
            nodes.append(made)
            tensors += [t for t in made.outputs if t.dtype is dt.float32]
        for _ in range(draw(st.integers(0, 2))):
            late, early = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
            try:
                early._add_control_input(late)
            except ValueError:  # it would close a cycle
                continue
        fetches = draw(st.lists(st.sampled_from(tensors), max_size=3)) if tensors else []
        targets = draw(st.lists(st.sampled_from(nodes), max_size=3))
        feeds = draw(st.lists(st.sampled_from(tensors), max_size=3, unique_by=id)) if tensors else []
    return g, fetches, targets, feeds


def _steered(kind, x, device):
    """A loop that lets `x` grow on another device until it is large, or a branch that does so once."""

    def grow(t):
        with dt.device(device):
            return t * 2.0 + 1.0  # it ends where x is zero, too: nothing here is negative

    if kind == "loop":
        return dt.while_loop(lambda t: dt.reduce_sum(t) < 9.0, grow, [x])
    return dt.cond(dt.reduce_sum(x) < 9.0, lambda: grow(x), lambda: x)


@st.composite
def updating_programs(draw, tasks=("/job:a/task:0", "/job:b/task:0")):
    """A random program that reads variables of other tasks, and changes them: its graph, what it fetches, and its updates."""
    places = ("", *tasks)
    with dt.Graph().as_default() as g:
        variables, values = [], []
        for i in range(draw(st.integers(1, 4))):
            with g.device(draw(st.sampled_from(tasks))):
                size = draw(st.sampled_from((2, 2, 300)))
                kind = draw(st.booleans())
                variables.append(dt.get_variable(f"v{i}", [size, size], use_resource=kind))
        for i in range(draw(st.integers(1, 6))):
            with g.device(draw(st.sampled_from(places))):
                x = draw(st.sampled_from([*values, *variables]))
                y = dt.matmul(x, x, name=f"m{i}") if draw(st.booleans()) else dt.tanh(x, name=f"t{i}")
                others = [v for v in variables if v.shape == x.shape]
                values.append(y + draw(st.sampled_from(others)) if draw(st.booleans()) and others else y)
        updates = []
        for v in variables:
            fitting = [y for y in values if y.shape == v.shape]
            if fitting and draw(st.booleans()):
                gradient = draw(st.sampled_from(fitting))
                if draw(st.booleans()):
                    updates.append(dt.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, v)]))
                else:
                    updates.append(dt.assign_add(v, gradient).op)
        fetches = draw(st.lists(st.sampled_from(values), max_size=2, unique=True))
    return g, fetches or values[-1:], updates
