"""A server: one task of a cluster, master and worker at once.

The process shell around `Master` and `Worker`: it owns the endpoint, turns messages into calls and results into messages, and
decides which thread does what. Short things are done on the I/O thread where the message arrived: signs of life, tensors, small
programs. Work of a master and the compiling of programs go to two small pools: two, because a master waits for workers, also of
other servers, and must never take the last thread from the worker that it waits for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import threadpoolctl

from ..codegen.cuda.driver import CudaError, gpu_memory
from ..codegen.cuda.ipc import Outgoing
from ..graph.collectives import Collectives
from ..graph.deserialize import extend_from_bytes
from ..graph.errors import (
    AbortedError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
    UnknownError,
)
from ..graph.ops import all as _all_ops  # noqa: F401  (graphs that arrive may hold any op)
from ..graph.settings import setting
from ..graph.state import DEAD
from ..placer.cluster import ClusterDef, ClusterSpec, DeviceInfo, local_devices
from ..placer.plan_text import plan_lines
from . import here, leases
from .boards import Boards
from .carried import Callers, Carry
from .compression import LEAST_BYTES
from .config import ConfigProto, check_config
from .direct_reads import Want
from .gpu_loans import GpuLoans
from .keys import part_of, serve_with, served_with, server_keys
from .leases import Leases
from .master import Master, device_fields
from .overdue import Lost, Overdue
from .peers import ServerPeers
from .quota import NAME_CHARS, Quota
from .recorder import Recorder, clock
from .registration import Registration
from .sharing import borrowed, share_variables
from .sockets import AddressInUse
from .stats import LOOK_EVERY_S, MOST_WAITS, WAIT_CHARS, MetricsServer, Traffic, Watchdog, memory_in_use
from .step import ChannelKey, calm_thread
from .transport import Endpoint
from .wire import Message, WireError
from .worker import Worker

logger = logging.getLogger(__name__)

PROTOCOLS = (None, "zmq", "grpc")  # "grpc" is what TensorFlow's programs say; the wire is the same
LEASE_S = (
    30.0  # a step whose client has given no sign of life for so long is ended: clients ask for ours twice a second
)


class Server:
    """One task of a cluster: serves its devices and state, and is a target for sessions.

    Args:
        server_or_cluster_def: the cluster: a ClusterSpec, or what makes one.
        job_name, task_index: which task this is; may be left out where only one is possible.
        protocol: None or "zmq" ("grpc" is accepted and means the same).
        config: device counts of this task (`ConfigProto(device_count={"CPU": 2})`).
        start: listen at once.
        insecure: allow an address that other machines can reach, though there are no keys.
        keys: folder of keys: it lets in only whom these allow; None: that of DOVETAIL_KEYS, or no keys.

    Raises:
        ValueError: the task is not determined. InternalError: the cluster has no such task. InvalidArgumentError: an address
            without port. NotFoundError: an unknown protocol. UnknownError: the port is in use.
        PermissionError: other machines could reach the address, there are no keys, and `insecure` was not said; or others may
            read the private key. FileNotFoundError: there are no keys in the folder.

    >>> server = Server({"local": ["localhost:0"]})
    >>> with Session(server.target) as session:
    ...     session.run(constant("hello"))
    b'hello'
    """

    def __init__(
        self,
        server_or_cluster_def: ClusterSpec | ClusterDef | Mapping[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
        *,
        insecure: bool = False,
        keys: str | Path | None = None,
    ) -> None:
        self.cluster_spec = ClusterSpec(server_or_cluster_def)
        self.config = check_config(config)
        if protocol not in PROTOCOLS:
            raise NotFoundError(None, None, f"No server factory is known for protocol {protocol!r}; use 'zmq'")
        self.job_name, self.task_index = _which_task(self.cluster_spec, job_name, task_index)
        self._address = self.cluster_spec.task_address(self.job_name, self.task_index)
        if not self._address.rpartition(":")[2].isdigit():
            task = f"/job:{self.job_name}/task:{self.task_index}"
            raise InvalidArgumentError(
                None, None, f"The address {self._address!r} of {task} has no port: write 'host:port'"
            )
        self._insecure = insecure
        self._keys = server_keys(keys, part_of(self.job_name, self.task_index))
        if self._keys is not None:
            for job in self.cluster_spec.jobs:
                for address in self.cluster_spec.job_tasks(job):
                    if address and address != self._address:
                        self._keys.server(address)  # better now than when the first tensor is to be sent there
        self.task = f"/job:{self.job_name}/replica:0/task:{self.task_index}"
        self.devices: tuple[DeviceInfo, ...] = local_devices(
            self.task, self.config.device_count, setting("DOVETAIL_EMULATE_GPUS"), gpu_memory=gpu_memory()
        )
        self.incarnation = self.devices[0].incarnation
        self._endpoint: Endpoint | None = None
        self._stopped = threading.Event()
        self._sessions_of: dict[str, str] = {}  # session -> the client that opened it
        self._steps = Quota(setting("DOVETAIL_CLIENT_STEPS"), "running steps", "DOVETAIL_CLIENT_STEPS")
        self._fed = Quota(setting("DOVETAIL_CLIENT_MB") << 20, "bytes fed to running steps", "DOVETAIL_CLIENT_MB")
        self._calls = Quota(setting("DOVETAIL_CLIENT_STEPS"), "unanswered calls", "DOVETAIL_CLIENT_STEPS")
        self._working: set[tuple[bytes, int]] = set()  # (client, request) of the calls that the pools serve
        self._opening: dict[tuple[bytes, int], float] = {}  # calls that open sessions -> when the client was heard last
        self._overdue = Overdue()
        self._leases = Leases(leases.LEASE_S)
        self._metrics: MetricsServer | None = None
        self._next_look = 0.0
        self._stalled = 0  # steps that were reported to make no progress
        self._clients: dict[int, bytes] = {}  # running step -> the client that waits for it
        self._heard: dict[bytes, float] = {}  # client of a running step -> when it was last heard
        self._callers = Callers(lambda peer: self._endpoint is None or self._endpoint.is_gone(peer))
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """A server of a cluster of its own, on a free port: job `local`, task 0."""
        return Server({"local": ["localhost:0"]}, config=config, start=start)

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen. Does nothing when it listens already; RuntimeError after `stop`."""
        if self._stopped.is_set():
            raise RuntimeError(f"The server of {self.task} was stopped; make a new one")
        if self._endpoint is not None:
            return
        _share_cores(self.cluster_spec, self._address, self.config.intra_op_parallelism_threads)
        share_variables()
        threads = self.config.inter_op_parallelism_threads or 8
        self._collectives = Collectives(
            self.task, self._send_collective, self.config.peer_timeout_s, self.incarnation, Boards(self._may_sleep)
        )
        gpus = [d.name.device_index for d in self.devices if d.name.device_type == "GPU" and not d.emulated]
        self._gpu_loans = GpuLoans(self.task, gpus, self._send_fields, self._send_otherwise)
        self._worker = Worker(
            self.task, self.devices, push=self._push, is_near=self._is_near, ask=self._want, threads=threads,
            default_container=self.job_name, collectives=self._collectives, lends=self._gpu_loans.lends if gpus else None,
        )  # fmt: skip
        self._began = time.monotonic()
        self._traffic = Traffic()
        self._watchdog = Watchdog(setting("DOVETAIL_STALL_S"))
        self._peers = ServerPeers(self.cluster_spec, self._worker, self.incarnation, self._keys, lambda: self._endpoint)
        self._master = Master(self.task, self._peers)
        self._master_pool = ThreadPoolExecutor(8, thread_name_prefix="dovetail-master")
        self._compile_pool = ThreadPoolExecutor(2, thread_name_prefix="dovetail-compile")
        try:
            self._endpoint = Endpoint(
                self._address, self._on_message, on_tick=self._on_tick, insecure=self._insecure, keys=self._keys
            )
        except AddressInUse as e:
            raise UnknownError(None, None, f"The server of {self.task} cannot start: {e}") from None
        self._address = self._endpoint.address
        self._endpoint.call_soon(calm_thread)
        if self._keys is not None:
            serve_with(self._keys)
        if setting("DOVETAIL_METRICS"):
            try:
                self._metrics = MetricsServer(setting("DOVETAIL_METRICS"), self.figures)
            except (OSError, ValueError) as e:  # a task that nobody can watch still does its work
                logger.error("%s: no metrics at %s: %s", self.task, setting("DOVETAIL_METRICS"), e)
        here.announce(self._address, self)

    @property
    def address(self) -> str:
        """`host:port` on which it listens."""
        return self._address

    @property
    def target(self) -> str:
        """What a session is given to use this server: `zmq://host:port`."""
        return f"zmq://{self._address}"

    @property
    def server_def(self) -> ClusterDef:
        """The cluster as plain data."""
        return self.cluster_spec.as_cluster_def()

    def join(self) -> None:
        """Block until the server is stopped (by `stop`, or by Ctrl-C)."""
        while not self._stopped.wait(1.0):  # a wait without limit could not be interrupted on every platform
            pass

    def stop(self) -> None:
        """End all steps and sessions and stop listening. Stopping twice does nothing."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._endpoint is not None:
            here.withdraw(self._address)
            if self._keys is not None:
                served_with(self._keys)
            self._master_pool.shutdown(wait=False, cancel_futures=True)
            self._compile_pool.shutdown(wait=False, cancel_futures=True)
            self._worker.close()
            self._endpoint.close()
            self._peers.close()
            if self._metrics is not None:
                self._metrics.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped.is_set() else "not started" if self._endpoint is None else self.target
        return f"<dt.train.Server {self.task} {state}>"

    # --- sessions of this process ----------------------------------------------------------------------------------

    def start_here(
        self,
        step: int,
        program: str,
        feeds: Mapping[str, Any],
        finish: Callable[[Mapping[str, Any] | OpError], None],
        *,
        host: here.Host | None,
        recorder: Recorder | None = None,
        client: int = 0,
    ) -> None:
        """As `LocalServer.start_here`."""
        self._worker.start(step, program, feeds, finish, host=host, recorder=recorder, client=client)

    def abort_here(self, step: int, reason: str) -> None:
        """As `LocalServer.abort_here`."""
        self._worker.abort(step, reason)

    def waits_here(self, step: int) -> list[str]:
        """As `LocalServer.waits_here`."""
        return [what[:WAIT_CHARS] for what in self._worker.waits_for(step)[:MOST_WAITS]]

    # --- messages --------------------------------------------------------------------------------------------------

    def _on_message(self, peer: bytes, message: Message) -> None:
        handler = _HANDLERS.get(message.kind)
        if handler is None:
            return  # an answer that nobody waits for
        handler(self, peer, message)

    def _reply(self, peer: bytes, message: Message) -> None:
        endpoint = self._endpoint
        if endpoint is None:
            return
        try:
            endpoint.reply(peer, message)
        except WireError as e:
            endpoint.reply(
                peer,
                self._error(message.fields["request"], InternalError(None, None, f"The answer cannot travel: {e}")),
            )
        except ResourceExhaustedError as e:
            endpoint.reply(peer, self._error(message.fields["request"], e))

    def _error(self, request: int, error: OpError) -> Message:
        node = error.op if isinstance(error.op, str) else getattr(error.op, "name", None)
        task = error.task or self.task
        return Message(
            "error", {"request": request, "code": error.code, "message": error.message, "node": node, "task": task}
        )

    def _in(
        self,
        pool: ThreadPoolExecutor,
        peer: bytes,
        message: Message,
        work: Callable[[Message], Message],
        client: str = "",
    ) -> None:
        """Answer a request with what `work` gives, computed in a pool; errors become error messages.

        It counts as the `client`'s, whose connection `peer` is; of a server's calls, each connection is counted by itself.
        """
        request, owner = message.fields["request"], client or peer
        try:
            self._calls.take(owner)
        except OpError as e:
            self._reply(peer, self._error(request, e))
            return

        def answer() -> None:
            try:
                reply = work(message)
            except OpError as e:
                reply = self._error(request, e)
            except Exception as e:
                logger.exception("%s: while serving %s", self.task, message.kind)
                reply = self._error(request, InternalError(None, None, f"{type(e).__name__}: {e}"))
            self._calls.give_back(owner)
            self._reply(peer, reply)
            self._working.discard((peer, request))

        self._working.add((peer, request))
        try:
            pool.submit(answer)
        except RuntimeError:  # the pool is shut down: the server is stopping
            self._calls.give_back(owner)
            self._working.discard((peer, request))
            self._reply(
                peer, self._error(request, UnavailableError(None, None, f"The server of {self.task} is stopping"))
            )

    def _on_tick(self) -> None:
        """End the steps of clients that have gone, so that nothing waits here for ever."""
        now = time.monotonic()
        self._collectives.tick(now)
        for step, client in list(self._clients.items()):
            if now - self._heard.get(client, now) > LEASE_S:
                logger.warning(
                    "%s: ending step %d: its client has been silent for %.0f s",
                    self.task,
                    step,
                    now - self._heard[client],
                )
                self._worker.abort(step, f"The client has been silent for {LEASE_S:.0f} s")
        self._ask_for_overdue(now)
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            self._end_forsaken_sessions(now)
            self._forget_who_left(now)
            self._callers.tidy(now)
            borrowed()  # a client that was killed may have lent a lot
            self._gpu_loans.tick()
            for step, seconds, waits in self._watchdog.look(now, self._worker.running(), self._worker.waits_for):
                self._stalled += 1
                logger.warning(
                    "%s: step %d has made no progress for %.0f s: %s",
                    self.task,
                    step,
                    seconds,
                    "; ".join(waits[:MOST_WAITS]),
                )
        waited_for = set(self._clients.values())
        for client in [c for c in self._heard if c not in waited_for]:
            del self._heard[client]

    def _on_ping(self, peer: bytes, message: Message) -> None:
        if peer in self._heard:
            self._heard[peer] = time.monotonic()
        fields = {"seq": message.fields["seq"], "incarnation": self.incarnation, "clock": clock()}
        request = message.fields.get("request")
        if request is not None:
            if (peer, request) in self._opening:
                self._opening[peer, request] = time.monotonic()
            runs = self._clients.get(request) == peer
            fields["working"] = runs or (peer, request) in self._working
            if message.fields.get("waits"):
                fields["waits"] = self.waits_here(request) if runs else []
        self._reply(peer, Message("pong", fields))

    def _on_collective(self, peer: bytes, message: Message) -> None:
        self._collectives.message(message.fields, message.tensors)

    def _may_sleep(self) -> bool:
        """Whether the calling thread may wait for other processes: not the one that hears of all of them."""
        return self._endpoint is not None and not self._endpoint.on_io_thread()

    def _send_collective(self, task: str, fields: Mapping[str, Any], tensors: Sequence[Any]) -> None:
        """Send a message about a collective to another task. KeyError: the cluster has no such task."""
        endpoint = self._endpoint
        if endpoint is None or self._stopped.is_set():
            raise AbortedError(None, None, f"The server of {self.task} is stopping")
        endpoint.send(self._peers.address(task), Message("collective", dict(fields), tuple(tensors)))

    def _on_status(self, peer: bytes, message: Message) -> None:
        fields = {
            "request": message.fields["request"],
            "devices": [device_fields(d) for d in self.devices],
            "incarnation": self.incarnation,
        }
        self._reply(peer, Message("devices", fields))

    def _on_stats(self, peer: bytes, message: Message) -> None:
        self._reply(peer, Message("figures", {"request": message.fields["request"], "figures": self.figures()}))

    def figures(self) -> dict[str, Any]:
        """What this task does, in plain values: what `dovetail status` shows, and the metrics."""
        now = time.monotonic()
        spec = self.cluster_spec
        return {
            "task": self.task,
            "job": self.job_name,
            "task_index": self.task_index,
            "cluster": {
                f"/job:{job}/replica:0/task:{i}": spec.task_address(job, i)
                for job in spec.jobs
                for i in spec.task_indices(job)
            },
            "pid": os.getpid(),
            "incarnation": self.incarnation,
            "up_s": now - self._began,
            "memory": memory_in_use(),
            "devices": [device_fields(d) for d in self.devices],
            "keys": self._keys is not None,
            "refused": self._endpoint.refused if self._endpoint is not None else 0,
            "sessions": len(self._master.handles()),
            "steps_running": len(self._worker.running()),
            "steps_started": self._worker.started,
            "steps_failed": self._worker.failed,
            "steps_stalled": self._stalled,
            "steps": self._watchdog.figures(now),
            **self._traffic.figures(),
        }

    def _on_run(self, peer: bytes, message: Message) -> None:
        request, step, program = message.fields["request"], message.fields["step"], message.fields["program"]
        names, client = message.fields["feeds"], message.fields.get("client", 0)
        if client:
            self._callers.heard(client, peer, time.monotonic())
        if not self._worker.is_new(step):
            return  # tensors have started it
        if len(names) != len(message.tensors):
            error = InvalidArgumentError(None, None, f"{len(names)} feeds named, {len(message.tensors)} values sent")
            self._reply(peer, self._error(request, error))
            return
        recorder = Recorder() if message.fields.get("trace") else None
        feeds = dict(zip(names, message.tensors, strict=True))
        self._start(peer, request, step, program, feeds, None, client, message.fields.get("quiet", False), recorder)

    def _start(
        self,
        peer: bytes,
        request: int,
        step: int,
        program: str,
        feeds: Mapping[str, Any],
        arrived: Mapping[ChannelKey, Any] | None,
        client: int,
        quiet: bool,
        recorder: Recorder | None = None,
    ) -> None:
        """Begin a part of a step for a client, who is at `peer`."""
        owner = (self._endpoint and self._endpoint.owner(peer)) or self._worker.client_of(program) or peer
        size = 0
        for tensor in feeds.values():
            size += tensor.nbytes
        try:
            self._steps.take(owner)
            try:
                self._fed.take(owner, size)
            except OpError:
                self._steps.give_back(owner)
                raise
        except OpError as e:
            self._reply(peer, self._error(request, e))
            return
        self._clients[step] = peer
        self._heard[peer] = time.monotonic()

        def finish(outcome: Mapping[str, Any] | OpError) -> None:
            self._steps.give_back(owner)
            self._fed.give_back(owner, size)
            if recorder is not None:
                notes = recorder.finished().pack()
                self._reply(peer, Message("trace", {"request": request, "notes": notes}))
            if isinstance(outcome, OpError):
                self._reply(peer, self._error(request, outcome))
            elif not quiet:
                self._reply(
                    peer, Message("done", {"request": request, "fetches": tuple(outcome)}, tuple(outcome.values()))
                )
            self._clients.pop(step, None)  # now that the answer is on its way

        self._worker.start(step, program, feeds, finish, recorder=recorder, client=client, arrived=arrived)

    def _on_tensors(self, peer: bytes, message: Message) -> None:
        fields = message.fields
        arrived: dict[ChannelKey, Any] = {channel: DEAD if dead else None for channel, dead in fields["without"]}
        arrived.update(zip(fields["channels"], message.tensors, strict=True))
        size = 0
        for tensor in message.tensors:
            size += tensor.nbytes
        self._traffic.received(size)
        step, client = fields["step"], fields.get("client", 0)
        if client and self._worker.is_new(step):
            caller = self._callers.find(client, time.monotonic())
            if caller is not None:
                program = fields.get("program", "")
                self._start(caller, step, step, program, {}, arrived, client, not self._worker.reports(program))
                return
        self._worker.deliver(step, arrived)

    # --- tensors in GPUs' memory: see `gpu_loans.py` -----------------------------------------------------------------

    def _on_gpu_message(self, peer: bytes, message: Message) -> None:
        {
            "gpu_hello": self._gpu_loans.on_hello,
            "gpu_reader": self._gpu_loans.on_reader,
            "gpu_refused": self._gpu_loans.on_refused,
        }[message.kind](message.fields)

    def _on_gpu_loans(self, peer: bytes, message: Message) -> None:
        arrived = self._gpu_loans.on_loans(message.fields)
        if arrived:
            self._traffic.received(sum(value.nbytes for value in arrived.values()))
            self._worker.deliver(message.fields["step"], arrived)

    def _send_fields(self, task: str, kind: str, fields: dict[str, Any]) -> None:
        if self._peers.knows(task):
            self._send(task, Message(kind, fields))

    def _send_otherwise(self, task: str, step: int, tensors: Mapping[ChannelKey, Outgoing]) -> None:
        """Send by the host's memory what was lent in vain. Not here, where it would wait for the GPU."""
        self._worker.not_sent(step, tensors)

        def send() -> None:
            try:
                self._worker.send(task, step, {channel: lent.on_host() for channel, lent in tensors.items()})
            except OpError as e:
                self._worker.fail(step, e)
            except CudaError as e:
                self._worker.fail(step, InternalError(None, None, f"A tensor cannot be copied to the host: {e}"))

        with contextlib.suppress(RuntimeError):  # the server is stopping
            self._compile_pool.submit(send)

    def _on_abort(self, peer: bytes, message: Message) -> None:
        self._worker.abort(message.fields["step"], message.fields["reason"])

    # --- tensors that are overdue: see `overdue.py` ------------------------------------------------------------------

    def _ask_for_overdue(self, now: float) -> None:
        asks, lost = self._overdue.look(now, self._worker.waiting())
        for step, task, channels in asks:
            if self._peers.knows(task):
                fields = {"step": step, "task": self.task, "channels": list(channels)}
                self._send(task, Message("missing", fields))
                self._worker.want_again(step, channels)
        for one in lost:
            self._lose(one)

    def _lose(self, lost: Lost) -> None:
        """End a step whose tensor will not come."""
        who = f"{lost.task} at {self._peers.address(lost.task)}"
        waited = f"{self.task} waited {lost.waited_s:.1f} s for a tensor of this step"
        error = UnavailableError(None, None, f"{waited}. {who} {lost.why} {self.task}. Run the step again.")
        self._worker.fail(lost.step, error)

    def _on_missing(self, peer: bytes, message: Message) -> None:
        step, task = message.fields["step"], message.fields["task"]
        channels = _channels(message.fields["channels"])
        try:
            known, sent = self._worker.account(step, channels)
        except ValueError:  # no channel looks so
            return
        endpoint = self._endpoint
        if endpoint is None or not self._peers.knows(task):
            return
        left = endpoint.bytes_left(self._peers.address(task))
        self._reply(
            peer, Message("coming", {"step": step, "task": self.task, "known": known, "channels": sent, "left": left})
        )
        if sent:
            answer = Message("accounted", {"step": step, "task": self.task, "channels": sent})
            endpoint.call_soon(lambda: self._send(task, answer))  # behind the tensors that other threads have queued

    def _on_coming(self, peer: bytes, message: Message) -> None:
        fields = message.fields
        step, task, sent = fields["step"], fields["task"], _channels(fields["channels"])
        now, waiting = time.monotonic(), self._worker.waiting().get(step)
        lost = self._overdue.coming(now, step, task, fields["known"], sent, fields["left"], waiting)
        if lost is not None:
            self._lose(lost)

    def _on_accounted(self, peer: bytes, message: Message) -> None:
        step, task = message.fields["step"], message.fields["task"]
        sent = _channels(message.fields["channels"])
        lost = self._overdue.accounted(time.monotonic(), step, task, sent, self._worker.waiting().get(step))
        if lost is not None:
            self._lose(lost)

    # --- variables that are read where they lie: see `direct_reads.py` ----------------------------------------------

    def _on_page(self, peer: bytes, message: Message) -> None:
        self._reply(peer, Message("paged", {"request": message.fields["request"], "page": self._worker.direct.page()}))

    def _on_sees(self, peer: bytes, message: Message) -> None:
        readable = self._worker.direct.sees(message.fields["page"])
        self._reply(peer, Message("seen", {"request": message.fields["request"], "readable": readable}))

    def _on_post(self, peer: bytes, message: Message) -> None:
        self._in(self._compile_pool, peer, message, self._post)

    def _post(self, message: Message) -> Message:
        fields = message.fields
        names = fields["names"]
        if not all(isinstance(n, list) and len(n) == 2 and all(isinstance(x, str) for x in n) for n in names):
            raise InvalidArgumentError(None, None, "A post message names variables by container and name")
        places = self._worker.post(fields["session"], fields["seed"], fields["isolated"], names)
        posted = {"incarnation": self.incarnation, "places": [p if p is None else list(p) for p in places]}
        return Message("posted", {"request": fields["request"], **posted})

    def _want(self, task: str, incarnation: int, step: int, session: str, wants: Sequence[Want]) -> None:
        fields = {"step": step, "task": self.task, "session": session, "incarnation": incarnation, "wants": list(wants)}
        self._send(task, Message("want", fields))

    def _on_want(self, peer: bytes, message: Message) -> None:
        fields = message.fields
        step, task, wants = fields["step"], fields["task"], fields["wants"]
        if not self._peers.knows(task):
            return
        try:
            session = fields["session"] if fields["incarnation"] == self.incarnation else ""
            self._worker.send(task, step, self._worker.values(session, wants))
        except OpError as e:
            channels = [w.get("channel") for w in wants if isinstance(w, dict)]
            self._send(
                task, Message("denied", {"step": step, "channels": channels, "code": e.code, "message": e.message})
            )

    def _on_denied(self, peer: bytes, message: Message) -> None:
        fields = message.fields
        error = self._worker.direct.denied(fields["step"], fields["channels"], fields["code"], fields["message"])
        if error is not None:
            self._worker.fail(fields["step"], error)

    def _send(self, task: str, message: Message) -> None:
        if self._endpoint is not None:
            self._endpoint.send(self._peers.address(task), message)

    def _on_release(self, peer: bytes, message: Message) -> None:
        self._worker.release([p for p in message.fields["programs"] if isinstance(p, str)])

    def _on_register(self, peer: bytes, message: Message) -> None:
        self._in(self._compile_pool, peer, message, self._register)

    def _register(self, message: Message) -> Message:
        registration = Registration.from_fields(message.fields)
        known = {str(d.name) for d in self.devices}
        for unit in registration.units:
            if unit.device not in known:
                raise InvalidArgumentError(
                    None, None, f"{unit.device} is no device of {self.task}; it has {', '.join(sorted(known))}"
                )
        self._worker.register(registration)
        return Message("registered", {"request": message.fields["request"], "incarnation": self.incarnation})

    def _on_forget_session(self, peer: bytes, message: Message) -> None:
        self._worker.close_session(message.fields["session"])
        self._reply(peer, Message("closed", {"request": message.fields["request"]}))

    def _on_reset_containers(self, peer: bytes, message: Message) -> None:
        self._worker.reset(c for c in message.fields["containers"] if isinstance(c, str))
        for session in message.fields.get("sessions") or ():
            if isinstance(session, str):
                self._worker.close_session(session)
        self._reply(peer, Message("closed", {"request": message.fields["request"]}))

    def _on_touch(self, peer: bytes, message: Message) -> None:
        self._leases.seen(message.fields["session"], peer, time.monotonic())

    def _end_forsaken_sessions(self, now: float) -> None:
        """Close sessions whose clients have vanished."""
        endpoint = self._endpoint
        if endpoint is None:
            return
        for session in self._leases.look(now, self._master.handles(), endpoint.is_gone):
            logger.warning("%s: closing session %s: its client has gone", self.task, session)
            self._master_pool.submit(self._master.close_session, session)

    def _forget_who_left(self, now: float) -> None:
        """Wait no longer for the cluster on behalf of clients that have gone, or are silent."""
        endpoint = self._endpoint
        for call, heard in list(self._opening.items()):
            if now - heard > LEASE_S or (endpoint is not None and endpoint.is_gone(call[0])):
                self._opening.pop(call, None)

    def _on_master(self, peer: bytes, message: Message) -> None:
        session = message.fields.get("session")
        if session is not None:
            self._leases.seen(session, peer, time.monotonic())
        owner = self._endpoint.owner(peer) if self._endpoint is not None else ""
        client = owner or self._master.client_of(session or "")
        if message.kind == "create_session":
            client = owner or _client_of(message)

            def tell(missing: Sequence[str]) -> None:
                self._reply(peer, Message("waiting", {"request": message.fields["request"], "tasks": list(missing)}))

            self._in(self._master_pool, peer, message, lambda m: self._create_session(m, peer, owner, tell), client)
        else:
            self._in(self._master_pool, peer, message, lambda m: _MASTER_CALLS[m.kind](self, m), client)

    def _create_session(
        self, message: Message, peer: bytes, owner: str, tell: Callable[[Sequence[str]], None]
    ) -> Message:
        """Open a session for a client, who is known by its key; those without keys are one client."""
        most = setting("DOVETAIL_CLIENT_SESSIONS")
        live = set(self._master.handles())
        self._sessions_of = {handle: whose for handle, whose in list(self._sessions_of.items()) if handle in live}
        opened = sum(whose == owner for whose in self._sessions_of.values())
        if most and opened >= most:
            raise ResourceExhaustedError(
                None, None,
                f"This client has {opened} sessions open at {self.task}, which is the limit (DOVETAIL_CLIENT_SESSIONS of the "
                "server). Close some",
            )  # fmt: skip
        try:
            config = ConfigProto.from_fields(message.fields["config"])
        except TypeError as e:
            raise InvalidArgumentError(None, None, f"Malformed config: {e}") from None
        if config.cluster_def is not None:
            self._check_cluster(ClusterSpec(config.cluster_def))
            config.isolate_session_state = True
        call = peer, message.fields["request"]
        self._opening[call] = time.monotonic()
        try:
            session = self._master.create_session(
                config,
                tell=tell,
                forsaken=lambda: call not in self._opening,
                client=_client_of(message),
            )
        finally:
            self._opening.pop(call, None)
        self._sessions_of[session.handle] = owner
        self._leases.seen(session.handle, peer, time.monotonic())
        devices = [device_fields(d) for d in session.cluster.devices]
        return Message(
            "session_created", {"request": message.fields["request"], "session": session.handle, "devices": devices}
        )

    def _check_cluster(self, said: ClusterSpec) -> None:
        """InvalidArgumentError unless it is this one."""
        peers, spec = self._peers, self.cluster_spec
        own = {f"/job:{j}/replica:0/task:{i}" for j in spec.jobs for i in spec.task_indices(j)}
        tasks = {
            f"/job:{j}/replica:0/task:{i}": said.task_address(j, i) for j in said.jobs for i in said.task_indices(j)
        }
        for task in sorted(own | tasks.keys()):
            here = peers.address(task) if task in own else "no task of the server's"
            there = tasks.get(task, "not there")
            if here != there:
                raise InvalidArgumentError(
                    None, None,
                    f"ConfigProto.cluster_def is not the cluster of the server of {self.task}: {task} is {there} in cluster_def, and "
                    f"{here} in the server's cluster. Start servers with that cluster, or leave it out; a session that is to see some "
                    "tasks only says so with device_filters",
                )  # fmt: skip

    def _extend(self, message: Message) -> Message:
        fields = message.fields
        session = self._master.session(fields["session"])
        with session.lock:
            if session.graph.version != fields["from_version"]:
                raise AbortedError(
                    None,
                    None,
                    f"The session's graph has version {session.graph.version}; the client expected {fields['from_version']}",
                )
            extend_from_bytes(session.graph, fields["graph"])
            return Message("extended", {"request": fields["request"], "version": session.graph.version})

    def _prepare(self, message: Message) -> Message:
        fields = message.fields
        lists = [fields["fetches"], fields["targets"], fields["feeds"]]
        if not all(isinstance(name, str) for names in lists for name in names):
            raise InvalidArgumentError(None, None, "Fetches, targets and feeds are names")
        fetches, targets, feeds = lists
        parts = self._master.prepare(fields["session"], fetches, targets, feeds, bool(fields.get("warm")))
        return Message(
            "prepared",
            {
                "request": fields["request"],
                "parts": [
                    {
                        "task": p.task, "address": self._peers.address(p.task), "incarnation": p.incarnation, "program": p.program,
                        "feeds": list(p.feeds), "fetches": list(p.fetches), "reports": p.reports,
                        "carried": p.carried,
                    }
                    for p in parts
                ],
            },
        )  # fmt: skip

    def _plan(self, message: Message) -> Message:
        fields = message.fields
        lists = [fields["fetches"], fields["targets"], fields["feeds"]]
        if not all(isinstance(name, str) for names in lists for name in names):
            raise InvalidArgumentError(None, None, "Fetches, targets and feeds are names")
        fetches, targets, feeds = lists
        plan = self._master.plan(fields["session"], fetches, targets, feeds, fields["program"])
        text = "\n".join(plan_lines(plan, with_graph=False))
        return Message("planned", {"request": fields["request"], "plan": text.encode()})

    def _close_session(self, message: Message) -> Message:
        self._master.close_session(message.fields["session"])
        return Message("closed", {"request": message.fields["request"]})

    def _reset(self, message: Message) -> Message:
        try:
            config = ConfigProto.from_fields(message.fields.get("config") or {})
        except TypeError as e:
            raise InvalidArgumentError(None, None, f"Malformed config: {e}") from None
        self._master.reset([c for c in message.fields["containers"] if isinstance(c, str)], config)
        return Message("closed", {"request": message.fields["request"]})

    def _is_near(self, task: str) -> bool:
        return self._endpoint is not None and self._endpoint.is_near(self._peers.address(task))

    def _push(self, task: str, step: int, values: Mapping[ChannelKey, Any], carry: Carry | None = None) -> None:
        """Send tensors of one step to a task, in one message. Control edges and dead values travel without a tensor."""
        endpoint = self._endpoint
        if endpoint is None or self._stopped.is_set():
            raise AbortedError(None, None, f"The server of {self.task} is stopping")
        channels, tensors, without, loans, size = [], [], [], [], 0
        for channel, value in values.items():
            if type(value) is Outgoing:
                loan = self._gpu_loans.lend(channel, value)
                if loan is not None:
                    loans.append(loan)
                    size += value.nbytes
                    continue
                value = value.on_host()
            if value is None or value is DEAD:
                without.append((channel, value is DEAD))
            else:
                channels.append(channel)
                tensors.append(value)
                size += value.nbytes
        self._traffic.sent(task, size)
        fields = {"step": step, "channels": tuple(channels), "without": tuple(without)}
        if carry is not None:
            fields["program"], fields["client"] = carry
        compressed = size >= LEAST_BYTES and self._worker.compresses(step)
        if channels or without or carry is not None:
            endpoint.send(self._peers.address(task), Message("tensors", fields, tuple(tensors)), compressed)
        if loans:
            self._send_fields(task, "gpu_loans", {"step": step, "task": self.task, "loans": loans})


