"""TensorFlow 1's `QueueRunner`, whose threads fill a queue, and the collection of runners."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...graph.core.default_graph import GraphKeys, get_default_graph, get_default_session
from ...graph.core.errors import CancelledError, OpError, OutOfRangeError
from ...graph.ops.state.queue_api import QueueBase
from ...runtime.session.prepared_steps import CLOSED
from .coordinator import CLOSER, Coordinator

logger = logging.getLogger(__name__)


class QueueRunner:
    """Fills a queue. A thread per enqueue op runs the op until the queue is closed or the coordinator stops.

    Args:
        queue: the queue.
        enqueue_ops: the enqueue ops; one op may be given several times, for several threads.
        close_op: the op that the last thread runs before it ends; None: `queue.close()`.
        cancel_op: the op that cancels blocked enqueues when the coordinator stops; None: `queue.close(cancel_pending_enqueues=True)`.
        queue_closed_exception_types: errors that end a thread normally. Default: OutOfRangeError, and CancelledError, which
            enqueues raise when they are cancelled.

    Attributes:
        queue: the queue.
        enqueue_ops: as in the arguments.
        close_op: as in the arguments.
        cancel_op: as in the arguments.
        queue_closed_exception_types: as in the arguments.
        exceptions_raised: errors of threads that have no coordinator.

    Raises:
        ValueError: there is no queue or no enqueue op.
        TypeError: `queue_closed_exception_types` is not a tuple of error types.
    """

    def __init__(
        self,
        queue: QueueBase | None = None,
        enqueue_ops: Sequence[Any] | None = None,
        close_op: Any = None,
        cancel_op: Any = None,
        queue_closed_exception_types: Iterable[type[OpError]] | None = None,
    ) -> None:
        if not queue or not enqueue_ops:
            raise ValueError("Must provide queue and enqueue_ops.")
        self.queue = queue
        self.enqueue_ops = list(enqueue_ops)
        closed = (OutOfRangeError,) if queue_closed_exception_types is None else queue_closed_exception_types
        if (
            not isinstance(closed, tuple)
            or not closed
            or not all(isinstance(e, type) and issubclass(e, OpError) for e in closed)
        ):
            raise TypeError(f"queue_closed_exception_types should be a tuple of subclasses of OpError, not {closed!r}")
        self.queue_closed_exception_types = closed
        self.close_op = queue.close() if close_op is None else close_op
        self.cancel_op = queue.close(cancel_pending_enqueues=True) if cancel_op is None else cancel_op
        self._lock = threading.Lock()
        self._runs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # session -> threads that run
        self.exceptions_raised: list[BaseException] = []

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self.queue.name

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """Create one thread per enqueue op and, with a coordinator, one that cancels blocked enqueues when the coordinator stops.

        Args:
            sess: the session.
            coord: the coordinator that stops the threads; None: none.
            daemon: whether they are daemon threads.
            start: whether to start them.

        Returns:
            The threads; an empty list if those of an earlier call still run in this session.
        """
        with self._lock:
            if self._runs.get(sess, 0) > 0:
                return []
            self._runs[sess] = len(self.enqueue_ops)
            self.exceptions_raised = []
        threads = [self._thread(self._fill, (sess, op, coord), daemon) for op in self.enqueue_ops]
        if coord is not None:
            threads.append(self._thread(self._cancel_on_stop, (sess, coord), daemon))
            for t in threads:
                coord.register_thread(t)
        if start:
            for t in threads:
                t.start()
        return threads

    def _thread(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> threading.Thread:
        what = "-" + args[1].name if hasattr(args[1], "name") else CLOSER
        return threading.Thread(target=target, args=args, daemon=daemon, name=f"QueueRunnerThread-{self.name}{what}")

    def _fill(self, sess: Any, enqueue_op: Any, coord: Coordinator | None) -> None:
        counted = True

        try:
            while coord is None or not coord.should_stop():
                try:
                    sess.run(enqueue_op)
                except (*self.queue_closed_exception_types, CancelledError, RuntimeError) as e:
                    if isinstance(e, RuntimeError) and str(e) != CLOSED:
                        raise
                    with self._lock:
                        counted = False
                        self._runs[sess] -= 1
                        last = self._runs[sess] == 0
                    if last:  # no thread enqueues any more
                        try:
                            sess.run(self.close_op)
                        except Exception as e:
                            logger.debug("Ignored exception: %s", e)
                    return
        except Exception as e:
            if coord is not None:
                coord.request_stop(e)
            else:
                logger.error("Exception in QueueRunner: %s", e)
                with self._lock:
                    self.exceptions_raised.append(e)
                raise
        finally:
            if counted:
                with self._lock:
                    self._runs[sess] -= 1

    def _cancel_on_stop(self, sess: Any, coord: Coordinator) -> None:
        coord.wait_for_stop()
        # A new session uses the queues. Closing the old session ends blocked enqueues; this op could reach a restarted task.
        if coord.leaves_open():
            return
        try:
            sess.run(self.cancel_op)
        except Exception as e:  # the session may be closed already
            logger.debug("Ignored exception: %s", e)

    def __repr__(self) -> str:
        return f"<dt.train.QueueRunner of '{self.name}', {len(self.enqueue_ops)} threads>"


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Add a runner to a collection of the default graph, for `start_queue_runners`."""
    get_default_graph().add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Create, and by default start, the threads of all runners in a collection of the session's graph.

    Args:
        sess: the session; None: the default session. A monitored session starts its runners itself, so nothing is done for it.
        coord: the coordinator that stops the threads; None: none.
        daemon: whether they are daemon threads.
        start: whether to start them.
        collection: name of the collection.

    Raises:
        ValueError: there is no session.
        TypeError: `sess` is not a session.
    """
    if sess is None:
        sess = get_default_session()
        if sess is None:
            raise ValueError(
                "Cannot start queue runners: No default session is registered. Use `with sess.as_default()`."
            )
    if not hasattr(sess, "run"):
        raise TypeError(f"sess must be a tf.Session, not {sess!r}")
    if getattr(sess, "runs_queue_runners", False):
        return []
    runners = sess.graph.get_collection(collection)
    if not runners:
        logger.warning("`start_queue_runners` was called when no queue runners were defined.")
    return [t for qr in runners for t in qr.create_threads(sess, coord=coord, daemon=daemon, start=start)]
