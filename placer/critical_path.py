"""The critical path of a step, simulated (`simulate.py`) or measured (`runtime/observability/trace.py`), and the parts that it consists of.

The path goes backwards from the part that ends last. A node has waited for the last of its inputs to come to its device, for what the
client feeds, or for the device. A transfer has waited for its value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

CLIENT = -1
"""The client of the step, as the end of a `Transfer`."""
# A part that ended this soon after another one started counts as ended before it: times are rounded.
_CLOSE_S = 1e-9


@dataclass(frozen=True, slots=True)
class Span:
    """The execution of a node, or of a fused kernel, on its device. Times are in seconds after the start of the step.

    Attributes:
        name: the node; of a fused kernel, its last node.
        device: number of its device.
        start: when it starts.
        finish: when it ends.
        nodes: all nodes of a fused kernel; else empty.
    """

    name: str
    device: int
    start: float
    finish: float
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of the value of node `name` from device `source` to `destination`: `bytes` bytes.

    On the critical path, `CLIENT` may be an end: what is fed to the node, or fetched from it. Its bytes are 0 then.
    """

    name: str
    source: int
    destination: int
    bytes: float
    start: float
    finish: float


def critical_path(
    spans: Sequence[Span], transfers: Iterable[Transfer], inputs: Callable[[str], Iterable[str]],
    fed: Mapping[str, Transfer] = {}, waits: Mapping[int, Sequence[float]] = {}, end: Span | Transfer | None = None,
) -> list[Span | Transfer]:  # fmt: skip
    """The chain of parts that ends last, in order.

    Args:
        inputs: name of a node -> names of its inputs.
        fed: node -> the transfer that brings it what the client feeds.
        waits: device -> the ends of its waits. It may have waited for a value that a later node takes, or for an empty message.
        end: the part that ends last; None: the span that does.
    """
    # (name of a value, or type of a part; its device) -> what brought it there, by its end
    ended: dict[tuple[str | type, int], list[Span | Transfer]] = {}
    parts: list[Span | Transfer] = [*spans, *transfers]
    for p in sorted(parts, key=lambda p: p.finish):
        names, device = (p.nodes or (p.name,), p.device) if isinstance(p, Span) else ((p.name,), p.destination)
        for what in (type(p), *names):
            ended.setdefault((what, device), []).append(p)
    taken: set[int] = set()

    def last(what: str | type, device: int, at: float) -> list[Span | Transfer]:
        """What of this kind was the last to end there by then, if anything was."""
        parts = ended.get((what, device), [])
        i = bisect_right(parts, at + _CLOSE_S, key=lambda p: p.finish) - 1
        while i >= 0 and id(parts[i]) in taken:
            i -= 1
        return parts[i : i + 1]

    def made(names: Collection[str], device: int) -> list[str | type]:
        """The values that were brought to a device. A node without a kernel (renamed or folded) stands for its inputs."""
        todo, seen = list(names), set(names)
        for name in todo:
            if (name, device) not in ended:
                more = [i for i in dict.fromkeys(inputs(name)) if i not in seen]
                todo += more
                seen.update(more)
        return [name for name in todo if (name, device) in ended]

    out: list[Span | Transfer] = []
    now = max(spans, key=lambda s: s.finish, default=None) if end is None else end
    while now is not None:
        out.append(now)
        taken.add(id(now))
        if isinstance(now, Span):
            own, device = now.nodes or (now.name,), now.device
            before = made(dict.fromkeys(i for n in own for i in inputs(n) if i not in own), device)
        else:
            own, device = (), now.source
            before = made([now.name], device)
        found = [p for what in before for p in last(what, device, now.start)]
        found += [fed[name] for name in own if name in fed]
        if now.start > _CLOSE_S and (own or not before):
            found += last(Span, device, now.start)
        ends = waits.get(device, [])
        waited = ends[i - 1] if (i := bisect_right(ends, now.start)) else 0.0
        if own and waited > max((p.finish for p in found), default=0.0):
            found += last(Transfer, device, waited)
        now = max(found, key=lambda p: p.finish, default=None)
    return out[::-1]
