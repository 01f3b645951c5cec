"""A summary of many nodes as a tree of name scopes that fits a screen.

Names are a tree: `layer/w/read` is in the scope `layer/w` of the scope `layer`. A row stands for a part of
the tree, and rows are opened, the largest first, while they fit. What a reader looks for is where things run,
so scopes on several devices are opened first; what is all in one place is opened only while the table is
short. Three things are folded besides scopes:

- a node and the scope of its name (`w`, `w/Assign`, `w/read`): a variable is one thing, `w`;
- families, three and more neighbours that differ in a number only (`tower_0`, `tower_1`, ...): `tower*`;
- what is left of a scope besides its parts: `gradients/...`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SHORT = 12
"""So many rows are read at a glance: up to here, also what is all in one place is shown in detail."""
FAMILY = 3  # two of a kind are quicker to read than one row that stands for both

Placed = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """A part of the tree of names.

    Attributes:
        label: its text: a node's name, `scope/`, `family*` or `scope/...`.
        nodes: (name, device) of its nodes.
        scope: the scope that it stands for, without the last slash; '' if it is none.
        whole: whether a node has the scope's name, so that the row is one object, such as a variable.
        inside: a family's members, or the rest of a scope.
    """

    label: str
    nodes: Placed
    scope: str = ""
    whole: bool = False
    inside: tuple[Row, ...] = ()

    @property
    def devices(self) -> Counter[str]:
        """Device -> nodes."""
        return Counter(device for _, device in self.nodes)

    def parts(self) -> list[Row]:
        """Its parts; empty for a single node."""
        return list(self.inside) or (_parts(self.scope, self.nodes) if self.scope else [])


def fold(placed: Iterable[tuple[str, str]], rows: int) -> list[Row]:
    """Nodes summed up by name, the largest part first; more than `rows` only at the top level.

    Args:
        placed: (node name, device) pairs; for the device, any text by which parts are told apart.
    """
    shown = _parts("", list(placed))
    shown = _open(shown, rows, lambda row: not row.whole and len(row.devices) > 1)
    shown = _open(shown, min(rows, SHORT), lambda row: True)
    return sorted(shown, key=lambda row: (-len(row.nodes), row.label))


def _open(shown: list[Row], limit: int, selects: Callable[[Row], bool]) -> list[Row]:
    """Open the rows that `selects` accepts, the largest first, while there are at most `limit`."""
    waiting = sorted(shown, key=_size)
    done: list[Row] = []
    while waiting:
        row = waiting.pop()
        parts = row.parts() if selects(row) else []
        if parts and len(done) + len(waiting) + len(parts) <= limit:
            waiting = sorted([*waiting, *parts], key=_size)
        else:
            done.append(row)
    return done


def _size(row: Row) -> tuple[int, str]:
    return len(row.nodes), row.label


def _parts(scope: str, nodes: Placed) -> list[Row]:
    """What the nodes of a scope (`''`, or a name without the last slash) consist of."""
    start = len(scope) + 1 if scope else 0
    children: dict[str, Placed] = {}
    for node in nodes:
        name = node[0]
        end = name.find("/", start)
        children.setdefault(name if end < 0 else name[:end], []).append(node)
    families: dict[str, list[Row]] = {}
    for name, inside in children.items():
        families.setdefault(_stem(name), []).append(_row(name, inside))
    parts: list[Row] = []
    left: list[Row] = []
    for stem, members in families.items():
        if len(members) >= FAMILY:
            parts.append(_together(f"{stem}*", members))
        else:
            for m in members:
                (left if len(m.nodes) == 1 else parts).append(m)
    if len(left) > 1 and (parts or not scope):
        return [*parts, _together(f"{scope}/..." if scope else "(no scope)", left)]
    return parts + left


def _stem(name: str) -> str:
    """A name without its number: `tower` of `tower_3`."""
    return name.rstrip("0123456789").rstrip("_")


def _row(name: str, nodes: Placed) -> Row:
    if all(n == nodes[0][0] for n, _ in nodes):  # a single node; or a constant, which several devices may have
        return Row(nodes[0][0], nodes)
    whole = any(n == name for n, _ in nodes)
    return Row(name if whole else f"{name}/", nodes, scope=name, whole=whole)


def _together(label: str, rows: list[Row]) -> Row:
    return Row(label, [n for row in rows for n in row.nodes], inside=tuple(rows))
