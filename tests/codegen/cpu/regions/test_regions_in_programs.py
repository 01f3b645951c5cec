"""Native regions in compiled programs: where they are formed, what waits for them, updates in them, and whole sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from reference_interpreter import execution_order
from region_calls import BEFORE, Array, call, fused, identity, kernel_of, kernels, nodes_of, region_of_calls, same

import dovetail as dt
from dovetail.codegen.backend import bind
from dovetail.codegen.compilation import Compilation
from dovetail.codegen.cpu import jit
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.cpu.kernels.families import LOOPS
from dovetail.codegen.cpu.regions.formation import form_native_regions
from dovetail.codegen.cpu.regions.region import NativeRegion
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.ir.program import (
    REFERENCE,
    Call,
    Loop,
    NodeError,
    Program,
    Region,
    Send,
    Work,
    calls_of,
    one_by_one,
)
from dovetail.codegen.pipeline import compile_partition, passes_of, run_passes
from dovetail.graph.resources.variable import VariableState
from dovetail.runtime.worker import worker

# --- programs --------------------------------------------------------------------------------------------------------


def regions(program: Program) -> list[NativeRegion]:
    return [i.kernel for i in program.instructions if isinstance(i, Call) and isinstance(i.kernel, NativeRegion)]


def test_reads_go_before_a_region() -> None:
    joint, softmax = kernels()["Joint"][0], kernels()["Softmax"][0]
    first = call(joint, "Fused", [0, 1], [2])
    read = call(lambda v: v.read(), "ReadVariableOp", [3], [4])
    second = call(softmax, "Fused", [2], [5])
    third = call(joint, "Fused", [5, 4], [6])
    read.frees, third.frees = (3,), (4, 5)
    sends = [Send(1, 2, "/cpu:1", (2,)), Send(2, 6, "/cpu:1", (6,))]
    program = Program("/cpu:0", (first, read, second, third, *sends), (None,) * 7, (), ())
    out = form_native_regions(program).instructions
    assert [getattr(i, "op", "send") for i in out] == ["ReadVariableOp", "Region of 3 kernels", "send", "send"]
    assert isinstance(out[1], Call)
    assert (set(out[1].inputs), set(out[1].outputs), set(out[1].frees)) == ({0, 1, 4}, {2, 6}, {4})
    assert (out[2].frees, out[3].frees) == ((2,), (6,))


def test_a_send_that_nothing_is_waited_for_with_is_not_put_off() -> None:
    joint = kernels()["Joint"][0]
    steps = [call(joint, "Fused", [0, 1], [2]), call(joint, "Fused", [2, 1], [3]), Send(1, 3, "/cpu:1", ()),
             call(joint, "Fused", [3, 1], [4]), call(joint, "Fused", [4, 1], [5])]  # fmt: skip
    out = form_native_regions(Program("/cpu:0", tuple(steps), (None,) * 6, (), ())).instructions
    assert [getattr(i, "op", "send") for i in out] == ["Region of 2 kernels", "send", "Region of 2 kernels"]


def test_a_single_node_in_a_region_frees_what_a_read_behind_it_freed() -> None:
    """The read moves before the region, whose calls are then the last ones that take the slot."""
    joint = kernels()["Joint"][0]
    with dt.Graph().as_default():
        node = dt.nn.bias_add(dt.placeholder(dt.float32, [None, 6]), dt.placeholder(dt.float32, [6])).op
    alone = call(identity, "BiasAdd", [0, 5], [3])
    alone.work = Work(node, REFERENCE)
    read = call(identity, "Read", [0], [4])
    read.frees = (0,)
    steps = (call(joint, "Fused", [1, 1], [2]), alone, call(joint, "Fused", [3, 2], [6]), read)
    out = form_native_regions(Program("/cpu:0", steps, (None,) * 7, (), ()), lone=True).instructions
    assert [(i.op, i.frees) for i in out if isinstance(i, Call)] == [("Read", ()), ("Region of 2 kernels", (0,))]


def test_an_error_in_the_middle_names_the_node_and_its_line() -> None:
    with dt.Graph().as_default():
        labels, logits = dt.placeholder(dt.int64, [None]), dt.placeholder(dt.float32, [None, 4])
        loss = dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        y = dt.reduce_sum(dt.matmul(logits, dt.ones([4, 4])) * dt.expand_dims(loss, 1))
        with dt.Session() as session:
            session.warmup(y, {labels: [1, 2], logits: np.ones((2, 4))})
            want = session.run(y, {labels: [1, 2], logits: np.ones((2, 4))})
            for _ in range(5):
                assert session.run(y, {labels: [1, 2], logits: np.ones((2, 4))}) == want
            with pytest.raises(dt.errors.InvalidArgumentError, match=r"(?s)label.*test_regions"):
                session.run(y, {labels: [1, 4], logits: np.ones((2, 4))})
            assert session.run(y, {labels: [1, 2], logits: np.ones((2, 4))}) == want


# --- updates ---------------------------------------------------------------------------------------------------------


def updates_of(optimizer: Any, sizes: Sequence[tuple[int, ...]]) -> tuple[list[Call], list[VariableState], int]:
    """Calls that update variables of these sizes, the states in the first slots, and the number of slots before the gradients."""
    backend = NumbaBackend(compile_first=True)
    calls = []
    with dt.Graph().as_default():
        variables = [dt.Variable(np.ones(s, np.float32), use_resource=True) for s in sizes]
        grads = [dt.placeholder(dt.float32, s) for s in sizes]
        train = optimizer.apply_gradients(zip(grads, variables, strict=True))
        nodes = [n for n in execution_order([train], {}) if "Apply" in n.type]
        slots: dict[Any, int] = {}
        constants: dict[int, Any] = {}
        order = []
        for n in nodes:
            for t in n.inputs:
                if t not in slots:
                    slots[t] = len(slots)
                    if t.op.type == "Const":
                        constants[slots[t]] = t.op.attrs["value"]
                    order.append(t)
            inputs = tuple(slots[t] for t in n.inputs)
            calls.append(
                Call(backend.choose(n), inputs, (), (), n.name, n.type, n._origin, kernel=kernel_of(backend, n))
            )
    states = {slots[t]: VariableState(t.name, dt.float32) for t in order if t.op.type == "VarHandleOp"}
    return calls, states, constants  # type: ignore[return-value]


def no_context(node: Any) -> Any:
    """Updates of resource variables need none of it."""
    return None


def values_of(states: Any) -> list[Array]:
    return [s.read() for s in states.values()]


@pytest.mark.parametrize("sizes", [[(8,), (64, 3)], [(300, 300), (300,), (17,)]])
def test_updates_are_one_call_with_the_same_bits(sizes: list[tuple[int, ...]]) -> None:
    calls, states, constants = updates_of(dt.train.MomentumOptimizer(0.1, 0.9), sizes)
    twins = {i: VariableState(s.name, s.dtype) for i, s in states.items()}  # type: ignore[attr-defined]
    kernel = NativeRegion(Region.of(calls, constants), at_once=True)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    gradient_of = {c.inputs[0]: c.inputs[c.kernel.places + c.kernel._gradient] for c in calls}  # type: ignore[attr-defined]
    shapes = {}
    for c, size in zip(calls, sizes, strict=True):
        for place in c.inputs[: c.kernel.places]:  # type: ignore[attr-defined]
            shapes[place] = size
    for i in states:  # type: ignore[attr-defined]
        value = rng.normal(size=shapes[i]).astype(np.float32)
        states[i].assign(value)
        twins[i].assign(value.copy())
    for _ in range(6):
        grads = {
            gradient_of[c.inputs[0]]: rng.normal(size=s).astype(np.float32) for c, s in zip(calls, sizes, strict=True)
        }
        held = values_of(states)[0] if _ == 4 else None  # who holds a value keeps it
        kept = None if held is None else held.copy()
        kernel(*[{**states, **grads}[i] for i in kernel.region.given])  # type: ignore[dict-item]
        kernel.region.one_by_one([{**twins, **grads}[i] for i in kernel.region.given])
        same(values_of(states), values_of(twins))
        if held is not None:
            same(held, kept)
    assert kernel.replays == 6 - BEFORE


def test_numbers_that_are_no_arrays_go_by_a_plan() -> None:
    """What NumPy computes of scalars is no array: a rate that decays, the powers of Adam's betas in Keras."""
    calls, states, constants = updates_of(dt.train.MomentumOptimizer(0.1, 0.9), [(8,), (64, 3)])
    kernel = NativeRegion(Region.of(calls, {}), at_once=True)
    gradient_of = {c.inputs[0]: c.inputs[c.kernel.places + c.kernel._gradient] for c in calls}  # type: ignore[attr-defined]
    grads = {gradient_of[c.inputs[0]]: np.ones(s, np.float32) for c, s in zip(calls, [(8,), (64, 3)], strict=True)}
    for c in calls:
        for place in c.inputs[: c.kernel.places]:  # type: ignore[attr-defined]
            states[place].assign(np.zeros(grads[gradient_of[c.inputs[0]]].shape, np.float32))  # type: ignore[index]
    numbers = {i: np.float32(x) for i, x in constants.items()}  # type: ignore[attr-defined]
    for _ in range(6):
        kernel(*[{**states, **grads, **numbers}[i] for i in kernel.region.given])  # type: ignore[dict-item]
    assert kernel.replays == 6 - BEFORE


