"""Arrays in a GPU's memory, and their zero-copy exchange with other libraries.

A `DeviceArray` is always contiguous, and its address is a multiple of 16 bytes, which kernels assume. It is exported and imported
without a copy by `__cuda_array_interface__` and DLPack (CuPy, PyTorch, JAX, Numba support one or both). NumPy gets a copy in host
memory. A kernel may run later than the call that launched it, so the consumer of an array gets the stream to wait for, or waits.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import numpy as np

from . import dlpack
from .allocator import Pool
from .api import CudaError, bindings, check
from .streams import Event, Stream

ALIGNMENT = 16  # what kernels take for granted of addresses


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
    def event(self) -> Event: ...
    def hold_until(self, event: Event, what: Any) -> None: ...
    def to_host(self, array: DeviceArray) -> np.ndarray[Any, Any]: ...
    def coming_to_host(self, array: DeviceArray) -> Any: ...
    def copy(self, array: DeviceArray, label: str = "") -> DeviceArray: ...
    def copy_into(self, target: DeviceArray, source: DeviceArray) -> None: ...


class DeviceArray:
    """An array in the memory of one GPU. Readers never change its values.

    Attributes:
        device: the GPU.
        shape: sizes.
        dtype: element type, NumPy's.
        pointer: address in the GPU's memory; 0 when there are no elements.
    """

    __slots__ = ("__weakref__", "_owner", "device", "dtype", "pointer", "shape")

    def __init__(
        self, device: ArrayDevice, shape: tuple[int, ...], dtype: np.dtype[Any], pointer: int, owner: Any
    ) -> None:
        self.device = device
        self.shape = shape
        self.dtype = dtype
        self.pointer = pointer
        self._owner = owner

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

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

    # --- other libraries -------------------------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of Numba's protocol. AttributeError for bfloat16 and float8, which it has no letter for."""
        if self.dtype.kind == "V" or self.dtype.type.__module__ != "numpy":
            raise AttributeError(f"__cuda_array_interface__ cannot tell of {self.dtype}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "strides": None,
            "stream": int(self.device.compute.handle),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.index

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule. `stream`: the consumer's stream, which is made to wait (None: the default stream, -1: no waiting)."""
        if dl_device is not None and tuple(dl_device) == (dlpack.CPU, 0):
            return self.device.to_host(self).__dlpack__()
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on GPU:{self.device.index}, not on {dl_device}")
        shared = self.device.copy(self) if copy else self
        if stream != -1:
            taker = 1 if stream is None else int(stream)  # 1: the legacy default stream
            with self.device.entered():
                made = self.device.compute.record()
                check(bindings().cuStreamWaitEvent(taker, made.handle, 0))
        return dlpack.exported(shared, shared.pointer, shared.shape, shared.dtype, self.device.index)


class _Foreign:
    """Another library's array. With its last reference here it is kept until the kernels that may read it have run."""

    __slots__ = ("array", "device")

    def __init__(self, array: Any, device: ArrayDevice) -> None:
        self.array, self.device = array, device

    def __del__(self) -> None:
        device = self.device
        with suppress(CudaError):  # after a failure of the GPU, nothing runs any more
            device.make_current()  # without its lock: this may happen anywhere, even inside an allocation
            device.hold_until(device.main.record(), self.array)


def from_dlpack(value: Any, of: ArrayDevice) -> DeviceArray:
    """Import an array of another library on this GPU without a copy. Its producer must not change it any more.

    Raises:
        ValueError: it is on another device, or of an unsupported type.
    """
    kind, index = value.__dlpack_device__()
    if int(kind) != dlpack.CUDA or index != of.index:
        raise ValueError(f"the array is on device {int(kind), index} (DLPack's words), not on GPU:{of.index}")
    capsule = value.__dlpack__(stream=int(of.compute.handle))
    pointer, shape, strides, dtype, keep = dlpack.imported(capsule)
    return _taken(of, pointer, shape, strides, dtype, keep)


def from_cuda_array(value: Any, of: ArrayDevice) -> DeviceArray:
    """The same by `__cuda_array_interface__`."""
    told = value.__cuda_array_interface__
    dtype = np.dtype(told["typestr"])
    strides = told.get("strides")
    if strides is not None:
        strides = tuple(s // dtype.itemsize for s in strides)
    if told.get("mask") is not None:
        raise ValueError("an array with a mask has no counterpart here")
    stream = told.get("stream")
    if stream is not None:
        with of.entered():
            event = of.event()
            check(bindings().cuEventRecord(event.handle, int(stream)))
            of.compute.wait(event)
    return _taken(of, told["data"][0], tuple(told["shape"]), strides, dtype, value)


def _taken(
    of: ArrayDevice,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    keep: Any,
) -> DeviceArray:
    expected: list[int] = []
    step = 1
    for d in reversed(shape):
        expected.append(step)
        step *= d
    dense = strides is None or all(d == 1 or s == e for d, s, e in zip(shape, strides, reversed(expected), strict=True))
    if not dense and 0 not in shape:
        raise ValueError(
            f"the array's elements do not follow one another (strides {strides}): make it contiguous first"
        )
    array = DeviceArray(of, shape, dtype, pointer, _Foreign(keep, of))
    return of.copy(array, "an unaligned array of another library") if pointer % ALIGNMENT else array
