"""Recurrent networks: a cell (`dt.nn.rnn_cell`) applied to each step of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.control_flow.cond_while import while_loop
from ....graph.core.build import convert
from ....graph.core.dtypes import DType, as_dtype, int32
from ....graph.core.graph import Tensor
from ....graph.core.nest import flatten, map_structure, pack
from ....graph.ops.array.concat_stack import concat, stack, unstack
from ....graph.ops.array.creation import zeros, zeros_like
from ....graph.ops.array.gather import reverse
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.array.sequences import reverse_sequence
from ....graph.ops.array.shapes import shape, transpose
from ....graph.ops.control.tensor_array import TensorArray
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import less, logical_not, logical_or, where
from ....graph.ops.math.reduce import reduce_all
from ....graph.variables.scope import get_variable_scope, variable_scope
from .cells import RNNCell, batch_of


def dynamic_rnn(
    cell: RNNCell,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Any = None,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[Any, Any]:
    """A cell along sequences, as a loop in the graph: as many steps as the batch at hand has.

    Args:
        cell: one of `dt.nn.rnn_cell`, or of your own.
        inputs: `[batch, steps, ...]`, or `[steps, batch, ...]` with `time_major`; or a structure of such tensors.
        sequence_length: `[batch]`: behind it what goes out is 0 and the state stays; None: all are as long as the tensor.
        initial_state: in the structure of `cell.state_size`; None: zeros of `dtype`.
        parallel_iterations, swap_memory: as of `dt.while_loop`.
        time_major: whether the steps are the first axis, here and in what is given back.
        scope: name of the variable scope; None: `rnn`.

    Returns:
        What goes out, `[batch, steps, cell.output_size]`, and the state after the last step.

    Raises:
        ValueError: neither `initial_state` nor `dtype`; too few axes. TypeError: `cell` is none.

    >>> cell = dt.nn.rnn_cell.BasicLSTMCell(128)
    >>> outputs, state = dt.nn.dynamic_rnn(cell, words, sequence_length=lengths, dtype=dt.float32)
    """
    _check_cell(cell)
    with variable_scope(scope or "rnn"):
        leaves = [_steps_first(convert(x, name="inputs"), time_major) for x in flatten(inputs)]
        for x in leaves:
            if x.dims is not None and len(x.dims) < 2:
                raise ValueError(f"inputs must have an axis for the batch and one for the steps, not {x!r}")
        steps, batch = batch_of(leaves[0], 0), batch_of(leaves[0], 1)
        lengths = _lengths(sequence_length)
        state = _first_state(cell, initial_state, batch, dtype)

        arrays = [_array(x, steps).unstack(x) for x in leaves]
        shapes, types = cell.output_size, _type_of(state) if dtype is None else as_dtype(dtype).base
        out_sizes = flatten(shapes)
        results = [TensorArray(types, steps, element_shape=[_known(leaves[0], 1), *_tail(s)]) for s in out_sizes]

        def body(time: Tensor, before: Any, outs: list[TensorArray]) -> Any:
            x = pack(inputs, [a.read(time) for a in arrays])
            out, after = _step(cell, x, before, time, lengths)
            return time + 1, after, [a.write(time, o) for a, o in zip(outs, flatten(out), strict=True)]

        _, last, results = while_loop(
            lambda time, *_: less(time, steps), body, (0, state, results),
            parallel_iterations=parallel_iterations or 32, swap_memory=swap_memory, maximum_iterations=steps,
        )  # fmt: skip
        stacked = [r.stack() for r in results]
        for r, s in zip(stacked, out_sizes, strict=True):
            r.set_shape([_known(leaves[0], 0), _known(leaves[0], 1), *_tail(s)])
        return pack(shapes, [r if time_major else _swapped(r) for r in stacked]), last


def static_rnn(
    cell: RNNCell,
    inputs: Sequence[Any],
    initial_state: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """A cell along sequences, unrolled: its nodes are in the graph once per step.

    Args:
        inputs: one `[batch, ...]` per step. The others: as of `dynamic_rnn`.

    Returns:
        What goes out, a list with one tensor per step, and the last state.

    Raises:
        ValueError: no inputs; neither `initial_state` nor `dtype`. TypeError: `inputs` is no list.

    >>> outputs, state = dt.nn.static_rnn(cell, dt.unstack(x, num=20, axis=1), dtype=dt.float32)
    """
    _check_cell(cell)
    if not isinstance(inputs, (list, tuple)):
        raise TypeError("inputs must be a sequence: one tensor per step (dt.unstack makes them of one tensor)")
    if not inputs:
        raise ValueError("inputs must not be empty")
    with variable_scope(scope or "rnn") as opened:
        state = _first_state(cell, initial_state, batch_of(convert(flatten(inputs[0])[0]), 0), dtype)
        lengths = _lengths(sequence_length)
        outputs = []
        for time, x in enumerate(inputs):
            if time:
                opened.reuse_variables()
                get_variable_scope().reuse_variables()
            out, state = _step(cell, x, state, convert(time), lengths)
            outputs.append(out)
        return outputs, state


def static_state_saving_rnn(
    cell: RNNCell,
    inputs: Sequence[Any],
    state_saver: Any,
    state_name: Any,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """As `static_rnn`, with a state that is kept between steps of the session.

    Args:
        state_saver: an object with `state(name)`, the tensor kept under a name, and `save_state(name, tensor)`, an operation.
        state_name: the name; for a state of several tensors, names in the structure of `cell.state_size`.

    Raises:
        ValueError: `state_name` has another structure than the state.
    """
    names, sizes = flatten(state_name), flatten(cell.state_size)
    nested = isinstance(cell.state_size, (list, tuple))
    if nested != isinstance(state_name, (list, tuple)) or len(names) != len(sizes):
        raise ValueError(
            f"state_name should be of the structure of cell.state_size: {state_name!r}, {cell.state_size!r}"
        )
    kept = [state_saver.state(name) for name in names]
    outputs, state = static_rnn(cell, inputs, pack(cell.state_size, kept), None, sequence_length, scope)
    saved = [state_saver.save_state(name, t) for name, t in zip(names, flatten(state), strict=True)]
    with flatten(state)[0].graph.control_dependencies(saved):
        return [*outputs[:-1], map_structure(identity, outputs[-1])], map_structure(identity, state)


def raw_rnn(
    cell: RNNCell,
    loop_fn: Callable[..., Any],
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """A cell in a loop that says itself what goes in, and when each sequence ends.

    Args:
        loop_fn: `loop_fn(time, cell_output, cell_state, loop_state)` gives `(finished, next_input, next_state, emit, loop_state)`:
            which sequences have ended (`[batch]`, bool), what goes into the cell next and with which state, what goes out for this
            time, and anything that the function wants at its next call. It is called first with time 0 and None: then it gives the
            first input and state, and for `emit` what one sequence gives out (tensors without the batch; None: as the cell does).
        parallel_iterations, swap_memory: as of `dt.while_loop`. scope: name of the variable scope; None: `rnn`.

    Returns:
        A `TensorArray` of what went out, in the structure of `emit`, 0 for sequences that had ended; the last state of each sequence;
        and the last loop state.

    Raises:
        TypeError: `cell` is none, or `loop_fn` cannot be called.
    """
    _check_cell(cell)
    if not callable(loop_fn):
        raise TypeError("loop_fn must be a callable")
    with variable_scope(scope or "rnn"):
        time = convert(0, name="time")
        finished, following, state, emit, first_loop_state = loop_fn(time, None, None, None)
        finished = convert(finished)
        following, state = map_structure(convert, following), map_structure(convert, state)
        batch, known = batch_of(flatten(following)[0], 0), _known(flatten(following)[0], 0)
        if emit is None:
            emit, types = cell.output_size, [_type_of(state)] * len(flatten(cell.output_size))
            sizes: list[Any] = [_tail(s) for s in flatten(emit)]
        else:
            emit = map_structure(convert, emit)
            types = [t.dtype.base for t in flatten(emit)]
            sizes = [t.shape.as_list() if t.shape.is_fully_defined() else shape(t) for t in flatten(emit)]
        zero = [zeros(concat([stack([batch]), convert(s, int32)], 0), t) for s, t in zip(sizes, types, strict=True)]
        tails = [[known, *s] if isinstance(s, list) else None for s in sizes]
        results = [TensorArray(t, 0, dynamic_size=True, element_shape=d) for t, d in zip(types, tails, strict=True)]
        loop_state = convert(0) if first_loop_state is None else first_loop_state

        def body(time: Tensor, finished: Tensor, x: Any, outs: list[Any], before: Any, loop_state: Any) -> Any:
            out, after = cell(x, before)
            ended, x, after, emitted, following = loop_fn(time + 1, out, pack(before, flatten(after)), loop_state)
            emitted = flatten(out if emitted is None else emitted)
            emitted = [_unless(finished, z, convert(e)) for z, e in zip(zero, emitted, strict=True)]
            kept = [_unless(finished, b, convert(a)) for b, a in zip(flatten(before), flatten(after), strict=True)]
            return (
                time + 1, logical_or(finished, ended), x, [o.write(time, e) for o, e in zip(outs, emitted, strict=True)],
                pack(before, kept), loop_state if following is None else following,
            )  # fmt: skip

        *_, results, last, loop_state = while_loop(
            lambda _, finished, *__: logical_not(reduce_all(finished)), body,
            [time, finished, following, results, state, loop_state],
            parallel_iterations=parallel_iterations or 32, swap_memory=swap_memory,
        )  # fmt: skip
        return pack(emit, results), last, None if first_loop_state is None else loop_state


def _unless(finished: Tensor, before: Tensor, after: Any) -> Any:
    """What comes after for each sequence that goes on, and what was before for the others; a number of all is what comes after."""
    return where(finished, before, after) if _has_batch(before) else after


def bidirectional_dynamic_rnn(
    cell_fw: RNNCell,
    cell_bw: RNNCell,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """One cell along sequences forwards, another backwards (Schuster & Paliwal, 1997); arguments as of `dynamic_rnn`.

    Returns:
        (outputs forwards, outputs backwards), each in the order of `inputs`; and both last states.

    >>> (forwards, backwards), _ = dt.nn.bidirectional_dynamic_rnn(cell_fw, cell_bw, words, lengths, dtype=dt.float32)
    >>> both = dt.concat([forwards, backwards], 2)
    """
    _check_cell(cell_fw)
    _check_cell(cell_bw)
    how: dict[str, Any] = {
        "dtype": dtype, "parallel_iterations": parallel_iterations, "swap_memory": swap_memory, "time_major": time_major,
    }  # fmt: skip

    def turned(x: Any) -> Tensor:
        steps, batch = (0, 1) if time_major else (1, 0)
        if sequence_length is None:
            return reverse(x, [steps])
        return reverse_sequence(x, sequence_length, steps, batch)

    with variable_scope(scope or "bidirectional_rnn"):
        forwards, last_fw = dynamic_rnn(cell_fw, inputs, sequence_length, initial_state_fw, scope="fw", **how)
        back = pack(inputs, [turned(x) for x in flatten(inputs)])
        backwards, last_bw = dynamic_rnn(cell_bw, back, sequence_length, initial_state_bw, scope="bw", **how)
        return (forwards, pack(backwards, [turned(x) for x in flatten(backwards)])), (last_fw, last_bw)


def static_bidirectional_rnn(
    cell_fw: RNNCell,
    cell_bw: RNNCell,
    inputs: Sequence[Any],
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any, Any]:
    """As `bidirectional_dynamic_rnn`, unrolled.

    Returns:
        One tensor per step, outputs forwards and backwards beside each other; and both last states.
    """

    def turned(steps: Sequence[Any]) -> list[Any]:
        if sequence_length is None:
            return list(reversed(steps))
        leaves = [stack(list(leaf), 0) for leaf in zip(*map(flatten, steps), strict=True)]
        parts = [unstack(reverse_sequence(x, sequence_length, 0, 1), len(steps)) for x in leaves]
        return [pack(step, leaf) for step, leaf in zip(steps, zip(*parts, strict=True), strict=True)]

    with variable_scope(scope or "bidirectional_rnn"):
        forwards, last_fw = static_rnn(cell_fw, inputs, initial_state_fw, dtype, sequence_length, scope="fw")
        backwards, last_bw = static_rnn(cell_bw, turned(inputs), initial_state_bw, dtype, sequence_length, scope="bw")
        pairs = zip(forwards, turned(backwards), strict=True)
        both = [map_structure(lambda f, b: concat([f, b], 1), *pair) for pair in pairs]
        return both, last_fw, last_bw


def _check_cell(cell: Any) -> None:
    if not hasattr(cell, "state_size") or not hasattr(cell, "output_size") or not callable(cell):
        raise TypeError(f"cell is not an RNNCell: {cell!r} must have state_size, output_size, and be callable")


def _lengths(sequence_length: Any) -> Tensor | None:
    """`[batch]`; None: all sequences are as long as the tensor."""
    if sequence_length is None:
        return None
    lengths: Tensor = cast(convert(sequence_length, name="sequence_length"), int32)
    if lengths.dims is not None and len(lengths.dims) != 1:
        raise ValueError(f"sequence_length must be a vector of length batch_size, but saw shape: {lengths.shape}")
    return lengths


def _type_of(state: Any) -> DType:
    """The one element type of a state's tensors."""
    types: set[DType] = {t.dtype.base for t in flatten(state)}
    if len(types) > 1:
        raise ValueError(
            f"The state has tensors of the types {sorted(t.name for t in types)}: give the dtype of what goes out"
        )
    return types.pop()