def test_large_updates_stay_calls_behind_the_kernels() -> None:
    sizes = [(600, 600), (17,), (700, 700), (9,)]
    calls, states, constants = updates_of(dt.train.GradientDescentOptimizer(0.1), sizes)
    size_of = {i: size for c, size in zip(calls, sizes, strict=True) for i in c.inputs if i not in constants}
    joint = kernels()["Joint"][0]
    last = max(i for c in calls for i in c.inputs)
    first = call(joint, "Fused", [last + 1, last + 2], [last + 3])
    second = call(joint, "Fused", [last + 3, last + 2], [last + 4])
    steps = (first, calls[0], calls[1], second, *calls[2:])
    slots = tuple([constants.get(i) for i in range(last + 5)])  # type: ignore[attr-defined]
    out = bind(
        form_native_regions(Program("/cpu:0", steps, slots, (), ())), NumbaBackend(compile_first=True), no_context
    ).instructions
    runs = [i for i in out if isinstance(i, Call) and isinstance(i.kernel, NativeRegion)]
    assert [len(r.kernel.region.calls) for r in runs] == [2, 2]
    assert list(out) == [runs[0], calls[0], calls[2], runs[1]]
    rng = np.random.default_rng(0)
    for run in runs[1:]:
        start = {i: rng.normal(size=size_of[i]).astype(np.float32) for i in run.inputs}
        mine, twins = ({i: VariableState("v", dt.float32) for i in states} for _ in range(2))
        for i, state in (*mine.items(), *twins.items()):
            if i in start:
                state.assign(start[i].copy())
        for _ in range(BEFORE + 2):
            run.kernel(*[mine.get(i, start[i]) for i in run.inputs])
            run.kernel.region.one_by_one([twins.get(i, start[i]) for i in run.inputs])
        same([mine[i].read() for i in mine if i in start], [twins[i].read() for i in twins if i in start])
        assert run.kernel.replays


