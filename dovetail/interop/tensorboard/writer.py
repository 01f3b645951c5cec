"""Writers of event files, which TensorBoard reads."""

from __future__ import annotations

import atexit
import io
import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...graph.core.graph import Graph
from ...graph.formats.atomic_files import is_remote, path_of
from ...graph.ops.io.summaries import messages
from ...io.records import tf_record_iterator
from ...placer.plan import Plan

_files = itertools.count()
# Maximum size in bytes of an event file in a remote file system. A larger one is continued in a new file.
MAX_REMOTE_BYTES = 8 << 20


def _tensorboard() -> Any:
    """Returns tensorboardX's event writer and messages."""
    messages()  # raises an error that names the package to install
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2

    return event_file_writer, event_pb2


class _RemoteFile:
    """An event file in a remote file system, such as `s3://`. These cannot append, so each flush writes the whole file."""

    def __init__(self, path: str) -> None:
        self._path = path_of(path)
        self.content = io.BytesIO()
        self.write = self.content.write

    def flush(self) -> None:
        """Writes the whole file."""
        self._path.write_bytes(self.content.getvalue())

    close = flush


class FileWriter:
    """Writes summaries, graphs and plans to an event file in a folder. In remote file systems (`s3://`) it writes several short files.

    Args:
        logdir: the folder; created if needed.
        graph: a graph to write immediately, or None.
        max_queue: number of buffered events after which they are written to disk.
        flush_secs: seconds after which buffered events are written to disk.
        graph_def: a `GraphDef` to write immediately, or None.
        filename_suffix: suffix of the file's name.

    Raises:
        UnimplementedError: tensorboardX is not installed.

    >>> with FileWriter("/tmp/run", session.graph) as writer:
    ...     writer.add_summary(session.run(merged), step)
    """

    def __init__(
        self,
        logdir: str,
        graph: Graph | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
    ) -> None:
        self._writer, self._events = _tensorboard()
        self._logdir = str(logdir)
        self._suffix = filename_suffix or ""
        self._max_queue, self._flush_s = max_queue, flush_secs
        self._lock = threading.Lock()
        self._file: Any = self._opened()
        if graph is not None or graph_def is not None:
            self.add_graph(graph, graph_def=graph_def)

    def _opened(self) -> Any:
        """Opens a new event file."""
        path_of(self._logdir).mkdir(parents=True, exist_ok=True)
        self._waiting, self._flushed = 0, time.monotonic()
        self._remote: list[_RemoteFile] = []
        if is_remote(self._logdir):
            from tensorboardX import record_writer  # loads protobuf

            record_writer.register_writer_factory(self._logdir.partition(":")[0], self)
        # Readers sort file names as text. Files that a process creates within a second need different names in the order of creation.
        return self._writer.EventsWriter(
            str(path_of(self._logdir) / "events"), f".{os.getpid()}.{next(_files):06}{self._suffix}"
        )

    def open(self, path: str) -> _RemoteFile:
        """Opens an event file of a remote file system, for tensorboardX."""
        self._remote = [_RemoteFile(path)]
        return self._remote[0]

    def get_logdir(self) -> str:
        """The folder."""
        return self._logdir

    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        """Write a summary.

        Args:
            summary: the value of a summary node (bytes), or a `Summary` message.
            global_step: the step's number, or None.
        """
        pb = messages()
        message = pb.Summary.FromString(bytes(summary)) if isinstance(summary, bytes) else summary
        self._add(self._events.Event(summary=message), global_step)

    def add_scalar(self, tag: str, value: float, global_step: Any = None) -> None:
        """Write a number as a summary. TensorFlow 1 has no such method."""
        self.add_summary(scalar_summary(tag, value), global_step)

    def add_meta_graph(self, meta_graph_def: Any, global_step: Any = None) -> None:
        """Write a `MetaGraphDef`."""
        self._add(self._events.Event(meta_graph_def=meta_graph_def.SerializeToString()), global_step)

    def add_event(self, event: Any) -> None:
        """Write an `Event` message."""
        with self._lock:
            if self._file is None:
                self._file = self._opened()
            self._file.write_event(event)
            self._waiting += 1
            if self._waiting >= self._max_queue or time.monotonic() > self._flushed + self._flush_s:
                self._flush()

    def _flush(self) -> None:
        self._file.flush()
        if self._remote and self._remote[0].content.tell() > MAX_REMOTE_BYTES:
            self._file = self._opened()
        self._waiting, self._flushed = 0, time.monotonic()

    def add_graph(self, graph: Any, global_step: Any = None, graph_def: Any = None) -> None:
        """Write a graph, with the requested devices of its nodes.

        Args:
            graph: a graph or a `GraphDef`; None if `graph_def` is given.
            global_step: the step's number, or None.
            graph_def: a `GraphDef`, instead of `graph`.
        """
        given = graph if graph_def is None else graph_def
        if hasattr(given, "SerializeToString"):
            data = given.SerializeToString()
        else:
            data = _graph_bytes(given, {n.name: n.device for n in given.get_operations()})
        self._add(self._events.Event(graph_def=data), global_step)

    def add_plan(self, plan: Plan, global_step: Any = None, tag: str = "plan") -> None:
        """Write a plan: its graph with the device of each node, and the plan as text.

        TensorBoard shows the graph under Graphs (color by device), and the text under Text.

        Args:
            plan: the plan.
            global_step: the step's number, or None.
            tag: the tag of the text.
        """
        from tensorboardX.summary import text

        self._add(self._events.Event(graph_def=_graph_bytes(plan.graph, plan.placement)), global_step)
        lines = "\n".join("    " + line for line in str(plan).splitlines())  # Markdown shows indented text unchanged
        self.add_summary(text(tag, lines), global_step)

    def _add(self, event: Any, step: Any) -> None:
        event.wall_time = time.time()
        if step is not None:
            event.step = int(step)
        self.add_event(event)

    def flush(self) -> None:
        """Flush added events to disk."""
        with self._lock:
            if self._file is not None:
                self._flush()

    def close(self) -> None:
        """Write added events, and close the file. Later events go to a new file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def reopen(self) -> None:
        """Continue in a new file after `close`."""
        with self._lock:
            if self._file is None:
                self._file = self._opened()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def scalar_summary(tag: str, value: float) -> Any:
    """Returns a `Summary` message of one number."""
    pb = messages()
    return pb.Summary(value=[pb.Summary.Value(tag=tag, simple_value=float(value))])


def summary_iterator(path: str) -> Iterator[Any]:
    """Iterate over the `Event` messages of an event file.

    Args:
        path: the file.

    Raises:
        UnimplementedError: tensorboardX is not installed.
        DataLossError: the file is damaged.

    >>> for event in train.summary_iterator("/tmp/run/events.out.tfevents.1"):
    ...     print(event.step, [value.tag for value in event.summary.value])
    """
    _, events = _tensorboard()
    for record in tf_record_iterator(path):
        yield events.Event.FromString(record)


def _graph_bytes(graph: Graph, devices: Mapping[str, str]) -> bytes:
    """Returns a graph as TensorBoard's `GraphDef`."""
    from tensorboardX.proto.graph_pb2 import GraphDef
    from tensorboardX.proto.node_def_pb2 import NodeDef
    from tensorboardX.proto.versions_pb2 import VersionDef

    nodes = []
    for node in graph.get_operations():
        inputs = [t.name.removesuffix(":0") for t in node.inputs] + [f"^{c.name}" for c in node.controls]
        made = NodeDef(name=node.name, op=node.type, input=inputs, device=devices.get(node.name, ""))
        made.attr["_output_shapes"].list.shape.extend([_shape(t) for t in node.outputs])
        nodes.append(made)
    data: bytes = GraphDef(node=nodes, versions=VersionDef(producer=22)).SerializeToString()
    return data


def _shape(tensor: Any) -> Any:
    from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto

    if tensor.dims is None:
        return TensorShapeProto(unknown_rank=True)
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=-1 if d is None else d) for d in tensor.dims])


class FileWriterCache:
    """A cache with one shared writer per folder."""

    _cache: dict[str, FileWriter] = {}
    _lock = threading.Lock()

    @staticmethod
    def get(logdir: str) -> FileWriter:
        """Return the folder's writer, and create it if there is none."""
        key = str(path_of(logdir).absolute())
        with FileWriterCache._lock:
            if key not in FileWriterCache._cache:
                if not FileWriterCache._cache:
                    atexit.register(FileWriterCache.clear)
                FileWriterCache._cache[key] = FileWriter(logdir)
            return FileWriterCache._cache[key]

    @staticmethod
    def clear() -> None:
        """Close all writers, and empty the cache."""
        with FileWriterCache._lock:
            for writer in FileWriterCache._cache.values():
                writer.close()
            FileWriterCache._cache.clear()
