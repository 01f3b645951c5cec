"""`dovetail calibrate`: measure this machine once, so that plans predict its times."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ...placer.cluster.calibration import Calibration
from ...placer.render.text import number_text, table, time_text
from .common import addresses, errors_explained, output_file


def profile_table(found: Calibration) -> str:
    """Returns the measurements as tables: a row per kind of kernel, with its smallest and largest work, and a row per overhead."""
    rows = [
        (kind, number_text(points[0].work), time_text(points[0].seconds), number_text(points[-1].work), time_text(points[-1].seconds),
         f"{points[-1].cores:.1f}")
        for kind, points in found.kernels.items()
    ]  # fmt: skip
    overheads = [(name, time_text(s) if s >= 1e-8 else f"{s * 1e12:.3g} ps") for name, s in found.overheads.items()]
    kernels = table(("kernel", "smallest", "time", "largest", "time", "cores"), rows, limit=None)
    return f"{found}\n\n{kernels}\n\n" + table(("overhead", "time"), overheads, limit=None)


def calibrate(
    cluster: Annotated[
        str,
        typer.Option(
            help="Measure messages on this running cluster, zmq://host:port. Default: four processes on this machine."
        ),
    ] = "",
    output: Annotated[
        Path | None, output_file("File for the profile. Default: the file that predictions on this machine read.")
    ] = None,
) -> None:
    """Measure kernels, launches and messages on this machine. Later predictions of times use the results.

    The machine should be idle otherwise. DOVETAIL_PROFILE=none disables the profile.
    """
    with errors_explained():
        from ..calibration import calibrate as measured  # loads all of Dovetail

        target = f"zmq://{addresses(cluster)[0]}" if cluster else ""
        found = measured(target, lambda text: print(f"measuring {text}", file=sys.stderr, flush=True))
        path = found.save(output)
        print(f"{profile_table(found)}\n\nWrote {path}")