def _client_of(message: Message) -> str:
    """What the process that asks for a session calls itself."""
    return (message.fields.get("client") or "")[:NAME_CHARS]


def _channels(said: Iterable[Any]) -> list[ChannelKey]:
    """The channels that a peer names."""
    return [c for c in said if isinstance(c, int | str)]


_HANDLERS: dict[str, Callable[[Server, bytes, Message], None]] = {
    "ping": Server._on_ping,
    "status": Server._on_status,
    "stats": Server._on_stats,
    "run": Server._on_run,
    "tensors": Server._on_tensors,
    "collective": Server._on_collective,
    "abort": Server._on_abort,
    "gpu_hello": Server._on_gpu_message,
    "gpu_reader": Server._on_gpu_message,
    "gpu_refused": Server._on_gpu_message,
    "gpu_loans": Server._on_gpu_loans,
    "page": Server._on_page,
    "sees": Server._on_sees,
    "post": Server._on_post,
    "want": Server._on_want,
    "denied": Server._on_denied,
    "missing": Server._on_missing,
    "coming": Server._on_coming,
    "accounted": Server._on_accounted,
    "release": Server._on_release,
    "register": Server._on_register,
    "touch": Server._on_touch,
    "forget_session": Server._on_forget_session,
    "reset_containers": Server._on_reset_containers,
    "create_session": Server._on_master,
    "extend": Server._on_master,
    "prepare": Server._on_master,
    "plan": Server._on_master,
    "close_session": Server._on_master,
    "reset": Server._on_master,
}

