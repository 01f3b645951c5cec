"""The strict driver refuses what a driver refuses: one test for each rule, and CUDA's own error codes."""

import ctypes
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_backends import ON_DEVICE, RecordedDriver, gpus_for_tests

from dovetail.codegen.gpu.driver import api
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.gpu.driver.launch import LoadedKernel
from dovetail.codegen.gpu.ir import HEADER, Parameter, TritonKernel
from dovetail.codegen.target import SM80, SM90

pytestmark = pytest.mark.skipif(ON_DEVICE, reason="the rules of the strict driver, which is not loaded")

RELAXED, GLOBAL = 2, 0  # modes of a capture
MOST_SHARED = 232_448

COPY = TritonKernel(
    "copy",
    HEADER
    + """@triton.jit
def copy(in0, out0, n0, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out0 + i, tl.load(in0 + i + SHIFT, i < n0), i < n0)
""",
    (Parameter("in0", "*fp32", True), Parameter("out0", "*fp32", True), Parameter("n0", "i32")),
    (("SHIFT", 0), ("BLOCK", 128)),
)


@pytest.fixture
def strict() -> Iterator[RecordedDriver]:
    with gpus_for_tests(2) as made:
        check(made.cuInit(0))
        enter(made, 0)
        yield made


def check(answer: tuple[Any, ...]) -> Any:
    return api.check(answer)


def enter(driver: RecordedDriver, gpu: int) -> Any:
    context = check(driver.cuDevicePrimaryCtxRetain(gpu))
    check(driver.cuCtxSetCurrent(context))
    return context


def refuses(driver: RecordedDriver, code: int, why: str, call: Callable[[], Any]) -> None:
    """A call gives this error, and the driver says why."""
    assert int(call()[0]) == code
    assert any(c == code and why in text for c, text in driver.strict.refused), driver.strict.refused
    driver.strict.refused.clear()


def fails(driver: RecordedDriver, code: int, why: str, wait: Callable[[], Any]) -> None:
    """What is queued fails when it runs, and every call after it."""
    refuses(driver, code, why, wait)
    assert int(driver.cuCtxSynchronize()[0]) == code
    assert int(driver.cuMemAlloc(512)[0]) == code


def function(driver: RecordedDriver, shared: int = 0, **constants: int) -> Any:
    """The kernel that copies: n0 numbers, from the SHIFT-th on."""
    kernel = replace(COPY, constants=tuple({**dict(COPY.constants), **constants}.items()))
    module = check(driver.cuModuleLoadData(driver.strict.stand_in(kernel, SM90, shared).image))
    return check(driver.cuModuleGetFunction(module, b"copy"))


def launch(driver: RecordedDriver, f: Any, stream: Any, source: int, target: int, n: int = 128, **more: Any) -> Any:
    values = (ctypes.c_uint64 * 2)(source, target)
    counts = (ctypes.c_int32 * 6)(n)
    hidden = (ctypes.c_uint64 * 2)()
    at = [ctypes.addressof(values), ctypes.addressof(values) + 8, ctypes.addressof(counts)]
    at += [ctypes.addressof(hidden), ctypes.addressof(hidden) + 8]
    pointers = (ctypes.c_void_p * 5)(*at)
    grid, block, shared = more.get("grid", (1, 1, 1)), more.get("block", (128, 1, 1)), more.get("shared", 0)
    return driver.cuLaunchKernel(f, *grid, *block, shared, stream, ctypes.addressof(pointers), 0)


def memory(driver: RecordedDriver, size: int = 512, stream: Any = None) -> int:
    """Memory, which is filled with zeros where a stream is given."""
    made = int(check(driver.cuMemAlloc(size)))
    if stream is not None:
        check(driver.cuMemsetD8Async(made, 0, size, stream))
    return made


def stream_of(driver: RecordedDriver) -> Any:
    return check(driver.cuStreamCreate(1))


# --- contexts, handles, memory ---------------------------------------------------------------------------------------


