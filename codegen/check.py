"""Whether a compiled kernel computed what the reference did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.core.dtypes import bfloat16, float16


def scale_of(inputs: Iterable[Any]) -> float:
    """The largest finite magnitude among the floating-point numbers of some arrays; 0 when there is none."""
    largest = 0.0
    for x in inputs:
        x = np.asarray(x)
        if np.issubdtype(x.dtype, np.floating) or x.dtype == bfloat16.np:
            finite = np.abs(x[np.isfinite(x)].astype(np.float64))
            largest = max(largest, float(finite.max(initial=0.0)))
    return largest


def agree(mine: Any, theirs: Any, scale: float = 0.0) -> bool:
    """Whether a kernel's result equals the reference's, up to different rounding inside the kernel.

    `scale`: magnitude of the numbers that it was computed from. If they cancel (the gradient of a softmax's sum), the result is only
    their rounding errors.
    """
    a, b = np.asarray(mine), np.asarray(theirs)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype in (float16.np, bfloat16.np):
        # The reference rounds after each op, the kernel only at its end: a few roundings may add up.
        narrow = 2.0 ** (-10 if a.dtype == float16.np else -7)
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = b[np.isfinite(b)]
        largest = float(np.abs(finite).max()) if finite.size else 0.0
        return bool(np.allclose(a, b, rtol=16 * narrow, atol=narrow * max(8 * largest, scale), equal_nan=True))
    if a.dtype.kind != "f":
        # Rounding may change the result of a comparison of two close numbers, but seldom.
        return bool(np.count_nonzero(a != b) <= 1e-3 * a.size)
    epsilon = float(np.finfo(a.dtype).eps)
    finite = b[np.isfinite(b)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=2000 * epsilon, atol=epsilon * max(200 * largest, 8 * scale), equal_nan=True))


def difference(mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> str:
    if mine.shape != theirs.shape:
        return f"shape {mine.shape} instead of {theirs.shape}"
    wrong = np.argwhere(~((mine == theirs) | ((mine != mine) & (theirs != theirs))))
    at = tuple(int(i) for i in wrong[0]) if len(wrong) else ()
    return f"{len(wrong)} of {mine.size} elements; at {at} it is {mine[at]!r} instead of {theirs[at]!r}"
