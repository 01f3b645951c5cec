"""`dt.test`: what unit tests of graphs use under TensorFlow 1's names."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from importlib.util import find_spec
from typing import Any, NoReturn
from unittest import mock

import numpy as np
import numpy.typing as npt

from ....graph.core.build import placeholder
from ....graph.core.default_graph import get_default_graph, get_default_session, reset_default_graph, set_random_seed
from ....graph.core.device import DeviceSpec
from ....graph.core.dtypes import as_dtype, bfloat16, float16
from ....graph.core.errors import OpError
from ....graph.core.graph import Graph, Tensor
from ....graph.gradients.reverse import gradients
from ....runtime.config import ConfigProto
from ....runtime.session.session import Session
from ....train import ClusterSpec, Server

SEED = 87654321
"""Of each test's graph, of `random`, and of NumPy."""

Predicate = str | Callable[[BaseException], bool]


class TestCase(unittest.TestCase):
    """A test with a fresh default graph, fixed seeds, and assertions for arrays and for steps.

    >>> class SquareTest(dt.test.TestCase):
    ...     def test_square(self):
    ...         with self.session():
    ...             self.assertAllEqual(dt.square([2, 3]), [4, 9])
    """

    _cached: Session | None = None  # here, since many a test's own setUp does not call this one's
    _folder: str | None = None

    def setUp(self) -> None:
        """A fresh default graph, and seeds."""
        random.seed(SEED)
        np.random.seed(SEED)
        reset_default_graph()
        set_random_seed(SEED)

    def tearDown(self) -> None:
        """Close what `cached_session` has opened."""
        if self._cached is not None:
            self._cached.close()

    def get_temp_dir(self) -> str:
        """A folder of this test's own."""
        if self._folder is None:
            kept = tempfile.TemporaryDirectory(prefix=self._testMethodName)
            self.addCleanup(kept.cleanup)
            self._folder = kept.name
        return self._folder

    # --- sessions ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def session(
        self,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        use_gpu: bool = False,
        force_gpu: bool = False,
    ) -> Iterator[Session]:
        """A session as the default one, for a `with` block.

        Args:
            graph: None: the default one.
            config: None: soft placement is allowed, unless a GPU is forced.
            use_gpu: put nodes without a device on the first GPU, if there is one; else they are on the CPU.
            force_gpu: put them there in any case.
        """
        graph = graph or get_default_graph()
        config = config or ConfigProto(allow_soft_placement=not force_gpu)
        with Session(graph=graph, config=config) as made, graph.as_default(), graph.device(_where(use_gpu, force_gpu)):
            yield made

    @contextlib.contextmanager
    def cached_session(
        self,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        use_gpu: bool = True,
        force_gpu: bool = False,
    ) -> Iterator[Session]:
        """One session for all `with` blocks of a test. Arguments as of `session`; the first block's graph and config count."""
        if self._cached is None:
            config = config or ConfigProto(allow_soft_placement=not force_gpu)
            self._cached = Session(graph=graph or get_default_graph(), config=config)
        with (
            self._cached.graph.as_default() as found,
            self._cached.as_default(),
            found.device(_where(use_gpu, force_gpu)),
        ):
            yield self._cached

    def test_session(
        self,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        use_gpu: bool = True,
        force_gpu: bool = False,
    ) -> contextlib.AbstractContextManager[Session]:
        """`cached_session`; with a graph, `session`."""
        if self._testMethodName == "test_session":  # the name is that of a test
            self.skipTest("Not a test.")
        use = self.cached_session if graph is None else self.session
        return use(graph, config, use_gpu, force_gpu)

    def evaluate(self, tensors: Any) -> Any:
        """The values of tensors, or of a structure of them, in the default session; without one, in this test's cached session."""
        session = get_default_session()
        if session is not None:
            return session.run(tensors)
        with self.cached_session() as session:
            return session.run(tensors)

    def _array(self, given: Any) -> npt.NDArray[Any]:
        """A value as an array; a tensor is evaluated."""
        if isinstance(given, Tensor) or hasattr(given, "_as_graph_element"):
            given = self.evaluate(given)
        elif isinstance(given, (list, tuple)) and any(isinstance(g, Tensor) for g in given):
            given = self.evaluate(list(given))
        return np.asarray(given)

    # --- assertions -------------------------------------------------------------------------------------------------

    assertItemsEqual = unittest.TestCase.assertCountEqual  # noqa: N815 (Python 2's name)

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Arrays, or tensors, of one shape with equal elements."""
        np.testing.assert_array_equal(self._array(a), self._array(b), msg or "", strict=False)

    def assertAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None) -> None:
        """Arrays, tensors, or structures of them, with `|a - b| <= atol + rtol * |b|`."""
        if isinstance(a, Mapping):
            self.assertEqual(set(a), set(b), msg)
            for key, value in a.items():
                self.assertAllClose(value, b[key], rtol, atol, f"{msg or ''} [{key!r}]")
            return
        if isinstance(a, (list, tuple)) and any(isinstance(x, (list, tuple, Mapping, Tensor, np.ndarray)) for x in a):
            self.assertEqual(len(a), len(b), msg)
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                self.assertAllClose(x, y, rtol, atol, f"{msg or ''} [{i}]")
            return
        x, y = self._array(a), self._array(b)
        self.assertEqual(x.shape, y.shape, msg)
        np.testing.assert_allclose(x.astype(_wide(x)), y.astype(_wide(y)), rtol, atol, err_msg=msg or "")

    def assertAllCloseAccordingToType(
        self,
        a: Any,
        b: Any,
        rtol: float = 1e-6,
        atol: float = 1e-6,
        float_rtol: float = 1e-6,
        float_atol: float = 1e-6,
        half_rtol: float = 1e-3,
        half_atol: float = 1e-3,
        bfloat16_rtol: float = 1e-2,
        bfloat16_atol: float = 1e-2,
        msg: str | None = None,
    ) -> None:
        """As `assertAllClose`, as close as the narrower type allows."""
        x, y = self._array(a), self._array(b)
        for dtype, r, t in (
            (np.float32, float_rtol, float_atol),
            (float16.np, half_rtol, half_atol),
            (bfloat16.np, bfloat16_rtol, bfloat16_atol),
        ):
            if dtype in (x.dtype, y.dtype):
                rtol, atol = max(rtol, r), max(atol, t)
        self.assertAllClose(x, y, rtol, atol, msg)

    def assertNotAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6) -> None:
        """The opposite of `assertAllClose`."""
        try:
            self.assertAllClose(a, b, rtol, atol)
        except AssertionError:
            return
        raise AssertionError("The two values are close at all elements")

    def assertNotAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """The opposite of `assertAllEqual`."""
        try:
            self.assertAllEqual(a, b)
        except AssertionError:
            return
        raise AssertionError(f"The two values are equal at all elements. {msg or ''}")

    def assertAllGreater(self, a: Any, comparison_target: float) -> None:
        """All elements are greater than a number."""
        x = self._array(a)
        self.assertGreater(x.min(), comparison_target)

    def assertAllLess(self, a: Any, comparison_target: float) -> None:
        """All elements are less than a number."""
        x = self._array(a)
        self.assertLess(x.max(), comparison_target)

    def assertAllGreaterEqual(self, a: Any, comparison_target: float) -> None:
        """All elements are greater than a number, or equal to it."""
        self.assertGreaterEqual(self._array(a).min(), comparison_target)

    def assertAllLessEqual(self, a: Any, comparison_target: float) -> None:
        """All elements are less than a number, or equal to it."""
        self.assertLessEqual(self._array(a).max(), comparison_target)

    def assertAllInRange(self, target: Any, lower_bound: float, upper_bound: float) -> None:
        """All elements are within bounds, which count."""
        x = self._array(target)
        outside = x[(x < lower_bound) | (x > upper_bound)]
        self.assertEqual(outside.size, 0, f"{outside[:8]} are not in [{lower_bound}, {upper_bound}]")

    def assertAllInSet(self, target: Any, expected_set: Sequence[Any]) -> None:
        """All elements are among these."""
        others = set(self._array(target).ravel().tolist()) - set(expected_set)
        self.assertFalse(others, f"{others} are not in {set(expected_set)}")

    def assertShapeEqual(self, np_array: Any, tf_tensor: Tensor, msg: str | None = None) -> None:
        """An array has the static shape of a tensor."""
        self.assertEqual(list(np.shape(np_array)), tf_tensor.shape.as_list(), msg)

    def assertNear(self, f1: float, f2: float, err: float, msg: str | None = None) -> None:
        """Two numbers differ by no more than `err`."""
        self.assertTrue(f1 == f2 or abs(f1 - f2) <= err, f"{f1} != {f2} +/- {err}{'' if msg is None else f' ({msg})'}")

    def assertArrayNear(
        self, farray1: Sequence[float], farray2: Sequence[float], err: float, msg: str | None = None
    ) -> None:
        """As `assertNear`, for each of two sequences."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for a, b in zip(farray1, farray2, strict=True):
            self.assertNear(float(a), float(b), err, msg)

    def assertNDArrayNear(self, ndarray1: Any, ndarray2: Any, err: float, msg: str | None = None) -> None:
        """The norm of the difference of two arrays is less than `err`."""
        self.assertLess(float(np.linalg.norm(self._array(ndarray1) - self._array(ndarray2))), err, msg)

    def assertDTypeEqual(self, target: Any, expected_dtype: Any) -> None:
        """An array or tensor has this element type."""
        found = target if isinstance(target, (Tensor, np.ndarray, np.generic)) else self._array(target)
        self.assertIs(as_dtype(found.dtype).base, as_dtype(expected_dtype).base)

    def assertProtoEquals(self, expected_message_maybe_ascii: Any, message: Any, msg: str | None = None) -> None:
        """Two messages are equal; the first may be in text form."""
        wanted = expected_message_maybe_ascii
        if isinstance(wanted, (str, bytes)):
            from google.protobuf import text_format  # a heavy library

            wanted = text_format.Parse(wanted, type(message)())
        self.assertEqual(str(wanted), str(message), msg)

    def assertLen(self, container: Sized, expected_len: int, msg: str | None = None) -> None:
        """A container has so many elements."""
        self.assertEqual(len(container), expected_len, msg)

    def assertEmpty(self, container: Sized, msg: str | None = None) -> None:
        """A container has no elements."""
        self.assertEqual(len(container), 0, msg)

    def assertNotEmpty(self, container: Sized, msg: str | None = None) -> None:
        """A container has elements."""
        self.assertNotEqual(len(container), 0, msg)

    def assertBetween(self, value: Any, minv: Any, maxv: Any, msg: str | None = None) -> None:
        """A number is within bounds, which count."""
        self.assertTrue(minv <= value <= maxv, msg or f"{value!r} is not between {minv!r} and {maxv!r}")

    def assertDeviceEqual(self, device1: Any, device2: Any, msg: str | None = None) -> None:
        """Two names of one device."""
        a, b = (DeviceSpec.from_string(str(d or "")).to_string() for d in (device1, device2))
        self.assertEqual(a, b, msg)

    def assertStartsWith(self, actual: str, expected_start: str, msg: str | None = None) -> None:
        """A text begins so."""
        self.assertTrue(actual.startswith(expected_start), msg or f"{actual!r} does not start with {expected_start!r}")

    @contextlib.contextmanager
    def assertRaisesWithPredicateMatch(
        self,
        exception_type: type[BaseException] | tuple[type[BaseException], ...],
        expected_err_re_or_predicate: Predicate,
    ) -> Iterator[None]:
        """The block raises such an exception, of which the predicate holds, or in whose text the pattern is found."""
        try:
            yield
        except exception_type as e:
            wanted = expected_err_re_or_predicate
            text = f"{e.message}\n{e}" if isinstance(e, OpError) else str(e)
            holds = wanted(e) if callable(wanted) else re.search(wanted, text)
            if not holds:
                raise AssertionError(f"Exception of type {type(e)}: {e}, which does not match {wanted!r}") from e
        else:
            self.fail(f"{exception_type} not raised")

    def assertRaisesOpError(self, expected_err_re_or_predicate: Predicate) -> Any:
        """The block raises an error of a step: see `assertRaisesWithPredicateMatch`."""
        return self.assertRaisesWithPredicateMatch(OpError, expected_err_re_or_predicate)

    def checkedThread(
        self, target: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> CheckedThread:
        """A thread whose exception fails the test when it is joined."""
        return CheckedThread(self, target, args, kwargs)


class CheckedThread:
    """A thread of a test: `TestCase.checkedThread`."""

    def __init__(
        self, case: TestCase, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> None:
        self._case, self._error = case, None
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self._thread = threading.Thread(target=self._run, daemon=True)

    _error: BaseException | None

    def _run(self) -> None:
        try:
            self._target(*self._args, **self._kwargs)
        except BaseException as e:
            self._error = e

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()
        if self._error is not None:
            self._case.fail(f"Error in checkedThread: {self._error}")

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()


def _wide(array: npt.NDArray[Any]) -> Any:
    return np.float32 if array.dtype == bfloat16.np else array.dtype


def _where(use_gpu: bool, force_gpu: bool) -> str | None:
    """The device of a test's nodes that have none."""
    if force_gpu or (use_gpu and is_gpu_available()):
        return "/device:GPU:0"
    return None if use_gpu else "/cpu:0"


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the tests of the calling program, and end it."""
    unittest.main(argv=argv or sys.argv)
    raise SystemExit


def get_temp_dir() -> str:
    """A folder for all tests of this process, which stays until it ends."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="dovetail-test"))
    return _folders[0].name


_folders: list[tempfile.TemporaryDirectory[str]] = []


# --- what there is ---------------------------------------------------------------------------------------------------


def gpu_device_name() -> str:
    """The first GPU of this process; the empty text: there is none."""
    with Session(graph=Graph()) as session:
        return next((str(d.name) for d in session.list_devices() if d.device_type == "GPU"), "")


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """Whether this process has a GPU, emulated ones included.

    Args:
        cuda_only: accepted: kernels are compiled for the GPU that is there.
        min_cuda_compute_capability: accepted: kernels are compiled for the GPU that is there.
    """
    return bool(gpu_device_name())


def is_built_with_cuda() -> bool:
    """Whether what GPUs need is installed (`pip install 'dovetail[cuda]'`)."""
    return find_spec("cuda") is not None and find_spec("triton") is not None


def create_local_cluster(
    num_workers: int,
    num_ps: int,
    protocol: str = "grpc",
    worker_config: ConfigProto | None = None,
    ps_config: ConfigProto | None = None,
) -> tuple[list[Server], list[Server]]:
    """Servers of a cluster, all in this process: the workers, and the parameter servers. `dt.LocalCluster` has processes.

    Args:
        protocol: accepted.
        worker_config: their configurations.
        ps_config: their configurations.

    >>> workers, ps = dt.test.create_local_cluster(num_workers=2, num_ps=1)
    >>> session = dt.Session(workers[0].target)
    """
    with contextlib.ExitStack() as reserved:

        def address() -> str:
            s = reserved.enter_context(socket.socket())
            s.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{s.getsockname()[1]}"

        jobs = {"worker": [address() for _ in range(num_workers)], "ps": [address() for _ in range(num_ps)]}
    cluster = ClusterSpec({job: tasks for job, tasks in jobs.items() if tasks})
    ps = [Server(cluster, "ps", i, config=ps_config) for i in range(num_ps)]
    workers = [Server(cluster, "worker", i, config=worker_config) for i in range(num_workers)]
    return workers, ps


# --- gradients -------------------------------------------------------------------------------------------------------


def compute_gradient(
    x: Any,
    x_shape: Sequence[Any],
    y: Tensor,
    y_shape: Sequence[int],
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> Any:
    """The derivative of `y` by `x` twice, in the default session: as gradients give it, and as differences do.

    Args:
        x: tensors of floating type.
        y: tensors of floating type.
        x_shape: their shapes. `x` may be a list of tensors; `x_shape` and `x_init_value` are lists then, too, and
            each tensor is moved by itself.
        y_shape: see `x_shape`.
        x_init_value: where; None: a random point.
        delta: how far `x` is moved.
        init_targets: what is run first.
        extra_feed_dict: fed in each step.

    Returns:
        two `[elements of x, elements of y]`; a list of such pairs for a list.
    """
    session = get_default_session()
    if session is None:
        raise RuntimeError("compute_gradient needs a session: call it inside `with dt.Session():`")
    if init_targets is not None:
        session.run(init_targets)
    if isinstance(x, (list, tuple)):
        starts = [None] * len(x) if x_init_value is None else x_init_value
        return [
            _jacobians(session, one, shape, y, y_shape, start, delta, extra_feed_dict)
            for one, shape, start in zip(x, x_shape, starts, strict=True)
        ]
    return _jacobians(session, x, x_shape, y, y_shape, x_init_value, delta, extra_feed_dict)


def _jacobians(
    session: Any,
    x: Tensor,
    x_shape: Sequence[int],
    y: Tensor,
    y_shape: Sequence[int],
    start: Any,
    delta: float,
    fed: Any,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    at = np.random.random_sample(x_shape) if start is None else np.asarray(start)
    at, feeds = at.astype(x.dtype.np), dict(fed or {})
    rows, columns = int(np.prod(x_shape)), int(np.prod(y_shape))
    analytic, numeric = np.zeros((2, rows, columns))
    shape: list[int] = [*(y.shape.as_list() if y.shape.is_fully_defined() else y_shape)]  # of as many elements
    weights = placeholder(y.dtype.base, shape)
    (dx,) = gradients(y, [x], [weights])
    for j in range(columns):
        one = np.zeros(columns, y.dtype.np)
        one[j] = 1
        if dx is not None:
            analytic[:, j] = _dense(session.run(dx, {**feeds, x: at, weights: one.reshape(shape)}), x_shape).ravel()
    for i in range(rows):
        ends = []
        for sign in (1, -1):
            moved = at.copy().reshape(-1)
            moved[i] += sign * delta
            ends.append(session.run(y, {**feeds, x: moved.reshape(x_shape)}))
        numeric[i] = ((ends[0].astype(float) - ends[1].astype(float)) / (2 * delta)).ravel()
    return analytic, numeric


def _dense(found: Any, shape: Sequence[int]) -> npt.NDArray[Any]:
    """A gradient as an array, where it is of rows, too."""
    if not hasattr(found, "indices"):
        return np.asarray(found)
    out = np.zeros(shape, found.values.dtype)
    np.add.at(out, found.indices, found.values)
    return out


def compute_gradient_error(
    x: Any,
    x_shape: Sequence[Any],
    y: Tensor,
    y_shape: Sequence[int],
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> float:
    """The largest difference between the two of `compute_gradient`; 0 for empty ones. Of a list, the largest of all."""
    found = compute_gradient(x, x_shape, y, y_shape, x_init_value, delta, init_targets, extra_feed_dict)
    pairs = found if isinstance(found, list) else [found]
    return max((float(np.abs(a - b).max()) for a, b in pairs if a.size), default=0.0)


__all__ = [
    "CheckedThread",
    "TestCase",
    "compute_gradient",
    "compute_gradient_error",
    "create_local_cluster",
    "get_temp_dir",
    "gpu_device_name",
    "is_built_with_cuda",
    "is_gpu_available",
    "main",
    "mock",
]
