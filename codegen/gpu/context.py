"""What every kernel of one GPU's program shares."""

from __future__ import annotations

from dataclasses import dataclass, field

from .driver.device import Device


@dataclass(slots=True)
class GpuContext:
    """A GPU, and how its kernels are chosen and run.

    Attributes:
        device: the GPU.
        check: compare every kernel with the references, at every run.
        tf32: products of float32 may be made from 10 bits of each factor's fraction.
        tunes: of several candidates the fastest may be taken, as it is measured.
        variables: for each node that gives a variable's handle, the variable's container and name.
    """

    device: Device
    check: bool = False
    tf32: bool = False
    tunes: bool = True
    variables: dict[str, tuple[str, str]] = field(default_factory=dict)
