"""Arrays in a GPU's memory.

A `DeviceArray` is always contiguous, and its address is a multiple of 16 bytes, which kernels assume. NumPy gets a copy in host memory,
and waits for the kernels that make it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .allocator import Pool
from .api import Event, Stream


class ArrayDevice(Protocol):
    """The interface of a GPU that arrays and their copies use. `device.Device` implements it."""

    index: int
    ordinal: Any
    context: Any
    pool: Pool
    main: Stream
    compute: Stream
    copy_in: Stream
    copy_out: Stream

    def entered(self) -> AbstractContextManager[None]: ...
    def make_current(self) -> None: ...
    def must_run(self, what: str) -> None: ...
    def hold_until(self, event: Event, what: Any) -> None: ...
    def to_host(self, array: DeviceArray) -> np.ndarray[Any, Any]: ...
    def coming_to_host(self, array: DeviceArray) -> Any: ...
    def copy(self, array: DeviceArray, label: str = "") -> DeviceArray: ...
    def copy_into(self, target: DeviceArray, source: DeviceArray) -> None: ...


@dataclass(eq=False, slots=True, weakref_slot=True, repr=False)
class DeviceArray:
    """An array in the memory of one GPU. Readers never change its values.

    Attributes:
        device: the GPU.
        shape: sizes.
        dtype: element type, NumPy's.
        pointer: address in the GPU's memory; 0 when there are no elements.
    """

    device: ArrayDevice
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pointer: int
    _owner: Any

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def is_like(self, other: DeviceArray) -> bool:
        """Whether another array is on the same device, and has this shape and type."""
        return (self.device, self.shape, self.dtype) == (other.device, other.shape, other.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        """The same elements in another shape, in the same memory.

        Raises:
            ValueError: another number of elements.
        """
        if math.prod(shape) != self.size:
            raise ValueError(f"cannot reshape {self.size} elements to {shape}")
        return DeviceArray(self.device, shape, self.dtype, self.pointer, self._owner)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("an array in a GPU's memory cannot become NumPy's without a copy")
        host = self.device.to_host(self)
        return host if dtype is None else host.astype(dtype, copy=False)

    def __bool__(self) -> bool:
        """Of one element; ValueError for more, as NumPy has it. Waits for it."""
        return bool(self.device.to_host(self))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{list(self.shape)} on GPU:{self.device.index}>"
