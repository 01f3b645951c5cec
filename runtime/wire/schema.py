"""The protocol's table: each kind of message with its fields, sender, receiver and reply.

Every sent or received message is checked against `KINDS`, down to what is inside its lists: a handler finds what the table says. A new
kind is a new row. A field's type is

    bool, int, float, str, bytes    one value; `uint` is an int that is not negative
    dict                            plain values, with str keys
    a name of `RECORDS`             a record: a dict with those fields, or a list of the fields in their order
    T[]                             a list of values of type T; T?[]: some may be None
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec

HEAD = "<BBBxI"  # the fixed start of every message: see `messages.py`


class WireError(ValueError):
    """A sent or received message breaks the protocol.

    Attributes:
        request: the request number of the message, if it could be read; else 0. The error reply names it.
        code: the error code for its sender.
    """

    code = "INVALID_ARGUMENT"

    def __init__(self, message: str, request: int = 0) -> None:
        super().__init__(message)
        self.request = request


# --- types -----------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """The fields of a message, or of a record inside one.

    Attributes:
        fields: name -> type, as in the table.
        required: the required fields; the others may be missing or None.
        is_list: whether it travels as a list of its fields, in their order, instead of a dict.
    """

    fields: Mapping[str, str]
    required: frozenset[str]
    is_list: bool

    def type(self, name: str, without: tuple[str, ...] = ()) -> Any:
        """The same for msgspec, without some of the fields."""
        types: list[Any] = []
        for field, kind in self.fields.items():
            if field in without:
                continue
            if field in self.required:
                types.append((field, _type(kind)))
            else:  # a list has all its parts
                types.append((field, _type(kind) | None, *(() if self.is_list else (None,))))
        return msgspec.defstruct(name, types, array_like=self.is_list, forbid_unknown_fields=True, kw_only=True)


# A float may be written as an int; a list may be given as a tuple (it arrives as a list).
_TYPES: dict[str, Any] = {
    "bool": bool, "int": int, "uint": Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)], "float": float, "str": str, "bytes": bytes,
    "dict": dict[str, Any], "channel": int | str,
}  # fmt: skip


def _type(name: str) -> Any:
    """The type that the table names so, for msgspec."""
    if name.endswith("[]"):
        return list[_type(name[:-2])]  # type: ignore[misc]
    return _type(name[:-1]) | None if name.endswith("?") else _TYPES[name]


def _fields(text: str, is_list: bool = False) -> Record:
    """Fields as the table writes them: `name type, name? type`; a field with a `?` is optional."""
    entries = [entry.split() for entry in text.split(",") if entry.strip()]
    fields = {field.removesuffix("?"): kind for field, kind in entries}
    return Record(fields, frozenset(field for field, _ in entries if not field.endswith("?")), is_list)


def _record(name: str, text: str, is_list: bool = False) -> None:
    """Add a type to `RECORDS`."""
    RECORDS[name] = record = _fields(text, is_list)
    _TYPES[name] = record.type(name)


RECORDS: dict[str, Record] = {}
"""What is inside fields, by the name of its type."""

_record("reference", "pid uint, fd uint, segment uint, loan uint, offset uint", is_list=True)
_record("address", "pid uint, fd uint, segment uint, offset uint, number uint", is_list=True)
_record("device", "name str, memory? int, emulated bool, incarnation int, host str, model? str")
_record("part", "task str, address str, incarnation int, program str, feeds str[], fetches str[]")
_record("sum", "dtype str, shape uint[], reduction str", is_list=True)
_record("variable", "container str, name str, sum? sum", is_list=True)
_record("want", "channel int, container str, name str, dtype str, is_sum bool")
_record("empty", "channel channel, is_dead bool", is_list=True)
_record("entry", "container str, name str, dtype str, by_rows bool", is_list=True)
_record(
    "loan",
    "channel channel, gpu uint, dtype str, shape uint[], offset uint, handle bytes, size uint, number uint, loan reference, "
    "block reference",
    is_list=True,
)
_record("refused", "channel channel, gpu uint, loan uint", is_list=True)
_record("link", "to str, messages int, bytes int")
_record("running", "step int, age_s float, waits str[], waiting_s float")
_record("queue", "name str, elements int, capacity int, waiting int")
_record(
    "figures",
    "task str, job str, task_index int, cluster dict, pid int, incarnation int, up_s float, memory int, load float, devices device[], "
    "keys bool, refused int, sessions int, steps_running int, steps_started int, steps_failed int, steps_stalled int, step_s dict, "
    "queues queue[], steps running[], replicated_by? int, links link[], received_messages int, received_bytes int",
)


# --- kinds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KindSchema:
    """One kind of message.

    Attributes:
        sender, receiver: `client`, `master`, `worker`, `server` (either of the two), or `any`.
        reply: the kind of the reply, or empty. An `error` may answer any request instead.
        is_back: the order. Messages on one connection arrive in the order in which they were sent. If true, this kind travels on the
            connection of the message that it answers, else on the one that its sender has opened. Between the two there is no order.
        numbers: the required fields of type int; they are outside the description.
        head: packs the fixed start of a message and the numbers.
        blobs: the fields of type `bytes`, which have frames of their own.
        type: the fields, for msgspec.
        checker: decodes the other fields, those of the description, if they are as the table says.
        tensors: whether tensors may be attached.
        given: whether the receiver may write into the tensors; otherwise it shares them.
    """

    kind: str
    sender: str
    receiver: str
    reply: str
    is_back: bool
    content: Record
    numbers: tuple[str, ...]
    head: struct.Struct
    blobs: tuple[str, ...]
    type: Any
    checker: msgspec.msgpack.Decoder[Any]
    tensors: bool
    given: bool


def _row(kind: str, way: str, fields: str = "", *, tensors: bool = False, given: bool = False) -> KindSchema:
    """One row of `KINDS`. `way`: `sender > receiver: reply`, or `sender > receiver`, or `sender > receiver, back`."""
    ends, _, reply = way.partition(": ")
    ends, _, back = ends.partition(", ")
    sender, receiver = ends.split(" > ")
    content = _fields(fields)
    numbers = tuple(name for name, t in content.fields.items() if t == "int" and name in content.required)
    blobs = tuple(name for name, t in content.fields.items() if t == "bytes")
    head = struct.Struct(f"{HEAD}{len(numbers)}q")
    checker = msgspec.msgpack.Decoder(content.type(kind, numbers + blobs))
    return KindSchema(
        kind, sender, receiver, reply, bool(back), content, numbers, head, blobs, content.type(kind), checker, tensors, given
    )  # fmt: skip


_MEMBER = "task str, group str, token int"
"""A member of a collective: its task, the group, and the token of its membership."""

#: Every kind of message. Besides its reply, `create_session` gets `waiting` while tasks are missing, `run` gets `trace` before a
#: traced `done` (its notes are `Notes` of `observability/step_notes.py`), and `missing` gets `accounted` on the connection of the tensors.
#: Small `tensors` for the `client_task` of a `run`, a task in the client's process, take the connection of that `run`.
KINDS: dict[str, KindSchema] = {row.kind: row for row in (
    _row("hello", "any > any: hello", "memory? reference, readable bool, stream? bool"),
    _row("stream_offer", "server > any: stream_connected", "way str, name str, token str"),
    _row("stream_connected", "any > server: stream_open"),
    _row("stream_open", "server > any"),
    _row("probe", "server > any"),
    _row("ping", "any > server: pong", "seq int, request? int, waits? bool"),
    _row("pong", "server > any, back", "seq int, incarnation int, clock? int, working? bool, waits? str[]"),
    _row("status", "any > server: devices", "request int"),
    _row("devices", "server > any, back", "request int, devices device[], incarnation int"),
    _row("stats", "any > server: figures", "request int"),
    _row("figures", "server > any, back", "request int, figures figures"),
    _row("create_session", "client > master: session_created", "request int, config dict, client? str"),
    _row("waiting", "master > client, back", "request int, tasks str[]"),
    _row(
        "session_created", "master > client, back",
        "request int, session str, devices device[], limit_ms int, peer_timeout_s float, is_replicated? bool",
    ),
    _row("extend", "client > master: extended", "request int, session str, from_version int, graph bytes"),
    _row("extended", "master > client, back", "request int, version int"),
    _row(
        "prepare", "client > master: prepared",
        "request int, session str, feeds str[], fetches str[], targets str[], warm? bool, deterministic? bool",
    ),
    _row("prepared", "master > client, back", "request int, parts part[]"),
    _row("plan", "client > master: planned", "request int, session str, feeds str[], fetches str[], targets str[], program str"),
    _row("planned", "master > client, back", "request int, plan bytes"),
    _row(
        "register", "master > worker: registered",
        "request int, program str, session str, partition bytes, seed int, isolated bool, kernels dict, peer_timeout_s float, client str",
    ),
    _row("registered", "worker > master, back", "request int, incarnation int"),
    _row("expose_memory", "master > worker: memory_exposed", "request int"),
    _row("memory_exposed", "worker > master, back", "request int, page? reference"),
    _row("map_memory", "master > worker: memory_mapped", "request int, page reference"),
    _row("memory_mapped", "worker > master, back", "request int, readable bool"),
    _row(
        "publish", "master > worker: published", "request int, session str, seed int, isolated bool, names variable[], changed bool",
    ),
    _row("published", "worker > master, back", "request int, incarnation int, places address?[]"),
    _row("want", "worker > worker: tensors", "step int, task str, session str, incarnation int, wants want[]"),
    _row("denied", "worker > worker", "step int, channels channel[], code str, message str"),
    _row(
        "replicate", "worker > worker: replicated",
        "request int, task str, incarnation int, number int, part int, last bool, whole bool, entries entry[]", tensors=True,
    ),
    _row("replicated", "worker > worker, back", "request int, whole bool, incarnation int"),
    _row("recover", "worker > worker: recovered", "request int, task str, incarnation int, part int"),
    _row("recovered", "worker > worker, back", "request int, whole bool, last bool, entries entry[]", tensors=True),
    _row("accumulated", "worker > worker"),
    _row("missing", "worker > worker: coming", "step int, task str, channels channel[]"),
    _row("coming", "worker > worker, back", "step int, task str, known bool, channels channel[], left int"),
    _row("accounted", "worker > worker", "step int, task str, channels channel[]"),
    _row("run", "client > worker: done", "request int, step int, program str, feeds str[], trace? bool, client_task? str", tensors=True),
    _row("trace", "worker > client, back", "request int, notes bytes"),
    _row("done", "worker > client, back", "request int, fetches str[]", tensors=True, given=True),
    _row("tensors", "worker > any", "step int, channels channel[], without empty[]", tensors=True),
    _row("collective_join", "worker > worker: collective_join", _MEMBER),
    _row("collective_part", "worker > worker", f"{_MEMBER}, instance str, run int, sender int, to int, tag int, what str", tensors=True),
    _row("collective_wake", "worker > worker", f"{_MEMBER}, instance str"),
    _row("collective_end", "worker > worker", f"{_MEMBER}, reason str, code str"),
    _row("collective_count", "worker > worker: collective_counted", f"{_MEMBER}, known int, deaf bool"),
    _row("collective_counted", "worker > worker", f"{_MEMBER}, sent int"),
    _row("collective_alive", "worker > worker", _MEMBER),
    _row("gpu_loans", "worker > worker", "step int, task str, loans loan[]"),
    _row("gpu_refused", "worker > worker", "step int, task str, loans refused[]"),
    _row("abort", "client > worker", "step int, code str, reason str"),
    _row("touch", "client > master", "session str"),
    _row("close_session", "client > master: closed", "request int, session str"),
    _row("forget_session", "master > worker", "session str"),
    _row("closed", "server > any, back", "request int"),
    _row("reset", "client > master: closed", "request int, containers str[], config? dict"),
    _row("reset_containers", "master > worker: closed", "request int, containers str[], sessions str[]"),
    _row("error", "server > any, back", "request int, code str, message str, node? str, task? str"),
)}  # fmt: skip
