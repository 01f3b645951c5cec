"""Collectives by NCCL, on stand-ins for the library and the driver: numbers, which calls in which order, and how it ends."""

import gc
import threading

import ml_dtypes
import numpy as np
import pytest
from fake_nccl import FakeNccl
from gpu_backends import gpus_for_tests

import dovetail as dt
from dovetail.codegen.gpu.driver import nccl
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.gpu.driver.nccl import NcclLink, link_of
from dovetail.codegen.gpu.toolchain import compile
from dovetail.graph.core.errors import AbortedError, FailedPreconditionError, UnavailableError
from dovetail.graph.ops.state import collectives as ops
from dovetail.graph.resources.collective_context import LinkIdentity

MEMBERS = ["/gpu:0", "/gpu:1"]
WAIT_S = 60.0


@pytest.fixture
def fake():
    with gpus_for_tests(2) as made:
        made.strict.be_patient(2)
        yield made
        for thread in [t for t in threading.enumerate() if t.name.startswith("nccl ")]:
            thread.join(WAIT_S)


@pytest.fixture
def library(fake):
    made = FakeNccl(fake)
    before = nccl.use(made)
    yield made
    gc.collect()
    for thread in [t for t in threading.enumerate() if t.name.startswith("nccl ")]:
        thread.join(WAIT_S)
    nccl.use(before)


