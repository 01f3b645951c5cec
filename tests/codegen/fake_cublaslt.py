"""A stand-in for the bindings of cuBLASLt: columns first, as the library has it, run by the stand-in for the driver when it likes.

It refuses what the library's documentation forbids: attributes of another size, leading dimensions that are too short, addresses that
are aligned less than was said when the algorithm was looked for, a product without workspace, types that do not go together, a bias
that was never given, products of float8 whose operands do not lie as Hopper's instructions want them.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from strict_driver import Touch

_TYPES = {
    0: np.float32,
    1: np.float64,
    2: np.float16,
    14: ml_dtypes.bfloat16,
    28: ml_dtypes.float8_e4m3fn,
    29: ml_dtypes.float8_e5m2,
}
_HALVES, _FLOAT8 = (np.float16, ml_dtypes.bfloat16), (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
_SIZES = {
    "operation": {3: 4, 4: 4, 7: 4, 8: 8},
    "layout": {5: 4, 6: 8},
    "preference": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4},
}
"""Bytes of each attribute that is set, by its number in cublasLt.h."""


class FakeCublasLt:
    """Attributes:
    driver: the stand-in whose streams products are queued on.
    products: m, n and k, as the library sees them, of what was queued; `used`: by which algorithm, from 0.
    algorithms: how many it finds for a product.
    alive: handles that were made and not destroyed.
    """

    matmul_heuristic_result_dtype = np.dtype(
        [
            ("algo", [("data_", "<u8", (8,))]),
            ("workspace_size", "<u8"),
            ("state", "<i4"),
            ("waves_count", "<f4"),
            ("reserved", "<i4", (4,)),
        ]
    )

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.products: list[tuple[int, int, int]] = []
        self.used: list[int] = []
        self.algorithms = 1
        self.alive: dict[int, SimpleNamespace] = {}
        self._last = 1000

    def _new(self, **fields: Any) -> int:
        self._last += 7
        self.alive[self._last] = SimpleNamespace(**fields)
        return self._last

    def get_version(self) -> int:
        return 130000

    def create(self) -> int:
        return self._new(kind="handle")

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        assert (compute_type, scale_type) in ((68, 0), (70, 1), (77, 0))
        return self._new(kind="operation", compute=compute_type, scale=_TYPES[scale_type], attributes={})

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        assert ld >= rows > 0 and cols > 0
        return self._new(kind="layout", type=_TYPES[type], rows=rows, columns=cols, ld=ld, attributes={})

    def matmul_preference_create(self) -> int:
        return self._new(kind="preference", attributes={})

    def matmul_desc_destroy(self, matmul_desc: int) -> None:
        assert self.alive.pop(matmul_desc).kind == "operation"

    def matrix_layout_destroy(self, mat_layout: int) -> None:
        assert self.alive.pop(mat_layout).kind == "layout"

    def matmul_preference_destroy(self, pref: int) -> None:
        assert self.alive.pop(pref).kind == "preference"

    def _set(self, handle: int, kind: str, attr: int, buf: int, size: int) -> None:
        assert self.alive[handle].kind == kind and size == _SIZES[kind][attr]
        self.alive[handle].attributes[attr] = int.from_bytes(ctypes.string_at(buf, size), "little", signed=True)

    def matmul_desc_set_attribute(self, matmul_desc: int, attr: int, buf: int, size_in_bytes: int) -> None:
        self._set(matmul_desc, "operation", attr, buf, size_in_bytes)

    def matrix_layout_set_attribute(self, mat_layout: int, attr: int, buf: int, size_in_bytes: int) -> None:
        self._set(mat_layout, "layout", attr, buf, size_in_bytes)

    def matmul_preference_set_attribute(self, pref: int, attr: int, buf: int, size_in_bytes: int) -> None:
        self._set(pref, "preference", attr, buf, size_in_bytes)

    def matmul_algo_get_heuristic(
        self, light_handle: int, operation_desc: int, adesc: int, bdesc: int, cdesc: int, ddesc: int, preference: int,
        requested_algo_count: int, heuristic_results_array: int, return_algo_count: int,
    ) -> None:  # fmt: skip
        wanted, operation = self.alive[preference].attributes, self.alive[operation_desc]
        a, b, c, d = (self.alive[x] for x in (adesc, bdesc, cdesc, ddesc))
        assert c is d and wanted[1] == 32 << 20 and all(wanted[which] == 16 for which in (5, 6, 7, 8))
        assert not wanted[3] & 4 and (d.type not in _HALVES or wanted[3] == 2), "parts are summed in half precision"
        if operation.attributes.get(7, 1) & 4:
            assert operation.attributes[8] % 16 == 0 and operation.attributes[8]
        self._check_types(operation, a.type, b.type, d.type)
        if a.type in _FLOAT8:
            straight = operation.attributes.get(3, 0) == 1 and operation.attributes.get(4, 0) == 0
            if not straight or any(size % 16 for x in (a, b, d) for size in (x.rows, x.columns)):
                raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        count = min(requested_algo_count, self.algorithms)
        results = np.frombuffer(
            (ctypes.c_ubyte * (96 * requested_algo_count)).from_address(heuristic_results_array),
            self.matmul_heuristic_result_dtype,
        )
        for i in range(count):
            results["algo"]["data_"][i] = 7 + i
            results["workspace_size"][i] = 1 << 20
        ctypes.c_int32.from_address(return_algo_count).value = count

    def _check_types(self, operation: SimpleNamespace, a: Any, b: Any, d: Any) -> None:
        """The table of cublasLtMatmul's supported types."""
        if a in _FLOAT8 or b in _FLOAT8:
            assert a in _FLOAT8 and b in _FLOAT8 and d in (np.float32, *_HALVES) and operation.compute == 68
            if a is b is ml_dtypes.float8_e5m2:
                raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        else:
            assert a is b and (d is a or (a in _HALVES and d is np.float32))
            assert operation.compute == {np.float64: 70}.get(a, 68) or (a is np.float32 and operation.compute == 77)

    def matmul(
        self, light_handle: int, compute_desc: int, alpha: int, a: int, adesc: int, b: int, bdesc: int, beta: int, c: int, cdesc: int,
        d: int, ddesc: int, algo: int, workspace: int, workspace_size_in_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        operation = self.alive[compute_desc]
        number = ctypes.string_at(algo, 64)
        assert self.alive[light_handle].kind == "handle" and number == number[:8] * 8
        assert workspace and workspace % 256 == 0 and workspace_size_in_bytes == 32 << 20 and c == d and cdesc == ddesc
        assert not any(address % 16 for address in (a, b, d)), "less aligned than was said"
        letter = ctypes.c_double if operation.scale is np.float64 else ctypes.c_float
        assert (letter.from_address(alpha).value, letter.from_address(beta).value) == (1.0, 0.0)
        layouts = [self.alive[x] for x in (adesc, bdesc, ddesc)]
        flips = [operation.attributes.get(i, 0) == 1 for i in (3, 4)]
        inner = layouts[0].rows if flips[0] else layouts[0].columns
        assert inner == (layouts[1].columns if flips[1] else layouts[1].rows)
        assert (layouts[0].columns if flips[0] else layouts[0].rows) == layouts[2].rows
        assert (layouts[1].rows if flips[1] else layouts[1].columns) == layouts[2].columns
        assert len({x.attributes.get(5, 1) for x in layouts}) == 1, "stacks of different lengths"
        self.products.append((layouts[2].rows, layouts[2].columns, inner))
        self.used.append(int.from_bytes(number[:8], "little") - 7)
        bias = operation.attributes[8] if operation.attributes.get(7, 1) & 4 else 0
        assert bias % 16 == 0 and bias != 16, "the bias that stood there while algorithms were looked for"

        def work(touch: Touch) -> bool:
            left, right, out = (_matrices(at, layout) for at, layout in zip((a, b, d), layouts, strict=True))
            for at, layout in zip((a, b, d), layouts, strict=True):
                touch(at, _bytes(layout), at == d)
            left, right = (
                (np.swapaxes(x, -1, -2) if flip else x).astype(operation.scale)
                for x, flip in zip((left, right), flips, strict=True)
            )
            product = left @ right
            if bias:  # one number for each of its rows
                size = layouts[2].rows * np.dtype(layouts[2].type).itemsize
                touch(bias, size, False)
                vector = np.frombuffer((ctypes.c_ubyte * size).from_address(bias), layouts[2].type)
                product = product + vector.astype(operation.scale)[:, None]
            out[...] = product
            return True

        self.driver.queue(stream, work)


def _matrices(address: int, layout: SimpleNamespace) -> Any:
    """A stack of matrices whose columns lie one after the other."""
    count, step = layout.attributes.get(5, 1), layout.attributes.get(6, 0)
    size = np.dtype(layout.type).itemsize
    flat = np.frombuffer((ctypes.c_ubyte * _bytes(layout)).from_address(address), f"u{size}")
    strides = (step * size, size, layout.ld * size)
    return np.lib.stride_tricks.as_strided(flat, (count, layout.rows, layout.columns), strides).view(layout.type)


def _bytes(layout: SimpleNamespace) -> int:
    """From its first to its last number."""
    count, step = layout.attributes.get(5, 1), layout.attributes.get(6, 0)
    elements = (count - 1) * step + (layout.columns - 1) * layout.ld + layout.rows
    return int(elements * np.dtype(layout.type).itemsize)
