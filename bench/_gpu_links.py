"""The part `links` of bench/gpu.py: from the GPU of one process to that of another, and between GPUs.

A machine with one GPU shows the first alone, between two processes on that GPU, and says so. NCCL needs two.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from _harness import Row, row

# Of a tensor, quick or not: whole granules of the driver, which are what is lent.
MIB = {
    True: (16,),
    False: (2, 16, 256),
}
ROUNDS = 5


def links(quick: bool) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
    """Tensors that processes read in each other's GPU memory, and reductions by NCCL."""
    for mib in MIB[quick]:
        yield f"{mib} MiB to another process", lambda mib=mib: between_processes(mib << 20)
    for mib in MIB[quick]:
        yield f"{mib} MiB by NCCL", lambda mib=mib: reduced(mib << 20)


def between_processes(size: int) -> Iterator[Row]:
    """GB/s of a copy from another process's memory, beside the way through the host's memory (without what messages cost)."""
    from dovetail.codegen.gpu.driver.device import device
    from dovetail.codegen.gpu.driver.ipc import handle_of

    gpu = device(0)
    tensor = gpu.from_host(np.arange(size, dtype=np.uint8))
    gpu.synchronize()
    handle = handle_of(gpu, tensor._owner.pointer)
    lent = in_another_process(handle.hex(), tensor._owner.size, size)
    staged = median_seconds(lambda: gpu.from_host(gpu.to_host(tensor)), gpu.synchronize)
    name = f"{size >> 20} MiB from another process's GPU memory"
    yield row(name, "GB/s", size / lent / 1e9, size / staged / 1e9, "host memory", "ratio >= 2")


def in_another_process(handle: str, whole: int, size: int) -> float:
    """Seconds that another process needs to copy so many bytes of a block."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; import _gpu_links as l; print(l.taken_from({handle!r}, {whole}, {size}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout.split()[-1])


def taken_from(handle: str, whole: int, size: int) -> float:
    """Seconds of a copy out of another process's block, which is opened and checked before."""
    from dovetail.codegen.gpu.driver.device import device
    from dovetail.codegen.gpu.driver.ipc import Incoming, closed, opened

    gpu = device(0)
    pointer = opened(gpu, bytes.fromhex(handle), whole)
    taken = Incoming(gpu, (size,), np.dtype(np.uint8), pointer, None).taken()
    if not np.array_equal(gpu.to_host(taken), np.arange(size, dtype=np.uint8)):
        raise RuntimeError("what was read is not what was written")
    del taken
    seconds = median_seconds(lambda: Incoming(gpu, (size,), np.dtype(np.uint8), pointer, None).taken(), gpu.synchronize)
    closed(gpu, pointer)
    return seconds


def reduced(size: int) -> Iterator[Row]:
    """GB/s of an all_reduce over all GPUs: the bus's bandwidth, as NCCL's own tests reckon it."""
    from dovetail.codegen.gpu.driver import nccl
    from dovetail.codegen.gpu.driver.api import gpu_count
    from dovetail.codegen.gpu.driver.device import device

    count = gpu_count()
    if count < 2 or not nccl.bindings():
        what = f"{count} GPU" if count < 2 else "nccl4py, or NVIDIA's library, is missing"
        print(f"{size >> 20} MiB by NCCL: skipped, since {what} ({count} GPUs and NCCL would be needed)", flush=True)
        return
    gpus = [device(i) for i in range(count)]
    members = [nccl.NcclLink(gpu, i, count) for i, gpu in enumerate(gpus)]
    arrays = [gpu.from_host(np.full(size // 4, i, np.float32)) for i, gpu in enumerate(gpus)]
    told = threading.Semaphore(0)
    results: list[Any] = []

    class Reduce:
        def __init__(self, rank: int) -> None:
            self.array = arrays[rank]
            self.out = gpus[rank].empty(self.array.shape, self.array.dtype)
            with gpus[rank].entered():
                self.ready = gpus[rank].compute.record()

        def call(self, library: Any, communicator: Any, stream: int, rows: Sequence[int]) -> Any:
            library.all_reduce(
                self.array.pointer, self.out.pointer, self.array.size, nccl.TYPES["float32"], nccl.REDUCTIONS["sum"],
                communicator, stream,
            )  # fmt: skip
            return self.out

    def tell(result: Any) -> None:
        results.append(result)
        told.release()

    def once() -> None:
        number = members[0].next_number()
        for rank, member in enumerate(members):
            member.start(number, members[0].invitation(), Reduce(rank), [0] * count, tell)
        for _ in members:
            if not told.acquire(timeout=30):
                raise RuntimeError("NCCL did not answer within 30 s")
        for result in results:
            if isinstance(result, Exception):
                raise result

    try:
        once()
        if any(float(np.asarray(r)[0]) != count * (count - 1) / 2 for r in results):
            raise RuntimeError("the sum is wrong")
        results.clear()
        seconds = median_seconds(once, results.clear)
        yield row(
            f"all_reduce of {size >> 20} MiB by NCCL, {count} GPUs",
            "GB/s",
            2 * (count - 1) / count * size / seconds / 1e9,
        )
    finally:
        for member in members:
            member.close()


def median_seconds(start: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Median seconds of one call and its wait, after one that is not counted."""
    start()
    wait()
    samples = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        start()
        wait()
        samples.append(time.perf_counter() - began)
    return sorted(samples)[ROUNDS // 2]