def test_updates_of_one_variable_twice_and_of_wrong_sizes_go_one_by_one() -> None:
    calls, states, constants = updates_of(dt.train.GradientDescentOptimizer(0.1), [(8,), (8,)])
    kernel = NativeRegion(Region.of(calls, constants), at_once=True)  # type: ignore[arg-type]
    a = VariableState("a", dt.float32)
    a.assign(np.zeros(8, np.float32))
    g = np.ones(8, np.float32)
    one = dict.fromkeys(states, a)  # type: ignore[attr-defined]
    for turn in range(1, 6):
        kernel(*[one.get(i, g) for i in kernel.region.given])
        assert np.allclose(a.read(), -0.2 * turn)
    assert kernel.replays == 0
    b = VariableState("b", dt.float32)
    b.assign(np.zeros(9, np.float32))
    two = dict(zip(states, (a, b), strict=True))
    for _ in range(4):
        before = b.read()
        with pytest.raises(NodeError):
            kernel(*[two.get(i, g) for i in kernel.region.given])
        same(b.read(), before)


# --- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_step_of_a_recurrent_network_is_one_call_and_keeps_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Biases, slices and joined tensors between products are part of it, in the loop and in that of its gradient."""
    programs: list[Program] = []

    def compiled_partition(*given: Any) -> Program:
        programs.append(compile_partition(*given))
        return programs[-1]

    monkeypatch.setattr(worker, "compile_partition", compiled_partition)
    rng = np.random.default_rng(0)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 3, 8])
        out, _ = dt.nn.dynamic_rnn(dt.nn.rnn_cell.LSTMCell(16), x, dtype=dt.float32)
        fetches = [out, *dt.gradients(dt.reduce_mean(out * out), dt.trainable_variables())]
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            session.run(dt.global_variables_initializer())
            for batch in (4, 6):
                fed = rng.normal(size=(batch, 3, 8)).astype(np.float32)
                first = session.run(fetches, {x: fed})
                for _ in range(3):
                    same(session.run(fetches, {x: fed}), first)
    bodies = [step.body for p in programs for step in p.instructions if isinstance(step, Loop)]
    found = [i.kernel for body in bodies for i in body if isinstance(i, Call) and isinstance(i.kernel, NativeRegion)]
    assert [
        sorted({c.op for c in f.region.calls} & {"MatMul", "BiasAdd", "Split", "SplitV", "ConcatV2"}) for f in found
    ] == [
        ["BiasAdd", "ConcatV2", "MatMul", "Split"],
        ["ConcatV2", "MatMul", "SplitV"],
    ]
    assert all(f.replays for f in found)


