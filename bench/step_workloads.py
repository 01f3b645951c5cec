"""Writes workloads of single steps for `placement_quality.py`: conversions of layer profiles, and layered random graphs.

    python bench/step_workloads.py FOLDER [NAME=GRAPH.txt ...]

A profile is a `graph.txt` of PipeDream (Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP 2019; its
repository has those of resnext50, nasnetamobile and nasnetalarge under `profiler/image_classification/profiles`). Each becomes two
workloads: `step_NAME_inference.json`, and `step_NAME_training.json`, where each layer has a node for its gradients on the same device.
A step has four accelerators of 16 GB, and a host that is 20 times as slow. A tensor goes from one accelerator to another one with 12 GB/s.

Layered graphs (`step_layered_*.json`) have nodes of 0.5 to 2 seconds; each needs three of the layer before. They are the same every time.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

RATE = 12e9  # bytes per second from accelerator to accelerator
HOST = 20.0  # times as long as on an accelerator
MEMORY = 16e9
LAYERED = {"300": (25, 12, 4, 0.5), "300_cheap": (25, 12, 4, 0.15), "800": (40, 20, 8, 0.5), "100": (10, 10, 4, 0.5)}
"""Layers, nodes of each, accelerators, and seconds of half a transfer."""


def layered(layers: int, width: int, accelerators: int, cost: float, seed: int) -> dict[str, Any]:
    """A layered random graph as a workload."""
    draw = random.Random(seed)
    nodes = [_node(i, f"{i // width}.{i % width}", draw.uniform(0.5, 2.0)) for i in range(layers * width)]
    edges = [
        _edge((layer - 1) * width + source, layer * width + i, cost)
        for layer in range(1, layers)
        for i in range(width)
        for source in draw.sample(range(width), 3)
    ]
    return _workload(nodes, edges, accelerators)


def converted(text: str, *, training: bool) -> dict[str, Any]:
    """A profile as a workload."""
    layers: dict[str, tuple[str, dict[str, float]]] = {}
    joined: list[tuple[int, int]] = []
    number: dict[str, int] = {}
    for line in text.splitlines():
        name, *rest = line.strip().split(" -- ")
        if line.startswith("\t"):
            joined.append((number[name], number[rest[0]]))
        elif name:
            number[name] = len(number)
            figures = dict(entry.split("=") for entry in rest[-1].split(", "))
            sums = {key: sum(map(float, value.strip("[]").split("; "))) for key, value in figures.items()}
            layers[name] = rest[0], sums
    n = len(layers)
    half = [figures["activation_size"] / RATE / 2 for _, figures in layers.values()]  # into the host, or out of it
    nodes, back = [], []
    for i, (what, figures) in enumerate(layers.values()):
        node = _node(i, what, figures["forward_compute_time"] / 1e3, size=3 * figures["parameter_size"])
        gradients = _node(n + i, f"gradients of {what}", figures["backward_compute_time"] / 1e3)
        if training:
            node["colorClass"] = gradients["colorClass"] = i
            back.append(gradients | {"isBackwardNode": True})
        nodes.append(node)
    edges = [_edge(source, target, half[source]) for source, target in joined]
    if training:
        into = [0.0] * n  # the gradients of a layer's inputs are as large as the largest of these
        for source, target in joined:
            into[target] = max(into[target], half[source])
        edges += [_edge(n + target, n + source, into[target]) for source, target in joined]
        edges += [_edge(i, n + i, half[i]) for i in sorted(set(range(n)) - {source for source, _ in joined})]
    return _workload(nodes + back, edges, 4)


def _node(number: int, name: str, seconds: float, size: float = 0.0) -> dict[str, Any]:
    return {
        "id": number, "name": name, "supportedOnFpga": True, "cpuLatency": HOST * seconds, "fpgaLatency": seconds,
        "isBackwardNode": False, "size": size,
    }  # fmt: skip


def _edge(source: int, target: int, cost: float) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": cost}


def _workload(nodes: list[dict[str, Any]], edges: list[dict[str, Any]], accelerators: int) -> dict[str, Any]:
    return {"maxSizePerFPGA": MEMORY, "maxFPGAs": accelerators, "maxCPUs": 1, "nodes": nodes, "edges": edges}


def main() -> None:
    """Write the workloads."""
    parser = argparse.ArgumentParser(description="Workloads of single steps")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where they are written")
    parser.add_argument("profiles", nargs="*", metavar="NAME=GRAPH.txt", help="profiles to convert")
    args = parser.parse_args()
    written = {f"layered_{name}": layered(*shape, seed) for seed, (name, shape) in enumerate(LAYERED.items())}
    for profile in args.profiles:
        name, _, path = profile.partition("=")
        for training in (False, True):
            kind = "training" if training else "inference"
            written[f"{name}_{kind}"] = converted(Path(path).read_text(encoding="utf-8"), training=training)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, workload in written.items():
        (args.folder / f"step_{name}.json").write_text(json.dumps(workload), encoding="utf-8")
    print(f"{len(written)} workloads in {args.folder}")


if __name__ == "__main__":
    main()
