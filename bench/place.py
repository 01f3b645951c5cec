"""What planning costs: placing and cutting graphs of 1,000 to 1,000,000 nodes over 64 devices, and over 16 to 10,000 GPUs.

Two graphs: towers of layers on weights of parameter servers, where almost every edge stays on its device, and
a chain that changes device at every node, where every edge crosses. Each size runs in a fresh process, so that
the peak of memory is its own. There is no peer: TensorFlow places a graph only while it makes a session.

The group `devices` plans the towers of the largest size over more and more workers of 8 GPUs, and writes the plan's page.

The table ends with how time grows: the slope of log(seconds) over log(nodes) from 10,000 nodes on, where 1 is linear; over
log(devices) at the same number of nodes, it stays near 0. A plot of seconds over nodes follows the table.
"""

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from _harness import Row, main, row

ONE = Path(__file__).with_name("_place_one.py")
GRAPHS = ("towers", "hopping")
SIZES = (1_000, 10_000, 100_000, 1_000_000)
ACCELERATORS = (16, 256, 4_096, 10_000)
WIDTH, HEIGHT = 60, 15  # of the plot, in characters


def over_devices(quick: bool) -> Iterator[Row]:
    """Seconds, memory and page per number of GPUs, for one number of nodes; then the slope."""
    nodes = SIZES[2] if quick else SIZES[-1]
    points: list[tuple[int, float]] = []
    for count in ACCELERATORS[:3] if quick else ACCELERATORS:
        found = measured("towers", nodes, 1 if quick else 3, count)
        seconds = statistics.median(found["seconds"])
        points.append((count, seconds))
        name, large = f"{nodes:,} nodes on {count:,} GPUs", count == ACCELERATORS[-1]
        yield row(name, "s", seconds, target="dovetail <= 30" if large else "")
        yield row(f"{name}, peak memory", "GiB", found["peak"] / 2**30, target="dovetail <= 6" if large else "")
        yield row(f"{name}, page", "s", found["page_seconds"], target="dovetail <= 15" if large else "")
        yield row(
            f"{name}, size of the page", "MB", found["page_bytes"] / 1e6, target="dovetail <= 20" if large else ""
        )
    yield row("growth of time with devices", "slope", slope(points), target="dovetail <= 0.3")


def over_nodes(quick: bool) -> Iterator[Row]:
    """Seconds and peak memory per graph and size, then the slope per graph; the plot as a side effect."""
    points: dict[str, list[tuple[int, float]]] = {graph: [] for graph in GRAPHS}
    for graph in GRAPHS:
        for size in SIZES[:3] if quick else SIZES:
            found = measured(graph, size, repeats=3 if quick else 5)
            seconds = statistics.median(found["seconds"])
            points[graph].append((found["nodes"], seconds))
            large = size == SIZES[-1]
            yield row(f"{graph}, {size:,} nodes", "s", seconds, target="dovetail <= 30" if large else "")
            yield row(
                f"{graph}, {size:,} nodes, peak memory", "GiB", found["peak"] / 2**30,
                target="dovetail <= 4" if large else "",
            )  # fmt: skip
    for graph, measured_at in points.items():
        yield row(f"{graph}, growth of time", "slope", slope(measured_at[1:]), target="dovetail <= 1.15")
    print(plot(points))


def measured(graph: str, size: int, repeats: int, accelerators: int = 0) -> dict[str, float]:
    """One graph of one size in a process of its own; see _place_one.py for what comes back."""
    command = [sys.executable, str(ONE), graph, str(size), str(repeats), str(accelerators)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def slope(points: list[tuple[int, float]]) -> float:
    """The exponent of the power of the size that fits the times best."""
    x, y = [math.log(n) for n, _ in points], [math.log(s) for _, s in points]
    return statistics.linear_regression(x, y).slope


def plot(points: dict[str, list[tuple[int, float]]]) -> str:
    """Seconds over nodes, both on logarithmic axes; each graph by its first letter, a dotted line of slope 1."""
    everything = [p for each in points.values() for p in each]
    left, right = (f(math.log10(n) for n, _ in everything) for f in (min, max))
    low = math.floor(min(math.log10(s) for _, s in everything))
    high = math.ceil(max(math.log10(s) for _, s in everything))
    grid = [[" "] * (WIDTH + 1) for _ in range(HEIGHT + 1)]

    def put(x: float, y: float, mark: str) -> None:
        column, line = round((x - left) / (right - left) * WIDTH), round((high - y) / (high - low) * HEIGHT)
        if 0 <= line <= HEIGHT and grid[line][column] in " .":
            grid[line][column] = mark

    size, seconds = points[GRAPHS[0]][1]
    for column in range(WIDTH + 1):
        x = left + (right - left) * column / WIDTH
        put(x, math.log10(seconds) + x - math.log10(size), ".")
    for name, measured_at in points.items():
        for n, s in measured_at:
            put(math.log10(n), math.log10(s), name[0])
    lines = [
        f"{10 ** (high - (high - low) * i / HEIGHT):9.3g} s |{''.join(line).rstrip()}" for i, line in enumerate(grid)
    ]
    key = ", ".join(f"{name[0]}: {name}" for name in points)
    return "\n".join(
        [*lines, f"{'':12}+{'-' * WIDTH}", f"{'':12}{10**left:,.0f} to {10**right:,.0f} nodes; {key}; .: linear"]
    )


if __name__ == "__main__":
    main("Placing and cutting", {"nodes": over_nodes, "devices": over_devices})
