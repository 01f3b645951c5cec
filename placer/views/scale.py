"""The predicted time, memory and traffic of a plan for several batch sizes, as a table.

The placement and the partition stay the same; the sizes of values are inferred anew for each batch (`cost/shapes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..cost.profile import Profile
from ..plan_data import PlanData
from ..render.text import short, size_text, table, time_text
from ..simulate import simulate

HEADER = ("batch", "step time", "per row", "peak memory", "on device", "between tasks")


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """The prediction for one batch size.

    Attributes:
        batch: number of rows.
        seconds: predicted time of one step.
        memory: peak memory in bytes of the fullest device: the one that uses the largest fraction of its memory, or the most bytes if
            capacities are not described.
        device: the name of that device.
        fits: whether the step fits into the memory of all devices.
        bytes: traffic between tasks in one step.
        exact: whether all sizes are known; if not, the numbers are lower bounds.
    """

    batch: int
    seconds: float
    memory: float
    device: str
    fits: bool
    bytes: int
    exact: bool


@dataclass(frozen=True, slots=True)
class BatchScaling:
    """The result of `plan.scale(batch=[...])`: a point for each batch size. It prints as a table."""

    points: tuple[BatchPoint, ...]

    def __iter__(self) -> Iterator[BatchPoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, number: int) -> BatchPoint:
        return self.points[number]

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                str(p.batch), time_text(p.seconds, p.exact), time_text(p.seconds / p.batch, p.exact), size_text(p.memory, p.exact),
                short(p.device) + ("" if p.fits else " (does not fit)"), size_text(p.bytes, p.exact),
            )
            for p in self.points
        ]  # fmt: skip

    def __str__(self) -> str:
        return table(HEADER, self._rows(), limit=None)


def scaled(batch: int, plan: PlanData, costs: Profile | None, contended: bool) -> BatchPoint:
    """The prediction for a plan of this batch size."""
    step = simulate(plan, costs=costs, contended=contended)
    capacity = {str(d.name): d.memory_bytes for d in plan.cluster.devices}
    peak = dict(zip(step.devices, step.peak, strict=True))
    fits = all(peak[d] <= room for d, room in capacity.items() if room is not None)
    fullest = max(peak, key=lambda d: (peak[d] / (capacity[d] or np.inf), peak[d]))
    crossing = sum(c.bytes for c in plan.channels if c.crosses_tasks)
    return BatchPoint(batch, step.makespan, peak[fullest], fullest, fits, crossing, step.exact)
