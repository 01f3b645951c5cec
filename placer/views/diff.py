"""The difference between two plans: nodes that moved, traffic, variables per device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..plan_data import PlanData
from ..render.text import ROWS, count_text, short, size_text, table, where
from .scope_tree import fold


@dataclass(frozen=True, slots=True)
class Moved:
    """A node that both plans place, on different devices."""

    node: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Changed:
    """An amount that differs: bytes or messages on a link in a step, or bytes of variables on a device.

    `before_exact`, `after_exact`: whether the amount is known; if not, it is a lower bound.
    """

    what: str
    before: int
    after: int
    before_exact: bool = True
    after_exact: bool = True

    @property
    def exact(self) -> bool:
        """Whether both amounts, and so their difference, are known."""
        return self.before_exact and self.after_exact


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The differences of two plans. It prints as text, and is False if there are none.

    Attributes:
        moved: nodes on different devices, in order of creation.
        removed: names of nodes that only the first plan places.
        added: names of nodes that only the second plan places.
        no_longer_run: names of nodes that both place and only the first runs.
        newly_run: names of nodes that both place and only the second runs.
        traffic: `source -> destination` -> bytes per step, if they differ.
        messages: likewise, numbers of messages.
        memory: device -> bytes of variables, if they differ.
    """

    moved: tuple[Moved, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    no_longer_run: tuple[str, ...]
    newly_run: tuple[str, ...]
    traffic: tuple[Changed, ...]
    messages: tuple[Changed, ...]
    memory: tuple[Changed, ...]

    def __bool__(self) -> bool:
        return any(
            (self.moved, self.removed, self.added, self.no_longer_run, self.newly_run, self.traffic,
             self.messages, self.memory)
        )  # fmt: skip

    def __str__(self) -> str:
        if not self:
            return "no differences"
        parts = [
            self._moved(),
            _nodes("Only in the first plan", self.removed),
            _nodes("Only in the second plan", self.added),
            _nodes("Run by the first plan only", self.no_longer_run),
            _nodes("Run by the second plan only", self.newly_run),
            _amounts("bytes per step", self.traffic, True),
            _amounts("messages per step", self.messages, False),
            _amounts("variable memory", self.memory, True),
        ]
        return "\n\n".join(p for p in parts if p)

    def _moved(self) -> str:
        if not self.moved:
            return ""
        rows = fold(((m.node, f"{short(m.before)} -> {short(m.after)}") for m in self.moved), ROWS)
        shown = [(r.label, str(len(r.nodes)), where(r.devices, "move")) for r in rows]
        return f"Moved: {count_text(len(self.moved), 'node')}\n{table(('scope', 'nodes', 'from -> to'), shown)}"


def diff(before: PlanData, after: PlanData) -> PlanDiff:
    """The differences from one plan to another. Nodes are matched by name."""
    old, new = before.placement, after.placement
    ran, runs = _run(before), _run(after)
    return PlanDiff(
        moved=tuple(Moved(n, d, new[n]) for n, d in old.items() if n in new and new[n] != d),
        removed=tuple(n for n in old if n not in new),
        added=tuple(n for n in new if n not in old),
        no_longer_run=tuple(n for n in ran if n in new and n not in runs),
        newly_run=tuple(n for n in runs if n in old and n not in ran),
        traffic=_changes(_link_bytes(before), _link_bytes(after)),
        messages=_changes(_link_messages(before), _link_messages(after)),
        memory=_changes(_memory(before), _memory(after)),
    )


def _run(plan: PlanData) -> dict[str, None]:
    return dict.fromkeys(n.name for n in plan.partitioned.nodes)


def _link_bytes(plan: PlanData) -> dict[str, tuple[int, bool]]:
    return {f"{t.source} -> {t.destination}": (t.bytes, t.exact) for t in plan.traffic}


def _link_messages(plan: PlanData) -> dict[str, tuple[int, bool]]:
    return {f"{t.source} -> {t.destination}": (t.tensors + t.control, True) for t in plan.traffic}


def _memory(plan: PlanData) -> dict[str, tuple[int, bool]]:
    return {r.device: (r.variable_bytes, r.exact) for r in plan.loads}


def _changes(before: dict[str, tuple[int, bool]], after: dict[str, tuple[int, bool]]) -> tuple[Changed, ...]:
    changes = []
    for name in sorted(before.keys() | after.keys()):
        (old, old_exact), (new, new_exact) = before.get(name, (0, True)), after.get(name, (0, True))
        changes.append(Changed(name, old, new, old_exact, new_exact))
    return tuple(sorted((c for c in changes if c.before != c.after), key=lambda c: -abs(c.after - c.before)))


def _nodes(title: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    rows = fold(((n, "") for n in names), ROWS)
    shown = [(r.label, str(len(r.nodes))) for r in rows]
    return f"{title}: {count_text(len(names), 'node')}\n{table(('scope', 'nodes'), shown)}"


def _amounts(title: str, changes: Iterable[Changed], in_bytes: bool) -> str:
    def text(count: int, exact: bool = True) -> str:
        return size_text(count, exact) if in_bytes else str(count)

    rows = [
        (
            short(c.what),
            text(c.before, c.before_exact),
            text(c.after, c.after_exact),
            ("+" if c.after > c.before else "-") + text(abs(c.after - c.before)) if c.exact else "?",
        )
        for c in changes
    ]
    return table((title, "before", "after", "change"), rows)
