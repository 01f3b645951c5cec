"""Makes `docs/reference/protocol.md` from the protocol's table, `runtime/wire/schema.py`, by `python docs/protocol_page.py`.

The sequence diagrams are here. Each of their messages is checked against the table: that its kind exists, and goes between such ends.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout needs no install

from dovetail.runtime.wire.chunking import CHUNK_BYTES  # noqa: E402
from dovetail.runtime.wire.messages import VERSION  # noqa: E402
from dovetail.runtime.wire.schema import KINDS, RECORDS, KindSchema, Record  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "protocol.md"
WIDTH = 34  # characters between two lifelines

Step = tuple[str, str, str]  # sender, receiver, kind and what is said of it; a sender alone: what it does

SEQUENCES: dict[str, tuple[str, list[Step]]] = {
    "Connect": (
        "A client connects, finds out whether both can map each other's memory, and opens a session. Version numbers are in every message.",
        [
            ("client", "master", "hello memory, stream"),
            ("master", "client", "hello readable, memory"),
            ("client", "master", "hello readable"),
            ("client", "master", "create_session"),
            ("master", "worker", "status"),
            ("worker", "master", "devices"),
            ("master", "client", "session_created"),
        ],
    ),
    "Upgrade": (
        "Two processes that have met over ZeroMQ change to a stream: a Unix socket if each maps the other's memory, TCP otherwise, and "
        "neither with keys between machines. Each end's last message on ZeroMQ says so; the other reads the stream only behind it.",
        [
            ("client", "server", "hello stream"),
            ("server", "client", "stream_offer way, name, token"),
            ("client", "", "connects, sends the token, gets an answer"),
            ("client", "server", "stream_connected"),
            ("server", "", "reads the stream from now on"),
            ("server", "client", "stream_open"),
            ("client", "", "reads the stream from now on"),
        ],
    ),
    "Prepare": (
        "The first run of a signature. All tasks compile their parts at the same time.",
        [
            ("client", "master", "extend graph"),
            ("master", "client", "extended"),
            ("client", "master", "prepare feeds, fetches"),
            ("master", "", "prunes, places, partitions"),
            ("master", "worker", "register partition"),
            ("worker", "", "compiles"),
            ("worker", "master", "registered"),
            ("master", "client", "prepared parts"),
        ],
    ),
    "Step": (
        "The client tells every task that takes part to run, and each answers when its part is done. The master takes no part. A task that "
        "owes a reply is pinged.",
        [
            ("client", "worker", "run feeds"),
            ("client", "other worker", "run feeds"),
            ("worker", "other worker", "tensors"),
            ("client", "worker", "ping"),
            ("worker", "client", "pong working"),
            ("other worker", "client", "done fetches"),
            ("worker", "client", "done fetches"),
        ],
    ),
    "Abort": (
        "One part fails. The client ends the others.",
        [
            ("client", "worker", "run"),
            ("client", "other worker", "run"),
            ("worker", "client", "error code, message"),
            ("client", "other worker", "abort step, reason"),
            ("other worker", "client", "error code, message"),
        ],
    ),
    "A tensor that does not come": (
        "A worker asks for what is overdue. `accounted` follows the tensors on their connection: what it lists, and is not there, is lost.",
        [
            ("worker", "other worker", "missing channels"),
            ("other worker", "worker", "coming channels, left"),
            ("other worker", "worker", "accounted channels"),
        ],
    ),
    "Collective": (
        "Members of a group exchange parts by messages, where they have no memory or GPU link in common.",
        [
            ("worker", "other worker", "collective_join"),
            ("other worker", "worker", "collective_join"),
            ("worker", "other worker", "collective_part"),
            ("other worker", "worker", "collective_part"),
            ("worker", "other worker", "collective_count"),
            ("other worker", "worker", "collective_counted"),
        ],
    ),
}


def page() -> str:
    """The page."""
    parts = [
        "# Protocol",
        wrapped(
            f"What processes say to each other: version {VERSION}. `runtime/wire/schema.py` has this table. Every message is checked "
            "against it when it is sent and when it comes, and `docs/protocol_page.py` makes this page from it. Bytes: "
            "`runtime/wire/messages.py`; streams: `runtime/transport/stream.py`. A message of another version is refused with an "
            "error that names both versions."
        ),
        "## Sequences",
    ]
    for title, (text, steps) in SEQUENCES.items():
        parts += [f"### {title}", wrapped(text), f"```text\n{diagram(steps)}\n```"]
    parts += [
        "## Kinds",
        wrapped(
            "A field with a `?` may be missing. `T[]` is a list of values of type T, `uint` an int that is not negative, `channel` an int "
            "or a str; the other names are [records](#records). `tensors`: arrays of any type may be attached. Over "
            "ZeroMQ, a large message is sent in chunks of "
            f"{CHUNK_BYTES >> 10} KiB. No message overtakes another one of its connection. A kind marked *back* travels on the "
            "connection of the message that it answers, any other on the one that its sender has opened. Between the two there is "
            "no order. "
            "An `error` may answer any request. Besides its reply, `create_session` gets `waiting` while tasks are "
            "missing, and `run` gets `trace` before a traced `done`; `runtime/observability/step_notes.py` has its notes."
        ),
        "\n".join(
            [
                "| kind | from, to | order | reply | fields |",
                "| --- | --- | --- | --- | --- |",
                *map(_row, KINDS.values()),
            ]
        ),
        "## Records",
        "What is inside fields. A record travels as a dict of its fields, or as a list of them in this order.",
        "\n".join(
            [
                "| record | as | fields |",
                "| --- | --- | --- |",
                *(
                    f"| `{n}` | {'list' if r.is_list else 'dict'} | {', '.join(_fields(r))} |"
                    for n, r in RECORDS.items()
                ),
            ]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def wrapped(text: str) -> str:
    """A paragraph, in lines that the documentation may have."""
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def _row(kind: KindSchema) -> str:
    fields = [*_fields(kind.content), *(["tensors"] if kind.tensors else [])]
    reply = f"`{kind.reply}`" if kind.reply else ""
    ends = f"{kind.sender}, {kind.receiver}"
    return f"| `{kind.kind}` | {ends} | {'back' if kind.is_back else ''} | {reply} | {', '.join(fields)} |"


def _fields(record: Record) -> list[str]:
    return [f"{name}{'' if name in record.required else '?'} {t}" for name, t in record.fields.items()]


def diagram(steps: list[Step]) -> str:
    """Lifelines side by side, with time downwards."""
    ends = list(dict.fromkeys(end for step in steps for end in step[:2] if end))
    at = {end: i * WIDTH for i, end in enumerate(ends)}
    lines = ["".join(end.ljust(WIDTH) for end in ends).rstrip()]
    for sender, receiver, text in steps:
        line = [" "] * (at[ends[-1]] + WIDTH)
        for column in at.values():
            line[column] = "|"
        if not receiver:
            _put(line, at[sender], f"* {text}")
        else:
            _check(text.split()[0], sender, receiver)
            left, right = sorted((at[sender], at[receiver]))
            line[left + 1 : right] = "-" * (right - left - 1)
            _put(line, left + 3, f" {text} ")
            line[right - 1 if at[receiver] == right else left + 1] = ">" if at[receiver] == right else "<"
        lines.append("".join(line).rstrip())
    return "\n".join(lines)


def _put(line: list[str], column: int, text: str) -> None:
    line[column : column + len(text)] = text


def _check(kind: str, sender: str, receiver: str) -> None:
    """ValueError unless the table lets such ends exchange this kind."""
    row = KINDS[kind]
    for end, allowed in ((sender, row.sender), (receiver, row.receiver)):
        names = {end.removeprefix("other "), "any"} | ({"server"} if end != "client" else {"worker", "master"} & {end})
        if allowed not in names:
            raise ValueError(f"{kind} goes from {row.sender} to {row.receiver}, not from {sender} to {receiver}")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