_MASTER_CALLS: dict[str, Callable[[Server, Message], Message]] = {
    "extend": Server._extend,
    "prepare": Server._prepare,
    "plan": Server._plan,
    "close_session": Server._close_session,
    "reset": Server._reset,
}


def _share_cores(cluster: ClusterSpec, address: str, wanted: int) -> None:
    """Give this process's matrix products their share of the cores.

    BLAS takes all cores unless told otherwise, and its threads wait by spinning. Several tasks on one machine would
    then slow each other down many times over. So each gets the cores divided by the tasks of the cluster that have the same host
    in their address, unless the user decides: by `intra_op_parallelism_threads` or the libraries' own variables.
    """
    if not wanted:
        if any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")):
            return
        host = address.rpartition(":")[0]
        tasks = [cluster.task_address(job, i) for job in cluster.jobs for i in cluster.task_indices(job)]
        wanted = max(1, (os.cpu_count() or 1) // sum(a.rpartition(":")[0] == host for a in tasks))
    threadpoolctl.threadpool_limits(wanted, user_api="blas")


def _which_task(cluster: ClusterSpec, job_name: str | None, task_index: int | None) -> tuple[str, int]:
    """The task meant, completed where only one is possible."""
    if job_name is None:
        if len(cluster.jobs) != 1:
            raise ValueError(
                f"Must specify an explicit `job_name`: the cluster has the jobs {', '.join(cluster.jobs) or '(none)'}."
            )
        job_name = cluster.jobs[0]
    if job_name not in cluster.jobs:
        raise InternalError(None, None, f"The cluster has no job '{job_name}'; its jobs: {', '.join(cluster.jobs)}")
    indices = cluster.task_indices(job_name)
    if task_index is None:
        if len(indices) != 1:
            raise ValueError(
                f"Must specify an explicit `task_index`: job '{job_name}' has the tasks {', '.join(map(str, indices))}."
            )
        task_index = indices[0]
    if task_index not in indices:
        raise InternalError(
            None, None, f"Job '{job_name}' has no task {task_index}; its tasks: {', '.join(map(str, indices))}"
        )
    return job_name, task_index
