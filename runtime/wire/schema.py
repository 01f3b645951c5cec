"""The protocol's table: each kind of message with its fields, sender, receiver, reply and ordering.

Every sent or received message is checked against `KINDS`. A new kind is a new row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

MAX_DEPTH = 16  # nesting depth of lists and dicts in one field
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


class Order(Enum):
    """Which messages a message may overtake while a large message is sent in chunks (`chunking.py`)."""

    STRICT = "strict"  # no message of its connection
    STEP = "step"  # messages of other steps
    NONE = "none"  # all messages: it is valid whenever it arrives


@dataclass(frozen=True, slots=True)
class KindSchema:
    """One kind of message.

    Attributes:
        kind: its name.
        sender, receiver: `client`, `master`, `worker`, `server` (either of the two), or `any`.
        reply: the kind of the reply, or empty. An `error` may answer any request instead.
        order: see `Order`.
        fields: field name -> the Python types its value may have.
        described: the same for its description, which lacks the numbers and has the lengths instead of `bytes` fields.
        required: the required fields; the others may be missing or None.
        numbers: the required fields of type int; they are outside the description.
        head: packs the fixed start and the numbers.
        tensors: whether tensors may be attached.
        given: whether the receiver may write into the tensors; otherwise it shares them.
        wide: whether the header may have up to `MAX_WIDE_HEADER` bytes.
        blobs: the fields of type `bytes`, which have frames of their own.
    """

    kind: str
    sender: str
    receiver: str
    reply: str
    order: Order
    fields: Mapping[str, tuple[type, ...]]
    described: Mapping[str, tuple[type, ...]]
    required: frozenset[str]
    numbers: tuple[str, ...]
    head: struct.Struct
    tensors: bool
    given: bool
    wide: bool
    blobs: tuple[str, ...]


# A float may be written as an int; a list may be given as a tuple (it arrives as a list).
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "float": (float, int), "str": (str,), "bytes": (bytes,),
    "list": (list, tuple), "dict": (dict,),
}  # fmt: skip
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})


def _row(
    kind: str, way: str, fields: str = "", *,
    order: Order = Order.STRICT, tensors: bool = False, given: bool = False, wide: bool = False,
) -> KindSchema:  # fmt: skip
    """One row of `KINDS`.

    Args:
        way: `sender > receiver: reply`, or `sender > receiver`.
        fields: `name type, name? type|type`; a field with a `?` is optional.
    """
    ends, _, reply = way.partition(": ")
    sender, receiver = ends.split(" > ")
    types: dict[str, tuple[type, ...]] = {}
    required: set[str] = set()
    numbers: list[str] = []
    blobs: list[str] = []
    for entry in filter(None, map(str.strip, fields.split(","))):
        name, type_names = entry.split()
        optional = name.endswith("?")
        name = name.removesuffix("?")
        types[name] = tuple(t for type_name in type_names.split("|") for t in _TYPES[type_name])
        if optional:
            types[name] += (type(None),)
        else:
            required.add(name)
            if type_names == "int":
                numbers.append(name)
        if type_names == "bytes":
            blobs.append(name)
    if len(kind) > 31:
        raise ValueError(f"kind {kind!r}: at most 31 characters, so that the header starts in one known way")
    if tensors and blobs:
        raise ValueError(f"kind {kind!r}: tensors or fields of bytes")
    described = {name: (int,) if name in blobs else t for name, t in types.items() if name not in numbers}
    head = struct.Struct(f"{HEAD}{len(numbers)}q")
    return KindSchema(
        kind, sender, receiver, reply, order, types, described, frozenset(required), tuple(numbers), head, tensors, given, wide,
        tuple(blobs),
    )  # fmt: skip


_MEMBER = (
    "task str, group str, token int"  # a member of a collective: its task, the group, and the token of its membership
)

#: Every kind of message. Besides its reply, `create_session` gets `waiting` while tasks are missing, `run` gets `trace` before a
#: traced `done`, and `missing` gets `accounted` on the connection of the tensors.
KINDS: dict[str, KindSchema] = {row.kind: row for row in (
    _row("hello", "any > any: hello", "memory? list, readable bool, stream? bool"),
    _row("stream_offer", "server > any: stream_connected", "way str, name str, token str"),
    _row("stream_connected", "any > server: stream_open", "token str"),
    _row("stream_open", "server > any"),
    _row("probe", "server > any"),
    _row("ping", "any > server: pong", "seq int, request? int, waits? bool"),
    _row("pong", "server > any", "seq int, incarnation int, clock? int, working? bool, waits? list"),
    _row("status", "any > server: devices", "request int"),
    _row("devices", "server > any", "request int, devices list, incarnation int", wide=True),
    _row("stats", "any > server: figures", "request int"),
    _row("figures", "server > any", "request int, figures dict", wide=True),
    _row("create_session", "client > master: session_created", "request int, config dict, client? str", wide=True),
    _row("waiting", "master > client", "request int, tasks list"),
    _row(
        "session_created", "master > client",
        "request int, session str, devices list, limit_ms int, peer_timeout_s float, is_replicated? bool", wide=True,
    ),
    _row("extend", "client > master: extended", "request int, session str, from_version int, graph bytes"),
    _row("extended", "master > client", "request int, version int"),
    _row(
        "prepare", "client > master: prepared",
        "request int, session str, feeds list, fetches list, targets list, warm? bool, deterministic? bool", wide=True,
    ),
    _row("prepared", "master > client", "request int, parts list", wide=True),
    _row("plan", "client > master: planned", "request int, session str, feeds list, fetches list, targets list, program str", wide=True),
    _row("planned", "master > client", "request int, plan bytes"),
    _row("register", "master > worker: registered", "request int, program str, session str, partition bytes, info dict", wide=True),
    _row("registered", "worker > master", "request int, incarnation int"),
    _row("release", "master > worker", "programs list"),
    _row("expose_memory", "master > worker: memory_exposed", "request int"),
    _row("memory_exposed", "worker > master", "request int, page? list"),
    _row("map_memory", "master > worker: memory_mapped", "request int, page list"),
    _row("memory_mapped", "worker > master", "request int, readable bool"),
    _row(
        "publish", "master > worker: published", "request int, session str, seed int, isolated bool, names list, changed? bool",
        wide=True,
    ),
    _row("published", "worker > master", "request int, incarnation int, places list", wide=True),
    _row("want", "worker > worker: tensors", "step int, task str, session str, incarnation int, wants list", wide=True, order=Order.STEP),
    _row("denied", "worker > worker", "step int, channels list, code str, message str", wide=True, order=Order.STEP),
    _row(
        "replicate", "worker > worker: replicated",
        "request int, task str, incarnation int, number int, part int, last bool, whole bool, entries list", tensors=True, wide=True,
    ),
    _row("replicated", "worker > worker", "request int, whole bool, incarnation int"),
    _row("recover", "worker > worker: recovered", "request int, task str, incarnation int, part int"),
    _row("recovered", "worker > worker", "request int, whole bool, last bool, entries list", tensors=True, wide=True),
    _row("accumulated", "worker > worker", order=Order.NONE),
    _row("missing", "worker > worker: coming", "step int, task str, channels list", order=Order.NONE),
    _row("coming", "worker > worker", "step int, task str, known bool, channels list, left int", order=Order.NONE),
    _row("accounted", "worker > worker", "step int, task str, channels list", order=Order.STEP),
    _row(
        "run", "client > worker: done",
        "request int, step int, program str, feeds list, trace? bool", tensors=True,
    ),
    _row("trace", "worker > client", "request int, notes bytes"),
    _row("done", "worker > client", "request int, fetches list", tensors=True, given=True),
    _row("tensors", "worker > worker", "step int, channels list, without list", tensors=True, order=Order.STEP),
    _row("collective_join", "worker > worker: collective_join", _MEMBER),
    _row("collective_part", "worker > worker", f"{_MEMBER}, instance str, run int, sender int, to int, tag int, what str", tensors=True),
    _row("collective_poke", "worker > worker", f"{_MEMBER}, instance str"),
    _row("collective_end", "worker > worker", f"{_MEMBER}, reason str, code str"),
    _row("collective_count", "worker > worker: collective_counted", f"{_MEMBER}, known int"),
    _row("collective_counted", "worker > worker", f"{_MEMBER}, sent int"),
    _row("collective_ask", "worker > worker: collective_alive", f"{_MEMBER}, deaf bool"),
    _row("collective_alive", "worker > worker", _MEMBER),
    _row("gpu_hello", "worker > worker: gpu_reader", "task str, page list"),
    _row("gpu_reader", "worker > worker", "task str, pid int"),
    _row("gpu_loans", "worker > worker", "step int, task str, loans list", wide=True),
    _row("gpu_refused", "worker > worker", "step int, task str, loans list", wide=True),
    _row("abort", "client > worker", "step int, code str, reason str", order=Order.NONE),
    _row("touch", "client > master", "session str", order=Order.NONE),
    _row("close_session", "client > master: closed", "request int, session str"),
    _row("forget_session", "master > worker", "session str"),
    _row("closed", "server > any", "request int"),
    _row("reset", "client > master: closed", "request int, containers list, config? dict", wide=True),
    _row("reset_containers", "master > worker: closed", "request int, containers list, sessions? list"),
    _row("error", "server > any", "request int, code str, message str, node? str, task? str"),
)}  # fmt: skip


_LONGEST_KIND = max(map(len, KINDS)) + 2


def kind_of(header: bytes | memoryview) -> str:
    """The kind of a message with this header; '' if it is malformed."""
    at = 9 + 8 * header[2] if len(header) > 2 else 0
    name = bytes(header[at : at + _LONGEST_KIND])
    return name[1 : 1 + (name[0] & 31)].decode("ascii", "replace") if name else ""


def numbers_of(header: bytes | memoryview) -> tuple[str, dict[str, int]]:
    """The kind of a message with this header, and its numbers; no numbers if it is malformed."""
    kind = kind_of(header)
    names = KINDS[kind].numbers if kind in KINDS else ()
    numbers = struct.unpack_from(f"<{len(names)}q", header, 8) if len(header) >= 8 + 8 * len(names) else ()
    return kind, dict(zip(names, numbers, strict=False))


def check_fields(kind: str, types: Mapping[str, tuple[type, ...]], required: frozenset[str], fields: Any) -> None:
    """WireError unless all fields have known names and types, and all required ones are there."""
    if type(fields) is not dict:
        raise WireError(f"message {kind!r}: fields must be a dict, not {type(fields).__name__}")
    for name, value in fields.items():
        allowed = types.get(name)
        if allowed is None:
            known = ", ".join(types) or "none"
            raise WireError(f"message {kind!r} has no field {short(name)}; its fields: {known}")
        found = type(value)
        if found not in allowed:
            expected = " or ".join(t.__name__ for t in allowed if t is not tuple)
            raise WireError(f"message {kind!r}: field {name!r} must be {expected}, not {found.__name__}")
        if found is list or found is dict or found is tuple:
            try:
                _check_plain(value, 1)
            except WireError as error:
                raise WireError(f"message {kind!r}: field {name!r} {error}") from None
    if not required <= fields.keys():
        missing = ", ".join(sorted(required - fields.keys()))
        raise WireError(f"message {kind!r} lacks {missing}")


def _check_plain(value: Any, depth: int) -> None:
    """WireError unless the value is plain, with str keys, and not too deep. Code that walks a field later needs no check."""
    if depth > MAX_DEPTH:
        raise WireError(f"nests deeper than {MAX_DEPTH}")
    items: Iterable[Any] = value
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise WireError(f"has a key {short(key)}; keys must be str")
        items = value.values()
    for item in items:
        kind = type(item)
        if kind in _SCALARS:
            continue
        if kind is not list and kind is not dict and kind is not tuple:
            raise WireError(f"holds a {kind.__name__}; only plain values can travel")
        _check_plain(item, depth + 1)


def short(value: Any) -> str:
    """A value, shortened for an error message."""
    text = repr(value)
    return text if len(text) <= 64 else text[:61] + "..."
