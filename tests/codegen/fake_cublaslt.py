"""A stand-in for the bindings of cuBLASLt: columns first, as the library has it, run by the stand-in for the driver when it likes."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

_TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}


class FakeCublasLt:
    """Attributes:
    driver: the stand-in whose streams products are queued on.
    products: m, n and k, as the library sees them, of what was queued.
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
        self.algorithms = 1
        self.alive: dict[int, SimpleNamespace] = {}

    def _new(self, **fields: Any) -> int:
        number = 1000 + len(self.alive) + 7 * id(fields) % (1 << 30)
        self.alive[number] = SimpleNamespace(**fields)
        return number

    def create(self) -> int:
        return self._new(kind="handle")

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        assert (compute_type, scale_type) in ((68, 0), (70, 1), (77, 0))
        return self._new(kind="operation", scale=_TYPES[scale_type], attributes={})

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        assert ld >= rows
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
        assert self.alive[handle].kind == kind
        self.alive[handle].attributes[attr] = int.from_bytes(ctypes.string_at(buf, size), "little", signed=True)

    def matmul_desc_set_attribute(self, matmul_desc: int, attr: int, buf: int, size_in_bytes: int) -> None:
        self._set(matmul_desc, "operation", attr, buf, size_in_bytes)

    def matrix_layout_set_attribute(self, mat_layout: int, attr: int, buf: int, size_in_bytes: int) -> None:
        assert size_in_bytes == {5: 4, 6: 8}[attr]
        self._set(mat_layout, "layout", attr, buf, size_in_bytes)

    def matmul_preference_set_attribute(self, pref: int, attr: int, buf: int, size_in_bytes: int) -> None:
        self._set(pref, "preference", attr, buf, size_in_bytes)

    def matmul_algo_get_heuristic(
        self, light_handle: int, operation_desc: int, adesc: int, bdesc: int, cdesc: int, ddesc: int, preference: int,
        requested_algo_count: int, heuristic_results_array: int, return_algo_count: int,
    ) -> None:  # fmt: skip
        assert self.alive[preference].attributes[1] == 32 << 20 and requested_algo_count == 1
        ctypes.memset(heuristic_results_array, 7, 64)
        ctypes.c_int32.from_address(return_algo_count).value = self.algorithms

    def matmul(
        self, light_handle: int, compute_desc: int, alpha: int, a: int, adesc: int, b: int, bdesc: int, beta: int, c: int, cdesc: int,
        d: int, ddesc: int, algo: int, workspace: int, workspace_size_in_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        operation = self.alive[compute_desc]
        assert self.alive[light_handle].kind == "handle" and ctypes.string_at(algo, 64) == b"\x07" * 64
        assert workspace and workspace_size_in_bytes == 32 << 20 and c == d and cdesc == ddesc
        letter = ctypes.c_double if operation.scale is np.float64 else ctypes.c_float
        assert (letter.from_address(alpha).value, letter.from_address(beta).value) == (1.0, 0.0)
        layouts = [self.alive[x] for x in (adesc, bdesc, ddesc)]
        flips = [operation.attributes.get(i, 0) == 1 for i in (3, 4)]
        inner = layouts[0].rows if flips[0] else layouts[0].columns
        self.products.append((layouts[2].rows, layouts[2].columns, inner))

        def work() -> None:
            left, right, out = (_matrices(at, layout) for at, layout in zip((a, b, d), layouts, strict=True))
            left, right = (
                (np.swapaxes(x, -1, -2) if flip else x).astype(operation.scale)
                for x, flip in zip((left, right), flips, strict=True)
            )
            out[...] = left @ right

        found = self.driver._stream(stream)
        assert int(found) == stream
        self.driver._queue(found, work)


def _matrices(address: int, layout: SimpleNamespace) -> Any:
    """A stack of matrices whose columns lie one after the other."""
    count, step = layout.attributes.get(5, 1), layout.attributes.get(6, 0)
    size = np.dtype(layout.type).itemsize
    elements = (count - 1) * step + (layout.columns - 1) * layout.ld + layout.rows
    flat = np.frombuffer((ctypes.c_ubyte * (elements * size)).from_address(address), layout.type)
    strides = (step * size, size, layout.ld * size)
    return np.lib.stride_tricks.as_strided(flat, (count, layout.rows, layout.columns), strides)
