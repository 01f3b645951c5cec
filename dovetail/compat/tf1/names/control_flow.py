"""Folds, and a branch by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....graph.control_flow.cond_while import cond, graph_of_values, while_loop
from ....graph.control_flow.functional import elements_of, unstacked
from ....graph.core.build import constant, convert
from ....graph.core.graph import Tensor
from ....graph.core.nest import flatten, map_structure, pack
from ....graph.ops.math.compare import logical_and, where_v2


def foldl(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """The result of `scan` at the last element: `fn(... fn(fn(initializer, first), second) ..., last)`.

    >>> foldl(lambda total, x: total + x, constant([1, 2, 3]))   # evaluates to 6
    """
    return _fold(fn, elems, initializer, parallel_iterations, back_prop, swap_memory, name or "foldl", False)


def foldr(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """As `foldl`, beginning with the last element.

    >>> foldr(lambda last, x: x - last, constant([1, 2, 3]))   # evaluates to 1 - (2 - 3)
    """
    return _fold(fn, elems, initializer, parallel_iterations, back_prop, swap_memory, name or "foldr", True)


def _fold(
    fn: Callable[[Any, Any], Any], elems: Any, initializer: Any, parallel: int, back_prop: bool, swap: bool, name: str,
    from_right: bool,
) -> Any:  # fmt: skip
    if not callable(fn):
        raise TypeError("fn must be a function")
    with graph_of_values(flatten(elems)).op_scope(name):
        inputs, count, _ = elements_of(elems)
        sources = [unstacked(t, count) for t in flatten(inputs)]
        index: Any = count if from_right else 0
        if initializer is None:
            at: Any = count - 1 if from_right else 0
            start = pack(inputs, [a.read(at) for a in sources])
            index = at if from_right else constant(1)
        else:
            start = map_structure(convert, initializer)

        def body(i: Tensor, last: Any) -> Any:
            after = i - 1 if from_right else i + 1
            at = after if from_right else i
            return after, fn(last, pack(inputs, [a.read(at) for a in sources]))

        _, result = while_loop(
            lambda i, *_: i > 0 if from_right else i < count, body, (index, start),
            parallel_iterations=parallel, back_prop=back_prop, swap_memory=swap, maximum_iterations=count,
        )  # fmt: skip
        return result


def switch_case(
    branch_index: Any, branch_fns: Any, default: Callable[[], Any] | None = None, name: str = "switch_case"
) -> Any:
    """Run the function with a number.

    Args:
        branch_index: whole number of rank 0.
        branch_fns: list of functions without arguments, or of pairs (number, function), or a dict of those. The numbers are those
            from 0 on, in any order. All functions return the same structure of tensors.
        default: function for any other number; None: the last function.
        name: scope of the nodes.

    Raises:
        TypeError: not functions, or not whole numbers. ValueError: there are none, or a number is missing or given twice.

    >>> y = switch_case(i, [lambda: x, lambda: -x], default=lambda: 0.0)
    """
    if isinstance(branch_index, int):
        raise TypeError(f"branch_index must be a Tensor, not {branch_index}: a number that is known now can choose now")
    pairs = list(branch_fns.items()) if isinstance(branch_fns, Mapping) else branch_fns
    if not isinstance(pairs, (list, tuple)):
        raise TypeError(f"branch_fns must be a list, tuple, or dict, not {branch_fns!r}")
    if not pairs:
        raise ValueError("branch_fns must hold at least one function")
    if all(map(callable, pairs)):
        pairs = list(enumerate(pairs))
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or type(pair[0]) is not int or not callable(pair[1]):
            raise TypeError(
                f"branch_fns takes functions, or pairs of a number, which must be a Python `int`, and a function, not {pair!r}"
            )
    if sorted(i for i, _ in pairs) != list(range(len(pairs))):
        raise ValueError(
            f"branch indices must form contiguous range of [0 to {len(pairs)}), but are {[i for i, _ in pairs]}"
        )
    functions = [f for _, f in sorted(pairs, key=lambda pair: pair[0])]
    if default is not None:
        if not callable(default):
            raise TypeError("default must be a function")
        functions.append(default)
    with graph_of_values([branch_index]).op_scope(name):
        number = convert(branch_index, name="branch_index")
        last = len(functions) - 1
        number = where_v2(logical_and(number >= 0, number < last), number, last)
        return _one_of(number, functions, 0)


def _one_of(number: Tensor, functions: Sequence[Callable[[], Any]], first: int) -> Any:
    """Run the function with a number, by binary search; functions are numbered from `first` on."""
    if len(functions) == 1:
        return functions[0]()
    half = len(functions) // 2
    return cond(
        number < first + half,
        lambda: _one_of(number, functions[:half], first),
        lambda: _one_of(number, functions[half:], first + half),
        strict=True,
    )
