"""The page of recorded figures, `docs/performance.md`, and its picture, from `bench/results/*.json`.

    python docs/performance_page.py

writes both anew; a test sees that they are what the recorded files say. The words around the tables are here, too: which rows
of which file stand in which part.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from protocol_page import wrapped

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "images" / "performance.svg"
IN_MEMORY = " (shared memory)"
"""In the picture, after the names of transfers: their values are not sent."""
TIMES = ("µs/node", "µs", "ms", "s", "difference")  # units of which less is better

INTRODUCTION = """# Benchmarks

Dovetail and other systems, measured in turn in the same run on the same machine. Each part names its benchmark;
`python bench/NAME.py --help` says how to repeat it. The machines have two shared cores, so compare figures of one run only. *Speed-up*
is the ratio of the medians: above 1, Dovetail is faster. *Target* is the project's own goal.

![Speed-up over its peers](images/performance.svg)
"""


@dataclass(frozen=True)
class Part:
    """A part of the page: some rows of one file.

    Attributes:
        leave_out: rows whose names contain one of these are left out.
        picture: names of the rows that the picture shows.
        command: what measures it; empty: `bench/FILE.py`.
        best: of the rows `PART: PROGRAM`, each part's best one is shown.
    """

    title: str
    file: str
    text: str
    leave_out: tuple[str, ...] = ()
    picture: tuple[str, ...] = ()
    command: str = ""
    best: bool = False


PARTS = (
    Part(
        "The runtime",
        "runtime",
        "Servers and clients are processes of one machine, beside TensorFlow's in graph mode, over gRPC on loopback. On one machine a"
        " variable is read where it lies, in shared memory, so transfers take the same time whatever their size, and their GB/s say "
        "no more than that. *Over tcp* is what processes of two machines without keys do, over loopback. *Two machines* are network "
        "namespaces of one machine; with keys, the ratio is to the same without keys. The rows of many tasks say what all tasks of a "
        "cluster take to prepare a step, beside the same graph on one task; each takes 50 ms longer than it must.",
        (", cpu",),
        (
            "empty step",
            "variable read",
            "variable update",
            "ten hops",
            "transfer 1 MiB",
            "transfer 64 MiB",
            "transfer 64 MiB, over tcp",
            "64 clients",
        ),
    ),
    Part(
        "Training on a cluster",
        "training",
        "The digits classifier 64-256-256-10, batches of 64, with two parameter servers and two workers, or two workers alone. "
        "All are processes of one machine; in asynchronous training the workers change the variables in the parameter servers' memory "
        "([direct updates](concepts/architecture.md#between-processes-of-one-machine)); between machines, gradients travel.",
        (", cpu",),
        ("asynchronous training", "synchronous training", "MultiWorkerMirroredStrategy"),
    ),
    Part(
        "Mechanisms of the runtime",
        "runtime_ablation",
        "The same cluster with a [mechanism](concepts/architecture.md#transport-optimizations) and without it, at the same time: the "
        "fastest batch with it, and that times the median of the ratios. The rows *nothing* compare equal clusters: what they show "
        "is noise. A mechanism is kept if it saves 5 % in some program. Early send is a step whose two tasks compute after one has "
        "sent a number to the other; many tensors are 64 rows of 256 numbers, sent one after the other; a constant update adds a "
        "worker's constant to a variable of a parameter server; grouped updates are those of two parameter servers, joined by a group "
        "on a worker for which a count on the first one waits; a send is a worker's result; wide training is that of "
        "layers 1,100 wide by two workers with a link of 100 MiB/s between them. *Two machines* are network namespaces.",
        command="bench/ablation.py --runtime",
    ),
    Part(
        "Collectives",
        "collectives",
        "All-reduce of float32 between processes of one machine: time below 256 KiB, bus bandwidth from there on.",
        picture=(
            "2 members, 4 KiB, beside gloo",
            "2 members, 16 MiB, beside gloo",
            "4 members, 16 MiB, beside TensorFlow RING",
        ),
    ),
    Part(
        "Kernels on CPUs",
        "cpu",
        "Compiled kernels beside NumPy, `jax.jit` and `torch.compile`, float32, two threads.",
        ("60 operations", "NumPy kernels"),
        (
            "GELU chain, 10,000,000 float32",
            "softmax of rows, 4096 x 1024 float32",
            "MLP training step, 64 x 784-1024-1024-10",
            "transformer block, forward + backward, 8 x 128 x 256",
            "LeNet-5 training step, batch 64",
        ),
    ),
    Part(
        "Parts of the CPU code generator",
        "ablation",
        "A program with a part of the code generator and without it, in turn in one process: for each part the program in which it gains "
        "most ([all of them](concepts/kernels-cpu.md#ablation)). A part is kept if it saves 10 % in some program.",
        ("the library",),
        best=True,
    ),
    Part("Building graphs", "build", "Per node, in Python.", ("memory",), ("matmul, bias, relu",)),
    Part(
        "The first step",
        "first_step",
        "From a graph in Python to the first result: placing, partitioning, compiling and running it, in one process.",
        picture=("four chains, 100,000 nodes",),
    ),
    Part(
        "Checkpoints",
        "checkpoints",
        "Many small variables of one process, saved and restored by `Saver`, beside the same values as one safetensors file, which has "
        "neither a graph nor devices to ask.",
    ),
    Part(
        "Pipelines",
        "pipeline",
        "Six layers on two processes, 8 micro-batches ([how](guides/automatic-placement.md#pipelines)).",
        ("memory", "the same"),
    ),
)


def recorded(part: Part) -> dict[str, Any] | None:
    """What the file of a part says; None: it was not recorded."""
    path = RESULTS / f"{part.file}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def rows_of(part: Part) -> Iterator[dict[str, Any]]:
    """The rows that a part shows."""
    best: dict[str, dict[str, Any]] = {}
    for row in (recorded(part) or {"rows": []})["rows"]:
        said = f"{row['name']} {row['peer_name']}"
        if row["peer"] is None or any(word in said for word in part.leave_out):
            continue
        if not part.best:
            yield row
        elif row["peer_name"] not in best or speed_up(row) > speed_up(best[row["peer_name"]]):
            best[row["peer_name"]] = row
    yield from best.values()


def speed_up(row: dict[str, Any]) -> float:
    """The speed-up of a row: Dovetail over its peer."""
    ratio = float(row["ratio"])
    return 1.0 / ratio if row["unit"] in TIMES else ratio


def target(row: dict[str, Any]) -> str:
    """The target of a row, as a speed-up."""
    if not row["target"]:
        return ""
    limit = float(row["target"].split()[-1])
    factor = 1.0 / limit if row["unit"] in TIMES else limit
    return f"{factor:.3g}" if row["met"] else f"**{factor:.3g}, not reached**"


def number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(part: Part) -> str:
    """The rows of a part."""
    lines = ["| | Dovetail | peer | | speed-up | target |", "| --- | ---: | ---: | --- | ---: | ---: |"]
    for row in rows_of(part):
        mine, theirs = (f"{number(row[key])} {row['unit']}" for key in ("dovetail", "peer"))
        name = row["name"].partition(", beside")[0]
        lines.append(f"| {name} | {mine} | {theirs} | {row['peer_name']} | {speed_up(row):.3g} | {target(row)} |")
    return "\n".join(lines)


def _measured_on(found: dict[str, Any]) -> str:
    """The date of a record, or the first and the last one of its rows."""
    first, last = found.get("since", found["time"])[:10], found["time"][:10]
    return last if first == last else f"{first} to {last}"


def page() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for part in PARTS:
        found = recorded(part)
        if found is None:
            continue
        machine = found["machine"]
        when = f"`{part.command or f'bench/{part.file}.py'}`, {_measured_on(found)}, {machine['cpu']}, {machine['cores']} cores."
        parts.append(f"## {part.title}\n\n{wrapped(f'{part.text} {when}')}\n\n{table(part)}\n")
    elsewhere = wrapped(
        "Search against the best values known, and predicted against measured steps: "
        f"[automatic placement](guides/automatic-placement.md#how-good-it-is). {planning()} {operations()} An "
        "hour's use of a cluster whose clients are killed: `bench/results/soak.json`. What a GPU's step costs the host, with a driver that "
        "does nothing: `bench/results/gpu_host.json`."
    )
    parts.append(f"## Elsewhere\n\n{elsewhere}\n")
    return "\n".join(parts)


def planning() -> str:
    """What planning on many devices takes, in words."""
    rows = json.loads((RESULTS / "place.json").read_text(encoding="utf-8"))["rows"]
    measured = {row["name"]: row["dovetail"] for row in rows}
    name = max((n for n in measured if n.endswith(" GPUs")), key=lambda n: int(n.split()[-2].replace(",", "")))
    return (
        f"Placing and partitioning {name} takes {measured[name]:.1f} s of processor time, its page {measured[f'{name}, page']:.0f} s and "
        f"{measured[f'{name}, size of the page']:.0f} MB; other sizes: `bench/results/place.json`."
    )


def operations() -> str:
    """How the times of single operations compare, in words."""
    rows = json.loads((RESULTS / "ops.json").read_text(encoding="utf-8"))["rows"]
    ratios = sorted(row["ratio"] for row in rows)
    fast, slow, middle = sum(r <= 1 for r in ratios), sum(r > 2 for r in ratios), ratios[len(ratios) // 2]
    return (
        f"Of {len(ratios)} single operations on one thread {fast} take at most the time of {rows[0]['peer_name']}, {slow} more than twice "
        f"as long; the median ratio of the times is {middle:.2f}: `bench/results/ops.json`."
    )


def _label(name: str) -> str:
    """What the picture calls a row."""
    return name.partition(", beside")[0] + IN_MEMORY * (name.startswith("transfer ") and "," not in name)


def picture() -> str:
    """Bars of the rows that parts name, each beside its fastest peer, on a logarithmic axis from the peer's speed."""
    shown: list[tuple[str, dict[str, Any] | None]] = []
    for part in PARTS:
        found = {row["name"]: row for row in sorted(rows_of(part), key=speed_up, reverse=True)}
        chosen = [found[name] for name in part.picture if name in found]
        if chosen:
            shown.append((part.title, None))
            shown += [(_label(row["name"]), row) for row in chosen]
    left, right, top, line = 330.0, 30.0, 26.0, 20.0
    width, height = 890.0, top + line * len(shown) + 10
    ratios = [speed_up(row) for _, row in shown if row is not None]
    least, most = min(0.8, *ratios), max(10.0, *ratios)
    scale = (width - left - right - 130) / math.log10(most / least)

    def x(times: float) -> float:
        return left + scale * math.log10(times / least)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        'aria-label="Speed-up over its peers, on one machine with two cores" style="max-width:100%"><style>',
        "text { font: 12px Helvetica, Arial, sans-serif; fill: #222; } .soft { fill: #667; } .head { font-weight: bold; }",
        ".bar { fill: #3b78d8; } .grid { stroke: #d5dae2; }",
        "@media (prefers-color-scheme: dark) { text { fill: #ddd; } .soft { fill: #99a; } .bar { fill: #6aa3f5; } "
        ".grid { stroke: #343c47; } }</style>",
    ]
    for mark in (1, 2, 5, 10, 20, 50, 100):
        if mark <= most:
            out.append(
                f'<line class="grid" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{top - 6:.0f}" y2="{height - 8:.0f}"/>'
            )
            out.append(f'<text class="soft" x="{x(mark):.1f}" y="{top - 11:.0f}" text-anchor="middle">{mark}×</text>')
    for i, (name, row) in enumerate(shown):
        y = top + line * i + 13
        if row is None:
            out.append(f'<text class="head" x="8" y="{y:.0f}">{escape(name)}</text>')
            continue
        times = speed_up(row)
        begin, end = sorted((x(1.0), x(times)))
        out.append(f'<text x="20" y="{y:.0f}">{escape(name)}</text>')
        size = f'width="{max(end - begin, 1.0):.1f}" height="14"'
        out.append(f'<rect class="bar" x="{begin:.1f}" y="{y - 11:.0f}" {size} rx="2"/>')
        out.append(
            f'<text class="soft" x="{end + 6:.1f}" y="{y:.0f}">{times:.3g}× {escape(row["peer_name"].partition("+")[0])}</text>'
        )
    out.append("</svg>\n")
    return "\n".join(out)


if __name__ == "__main__":
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