def everywhere(build):
    """What `build(rank)` gives in both members, on GPUs, for one step."""
    with dt.Graph().as_default() as graph:
        fetches = [build(i) for i in range(2)]
        with dt.Session(graph=graph) as session:
            return session.run(fetches)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [
        *(("float32", reduction) for reduction in ("sum", "mean", "prod", "min", "max")),
        *((dtype, "sum") for dtype in ("float16", "float64", "int32", "uint8", "complex64")),
        *(("bfloat16", reduction) for reduction in ("mean", "max")),
        *(("complex64", reduction) for reduction in ("mean", "prod")),
        ("int32", "min"),
    ],
)
def test_all_reduce(library, dtype, reduction):
    np_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    values = [np.arange(100).reshape(4, 25).astype(np_dtype), np.full((4, 25), 2).astype(np_dtype)]
    results = everywhere(lambda i: ops.all_reduce(dt.constant(values[i]), MEMBERS, i, reduction, instance="g"))
    add = {"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[reduction]
    expected = add(*values)
    expected = (expected / 2).astype(np_dtype) if reduction == "mean" else expected
    for result in results:
        assert result.dtype == np_dtype
        np.testing.assert_array_equal(result, expected)
    by_nccl = dtype != "complex64" or reduction in ("sum", "mean")
    assert [x for x in library.log if x[0] == "all_reduce"] != [] or not by_nccl
    assert any(x[0] == "all_reduce" for x in library.log) == by_nccl


def test_several_tensors_are_one_run(library):
    values = [[np.full(n, i + 1, np.float32) for n in (100, 70, 0)] for i in range(2)]
    results = everywhere(lambda i: ops.all_reduce([dt.constant(v) for v in values[i]], MEMBERS, i, instance="g"))
    for result in results:
        assert [r.tolist() for r in result] == [[3.0] * 100, [3.0] * 70, []]
    calls = [
        x[:2] if x[0] != "all_reduce" else x[:3]
        for x in library.log
        if x[0] in ("group_start", "all_reduce", "group_end")
    ]
    assert calls.count(("group_start",)) == calls.count(("group_end",)) == 2
    assert sorted(c for c in calls if c[0] == "all_reduce") == [("all_reduce", r, n) for r in (0, 1) for n in (70, 100)]


@pytest.mark.parametrize("rows", [(3, 3), (2, 5), (0, 4)])
def test_all_gather(library, rows):
    values = [np.arange(n * 40, dtype=np.int64).reshape(n, 40) + 1000 * i for i, n in enumerate(rows)]
    for result in everywhere(
        lambda i: ops.all_gather(dt.placeholder_with_default(values[i], [None, 40]), MEMBERS, i, "g")
    ):
        np.testing.assert_array_equal(result, np.concatenate(values))
    names = {x[0] for x in library.log if x[0] in ("all_gather", "broadcast")}
    assert names == ({"all_gather"} if rows == (3, 3) else {"broadcast"})


def test_reduce_scatter_broadcast_and_barrier(library):
    values = [np.arange(400, dtype=np.float32).reshape(4, 100) * (i + 1) for i in range(2)]

    def build(i):
        with dt.device(MEMBERS[i]):
            scattered = ops.reduce_scatter(dt.constant(values[i]), MEMBERS, i, "mean", instance="s")
            sent = ops.broadcast(dt.constant(values[i]), MEMBERS, i, root=1, instance="b")
            return scattered, sent, ops.barrier(MEMBERS, i, instance="w")

    for i, (scattered, sent, _) in enumerate(everywhere(build)):
        np.testing.assert_array_equal(scattered, (values[0] + values[1])[2 * i : 2 * i + 2] / 2)
        np.testing.assert_array_equal(sent, values[1])


def test_each_run_uses_what_kernels_made_before(library, fake):
    with dt.Graph().as_default() as graph:
        totals = []
        for i in range(2):
            with dt.device(MEMBERS[i]):
                v = dt.Variable(np.zeros(300, np.float32), name=f"v{i}", use_resource=True)
                totals.append(v.assign(ops.all_reduce(v.read_value(), MEMBERS, i, instance="g")))
        with dt.Session(graph=graph) as session:
            session.run(dt.global_variables_initializer())
            for _ in range(3):
                session.run(totals)
    numbers = [x for x in library.log if x[0] == "all_reduce"]
    assert len(numbers) == 6


@pytest.mark.slow
def test_kernels_around_a_collective_are_real_binaries_and_in_order(library, fake, monkeypatch):
    """The strict driver fails what reads on one stream before another one has written."""
    monkeypatch.setattr(compile, "compile_kernel", fake.compiled)
    monkeypatch.setenv("DOVETAIL_AUTOTUNE", "0")
    given = [np.linspace(-1, 1 + i, 300).astype(np.float32) for i in range(2)]
    with dt.Graph().as_default() as graph:
        fed, out = [], []
        for i in range(2):
            with dt.device(MEMBERS[i]):
                fed.append(dt.placeholder(dt.float32, [300]))
                out.append(dt.tanh(ops.all_reduce(dt.exp(fed[i]), MEMBERS, i, instance="g")))
        with dt.Session(graph=graph) as session:
            for _ in range(4):
                for result in session.run(out, dict(zip(fed, given, strict=True))):
                    np.testing.assert_allclose(result, np.tanh(np.exp(given[0]) + np.exp(given[1])), rtol=1e-5)
    assert all(not image.startswith(b"stand-in") for image in fake.kernels) and len(fake.ran) == 4 * 2 * 2


# --- the order of things ---------------------------------------------------------------------------------------------


def test_a_communicator_is_made_once_and_says_farewell(library):
    with dt.Graph().as_default() as graph:
        made = [ops.all_reduce(dt.constant(np.ones(100, np.float32)), MEMBERS, i, instance="g") for i in range(2)]
        more = [ops.all_reduce(dt.constant(np.ones(200, np.float32)), MEMBERS, i, instance="h") for i in range(2)]
        with dt.Session(graph=graph) as session:
            for _ in range(3):
                session.run([made, more])
    del session, graph, made, more
    gc.collect()
    for thread in [t for t in threading.enumerate() if t.name.startswith("nccl ")]:
        thread.join(WAIT_S)
    for rank in (0, 1):
        mine = [x[0] for x in library.log if len(x) > 1 and x[1] == rank]
        assert mine[0] == "comm_init_rank_config" and mine[-2:] == ["comm_finalize", "comm_destroy"]
        assert mine[1:-2] == ["all_reduce"] * 6
    per_rank = [[x[2] for x in library.log if x[:2] == ("all_reduce", r)] for r in (0, 1)]
    assert per_rank[0] == per_rank[1]  # the same order everywhere
    assert not library.alive


class _Job:
    def __init__(self, gpu, record, name, fail=None):
        with gpu.entered():
            self.ready = gpu.compute.record()
        self.record, self.name, self.fail = record, name, fail

    def call(self, nccl, communicator, stream, rows):
        self.record.append(self.name)
        if self.fail is not None:
            raise self.fail
        return self.name


class Told:
    """Waits for what a link tells."""

    def __init__(self):
        self.results, self.there = [], threading.Semaphore(0)

    def __call__(self, result):
        self.results.append(result)
        self.there.release()

    def wait(self, count=1):
        for _ in range(count):
            assert self.there.acquire(timeout=WAIT_S)
        return self.results


def test_runs_start_in_the_order_of_their_numbers(library):
    link, record, told = NcclLink(device(0), 0, 1), [], Told()
    for number in (2, 1, 0):
        link.start(number, link.invitation(), _Job(device(0), record, number), [0], told)
    told.wait(3)
    link.close()
    assert record == told.results == [0, 1, 2]


def test_a_link_that_is_stopped_aborts_what_spins(library, fake):
    link, told = NcclLink(device(0), 0, 2), Told()
    link.start(0, link.invitation(), _Job(device(0), [], "never"), [0, 0], told)  # rank 1 never comes
    link.start(1, link.invitation(), _Job(device(0), [], "nor this"), [0, 0], told)
    link.stop()
    first, second = told.wait(2)
    assert isinstance(first, AbortedError) and isinstance(second, AbortedError)
    link._thread.join(WAIT_S)
    assert ("comm_init_rank_config", 0, 2) not in library.log or ("comm_abort", 0) in library.log
    assert not library.alive


def test_a_collective_whose_member_is_gone_is_aborted(library, fake):
    """The other member has connected, and then makes no call: the device would wait for it for ever."""
    links = [NcclLink(device(i), i, 2) for i in range(2)]
    told, record = Told(), []
    gpu = device(0)
    x = gpu.from_host(np.ones(100, np.float32))

    class Reduce(_Job):
        def call(self, nccl, communicator, stream, rows):
            nccl.all_reduce(x.pointer, x.pointer, 100, 7, 0, communicator, stream)
            record.append("queued")

    links[0].start(0, links[0].invitation(), Reduce(gpu, record, "a"), [0, 0], told)
    links[1].start(0, links[0].invitation(), _Job(device(1), record, "b"), [0, 0], told)
    assert told.wait(1) == ["b"]
    links[0].stop()
    assert isinstance(told.wait(1)[1], AbortedError)
    links[1].stop()
    for link in links:
        link._thread.join(WAIT_S)
    assert ("comm_abort", 0) in library.log and not library.alive
    np.testing.assert_array_equal(gpu.to_host(x), np.ones(100))  # the stream goes on


# --- where it does not work ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["comm_init_rank_config", "all_reduce", "comm_get_async_error"])
def test_an_error_of_the_library_ends_the_step_everywhere(library, function):
    library.fails = function, 6
    with pytest.raises(UnavailableError, match=r"the all_reduce 'g' of 2 members: NCCL failed: .*6"):
        everywhere(lambda i: ops.all_reduce(dt.constant(np.ones(100, np.float32)), MEMBERS, i, instance="g"))


@pytest.mark.parametrize("way", ["auto", "nccl"])
def test_without_the_library(fake, way):
    before = nccl.use(False)
    try:
        make = lambda i: ops.all_reduce(dt.constant(np.ones(100, np.float32)), MEMBERS, i, "sum", way, instance="g")  # noqa: E731
        if way == "nccl":
            with pytest.raises(FailedPreconditionError, match=r"member 0 .* has no NCCL.*pip install"):
                everywhere(make)
        else:
            assert [r.tolist() for r in everywhere(make)] == [[2.0] * 100] * 2
    finally:
        nccl.use(before)


@pytest.mark.parametrize(
    "cards, reason",
    [
        ([LinkIdentity(7, (1, 1)), LinkIdentity(0, (1, 2))], "member 1 .* has no NCCL"),
        ([LinkIdentity(7, (1, 1)), LinkIdentity(8, (1, 2))], "member 1 .* has another version"),
        ([LinkIdentity(7, (1, 1)), LinkIdentity(7, (1, 1))], "member 1 .* shares its GPU"),
    ],
)
def test_members_that_do_not_fit_together(monkeypatch, library, cards, reason):
    made = NcclLink.__init__

    def with_card(self, gpu, rank, size):
        made(self, gpu, rank, size)
        self.identity = cards[rank]

    monkeypatch.setattr(NcclLink, "__init__", with_card)
    value = np.ones(100, np.float32)
    with pytest.raises(FailedPreconditionError, match=reason):
        everywhere(lambda i: ops.all_reduce(dt.constant(value), MEMBERS, i, "sum", "nccl", instance="g"))
    for result in everywhere(lambda i: ops.all_reduce(dt.constant(value), MEMBERS, i, "sum", instance="g")):
        np.testing.assert_array_equal(result, 2 * value)
    assert not any(x[0] == "all_reduce" for x in library.log)


def test_a_session_keeps_its_links_and_another_has_its_own(library):
    class Session:
        pass

    one, other = Session(), Session()
    members = ("/device:GPU:0", "/device:GPU:1")
    link = link_of(one, device(0), members, 0)
    assert link_of(one, device(0), members, 0) is link
    assert link_of(other, device(0), members, 0) is not link
    del one
    gc.collect()
    assert link._is_closed


def test_the_stand_in_has_the_bindings_functions_with_their_arguments():
    real = pytest.importorskip("nccl.bindings.nccl")
    import inspect

    for name, function in inspect.getmembers(FakeNccl, inspect.isfunction):
        if name.startswith("_") or name == "Config":
            continue
        said = getattr(real, name).__doc__.splitlines()[0]  # comm_init_rank(int nranks, comm_id, int rank)
        theirs = [a.split()[-1] for a in said[said.index("(") + 1 : said.index(")")].split(",") if a]
        assert list(inspect.signature(function).parameters)[1:] == theirs, name
    assert {t.name.lower(): int(t) for t in real.DataType if t.name.lower() in nccl.TYPES} == nccl.TYPES
    mine = {k if k != "mean" else "avg": v for k, v in nccl.REDUCTIONS.items()}
    assert {r.name.lower(): int(r) for r in real.RedOp if r.name.lower() in mine} == mine
    assert int(real.Result.InProgress) == nccl.IN_PROGRESS
