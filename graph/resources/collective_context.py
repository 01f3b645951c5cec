"""The kernels' interface to collectives: a member's call (`CollectiveCall`), and the context that runs it (`CollectiveContext`).

A collective op has one node for each member of a group. Its kernel describes the member's part of one run and passes it to the task's
`CollectiveContext`, which communicates with the other members. The runtime has one for tasks that exchange messages and memory
(`runtime/collectives/`). `SingleMember` is for groups of one member, as in the reference evaluator.

A member on a GPU may have a `DeviceLink`, such as NCCL's, which sends values from device to device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..core.errors import invalid

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
"""Name of a reduction -> the function that combines two values. A mean is a sum that is divided at the end."""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A member's part of one run of a collective op.

    Attributes:
        kind: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "barrier".
        node_name: the node's name, for errors.
        session: an object that identifies the session of the step, and has the same lifetime.
        instance: the common identifier of the nodes of one collective.
        run: the number of earlier runs of the node in the session.
        values: the member's input values, on the host or on a device.
        attrs: the node's attributes: `members` (the device of each rank), `rank`, and `reduction`, `way` or `root`.
    """

    kind: str
    node_name: str
    session: Any
    instance: str
    run: int
    values: Sequence[Any]
    attrs: Mapping[str, Any]

    @property
    def members(self) -> tuple[str, ...]:
        """The device of each rank."""
        members: tuple[str, ...] = self.attrs["members"]
        return members

    @property
    def rank(self) -> int:
        """The rank of this member."""
        rank: int = self.attrs["rank"]
        return rank


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """The description of a member's link for the other members.

    Attributes:
        version: version of the library, or 0 if the member has no link.
        device: the identity of the member's device, two integers.
    """

    version: int
    device: tuple[int, int]


class DeviceLink(Protocol):
    """A member's end of a communicator between devices. All methods return at once."""

    identity: LinkIdentity

    def invitation(self) -> bytes:
        """The data with which members connect, made by rank 0. They are the same at each call. The length is a multiple of 8 bytes."""
        ...

    def next_number(self) -> int:
        """The number of the next run, for rank 0: 0, 1, 2..."""
        ...

    def start(self, number: int, invitation: bytes, job: Any, rows: Sequence[int], tell: Callable[[Any], None]) -> None:
        """Run a job after those with lower numbers. `tell` gets its result, or an OpError, in another thread."""
        ...

    def stop(self) -> None:
        """Abort all runs with errors, because another member has ended. The link can no longer be used."""
        ...


class CollectiveContext(Protocol):
    """Runs a kernel's collectives with the other members. Both methods return the kernel's result, or a `Request` for it."""

    def run(self, call: CollectiveCall) -> Any:
        """Run a collective of values in the host's memory."""
        ...

    def run_on_link(
        self, call: CollectiveCall, link: DeviceLink | None = None, make_job: Callable[[], Any] | None = None
    ) -> Any:
        """Run a collective of a group of GPUs on the members' links, or in the host's memory if a member has no link.

        All members of such a group call this method, also those without a link.

        Args:
            call: the member's part.
            link: the member's link, or None.
            make_job: makes the job for the link.

        Raises:
            FailedPreconditionError: a member has no link, and `attrs["way"]` is "nccl".
        """
        ...


class SingleMember:
    """A `CollectiveContext` for groups of one member. The result is the member's input."""

    def run(self, call: CollectiveCall) -> Any:
        """As `CollectiveContext.run`. InvalidArgumentError if the group has other members."""
        if len(call.members) > 1:
            text = f"The {call.kind} '{call.instance}' has {len(call.members)} members: run it in a session, which runs them all"
            raise invalid(text, call.node_name)
        arrays = tuple(np.array(v) for v in call.values)
        return arrays[0] if len(arrays) == 1 else arrays

    def run_on_link(
        self, call: CollectiveCall, link: DeviceLink | None = None, make_job: Callable[[], Any] | None = None
    ) -> Any:
        """As `run`, because a single member needs no link."""
        return self.run(call)
