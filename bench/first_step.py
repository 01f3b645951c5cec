"""What the first step of a large graph costs: placing, partitioning, compiling and running it once, beside TensorFlow.

The graph has 100,000 additions over 4 CPU devices of one task: four parallel chains, or one chain that changes device at every node.
TensorFlow runs without its graph optimiser, which would take it several times longer. Each system gets a fresh process per round.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from _harness import Row, main, peer_python, row
from _processes import SETTINGS, load, version_of

DEVICES = 4


def rows(quick: bool) -> Iterator[Row]:
    """One row per graph: seconds of the first `run`."""
    nodes, rounds = (20_000, 1) if quick else (100_000, 3)
    for name, shape in (("four chains", "chains"), ("a chain that changes device at each node", "hops")):
        ours: list[float] = []
        theirs: list[float] = []
        title = ""
        for _ in range(rounds):
            ours.append(_first_step("dovetail", sys.executable, shape, nodes)["seconds"])
            peer = _first_step("tensorflow", peer_python(), shape, nodes)
            if "missing" in peer:
                print(f"TensorFlow not installed: peer column empty ({peer['missing']})", file=sys.stderr)
            else:
                theirs.append(peer["seconds"])
                title = f"TensorFlow {peer['version']}"
        median = statistics.median(theirs) if theirs else None
        yield row(f"{name}, {nodes:,} nodes", "s", statistics.median(ours), median, title, "ratio <= 0.4")


def _first_step(system: str, python: str, shape: str, nodes: int) -> dict[str, Any]:
    command = [python, __file__, system, shape, str(nodes)]
    done = subprocess.run(command, env=os.environ | SETTINGS, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(system: str, shape: str, nodes: int) -> dict[str, Any]:
    """Build the graph and time its first step, in this process."""
    try:
        tf = load(system)
    except ImportError as e:
        return {"missing": str(e)}
    config = tf.ConfigProto(device_count={"CPU": DEVICES})
    if system == "tensorflow":
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
    ends = []
    with tf.device("/cpu:0"):
        x = tf.placeholder(tf.float32, [])  # fed, so that nothing can be computed beforehand
    if shape == "chains":
        for d in range(DEVICES):
            with tf.device(f"/cpu:{d}"):
                y = x
                for _ in range(nodes // DEVICES):
                    y = y + y
            ends.append(y)
    else:
        y = x
        for i in range(nodes):
            with tf.device(f"/cpu:{i % DEVICES}"):
                y = y + y
        ends.append(y)
    with tf.Session(config=config) as session:
        began = time.perf_counter()
        session.run(ends, {x: 0.0})
        return {"seconds": time.perf_counter() - began, "version": version_of(tf)}


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in ("dovetail", "tensorflow"):
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        main("The first step of a large graph", rows)
