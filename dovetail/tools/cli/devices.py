"""`dovetail devices`: the devices of this machine, of a cluster, or of a description."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...placer.cluster.load import cluster_text
from ...placer.cluster.spec import DeviceInfo, Link
from ...placer.render.text import number_text, short, size_text, table, time_text
from .common import UsageError, addresses, errors_explained, output_file
from .programs import find_cluster


def devices(
    target: Annotated[
        str, typer.Option(help="A running cluster: zmq://host:port, or its file. Default: this machine.")
    ] = "",
    cluster: Annotated[
        str | None,
        typer.Option(help="Description of a cluster, as for `dovetail plan`; the cluster need not be running."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the speeds of devices and links. Each takes some seconds.")
    ] = False,
    out: Annotated[
        Path | None, output_file("File for the measured cluster, YAML, for `dovetail plan --cluster`. Needs --measure.")
    ] = None,
) -> None:
    """List the devices of this machine, or of a cluster."""
    with errors_explained():
        if out is not None and not measure:
            raise UsageError("--out is the file for the results of --measure. Pass --measure, too")
        if measure and cluster is not None:
            raise UsageError(
                "--measure needs a running cluster (--target) or this machine. --cluster is only a description"
            )
        if cluster is not None:
            print(devices_table(find_cluster(cluster).devices))
            return
        at = f"zmq://{addresses(target)[0]}" if target else ""
        if measure:
            _measured(at, out)
            return
        import dovetail as dt

        with dt.Session(at, graph=dt.Graph()) as session:
            for device in session.list_devices():
                print(device)


def _measured(target: str, out: Path | None) -> None:
    """Measures a cluster, prints the results, and writes them as a cluster file."""
    from ...runtime.session.profiling import measure  # a parameter has this name

    found = measure(target, lambda text: print(text, file=sys.stderr))
    print(devices_table(found.devices))
    if found.links:
        print(f"\n{links_table(found.links)}")
    if out is not None:
        out.write_text(cluster_text(found), encoding="utf-8")


def devices_table(devices: Sequence[DeviceInfo]) -> str:
    """Returns a table with a row per device and its known properties. Empty columns are omitted."""
    known = [
        (
            str(d),
            d.model,
            "" if d.memory_bytes is None else size_text(d.memory_bytes),
            "" if d.flops is None else f"{number_text(d.flops)}flop/s",
            "" if d.bandwidth is None else f"{number_text(d.bandwidth)}B/s",
        )
        for d in devices
    ]
    return _filled(("device", "model", "memory", "speed", "memory speed"), known)


def links_table(links: Sequence[Link]) -> str:
    """Returns a table with a row per link, and its measured latency and bandwidth."""
    known = [
        (
            f"{short(link.a)} - {short(link.b)}",
            "" if link.latency is None else time_text(link.latency),
            "" if link.bandwidth is None else f"{number_text(link.bandwidth)}B/s",
        )
        for link in links
    ]
    return _filled(("link", "latency", "bandwidth"), known)


def _filled(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of the columns that are not empty."""
    shown = [i for i in range(len(header)) if any(row[i] for row in rows)]
    return table([header[i] for i in shown], [[row[i] for i in shown] for row in rows], limit=None)
