"""What a master tells a worker about one run signature: the task's part of it, and what all its steps have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...codegen.ir.partition import Unit
from ...codegen.options import KernelOptions
from ...graph.core.errors import InvalidArgumentError
from ..rpc.dispatch import NAME_CHARS
from .partition_codec import pack_units, unpack_units


@dataclass(frozen=True, slots=True)
class Registration:
    """One task's part of a run signature.

    Attributes:
        program: handle under which the task is to know it.
        session: handle of the session that it belongs to.
        units: what each device of the task runs.
        seed: of the session's random numbers.
        isolated: whether the session has state of its own.
        kernels: how kernels are made.
        peer_timeout_s: a task that is silent for so long is taken for dead.
        compresses: whether tensors are compressed on their way to other machines.
        carries: the tasks whose parts are started by the tensors that come from this one (`lowering.py`).
        client: the process that opened the session, as it calls itself; steps are counted by it (`dispatch.py`).
    """

    program: str
    session: str
    units: tuple[Unit, ...]
    seed: int
    isolated: bool = False
    kernels: KernelOptions = field(default_factory=KernelOptions)
    peer_timeout_s: float = 5.0
    compresses: bool = False
    carries: tuple[str, ...] = ()
    client: str = ""

    def to_fields(self) -> dict[str, Any]:
        """Plain data for a `register` message."""
        info = {
            "seed": self.seed, "isolated": self.isolated, "kernels": self.kernels.to_fields(),
            "peer_timeout_s": float(self.peer_timeout_s), "compresses": self.compresses,
            "carries": list(self.carries), "client": self.client,
        }  # fmt: skip
        return {"program": self.program, "session": self.session, "partition": pack_units(self.units), "info": info}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Registration:
        """From a message's plain data.

        Raises:
            InvalidArgumentError: they are malformed.
        """
        info = fields["info"]
        seed, isolated, compresses = info.get("seed"), info.get("isolated"), info.get("compresses", False)
        peer_timeout_s = info.get("peer_timeout_s")
        if not isinstance(seed, int) or not isinstance(isolated, bool) or not isinstance(peer_timeout_s, float):
            raise InvalidArgumentError(
                None, None, "A register message needs a seed, whether the session is isolated, and its peer timeout"
            )
        if not isinstance(compresses, bool):
            raise InvalidArgumentError(None, None, "A register message says wrongly whether the session compresses")
        carries = info.get("carries", ())
        if not isinstance(carries, list | tuple) or not all(isinstance(t, str) for t in carries):
            raise InvalidArgumentError(None, None, "A register message says wrongly which tasks are started by tensors")
        client = info.get("client", "")
        if not isinstance(client, str) or len(client) > NAME_CHARS:
            raise InvalidArgumentError(None, None, "A register message says wrongly whose session it is")
        try:
            kernels = KernelOptions.from_fields(info.get("kernels"))
        except (TypeError, ValueError) as e:
            raise InvalidArgumentError(None, None, f"Malformed kernel options in a register message: {e}") from None
        units = tuple(unpack_units(fields["partition"]))
        return cls(
            fields["program"], fields["session"], units, seed, isolated, kernels, peer_timeout_s, compresses, tuple(carries),
            client,
        )  # fmt: skip


__all__ = ["Registration"]