def test_a_thread_without_a_context_can_do_nothing(strict: RecordedDriver) -> None:
    stream, event = stream_of(strict), check(strict.cuEventCreate(2))
    check(strict.cuEventRecord(event, stream))
    codes = []

    def work() -> None:
        for call in (
            lambda: strict.cuMemAlloc(512),
            lambda: strict.cuEventSynchronize(event),
            lambda: strict.cuEventQuery(event),
            lambda: strict.cuStreamSynchronize(stream),
            lambda: strict.cuEventCreate(0),
            lambda: strict.cuMemHostAlloc(64, 0),
        ):
            codes.append(int(call()[0]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [201] * 6
    assert all("without a current context in its thread" in why for _, why in strict.strict.refused)
    strict.strict.refused.clear()


def test_handles_that_do_not_exist(strict: RecordedDriver) -> None:
    event = check(strict.cuEventCreate(2))
    check(strict.cuEventDestroy(event))
    refuses(strict, 400, "an event that does not exist", lambda: strict.cuEventDestroy(event))
    refuses(strict, 400, "an event that does not exist", lambda: strict.cuEventRecord(event, stream_of(strict)))
    refuses(strict, 400, "a stream that does not exist", lambda: strict.cuStreamSynchronize(0x123450))
    refuses(strict, 201, "a context that does not exist", lambda: strict.cuCtxSetCurrent(0x123450))
    refuses(strict, 101, "a GPU that is not there", lambda: strict.cuDeviceGet(2))


def test_events_that_tell_no_time(strict: RecordedDriver) -> None:
    stream = stream_of(strict)
    untimed, timed, other = (check(strict.cuEventCreate(flags)) for flags in (2, 0, 0))
    check(strict.cuEventRecord(untimed, stream))
    refuses(strict, 400, "made without timing", lambda: strict.cuEventElapsedTime(untimed, untimed))
    refuses(strict, 400, "was not recorded", lambda: strict.cuEventElapsedTime(timed, other))
    memory(strict, stream=stream)
    check(strict.cuEventRecord(timed, stream))
    assert int(strict.cuEventElapsedTime(timed, timed)[0]) == 600, "it has not happened yet"


def test_blocks_have_owners(strict: RecordedDriver) -> None:
    block = memory(strict)
    refuses(strict, 1, "no allocation of this process", lambda: strict.cuMemFree(block + 256))
    refuses(strict, 1, "what was not opened", lambda: strict.cuIpcCloseMemHandle(block))
    check(strict.cuMemFree(block))
    refuses(strict, 1, "no allocation of this process", lambda: strict.cuMemFree(block))
    refuses(strict, 1, "of 0 bytes", lambda: strict.cuMemAlloc(0))
    assert int(strict.cuMemAlloc(2 << 30)[0]) == 2, "more than the GPU has"


def test_a_process_does_not_open_its_own_memory(strict: RecordedDriver) -> None:
    handle = check(strict.cuIpcGetMemHandle(memory(strict, 2 << 20)))
    refuses(strict, 1, "which other allocations share", lambda: strict.cuIpcGetMemHandle(memory(strict, 1 << 20)))
    refuses(strict, 201, "this process's own memory", lambda: strict.cuIpcOpenMemHandle(handle, 1))


def test_memory_of_another_process_is_closed_and_not_freed(strict: RecordedDriver) -> None:
    text = f"""
        import ctypes, sys
        sys.path[:0] = {[p for p in sys.path if p]!r}
        from gpu_backends import gpus_for_tests
        with gpus_for_tests(1) as driver:
            driver.cuInit(0)
            driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
            block = driver.cuMemAlloc(2 << 20)[1]
            print(ctypes.string_at(driver.cuIpcGetMemHandle(block)[1].getPtr(), 64).hex(), flush=True)
            input()
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], cwd=root, text=True, **pipes) as other:
        assert other.stdin is not None and other.stdout is not None
        handle = strict.CUipcMemHandle()
        ctypes.memmove(int(handle.getPtr()), bytes.fromhex(other.stdout.readline()), 64)
        block = int(check(strict.cuIpcOpenMemHandle(handle, 1)))
        assert int(check(strict.cuMemGetAddressRange(block))[1]) == 2 << 20
        refuses(strict, 1, "no allocation of this process", lambda: strict.cuMemFree(block))
        check(strict.cuIpcCloseMemHandle(block))
        other.stdin.write("\n")
        other.stdin.close()
        assert other.wait() == 0
        assert int(strict.cuIpcOpenMemHandle(handle, 1)[0]) == 400, "its process has ended"


def test_copies_are_within_memory_and_from_pinned_memory(strict: RecordedDriver) -> None:
    stream, block, pinned = stream_of(strict), memory(strict), int(check(strict.cuMemHostAlloc(1024, 0)))
    pageable = ctypes.create_string_buffer(64)
    at = ctypes.addressof(pageable)
    refuses(strict, 1, "is not pinned", lambda: strict.cuMemcpyHtoDAsync(block, at, 64, stream))
    refuses(strict, 1, "is not pinned", lambda: strict.cuMemcpyDtoHAsync(at, block, 64, stream))
    refuses(strict, 1, "no memory of a GPU", lambda: strict.cuMemcpyHtoDAsync(block, pinned, 513, stream))
    refuses(strict, 1, "no memory of a GPU", lambda: strict.cuMemcpyDtoDAsync(block, pinned, 8, stream))
    refuses(strict, 1, "no memory of a GPU", lambda: strict.cuMemsetD8Async(block + 512, 0, 8, stream))


# --- kernels ---------------------------------------------------------------------------------------------------------


def test_images(strict: RecordedDriver) -> None:
    refuses(strict, 200, "no binary for this GPU", lambda: strict.cuModuleLoadData(b"no image at all"))
    older = strict.compiled(COPY, SM80)
    refuses(strict, 209, "no binary for this GPU", lambda: strict.cuModuleLoadData(older.image))
    binary = strict.compiled(COPY, SM90)
    module = check(strict.cuModuleLoadData(binary.image))
    refuses(strict, 500, "no function other", lambda: strict.cuModuleGetFunction(module, b"other"))
    check(strict.cuModuleGetFunction(module, b"copy"))


def test_arguments_are_as_long_as_the_binary_says(strict: RecordedDriver) -> None:
    """A launch that passes one number of 32 bits where the binary takes two would be read beyond its end."""
    gpu = device(0)
    binary = strict.compiled(COPY, SM90)
    loaded = LoadedKernel(gpu, binary)
    x, y = gpu.from_host(np.arange(128, dtype=np.float32)), gpu.empty((128,), np.dtype(np.float32))
    with gpu.entered():
        loaded.launch((1, 1, 1), [x.pointer, y.pointer, 128])
    np.testing.assert_array_equal(gpu.to_host(y), np.arange(128))
    lied = replace(binary, parameters=(Parameter("n0", "i32"), *binary.parameters[:2]))
    wrong = LoadedKernel(gpu, lied)  # it packs other sizes than the binary reads
    with gpu.entered():
        wrong.launch((1, 1, 1), [8, x.pointer, y.pointer])  # an address that is 8, for the binary
    fails(strict, 716, "the address in0 is promised to be a multiple of 16", strict.cuCtxSynchronize)


def test_shared_memory(strict: RecordedDriver) -> None:
    stream, block, f = stream_of(strict), memory(strict), function(strict, 50_000)
    most = strict.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    refuses(
        strict, 1, f"a block has at most {MOST_SHARED}", lambda: strict.cuFuncSetAttribute(f, most, MOST_SHARED + 1)
    )
    refuses(
        strict,
        1,
        "more shared memory than was asked for",
        lambda: launch(strict, f, stream, block, block, shared=50_000),
    )
    check(strict.cuFuncSetAttribute(f, most, 50_000))
    check(launch(strict, f, stream, memory(strict, stream=stream), block, shared=50_000))
    check(strict.cuStreamSynchronize(stream))


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({"grid": (0, 1, 1)}, 1, "an empty grid"),
        ({"grid": (1, 65_536, 1)}, 1, "too large a grid"),
        ({"block": (1025, 1, 1)}, 1, "1 to 1024 threads"),
        ({"block": (0, 1, 1)}, 1, "1 to 1024 threads"),
    ],
)
def test_grids_and_blocks(strict: RecordedDriver, change: dict[str, Any], code: int, why: str) -> None:
    stream, block, f = stream_of(strict), memory(strict), function(strict)
    refuses(strict, code, why, lambda: launch(strict, f, stream, block, block, **change))


def test_registers_and_blocks_that_run_together(strict: RecordedDriver) -> None:
    stream, block, f = stream_of(strict), memory(strict), function(strict)
    none = (ctypes.c_int * 5)(0, 8, 16, 24, 32), (ctypes.c_int * 5)(8, 8, 4, 8, 8)
    strict.strict._library.strict_function(int(f), 5, *none, 255)
    refuses(strict, 701, "registers", lambda: launch(strict, f, stream, block, block, block=(512, 1, 1)))
    zero = ctypes.c_uint64()
    pointers = (ctypes.c_void_p * 5)(*[ctypes.addressof(zero)] * 5)
    refuses(
        strict, 720, "not all blocks run at the same time",
        lambda: strict.cuLaunchCooperativeKernel(f, 1000, 1, 1, 128, 1, 1, 0, stream, ctypes.addressof(pointers)),
    )  # fmt: skip


def test_function_stream_and_context_are_of_one_gpu(strict: RecordedDriver) -> None:
    stream, f = stream_of(strict), function(strict)
    enter(strict, 1)
    refuses(strict, 400, "not of one GPU", lambda: launch(strict, f, stream, 0, 0))
    event = check(strict.cuEventCreate(2))
    refuses(strict, 400, "an event of another GPU", lambda: strict.cuEventRecord(event, stream))


@pytest.mark.parametrize(
    ("case", "code", "why"),
    [
        ("beyond", 700, "touches bytes"),
        ("nowhere", 700, "touches bytes"),
        ("misaligned", 716, "promised to be a multiple of 16"),
        ("freed", 700, "touches bytes"),
        ("other GPU", 700, "another GPU's memory"),
    ],
)
def test_what_kernels_touch(strict: RecordedDriver, case: str, code: int, why: str) -> None:
    there = 0
    if case == "other GPU":
        enter(strict, 1)
        there = memory(strict, stream=(s := stream_of(strict)))
        check(strict.cuStreamSynchronize(s))
        enter(strict, 0)
    stream = stream_of(strict)
    source, target = memory(strict, stream=stream), memory(strict)
    check(strict.cuStreamSynchronize(stream))
    f = function(strict, SHIFT=64 if case == "beyond" else 0)
    given = {"nowhere": 4096, "misaligned": source + 4, "other GPU": there}.get(case, source)
    if case == "freed":
        check(strict.cuMemFree(source))
    check(launch(strict, f, stream, given, target))
    fails(strict, code, why, lambda: strict.cuStreamSynchronize(stream))


def test_a_gpu_with_access_reads_the_others_memory(strict: RecordedDriver) -> None:
    other = enter(strict, 1)
    there = memory(strict, stream=(s := stream_of(strict)))
    check(strict.cuStreamSynchronize(s))
    enter(strict, 0)
    check(strict.cuCtxEnablePeerAccess(other, 0))
    assert int(strict.cuCtxEnablePeerAccess(other, 0)[0]) == 704
    check(launch(strict, function(strict), stream := stream_of(strict), there, memory(strict)))
    check(strict.cuStreamSynchronize(stream))


# --- order between streams -------------------------------------------------------------------------------------------


def test_what_nothing_has_written_is_not_read(strict: RecordedDriver) -> None:
    stream = stream_of(strict)
    check(strict.cuMemcpyDtoDAsync(memory(strict), memory(strict), 512, stream))
    fails(
        strict,
        719,
        "a copy on the GPU reads what nothing has written: byte 0 of 512",
        lambda: strict.cuStreamSynchronize(stream),
    )


@pytest.mark.parametrize("ordered", ["by nothing", "by an event", "by the host", "by an event before the write"])
@pytest.mark.parametrize("second", ["reads", "writes"])
def test_streams_are_ordered(strict: RecordedDriver, ordered: str, second: str) -> None:
    one, two, event = stream_of(strict), stream_of(strict), check(strict.cuEventCreate(2))
    source, target = memory(strict, stream=one), memory(strict)
    check(strict.cuStreamSynchronize(one))
    f = function(strict)
    if ordered == "by an event before the write":
        check(strict.cuEventRecord(event, one))
    check(launch(strict, f, one, source, target))
    if ordered == "by an event":
        check(strict.cuEventRecord(event, one))
    if ordered == "by the host":
        check(strict.cuStreamSynchronize(one))
    elif ordered != "by nothing":
        check(strict.cuStreamWaitEvent(two, event, 0))
    if second == "reads":
        check(launch(strict, f, two, target, memory(strict)))
    else:
        check(strict.cuMemsetD8Async(target, 1, 512, two))
    check(strict.cuStreamSynchronize(one))  # whichever runs first
    if ordered in ("by an event", "by the host"):
        check(strict.cuStreamSynchronize(two))
    else:
        why = f"{'copy' if second == 'reads' else 'a memset'} {second} what copy writes on another stream, and nothing orders them"
        fails(strict, 719, why, lambda: strict.cuStreamSynchronize(two))


def test_what_is_still_read_is_not_overwritten(strict: RecordedDriver) -> None:
    one, two = stream_of(strict), stream_of(strict)
    source = memory(strict, stream=one)
    check(strict.cuStreamSynchronize(one))
    check(launch(strict, function(strict), one, source, memory(strict)))
    check(strict.cuMemsetD8Async(source, 1, 512, two))
    check(strict.cuStreamSynchronize(two))
    fails(strict, 719, "copy reads what a memset writes on another stream", lambda: strict.cuStreamSynchronize(one))


def test_nothing_runs_before_somebody_waits(strict: RecordedDriver) -> None:
    stream, event = stream_of(strict), check(strict.cuEventCreate(2))
    pinned = int(check(strict.cuMemHostAlloc(512, 0)))
    block = memory(strict, stream=stream)
    check(strict.cuMemcpyDtoHAsync(pinned, block, 512, stream))
    check(strict.cuEventRecord(event, stream))
    ctypes.memset(pinned, 5, 512)
    assert int(strict.cuEventQuery(event)[0]) == 600
    check(strict.cuEventSynchronize(event))
    assert int(strict.cuEventQuery(event)[0]) == 0 and ctypes.string_at(pinned, 512) == bytes(512)


# --- captures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "code", "why"),
    [
        (lambda d, s, e, p, b: d.cuStreamSynchronize(s), 900, "cuStreamSynchronize of a captured stream"),
        (lambda d, s, e, p, b: d.cuMemcpyDtoHAsync(p, b, 64, s), 900, "on a captured stream"),
        (lambda d, s, e, p, b: d.cuMemcpyHtoDAsync(b, p, 64, s), 900, "on a captured stream"),
        (lambda d, s, e, p, b: d.cuStreamWaitEvent(s, e, 0), 905, "outside of its capture"),
        (lambda d, s, e, p, b: (d.cuEventRecord(e, s), d.cuEventQuery(e))[1], 907, "an event that is captured"),
        (lambda d, s, e, p, b: (d.cuEventRecord(e, s), d.cuEventSynchronize(e))[1], 907, "an event that is captured"),
        (
            lambda d, s, e, p, b: (d.cuEventRecord(e, s), d.cuStreamWaitEvent(stream_of(d), e, 0))[1],
            905,
            "is not captured",
        ),
    ],
    ids=["synchronize", "to host", "to device", "wait", "query", "wait for event", "join"],
)
def test_what_ends_a_capture(strict: RecordedDriver, call: Any, code: int, why: str) -> None:
    stream, event = stream_of(strict), check(strict.cuEventCreate(2))
    pinned, block = int(check(strict.cuMemHostAlloc(64, 0))), memory(strict, stream=stream)
    check(strict.cuEventRecord(event, stream))
    check(strict.cuStreamSynchronize(stream))
    check(strict.cuStreamBeginCapture(stream, strict.CUstreamCaptureMode(RELAXED)))
    refuses(strict, code, why, lambda: call(strict, stream, event, pinned, block))
    refuses(strict, 901, "whose capture is invalid", lambda: strict.cuMemsetD8Async(block, 0, 8, stream))
    assert int(strict.cuStreamEndCapture(stream)[0]) == 901
    check(strict.cuMemsetD8Async(block, 0, 8, stream))
    check(strict.cuStreamSynchronize(stream))


def test_captures_begin_and_end_once(strict: RecordedDriver) -> None:
    stream = stream_of(strict)
    mode = strict.CUstreamCaptureMode(RELAXED)
    refuses(strict, 401, "not captured", lambda: strict.cuStreamEndCapture(stream))
    refuses(strict, 900, "the default stream", lambda: strict.cuStreamBeginCapture(0, mode))
    check(strict.cuStreamBeginCapture(stream, mode))
    refuses(strict, 401, "captured already", lambda: strict.cuStreamBeginCapture(stream, mode))
    graph = check(strict.cuStreamEndCapture(stream))
    made = check(strict.cuGraphInstantiate(graph, 0))
    check(strict.cuGraphDestroy(graph))
    refuses(strict, 400, "a graph that does not exist", lambda: strict.cuGraphInstantiate(graph, 0))
    check(strict.cuGraphExecDestroy(made))
    refuses(strict, 400, "a graph that does not exist", lambda: strict.cuGraphLaunch(made, stream))


def test_a_capture_that_is_not_relaxed(strict: RecordedDriver) -> None:
    stream = stream_of(strict)
    check(strict.cuStreamBeginCapture(stream, strict.CUstreamCaptureMode(GLOBAL)))
    refuses(strict, 900, "cuMemAlloc while a stream is captured", lambda: strict.cuMemAlloc(512))
    assert int(strict.cuStreamEndCapture(stream)[0]) == 901
    check(strict.cuStreamBeginCapture(stream, strict.CUstreamCaptureMode(GLOBAL)))
    context, codes = check(strict.cuDevicePrimaryCtxRetain(0)), []

    def elsewhere() -> None:
        strict.cuCtxSetCurrent(context)
        codes.append(int(strict.cuStreamEndCapture(stream)[0]))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert codes == [908]
    strict.strict.refused.clear()
    check(strict.cuStreamEndCapture(stream))


def test_a_graph_uses_the_memory_that_it_was_captured_with(strict: RecordedDriver) -> None:
    stream = stream_of(strict)
    source, target = memory(strict, stream=stream), memory(strict)
    check(strict.cuStreamSynchronize(stream))
    check(strict.cuStreamBeginCapture(stream, strict.CUstreamCaptureMode(RELAXED)))
    check(launch(strict, function(strict), stream, source, target))
    graph = check(strict.cuGraphInstantiate(check(strict.cuStreamEndCapture(stream)), 0))
    for _ in range(2):
        check(strict.cuGraphLaunch(graph, stream))
    check(strict.cuStreamSynchronize(stream))
    assert len(strict.ran) == 2
    check(strict.cuMemFree(source))
    check(strict.cuGraphLaunch(graph, stream))
    fails(strict, 700, "touches bytes", lambda: strict.cuStreamSynchronize(stream))


# --- what is refused fails the test ----------------------------------------------------------------------------------


def test_a_test_that_breaks_a_rule_fails() -> None:
    with pytest.raises(AssertionError, match="cuMemAlloc of 0 bytes"), gpus_for_tests(1) as driver:
        driver.cuInit(0)
        enter(driver, 0)
        driver.cuMemAlloc(0)


def test_each_gpu_has_its_own_memory(strict: RecordedDriver) -> None:
    first, second = device(0), device(1)
    a, b = first.from_host(np.ones(8, np.float32)), second.from_host(np.zeros(8, np.float32))
    assert {gpu for _, gpu in strict.allocated.values()} == {0, 1}
    np.testing.assert_array_equal(first.to_host(a) + second.to_host(b), 1)