def test_a_traced_step_shows_each_kernel() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 8], name="x")
        hidden = dt.nn.relu(dt.matmul(x, dt.ones([8, 8]), name="first") + 1.0, name="hidden")
        y = dt.nn.softmax(dt.matmul(hidden, dt.ones([8, 8]), name="second"), name="y")
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            for _ in range(5):
                session.run(y, {x: np.ones((3, 8))})
            metadata = dt.RunMetadata()
            session.run(y, {x: np.ones((3, 8))}, dt.RunOptions(trace_level=dt.RunOptions.FULL_TRACE), metadata)
    assert metadata.trace is not None
    assert [k.node for k in metadata.trace.kernels if not k.op.startswith("Const")] == [
        "first",
        "hidden",
        "second",
        "y",
    ]


def test_a_single_node_has_a_kernel_between_others_only() -> None:
    ops, families = [], []
    for build in (
        lambda x, w: dt.matmul(dt.nn.bias_add(dt.matmul(x, w), [1.0] * 6), w),
        lambda x, w: dt.nn.bias_add(x, [1.0] * 6),
    ):
        with dt.Graph().as_default():
            x_, w_ = dt.placeholder(dt.float32, [None, 6]), dt.placeholder(dt.float32, [6, 6])
            y = build(x_, w_)
            backend = NumbaBackend(compile_first=True)
            partition = PartitionGraph("/cpu:0", tuple(nodes_of(y)), ((x_.name, x_), (w_.name, w_)), ((y.name, y),))
            compilation = Compilation(partition, backend, no_context)
            run_passes(compilation, passes_of(backend)[:-1])  # binding would drop the works
            program = compilation.program
        assert program is not None
        ops.append([i.op for i in program.instructions if isinstance(i, Call)])
        works = [c.work for c in calls_of(one_by_one(program.instructions))]
        families.append([w.family for w in works if isinstance(w, Work)])
    assert ops == [["Region of 2 kernels"], ["BiasAdd"]]
    assert families == [["matrix products", LOOPS, "matrix products"], [REFERENCE]]


def test_the_time_of_a_region_without_compiled_kernels_counts_once_for_all_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(jit.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(jit, "compile_soon", lambda text, done: None)

    class Cold(jit.TieredKernel):
        def __init__(self, seconds: float) -> None:
            super().__init__("text", lambda x: now.append(now.pop() + seconds))

        def __call__(self, x: Any) -> Any:
            return self._on_numpy((x,))

    kernels = [Cold(3.0), Cold(1.0)]
    NativeRegion(Region.of([call(k, "Op", [i], [i + 1]) for i, k in enumerate(kernels)], {}))(1)
    assert [k.spent for k in kernels] == [2.0, 2.0]


def test_a_scalar_stays_one_in_a_plan() -> None:
    # GatherV2 gives a number of NumPy's own kind, not an array.
    joint = kernels()["Joint"][0]
    calls = [call(joint, "Fused", (0, 1), (3,)), call(joint, "Fused", (3, 1), (4,))]
    calls.append(call(np.expand_dims, "ExpandDims", (2, 6), (5,)))
    region = NativeRegion(Region.of(calls, {6: np.int32(0)}), at_once=True)
    square = np.ones((4, 4), np.float32)
    shapes = [
        dict(zip(region.region.outputs, region(square, square, np.int32(4)), strict=True))[5].shape
        for _ in range(BEFORE + 2)
    ]
    assert region.replays and shapes == [(1,)] * len(shapes)


def test_a_shape_may_be_data_of_a_kernel_before_it_is_asked_for() -> None:
    with dt.Graph().as_default():
        v = dt.placeholder(dt.int32, [None])
        doubled = fused([v], v * 2)
    calls = [
        call(lambda x: np.array(x.shape, np.int32), "Shape", [0], [1]),
        call(doubled, "Fused", [1], [2]),
        call(kernels()["Joint"][0], "Fused", [0, 0], [3]),
        call(np.reshape, "Reshape", [3, 1], [4]),
    ]
    region = region_of_calls(calls)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(BEFORE + 2):
        same(region(x), region.region.one_by_one([x]))
    assert region.replays == 2
