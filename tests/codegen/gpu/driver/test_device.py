"""The device layer on GPUs that run everything as late as they may: memory, copies, launches, graphs, tuning."""

import ctypes
import gc
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from gpu_backends import ON_DEVICE, RecordedDriver, gpus_for_tests

from dovetail.codegen.gpu import autotune
from dovetail.codegen.gpu.driver import api
from dovetail.codegen.gpu.driver.allocator import rounded
from dovetail.codegen.gpu.driver.array import DeviceArray
from dovetail.codegen.gpu.driver.device import Device, NotCapturableError, capture, device
from dovetail.codegen.gpu.driver.launch import Arguments, LoadedKernel, LoadedRoutine, NotSuitableError
from dovetail.codegen.gpu.ir import HEADER, Count, Grid, Launch, Parameter, Routine, Scratch, TritonKernel
from dovetail.codegen.target import GPU_COPY_PIECE, SM90
from dovetail.graph.core.errors import ResourceExhaustedError

pytestmark = pytest.mark.gpu

ADD = TritonKernel(
    "add",
    HEADER
    + '''@triton.jit
def add(in0, in1, out0, n0, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(in0 + i, i < n0) + tl.load(in1 + i, i < n0)
    tl.store(out0 + i, x, i < n0)
''',
    (Parameter("in0", "*fp32", True), Parameter("in1", "*fp32", True), Parameter("out0", "*fp32", True), Parameter("n0", "i32")),
    (("BLOCK", 64),),
)  # fmt: skip
GRID = Grid((Count(("n0",), 64),))
two_gpus = pytest.mark.skipif(ON_DEVICE and api.gpu_count() < 2, reason="there is one GPU")
stand_in = pytest.mark.skipif(ON_DEVICE, reason="what only the strict driver's GPU is known to do")
SUM = Routine((Launch(ADD, GRID),))


@pytest.fixture
def fake():
    with gpus_for_tests(1 if ON_DEVICE else 2) as made:
        yield made


@pytest.fixture
def gpu(fake: RecordedDriver) -> Device:
    return device(0)


def prepared(fake: RecordedDriver, gpu: Device, n: int, routine: Routine = SUM) -> LoadedRoutine:
    kernels = [LoadedKernel(gpu, fake.compile_kernel(x.kernel, gpu.target)) for x in routine.launches]
    return LoadedRoutine(gpu, routine, kernels, ["in0", "in1", "out0"], {"n0": n})


def add(fake: RecordedDriver, a: DeviceArray, b: DeviceArray) -> DeviceArray:
    gpu = a.device
    out = gpu.empty(a.shape, a.dtype, "sum")
    with gpu.entered():
        prepared(fake, gpu, a.size)([a.pointer, b.pointer, out.pointer])
    return out


# --- devices ---------------------------------------------------------------------------------------------------------


@stand_in
def test_what_a_device_says_of_itself(gpu):
    assert (gpu.name, gpu.target, gpu.memory_bytes) == ("Strict GPU", SM90, 1 << 30)
    assert api.gpu_count() == 2
    assert repr(gpu) == "<GPU:0 Strict GPU>"
    assert device(0) is gpu
    with pytest.raises(IndexError, match="GPU:2 is asked for, and this process sees 2"):
        device(2)


@stand_in
def test_without_a_driver_there_is_no_gpu_and_nothing_is_imported(monkeypatch):
    monkeypatch.setattr(api, "_DRIVER_FILES", ("/nowhere",))
    before = api.use(None)
    try:
        assert api.gpu_count() == 0
    finally:
        api.use(before)


@stand_in
def test_a_driver_that_fails_counts_as_none(fake, monkeypatch, caplog):
    monkeypatch.setattr(fake, "cuDeviceGetCount", lambda: (3, None), raising=False)
    assert api.gpu_count() == 0
    assert (
        "The GPU of this machine cannot be used: CUDA_ERROR_NOT_INITIALIZED: the strict driver's answer" in caplog.text
    )


def test_a_process_that_was_forked_is_told_so(fake, monkeypatch):
    assert "forked" not in str(api.error(3)) and "any more" not in str(api.error(2))
    monkeypatch.setattr(api, "_process", 1)
    assert "was forked from process 1" in str(api.error(3))


