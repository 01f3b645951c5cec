"""`dovetail demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import errors_explained


def demo(
    in_graph: Annotated[
        bool, typer.Option("--in-graph", help="One client, one graph, a copy of the compute per worker.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates made by all workers together.")] = None,
    ps: Annotated[int, typer.Option(min=1, help="Parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Workers.")] = 2,
    strategy: Annotated[
        str | None, typer.Option(help="Train under a distribution strategy: mirrored, central, multiworker or ps.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where plan.txt and graph.dtg go.", file_okay=False)] = Path(),
) -> None:
    """Train a reader of handwritten digits across processes of this machine, and show what ran where."""
    from rich.console import Console

    from ..demo.data import DataMissingError  # loads what the demo needs
    from ..demo.run import STEPS, Settings, run
    from ..demo.watch import DemoError

    console = Console()
    with errors_explained(DataMissingError, DemoError):
        if strategy is not None:
            from ..demo import strategies  # loads what the demo needs

            def say(line: str) -> None:
                console.print(line, markup=False, highlight=False, soft_wrap=True)

            strategies.run(strategy, steps or strategies.STEPS, workers, ps, say)
            return
        run(Settings(steps or STEPS, ps, workers, in_graph, out), console)
