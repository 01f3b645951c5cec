"""Targets: how one is named, and what a session needs of whatever runs its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..graph.core.errors import NotFoundError
from ..graph.core.graph import Graph
from ..placer.cluster.spec import DeviceInfo
from ..placer.plan import Plan
from .recorder import Gathered

if TYPE_CHECKING:
    from .master import Part

SCHEMES = ("zmq://", "grpc://")  # the second is what TensorFlow's programs write; the wire is the same


def address_of(target: str) -> str:
    """`host:port` of a session target.

    Raises:
        NotFoundError: the target has another form.
    """
    for scheme in SCHEMES:
        if target.startswith(scheme):
            return target[len(scheme) :]
    raise NotFoundError(
        None,
        None,
        f"No session can be made for target {target!r}: use '' for this process, or a server's target, 'zmq://host:port'",
    )


class Target(Protocol):
    """What a `Session` needs of whatever runs its steps.

    Attributes:
        devices: of all tasks. is_local: it is this process, so only `Session.close` takes programs from it.
    """

    devices: tuple[DeviceInfo, ...]
    is_local: bool

    def extend(self, graph: Graph) -> None:
        """Make nodes that were added to the graph known."""
        ...

    def prepare(
        self,
        fetches: Sequence[str],
        targets: Sequence[str],
        feeds: Sequence[str],
        warm: bool = False,
        deterministic: bool = False,
    ) -> list[Part]:
        """Make a signature ready to run; `warm`: with all its kernels compiled; `deterministic`: see `KernelOptions`."""
        ...

    def plan(
        self, graph: Graph, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[str], program: str
    ) -> Plan:
        """What a signature will do, or with the handle of a prepared one, what that does; about `graph`, the session's own."""
        ...

    def run(
        self, parts: Sequence[Part], feeds: Mapping[str, Any], timeout_s: float | None, gathered: Gathered | None = None
    ) -> dict[str, Any]:
        """Run one step; the values of all fetches by name. With `gathered`, the step is traced, and all notes go there."""
        ...

    def repeat(self, parts: Sequence[Part], until: Callable[[], bool]) -> bool:
        """Run one step, without feeds and fetches, again and again until `until()`, as long as it goes well and the tasks know it.

        False if that cannot be, and nothing has run.
        """
        ...

    def close(self) -> None:
        """End the session."""
        ...
