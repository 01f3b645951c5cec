"""A server: one task of a cluster, master and worker at once.

The process around `Master` and `Worker`: it owns the endpoint, and has the table of message kinds and their handlers. The I/O thread
handles short messages itself: heartbeats, tensors, short programs. Small pools do the work of the master and compile programs
(`rpc/dispatch.py`).

Threads of a server are scheduled as batch work (`SCHED_BATCH`, sched(7)). A task that sends a message wakes its receiver. If no other
processor is free, Linux lets the woken thread preempt the one that woke it. Then a parameter server that has just sent the token to the
first of two workers waits until this worker has computed its step, and meanwhile the second worker is idle. Threads that are scheduled
as batch work do not preempt when they are woken: they run on a free processor, or when the waking thread waits. Their share of the
processors is the same. Synchronous training of two workers and two parameter servers on two processors is a sixth faster with it; a
single client's read of a variable takes up to 40 microseconds longer (150 instead of 110).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import threadpoolctl

from ...codegen.gpu.driver.api import present_gpus
from ...codegen.options import expect_neighbours
from ...graph.core.argument_names import explains_arguments
from ...graph.core.errors import NotFoundError, UnknownError, invalid
from ...graph.core.interpreter_state import process_id
from ...graph.core.settings import setting
from ...graph.ops import all as _all_ops  # noqa: F401  (graphs that arrive may hold any op)
from ...placer.cluster.spec import ClusterDef, ClusterSpec, DeviceInfo, addresses_of, local_devices, task_addresses
from ..collectives.coordinator import Coordinator
from ..collectives.shared_buffer import CollectiveMemory
from ..config import ConfigProto, Options, check_config
from ..master.handlers import MasterHandlers
from ..master.master import Master
from ..master.workers import Workers
from ..observability.metrics import (
    LOOK_EVERY_S,
    MOST_WAITS,
    WAIT_CHARS,
    Load,
    MetricsServer,
    Watchdog,
    memory_in_use,
    percentiles,
    queue_depths,
)
from ..observability.step_notes import clock
from ..rpc.dispatch import RequestExecutor, Responder
from ..shared_memory.pool import mapper, share_variables
from ..timeouts import DEAD_S
from ..transport.endpoint import Endpoint
from ..transport.keys import keys_of_servers, part_of, server_keys
from ..transport.zmq_links import AddressInUse
from ..wire.messages import Message
from ..wire.schema import KINDS
from ..worker.executor import ignore_numpy_warnings
from ..worker.handlers import StepHandlers, WorkerHandlers
from ..worker.registration import device_fields
from ..worker.replication import CopyHandlers, Replicator, backup_of
from ..worker.tensor_exchange import TensorExchange
from ..worker.worker import Worker, servers


def use_batch_scheduling() -> None:
    """Schedule the calling thread, and those that it starts from now on, as batch work.

    Nothing changes if the thread has another policy than the default, or `DOVETAIL_SCHED_BATCH` is 0.
    """
    if not setting("DOVETAIL_SCHED_BATCH"):
        return
    with contextlib.suppress(OSError):  # forbidden here: it only costs speed
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


logger = logging.getLogger(__name__)
PROTOCOLS = (None, "zmq", "grpc")  # "grpc" is what TensorFlow's programs say; the wire is the same
Handler = Callable[[bytes, Message], None]
"""Takes a message of one kind: (peer that sent it, message)."""


@dataclass(slots=True, repr=False)
class ServerDef(Options):
    """A server as plain data.

    Attributes:
        cluster: the jobs, and their tasks' addresses.
        job_name, task_index: the task of the server.
        default_session_config: default options of its sessions.
        protocol: "grpc" or "zmq".
        port: ignored; the cluster has the address.
    """

    cluster: ClusterDef = field(default_factory=ClusterDef)
    job_name: str = ""
    task_index: int = 0
    default_session_config: ConfigProto = field(default_factory=ConfigProto)
    protocol: str = ""
    port: int = 0


class Server:
    """Runs one task of a cluster in this process: it serves the task's devices and state, and is a target for sessions.

    Args:
        server_or_cluster_def: the cluster: a ClusterSpec or an argument of it; or a `ServerDef`, which the other arguments override.
        job_name: the job of this task. Optional if the cluster has one job.
        task_index: the index of this task in its job. Optional if the job has one task.
        protocol: "zmq" or None; "grpc" means the same.
        config: device counts of this task (`ConfigProto(device_count={"CPU": 2})`), and defaults for the options of its sessions.
        start: listen immediately; else when `start()` is called.
        insecure: listen without keys even on an address that other machines can reach.
        keys: folder of keys; only processes with an allowed key can connect. None: the folder in DOVETAIL_KEYS, or no keys.
        listen: `host:port` to listen on, if it differs from the task's address in the cluster: behind a forwarded port, or after an
            engine has restarted the task elsewhere.

    Raises:
        ValueError: `job_name` or `task_index` is needed. InvalidArgumentError: the cluster has no such task, or an address has no
            port. NotFoundError: an unknown protocol. UnknownError: the port is in use.
        PermissionError: other machines could reach the address, there are no keys, and `insecure` is false; or others may
            read the private key. FileNotFoundError: there are no keys in the folder.

    >>> server = Server({"local": ["localhost:0"]})
    >>> with Session(server.target) as session:
    ...     session.run(constant("hello"))
    b'hello'
    """

    @explains_arguments
    def __init__(
        self,
        server_or_cluster_def: ServerDef | ClusterSpec | ClusterDef | Mapping[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
        *,
        insecure: bool = False,
        keys: str | Path | None = None,
        listen: str | None = None,
    ) -> None:
        given = server_or_cluster_def
        if isinstance(given, ServerDef):
            job_name = given.job_name or None if job_name is None else job_name
            task_index = given.task_index if task_index is None else task_index
            protocol = given.protocol or None if protocol is None else protocol
            config = given.default_session_config if config is None else config
            given = given.cluster
        self.cluster_spec = ClusterSpec(given)
        self.config = check_config(config)
        self._protocol = protocol
        if protocol not in PROTOCOLS:
            raise NotFoundError.of(f"No server factory is known for protocol {protocol!r}; use 'zmq'")
        self.job_name, self.task_index = _which_task(self.cluster_spec, job_name, task_index)
        self._address = self.cluster_spec.task_address(self.job_name, self.task_index)
        if not self._address.rpartition(":")[2].strip().isdigit():
            task = f"/job:{self.job_name}/task:{self.task_index}"
            raise invalid(f"The address {self._address!r} of {task} has no port: write 'host:port'")
        self._listen = listen or self._address
        self._insecure = insecure
        self._keys = server_keys(keys, part_of(self.job_name, self.task_index))
        if self._keys is not None:
            for address in task_addresses(self.cluster_spec).values():
                if address and address != self._address:
                    self._keys.server(address)  # a missing key is an error now, not when the first tensor is sent there
        self.task = f"/job:{self.job_name}/replica:0/task:{self.task_index}"
        self.devices: tuple[DeviceInfo, ...] = local_devices(
            self.task, self.config.device_count, setting("DOVETAIL_EMULATE_GPUS"), gpus=present_gpus(),
            host_memory=setting("DOVETAIL_HOST_MEMORY") or None,
        )  # fmt: skip
        if len(task_addresses(self.cluster_spec)) > 1:
            expect_neighbours()
        self.incarnation = self.devices[0].incarnation
        self._backup = backup_of(self.cluster_spec, self.job_name, self.task_index)
        if self._backup and any(d.name.device_type == "GPU" and not d.emulated for d in self.devices):
            raise invalid(
                f"DOVETAIL_PS_REPLICAS=2 keeps what is in the host's memory, and {self.task} has GPUs: start it with "
                "CUDA_VISIBLE_DEVICES= (empty)"
            )
        self._responder = Responder(self.task, addresses_of(self.cluster_spec))
        self._process = process_id()
        self._is_listening = False
        self._stopped = threading.Event()
        self._metrics: MetricsServer | None = None
        self._next_look = 0.0
        self._ticked = time.monotonic()
        self._stalled = 0  # steps that were reported to make no progress
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """A server for a cluster of one task, `/job:local/task:0`, on a free port."""
        return Server({"local": ["localhost:0"]}, config=config, start=start)

    # --- life ------------------------------------------------------------------------------------------------------

    def update_cluster(self, server_or_cluster_def: Any) -> None:
        """Replace the cluster by one with more or fewer tasks. Open sessions keep their devices.

        Args:
            server_or_cluster_def: the new cluster. It must have this task, and remaining tasks must have the same addresses.

        Raises:
            InvalidArgumentError: the cluster lacks this task, or a remaining task has another address.
        """
        spec = ClusterSpec(server_or_cluster_def)
        _which_task(spec, self.job_name, self.task_index)
        before = task_addresses(self.cluster_spec)
        for (job, i), there in task_addresses(spec).items():
            if (here := before.get((job, i), there)) != there:
                raise invalid(
                    f"/job:{job}/task:{i} is at {here}, not at {there}: remaining tasks must keep their addresses"
                )
        self.cluster_spec = spec
        self._responder.addresses = addresses_of(spec) | {self.task: self._address}

    def start(self) -> None:
        """Listen for connections. Does nothing if the server listens already.

        Raises:
            RuntimeError: the server was stopped.
        """
        if self._stopped.is_set():
            raise RuntimeError(f"The server of {self.task} was stopped; make a new one")
        if self._is_listening:
            return
        _limit_blas_threads(self.cluster_spec, self._address, self.config.intra_op_parallelism_threads)
        use_batch_scheduling()
        share_variables()
        responder = self._responder
        memory = CollectiveMemory(lambda: not responder.endpoint.on_io_thread())
        self._collectives = Coordinator(
            self.task, responder.collective, self.config.peer_timeout_s, memory, responder.lives
        )
        gpus = [d.name.device_index for d in self.devices if d.name.device_type == "GPU" and not d.emulated]
        self._executor = RequestExecutor(responder)
        self._exchange = TensorExchange(responder, self._executor, gpus)
        self._worker = Worker(
            self.task, self.devices, push=self._exchange.push, reader_of=responder.reader_of, ask=self._exchange.want,
            wake=self._exchange.wake, threads=self.config.inter_op_parallelism_threads or 8,
            default_container=self.job_name, collectives=self._collectives, lends=self._exchange.loans.lends if gpus else None,
            data_folders=None if self._keys is not None else tuple(filter(None, setting("DOVETAIL_DATA_FILES").split(":"))),
        )  # fmt: skip
        self._step_handlers = StepHandlers(self._worker, responder)
        self._exchange.worker, self._worker.on_tensors = self._worker, self._exchange.on_tensors
        self._began = time.monotonic()
        self._watchdog = Watchdog(setting("DOVETAIL_STALL_S"))
        self._load = Load()
        self._workers = workers = Workers(self._worker, responder, self._keys)
        self._master = Master(self.task, self._workers)
        self._master_handlers = MasterHandlers(self._master, self._executor, responder, self.config)
        self._handlers = self._table()
        if backup := self._backup:
            patience_s = self.config.peer_timeout_s

            def call(message: Message) -> Message:
                return workers.call_all({backup: message}, patience_s, None)[backup]

            self._worker.replicator = Replicator(self.task, backup, self.incarnation, self._worker.resources, call)

        def listens(endpoint: Endpoint) -> None:
            responder.endpoint, self._is_listening = endpoint, True
            self._address = responder.addresses[self.task] = endpoint.address
            endpoint.call_soon(ignore_numpy_warnings)

        try:
            Endpoint(
                self._listen, self._on_message, on_tick=self._on_tick, insecure=self._insecure, keys=self._keys,
                listens=listens,
            )  # fmt: skip
        except AddressInUse as e:
            raise UnknownError.of(f"The server of {self.task} cannot start: {e}") from None
        # Otherwise the first step would wait for it, in all tasks at once.
        self._executor.worker.submit(self._worker.warm_up, self.config.kernel_options())
        if self._keys is not None:
            keys_of_servers.append(self._keys)
        if setting("DOVETAIL_METRICS"):
            try:
                self._metrics = MetricsServer(
                    setting("DOVETAIL_METRICS"), self.figures, {"/live": self._not_live, "/ready": self._not_ready}
                )
            except (OSError, ValueError) as e:  # a task without metrics still does its work
                logger.error("%s: no metrics at %s: %s", self.task, setting("DOVETAIL_METRICS"), e)
        servers[self._address] = self, self._worker
        if self._worker.replicator is not None:
            self._worker.replicator.start()

    @property
    def address(self) -> str:
        """`host:port` on which the server listens."""
        return self._address

    @property
    def target(self) -> str:
        """The session target of this server: `zmq://host:port`."""
        return f"zmq://{self._address}"

    @property
    def server_def(self) -> ServerDef:
        """The arguments of the server, as plain data."""
        cluster = self.cluster_spec.as_cluster_def()
        return ServerDef(cluster, self.job_name, self.task_index, self.config, self._protocol or "grpc")

    def join(self) -> None:
        """Block until the server is stopped (by `stop`, or by Ctrl-C)."""
        self._stopped.wait()

    def stop(self) -> None:
        """End all steps and sessions, and stop listening. A second call does nothing."""
        if self._stopped.is_set() or process_id() != self._process:  # a forked child has none of its threads
            return
        self._stopped.set()
        self._responder.is_stopping = True
        if self._is_listening:
            servers.pop(self._address, None)
            if self._keys in keys_of_servers:
                keys_of_servers.remove(self._keys)
            self._executor.close()
            self._worker.close()
            self._responder.endpoint.close()
            self._workers.close()
            if self._metrics is not None:
                self._metrics.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped.is_set() else self.target if self._is_listening else "not started"
        return f"<dt.train.Server {self.task} {state}>"

    # --- messages --------------------------------------------------------------------------------------------------

    def _table(self) -> dict[str, Handler]:
        """The handler of each kind of message: the method `on_KIND` of its part. A kind without one is a late answer, and is dropped."""
        worker = WorkerHandlers(self._worker, self._executor, self._responder)
        exchange = self._exchange
        copies = CopyHandlers(self._executor, self.incarnation)
        parts = (self._step_handlers, exchange, exchange.loans, self._master_handlers, worker, copies)
        found = {kind: getattr(part, f"on_{kind}") for kind in KINDS for part in parts if hasattr(part, f"on_{kind}")}
        found |= dict.fromkeys((kind for kind in KINDS if kind.startswith("collective_")), self._on_collective)
        return found | {"ping": self._on_ping, "status": self._on_status, "stats": self._on_stats}

    def _on_message(self, peer: bytes, message: Message) -> None:
        handler = self._handlers.get(message.kind)
        if handler is not None:
            handler(peer, message)

    def _on_tick(self) -> None:
        now = self._ticked = time.monotonic()
        self._worker.look()
        self._collectives.tick(now)
        self._step_handlers.end_abandoned(now)
        self._exchange.ask_for_overdue(now)
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            self._load.look()
            self._master_handlers.tidy(now)
            self._responder.tidy(now)
            mapper.let_go()  # a client that was killed may have lent much memory
            self._exchange.loans.tick()
            for step, seconds, waits in self._watchdog.look(now, self._worker.running(), self._worker.waits_for):
                self._stalled += 1
                text = "; ".join(waits[:MOST_WAITS])
                logger.warning("%s: step %d has made no progress for %.0f s: %s", self.task, step, seconds, text)

    def _on_ping(self, peer: bytes, message: Message) -> None:
        request = message.fields.get("request")
        self._responder.heard[peer] = time.monotonic()
        fields = {"seq": message.fields["seq"], "incarnation": self.incarnation, "clock": clock()}
        if request is not None:
            runs = self._step_handlers.runs(peer, request)
            fields["working"] = runs or self._executor.works_on(peer, request)
            if message.fields.get("waits"):
                waits = self._worker.waits_for(request)[:MOST_WAITS] if runs else []
                fields["waits"] = [what[:WAIT_CHARS] for what in waits]
        self._responder.reply(peer, Message("pong", fields))

    def _on_collective(self, peer: bytes, message: Message) -> None:
        event = message.kind.removeprefix("collective_")
        self._collectives.message({"event": event, **message.fields}, message.tensors)

    def _on_status(self, peer: bytes, message: Message) -> None:
        replicator = self._worker.replicator
        if replicator is not None and not replicator.is_ready:
            return  # it waits for its variables' values; the master asks again
        devices = [device_fields(d) for d in self.devices]
        self._responder.reply(peer, message.reply(devices=devices, incarnation=self.incarnation))

    def _on_stats(self, peer: bytes, message: Message) -> None:
        self._responder.reply(peer, message.reply(figures=self.figures()))

    def _not_live(self) -> str:
        """Why this task cannot work any more; empty: it can."""
        silent = time.monotonic() - self._ticked
        return f"the I/O thread has not run for {silent:.0f} s" if silent > DEAD_S else ""

    def _not_ready(self) -> str:
        """Why this task takes no sessions, or why it should be the only one that is not ready; empty: it is."""
        if self._worker.replicator is not None and not self._worker.replicator.confirmed_by:
            return f"{self._backup} does not have all values of its variables"
        return "it is stopping" if self._stopped.is_set() else self._not_live()

    def figures(self) -> dict[str, Any]:
        """The metrics of this task as plain values, for `dovetail status` and Prometheus."""
        now = time.monotonic()
        return {
            "task": self.task,
            "job": self.job_name,
            "task_index": self.task_index,
            "cluster": addresses_of(self.cluster_spec),
            "pid": os.getpid(),
            "incarnation": self.incarnation,
            "up_s": now - self._began,
            "memory": memory_in_use(),
            "load": self._load.cores,
            "devices": [device_fields(d) for d in self.devices],
            "keys": self._keys is not None,
            "refused": self._responder.endpoint.refused,
            "sessions": len(self._master.sessions()),
            "steps_running": len(self._worker.running()),
            "steps_started": self._worker.resources.steps_started,
            "steps_failed": self._worker.failed,
            "steps_stalled": self._stalled,
            "step_s": percentiles(self._worker.times),
            "queues": queue_depths(self._worker.resources),
            "steps": self._watchdog.figures(now),
            **({} if self._worker.replicator is None else {"replicated_by": self._worker.replicator.confirmed_by}),
            **self._exchange.traffic.figures(),
        }


def _limit_blas_threads(cluster: ClusterSpec, address: str, threads: int) -> None:
    """Limit the BLAS threads of this process to its share of the cores.

    By default, BLAS uses all cores, and its threads wait by spinning. Several tasks on one machine would then slow each other down many
    times over. So each gets the cores divided by the tasks of the cluster that have the same host in their address, unless the user
    sets `intra_op_parallelism_threads` or the libraries' own variables.
    """
    if not threads:
        if any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")):
            return
        host = address.rpartition(":")[0]
        hosts = [a.rpartition(":")[0] for a in addresses_of(cluster).values()]
        threads = max(1, (os.cpu_count() or 1) // hosts.count(host))
    threadpoolctl.threadpool_limits(threads, user_api="blas")


def _which_task(cluster: ClusterSpec, job_name: str | None, task_index: int | None) -> tuple[str, int]:
    """The job and index of the task, completed where only one is possible."""
    if job_name is None:
        if len(cluster.jobs) != 1:
            raise ValueError(
                f"Must specify an explicit `job_name`: the cluster has the jobs {', '.join(cluster.jobs) or '(none)'}."
            )
        job_name = cluster.jobs[0]
    if job_name not in cluster.jobs:
        raise invalid(f"The cluster has no job '{job_name}'; its jobs: {', '.join(cluster.jobs)}")
    indices = cluster.task_indices(job_name)
    if task_index is None:
        if len(indices) != 1:
            raise ValueError(
                f"Must specify an explicit `task_index`: job '{job_name}' has the tasks {', '.join(map(str, indices))}."
            )
        task_index = indices[0]
    if isinstance(task_index, bool) or not isinstance(task_index, int):
        raise TypeError(f"`task_index` must be a whole number, not {task_index!r}")
    if task_index not in indices:
        raise invalid(f"Job '{job_name}' has no task {task_index}; its tasks: {', '.join(map(str, indices))}")
    return job_name, task_index
