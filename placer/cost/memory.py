"""Whether the state behind variables fits the memory of devices, and the error when it does not.

Rules and searches give the same error, `ResourceExhaustedError`. It names the tightest set of nodes, what that needs, and
what there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ...graph.core.errors import ResourceExhaustedError
from ...graph.core.graph import Node
from ...graph.core.opdef import Trait
from ..cluster.spec import DeviceInfo
from ..render.text import listed, short, size_text, sum_texts
from ..rules.placement import Placement
from .static import state_bytes

NAMED = 5  # nodes or devices that an error names
MORE = "give the devices more memory"


def check_state(placed: Placement) -> None:
    """ResourceExhaustedError when the state that was put on a device is larger than its memory, where that is known."""
    devices = placed.cluster.devices
    if all(d.memory_bytes is None for d in devices):
        return
    handles = {op for op in {n.opdef for n in placed} if Trait.STATE_HANDLE in op.traits}
    stored: list[tuple[int, Node, int]] = [
        (int(placed.index[n.index]), n, state_bytes(n)[0]) for n in placed if n.opdef in handles
    ]
    for d, group in groupby(sorted(stored, key=lambda entry: entry[0]), key=lambda entry: entry[0]):
        state, room = [(n, size) for _, n, size in group], devices[d].memory_bytes
        if room is None or sum(size for _, size in state) <= room:
            continue
        largest = max(state, key=lambda entry: entry[1])
        candidates = set(placed.decision(largest[0]).candidates)
        may = [other for other in devices if str(other.name) in candidates]
        if all(other.memory_bytes is not None and other.memory_bytes < largest[1] for other in may):
            raise one_too_large([largest], may, len(may) == len(devices))
        rooms = [d.memory_bytes for d in devices]
        total, has = sum(size for _, _, size in stored), sum(room or 0 for room in rooms)
        if None not in rooms and total > has:
            cure = (
                f"All variables need {size_text(total)}, and all devices have {size_text(has)}: add devices, or {MORE}"
            )
        else:
            cure = f'Spread them with device blocks or with strategy="auto", or {MORE}'
        raise _error(state, f" on {short(str(devices[d].name))}, which has", room, cure)


def one_too_large(
    state: Sequence[tuple[Node, float]], may: Sequence[DeviceInfo], anywhere: bool
) -> ResourceExhaustedError:
    """The error for one variable, or several that must share a device, for which every device is too small.

    Args:
        state: (node, bytes) of what has to be on one device. may: the devices that it may be on; anywhere: whether these are all.
    """
    room = max(d.memory_bytes or 0 for d in may)
    it = "it" if len(state) == 1 else "they"
    cure = (
        "Split it with a partitioner" if len(state) == 1 else "They must share a device: take away what colocates them"
    )
    where = "" if anywhere else f" that {it} may be on"
    return _error(state, f", and no device{where} has more than", room, f"{cure}, or {MORE}")


def all_too_large(state: Sequence[tuple[Node, float]], may: Sequence[DeviceInfo]) -> ResourceExhaustedError:
    """The error for variables that have no room on the devices on which alone they may be, in all or in pieces.

    Args:
        state: (node, bytes) of all of them. may: the devices that they may be on.
    """
    names = listed((short(str(d.name)) for d in may), NAMED)
    where = f", and may only be on {names}, which {'has' if len(may) == 1 else 'have'}"
    have = sum(d.memory_bytes or 0 for d in may)
    if sum(size for _, size in state) > have:
        cure = f"Allow more devices, or {MORE}"
    else:
        cure = f"Allow more devices, {MORE}, or split the largest with a partitioner"
    return _error(state, where, have, cure)


def _error(state: Sequence[tuple[Node, float]], where: str, room: float, cure: str) -> ResourceExhaustedError:
    """The error for `'a', 'b' need 2.0 MiB together{where} 1.0 MiB: 1.0 MiB too little`, the largest first.

    `room`: the bytes there. Where they suffice in all, no way was found to give each variable a place.
    """
    heavy = sorted(state, key=lambda entry: -entry[1])
    node, largest = heavy[0]
    total = sum(size for _, size in state)
    names = listed((f"'{n.name}'" for n, _ in heavy), NAMED)
    if total > room:
        need, there, missing = sum_texts(total, room, total - room)
        less = f": {missing} too little"
    else:
        need, there = size_text(total), size_text(room)
        less = f", but no way was found to give each a place: the largest needs {size_text(largest)}"
    needs = f"{names} needs {need}" if len(state) == 1 else f"{names} need {need} together"
    line = node.source
    made = f"\n  '{node.name}' was created at {line}" + (f": {line.text}" if line.text else "")
    return ResourceExhaustedError(node, node, f"Memory does not suffice: {needs}{where} {there}{less}. {cure}.{made}")