# --- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 1000, 16384, 16385, GPU_COPY_PIECE // 4 + 1, 6 * GPU_COPY_PIECE // 4 + 3])
def test_there_and_back(gpu, count):
    x = np.arange(count, dtype=np.float32)
    there = gpu.from_host(x)
    assert (there.shape, there.dtype, there.nbytes) == ((count,), x.dtype, 4 * count)
    np.testing.assert_array_equal(gpu.to_host(there), x)


def test_a_host_array_may_change_once_it_was_handed_over(gpu):
    for count in (10, 100_000):
        x = np.ones(count, np.float32)
        there = gpu.from_host(x)
        x[:] = 2
        assert (gpu.to_host(there) == 1).all()


@pytest.mark.parametrize("count", [64, 100_000])
def test_kernels_wait_for_copies_in_and_copies_out_for_kernels(fake, gpu, count):
    a, b = np.arange(count, dtype=np.float32), np.ones(count, np.float32)
    if count > 64:  # recorded only: the interpreter would take long
        fake.kernels.clear()
        x = gpu.from_host(a)
        y = gpu.copy(x)
        np.testing.assert_array_equal(gpu.to_host(y), a)
        return
    np.testing.assert_array_equal(gpu.to_host(add(fake, gpu.from_host(a), gpu.from_host(b))), a + 1)


def test_memory_of_a_large_copy_is_used_again_only_behind_its_readers(gpu):
    count = 100_000
    first = gpu.from_host(np.full(count, 1.0, np.float32))
    kept = gpu.copy(first)  # queued, has not run
    pointer = first.pointer
    del first
    second = gpu.from_host(np.full(count, 2.0, np.float32))
    assert second.pointer == pointer
    assert (gpu.to_host(second) == 2).all()
    assert (gpu.to_host(kept) == 1).all()


def test_a_strided_array_arrives_in_order(gpu):
    x = np.arange(12.0).reshape(3, 4).T
    np.testing.assert_array_equal(np.asarray(gpu.from_host(x)), x)


@two_gpus
def test_from_one_gpu_to_another(fake, gpu):
    other = device(1)
    x = gpu.from_host(np.arange(5, dtype=np.int64))
    y = other.from_peer(x)
    pointer = x.pointer
    del x  # its memory must stay until the copy has been made
    assert gpu.from_host(np.zeros(5, np.int64)).pointer != pointer
    np.testing.assert_array_equal(np.asarray(y), np.arange(5))
    assert ("peer", 0, 1, 40) in fake.log and ("peer access", 1, 0) in fake.log
    assert other.from_peer(y) is y
    assert y.device is other


# --- memory ----------------------------------------------------------------------------------------------------------