def _first_state(cell: RNNCell, given: Any, batch: Any, dtype: Any) -> Any:
    if given is not None:
        return pack(given, [convert(s) for s in flatten(given)])
    if dtype is None:
        raise ValueError("If there is no initial_state, you must give a dtype.")
    return cell.zero_state(batch, dtype)


def _step(cell: RNNCell, x: Any, before: Any, time: Tensor, lengths: Tensor | None) -> Any:
    """One step; where a sequence has ended, 0 goes out and the state stays."""
    out, after = cell(x, before)
    after = pack(before, flatten(after))  # a cell may give a list where a tuple was
    if lengths is None:
        return out, after
    goes_on = less(time, lengths)
    kept = [
        where(goes_on, new, old) if _has_batch(new) else new
        for new, old in zip(flatten(after), flatten(before), strict=True)
    ]
    return pack(out, [where(goes_on, o, zeros_like(o)) for o in flatten(out)]), pack(after, kept)


def _has_batch(tensor: Any) -> bool:
    return tensor.dims is None or len(tensor.dims) > 0


def _tail(size: Any) -> list[int | None]:
    return size.as_list() if hasattr(size, "as_list") else [int(size)]


def _known(tensor: Tensor, axis: int) -> int | None:
    return None if tensor.dims is None else tensor.dims[axis]


def _array(x: Tensor, steps: Any) -> TensorArray:
    return TensorArray(x.dtype.base, steps, element_shape=None if x.dims is None else x.dims[1:])


def _steps_first(x: Tensor, time_major: bool) -> Tensor:
    return x if time_major else _swapped(x)


def _swapped(x: Tensor) -> Tensor:
    """With the first two axes in the other order."""
    if x.dims is None:
        raise ValueError(f"the rank of {x!r} must be known")
    return transpose(x, [1, 0, *range(2, len(x.dims))])


__all__ = [
    "bidirectional_dynamic_rnn",
    "dynamic_rnn",
    "raw_rnn",
    "static_bidirectional_rnn",
    "static_rnn",
    "static_state_saving_rnn",
]
