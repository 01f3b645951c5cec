"""`dovetail trace`: runs a step of a program, and shows when each kernel and transfer ran."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ...compiled_function import initialize
from ...graph.core.errors import OpError
from ...graph.core.graph import Node, Tensor
from ...placer.cost.shapes import as_tensor
from ...runtime.config import ConfigProto, RunMetadata, RunOptions
from ...runtime.session.session import Session
from .common import FailedError, UsageError, addresses, errors_explained, read_jobs
from .programs import (
    FetchOption,
    PageOption,
    Program,
    ProgramArgument,
    ShapeOption,
    SoftOption,
    StrategyOption,
    TraceOption,
    build,
)


def trace(
    program: ProgramArgument,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Where steps run: a running server, zmq://host:port; the file of a cluster that is up; or numbers of tasks of a "
            "cluster to start, worker=4,ps=2. Default: this process."
        ),
    ] = None,
    fetch: FetchOption = None,
    shape: ShapeOption = None,
    feed: Annotated[
        list[str] | None,
        typer.Option(
            help="Value of an input: x=FILE.npy. May be repeated. Other inputs get random numbers, or zeros if they are integers."
        ),
    ] = None,
    allow_soft_placement: SoftOption = False,
    strategy: StrategyOption = "rules",
    steps: Annotated[int, typer.Option(min=1, help="Number of steps; the last one is traced.")] = 3,
    trace: TraceOption = None,
    html: PageOption = None,
) -> None:
    """Run steps of a program, and show when each kernel and transfer of the last step ran.

    Variables without a value are initialized first. The steps have their usual effects: they update the variables that they train.
    """
    with errors_explained(), ExitStack() as open_:
        built = build(program)
        if built.plan is not None:
            raise UsageError(
                f"{program} is a plan, which cannot run. Name the function that builds the graph. For a function of dt.compile, "
                "call its method trace(...) in a program"
            )
        fetches = built.elements(fetch)
        if not fetches:
            raise UsageError("The step has no fetches. Name tensors or ops with --fetch, or return them from FUNCTION")
        feeds = _feeds(built, fetches, feed, shape)
        target = _target(cluster, open_)
        config = ConfigProto(allow_soft_placement=allow_soft_placement, placement_strategy=strategy)
        metadata = RunMetadata()
        try:
            with Session(target, built.graph, config) as session:
                initialize(session)
                for _ in range(steps - 1):
                    session.run(fetches, feeds)
                session.run(fetches, feeds, RunOptions(trace_level=RunOptions.FULL_TRACE), metadata)
        except OpError as e:
            raise FailedError(str(e)) from None
        if metadata.trace is None:
            raise FailedError("The step runs no op, because every fetch is also fed")
        if html is not None:
            metadata.trace.to_html(html)
        if trace is not None:
            metadata.trace.save(trace)
        print(metadata.trace)


def _target(cluster: str | None, open_: ExitStack) -> str:
    """Returns the session's target. A described cluster is started on this machine, and ends when `open_` closes."""
    if cluster is None:
        return ""
    if "://" in cluster or Path(f"{cluster}.up").is_file():
        return f"zmq://{addresses(cluster)[0]}"
    from ...runtime.server.local_cluster import LocalCluster  # loads ZeroMQ

    return open_.enter_context(LocalCluster(read_jobs(cluster))).target()


def _feeds(
    program: Program, fetches: Sequence[Tensor | Node], files: list[str] | None, shapes: list[str] | None
) -> dict[Tensor, Any]:
    """Returns a value for each placeholder that the step needs: from a file, or else random numbers."""
    fed: dict[Tensor, Any] = {}
    for text in files or ():
        name, equals, path = text.rpartition("=")
        if not equals:
            raise UsageError(f"--feed needs a name and a file, such as x=FILE.npy, not {text!r}")
        try:
            fed[as_tensor(program.graph, program.element(name))] = np.load(path)
        except (OSError, ValueError) as e:
            raise UsageError(f"--feed {text}: {e}") from None
    given, random = program.shapes(shapes), np.random.default_rng(0)
    for x in _placeholders(fetches):
        if x in fed:
            continue
        dims = given.get(x, x.dims)
        sizes = [] if dims is None else [d for d in dims if d is not None]
        if dims is None or len(sizes) < len(dims):
            raise UsageError(
                f"The shape of {x.name} is not completely known: {x.shape}. Pass --shape {x.op.name}=... or --feed {x.op.name}=FILE.npy"
            )
        if not (x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool):
            raise UsageError(f"{x.name} needs values of type {x.dtype.name}. Pass --feed {x.op.name}=FILE.npy")
        values: Any = random.standard_normal(sizes) if x.dtype.is_floating else np.zeros(sizes)
        fed[x] = values.astype(x.dtype.as_numpy_dtype)
    return fed


def _placeholders(fetches: Sequence[Tensor | Node]) -> list[Tensor]:
    """Returns the placeholders that the fetches depend on, ordered by name."""
    todo = [f.op if isinstance(f, Tensor) else f for f in fetches]
    seen = set(todo)
    while todo:
        node = todo.pop()
        for before in (*(t.op for t in node.inputs), *node.control_inputs):
            if before not in seen:
                seen.add(before)
                todo.append(before)
    found = [n for n in seen if n.type == "Placeholder"]
    return [n.outputs[0] for n in sorted(found, key=lambda n: n.name)]