def test_sizes_of_blocks_waste_at_most_a_quarter():
    for count in (1, 511, 512, 513, 2049, 5000, 10**6, 3 * 10**9 + 1):
        assert count <= rounded(count) <= max(512 * -(-count // 512), 1.25 * count)
        assert rounded(count) % 512 == 0 and rounded(rounded(count)) == rounded(count)


@stand_in
def test_freed_memory_is_used_again_and_counted(fake, gpu):
    a = gpu.empty((1000,), np.dtype("float32"), "a")
    assert gpu.pool.in_use == 4096
    pointer = a.pointer
    del a
    b = gpu.empty((900,), np.dtype("float32"), "b")
    assert b.pointer == pointer
    c = gpu.empty((1000,), np.dtype("float32"), "c")
    assert (gpu.pool.in_use, gpu.pool.reserved) == (4096 + 4096, 8192)
    del b, c
    assert gpu.pool.trim() == 8192
    assert (gpu.pool.in_use, gpu.pool.reserved, fake.in_use) == (0, 0, 0)


def test_a_view_keeps_its_memory(gpu):
    a = gpu.from_host(np.arange(6.0))
    b = a.reshape((2, 3))
    del a
    assert gpu.pool.largest() == [(512, "")]
    np.testing.assert_array_equal(np.asarray(b), np.arange(6.0).reshape(2, 3))
    with pytest.raises(ValueError, match="cannot reshape 6 elements"):
        b.reshape((7,))


@stand_in
def test_out_of_memory_lists_the_largest(monkeypatch, fake):
    monkeypatch.setenv("DOVETAIL_GPU_MEMORY", str(10 << 20))
    gpu = device(0)
    held = [gpu.empty((n << 18,), np.dtype("float32"), f"layer{n}/MatMul") for n in (1, 4, 3)]
    with pytest.raises(ResourceExhaustedError) as e:
        gpu.empty((4 << 18,), np.dtype("float32"), "loss/grad")
    text = str(e.value)
    assert "GPU:0 (Strict GPU) is out of memory: no room for 4.0 MiB for loss/grad; 8.0 MiB of at most 10.0 MiB" in text
    assert (
        text.index("4.0 MiB  layer4/MatMul")
        < text.index("3.0 MiB  layer3/MatMul")
        < text.index("1.0 MiB  layer1/MatMul")
    )
    del held[1]
    assert gpu.empty((4 << 18,), np.dtype("float32"), "loss/grad").nbytes == 4 << 20


@stand_in
def test_memory_that_is_only_kept_goes_back_before_the_error(fake):
    fake.strict.set_memory(8 << 20)
    gpu = device(0)
    gpu.empty((5 << 18,), np.dtype("float32"))
    assert gpu.pool.reserved == 5 << 20
    assert gpu.empty((6 << 18,), np.dtype("float32")).nbytes == 6 << 20
    assert gpu.pool.reserved == 6 << 20


def test_a_thread_that_has_not_used_the_gpu_may_allocate(gpu):
    made = []
    thread = threading.Thread(target=lambda: made.append(gpu.empty((100_000,), np.dtype("float32"))))
    thread.start()
    thread.join()
    assert made[0].nbytes == 400_000


def test_threads_share_the_pool(gpu):
    failed = []

    def work():
        try:
            for _ in range(50):
                x = gpu.from_host(np.arange(100))
                assert (np.asarray(x) == np.arange(100)).all()
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed
    assert gpu.pool.largest() == []


# --- launches --------------------------------------------------------------------------------------------------------


def test_arguments_lie_where_the_compiler_put_them():
    made = Arguments([Parameter("a", "*fp32"), Parameter("n", "i32"), Parameter("m", "i64"), Parameter("k", "i32"),
                      Parameter("b", "*bf16")])  # fmt: skip
    made.write([0x1234, -1, 2**40, 7, 0x5678], 0x9ABC)
    pointers = (ctypes.c_void_p * 7).from_address(made.address)
    assert [p - pointers[0] for p in pointers] == [0, 8, 16, 24, 32, 40, 48]
    data = ctypes.string_at(pointers[0], 56)
    assert np.frombuffer(data[8:12], np.int32) == -1 and np.frombuffer(data[24:28], np.int32) == 7
    assert np.frombuffer(data, np.int64)[[0, 2, 4, 5, 6]].tolist() == [0x1234, 2**40, 0x5678, 0x9ABC, 0]


@stand_in
def test_what_is_launched(fake, gpu):
    a, b = gpu.from_host(np.arange(100, dtype=np.float32)), gpu.from_host(np.ones(100, np.float32))
    out = add(fake, a, b)
    ((_, entry, grid, block, values, stream),) = fake.launches()
    assert (entry, grid, block) == ("add", (2, 1, 1), (128, 1, 1))
    assert values == (a.pointer, b.pointer, out.pointer, 100)
    assert stream == int(gpu.compute.handle)
    assert fake.ran == []  # a launch does not wait
    np.testing.assert_array_equal(np.asarray(out), np.arange(100) + 1)
    assert fake.ran == [("add", (2, 1, 1))]


def test_nothing_is_launched_for_no_elements(fake, gpu):
    add(fake, gpu.from_host(np.empty(0, np.float32)), gpu.from_host(np.empty(0, np.float32)))
    assert fake.launches() == []


@stand_in
def test_scratch_and_promises(fake, gpu):
    text = HEADER + "@triton.jit\ndef k(in0, in1, out0, scratch0, n0):\n    pass\n"
    names = (*[Parameter(n, "*fp32", True) for n in ("in0", "in1", "out0", "scratch0")], Parameter("n0", "i32", True))
    routine = Routine(
        (Launch(TritonKernel("k", text, names), GRID),), (Scratch("scratch0", "fp32", (Count(("n0",), 64),)),)
    )
    run = prepared(fake, gpu, 6400, routine)
    with gpu.entered():
        run([512, 1024, 1536], "sum of rows")
    assert fake.launches()[0][4] == (512, 1024, 1536, *fake.allocated, 6400)
    with pytest.raises(NotSuitableError, match="k wants a multiple of 16 for n0, not 6401"):
        prepared(fake, gpu, 6401, routine)


@stand_in
def test_much_shared_memory_is_asked_for_and_scratch_of_tritons_own(fake, gpu):
    nothing = fake.compile_kernel(
        TritonKernel("k", HEADER + "@triton.jit\ndef k():\n    pass\n", (), num_warps=8), SM90
    )

    def binary(**more):
        return replace(nothing, **more)

    LoadedKernel(gpu, binary(shared_bytes=200_000))
    assert fake.most_shared == {"k": 200_000}
    with gpu.entered():
        LoadedKernel(gpu, binary(global_scratch=16)).launch((3, 1, 1), [])
    assert gpu.pool.reserved == 512


def test_who_waits_needs_no_context(fake, gpu):
    """A thread that has none waits for events and streams of any device."""
    with gpu.entered():
        event = gpu.compute.record()
    told = []

    def wait():
        event.synchronize()
        told.append(event.is_done)
        gpu.compute.synchronize()
        told.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert told == [True, True]


# --- graphs ----------------------------------------------------------------------------------------------------------


@stand_in
def test_a_graph_runs_what_was_captured_again_and_again(fake, gpu):
    a, b = gpu.from_host(np.arange(64, dtype=np.float32)), gpu.from_host(np.ones(64, np.float32))
    gpu.synchronize()
    with capture(gpu) as graph:
        between = add(fake, a, b)
        out = add(fake, between, b)
        del between
        gpu.empty((64,), np.dtype("float32"))  # must not get the memory of `between`: the graph will write there
    assert fake.ran == []
    kinds = [x[0] for x in fake.log if x[0] in ("begin capture", "end capture", "launch")]
    assert kinds == ["begin capture", "launch", "launch", "end capture"]
    assert len(graph.memory.blocks) == 2  # of two results that are never needed together, one of them twice
    with gpu.entered():
        graph.launch()
        graph.launch()
    np.testing.assert_array_equal(np.asarray(out), np.arange(64) + 2)
    assert len(fake.ran) == 4
    assert fake.launches()[-1] == ("graph launch",)
    used = gpu.pool.in_use
    del graph
    assert ("destroy graph",) in fake.log
    del a, b, out
    gc.collect()
    assert gpu.pool.largest() == [] and used > 0


def test_what_comes_from_the_host_is_copied_once_for_all_runs_of_a_graph(fake, gpu):
    a = gpu.from_host(np.arange(64, dtype=np.float32))
    with capture(gpu) as graph:
        out = add(fake, a, gpu.from_host(np.ones(64, np.float32)))
    with gpu.entered():
        graph.launch()
        graph.launch()
    np.testing.assert_array_equal(np.asarray(out), np.arange(64) + 1)
    assert [c[0] for c in fake.copies()] == ["to device", "to device", "to host"]


def test_a_capture_that_fails_leaves_the_device_as_it_was(fake, gpu):
    stream = gpu.compute
    x = gpu.from_host(np.ones(3))
    with pytest.raises(NotCapturableError, match="a copy to the host cannot be part"), capture(gpu) as graph:
        gpu.to_host(x)
    assert gpu.compute is stream and gpu.pool.graph_memory is None
    with pytest.raises(RuntimeError, match="not captured to its end"):
        graph.launch()
    np.testing.assert_array_equal(np.asarray(gpu.from_host(np.ones(3))), np.ones(3))


# --- tuning ----------------------------------------------------------------------------------------------------------


@stand_in
def test_the_fastest_is_found_and_remembered(monkeypatch, tmp_path, gpu):
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(autotune, "_chosen", {})
    runs = [0, 0, 0]

    def candidate(i: int, work: int):
        def run():
            runs[i] += 1
            for _ in range(work):
                gpu.clear(target)

        return run

    target = gpu.empty((4,), np.dtype("float32"))
    candidates = [candidate(0, 3), candidate(1, 1), candidate(2, 2)]
    assert autotune.fastest(gpu, "key", candidates) == 1
    assert all(r > 3 for r in runs)
    before = list(runs)
    assert autotune.fastest(gpu, "key", candidates) == 1
    monkeypatch.setattr(autotune, "_chosen", {})
    assert autotune.fastest(gpu, "key", candidates) == 1  # from the disk
    assert runs == before
    assert autotune.fastest(gpu, "another", candidates[:1]) == 0
    (file,) = (tmp_path / "tuned").iterdir()
    file.write_text('{"best": 7}')
    monkeypatch.setattr(autotune, "_chosen", {})
    assert autotune.fastest(gpu, "key", candidates) == 1  # what is not right is measured again
    assert runs != before
    told = json.loads(file.read_text())
    assert (told["gpu"], told["driver"], told["best"]) == (gpu.name, 13000, 1)


@stand_in
def test_of_equally_fast_candidates_the_likely_one_wins(monkeypatch, tmp_path, gpu):
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(autotune, "_chosen", {})
    monkeypatch.setattr(autotune, "measure", lambda device, candidates: [1.004, 1.0, 2.0])
    assert autotune.fastest(gpu, "key", [lambda: None] * 3) == 0


@stand_in
def test_the_cache_is_cleared_before_each_run_and_who_is_far_behind_has_one(gpu, monkeypatch):
    small = gpu.empty((4,), np.dtype("float32"))
    order = []
    clear = gpu.clear
    monkeypatch.setattr(gpu, "clear", lambda array: (order.append(array.nbytes), clear(array))[1])

    def candidate(name: str, work: int):
        def run():
            order.append(name)
            for _ in range(work):
                clear(small)

        return run

    with gpu.entered():
        times = autotune.measure(gpu, [candidate("slow", 60), candidate("fast", 2), candidate("near", 4)])
    assert times[1] < times[2] < times[0]
    assert order.count("slow") == 3 and order.count("fast") == order.count("near") >= 2 + autotune.FEWEST_TURNS
    before = [order[i - 1] for i, x in enumerate(order) if x in ("slow", "fast", "near")]
    # One run compiles, of one the host is timed; the very first follows a pass that is timed itself.
    untimed = 2 * 3 - 1
    assert before.count(gpu.l2_bytes) == len(before) - untimed


def test_the_gpu_is_busy_while_the_host_queues_a_candidate(gpu, monkeypatch):
    clears = []
    clear = gpu.clear
    monkeypatch.setattr(gpu, "clear", lambda array: (clears.append("clear"), clear(array))[1])

    def slow_host():
        clears.append("slow")
        time.sleep(0.02)

    with gpu.entered():
        autotune.measure(gpu, [slow_host, lambda: clears.append("fast")])
    runs = [i for i, x in enumerate(clears) if x == "slow"]
    for i in runs[2:]:  # here a pass takes 0.5 ms, so at least 40 ms are 80 passes
        assert clears[i - 80 : i] == ["clear"] * 80


def test_events_that_were_timed_with_are_destroyed(fake, gpu):
    fake.log.clear()
    with gpu.entered():
        autotune.measure(gpu, [lambda: None, lambda: None])
    assert fake.log.count(("destroy event",)) == fake.log.count(("create event", 0)) > 0


@stand_in
def test_measuring_goes_on_where_there_is_no_room_to_clear(gpu, monkeypatch):
    monkeypatch.setattr(gpu.pool, "limit", 1024)
    with gpu.entered():
        assert len(autotune.measure(gpu, [lambda: None, lambda: None])) == 2


# --- copies to the host ----------------------------------------------------------------------------------------------


def test_numpy_takes_a_copy(gpu):
    x = gpu.from_host(np.arange(3.0))
    np.testing.assert_array_equal(np.asarray(x, np.int32), [0, 1, 2])
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, copy=False)


@pytest.mark.parametrize("count", [1, 1000, GPU_COPY_PIECE // 4 + 1, 6 * GPU_COPY_PIECE // 4 + 3])
def test_a_copy_to_the_host_that_has_begun(gpu, count):
    x = np.arange(count, dtype=np.float32)
    there = gpu.from_host(x)
    coming = gpu.coming_to_host(there)
    with gpu.entered():
        pass
    np.testing.assert_array_equal(coming.result(), x)
    assert coming.array is None


def test_a_copy_that_nobody_asks_for_keeps_its_memory_until_it_is_over(gpu):
    there = gpu.from_host(np.ones(100_000, np.float32))
    pointer = there.pointer
    coming = gpu.coming_to_host(there)
    del there, coming
    gc.collect()
    other = gpu.empty((100_000,), np.dtype(np.float32), "other")
    assert other.pointer != pointer
    gpu.synchronize()
    assert not gpu._retained
