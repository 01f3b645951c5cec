"""One member of an all-reduce, in one of the systems: `python bench/_collectives.py SYSTEM RANK PORT,PORT,...`

For each line `SIZE WARM COUNT` of its input it sums a float32 array over all members, SIZE bytes, WARM + COUNT times. Rank 0 answers
with the seconds of each of the last COUNT, as JSON. Behind COUNT, Dovetail takes the name of another collective: `all_gather` or
`reduce_scatter`. The top of this file needs the standard library only.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _switches import turn_off


class Step:
    """A step of a session that is closed when the step is not needed any more."""

    def __init__(self, session: Any, run: Callable[[], Any]) -> None:
        self._session, self._run = session, run

    def __call__(self) -> Any:
        return self._run()

    def __del__(self) -> None:
        self._session.close()


def dovetail(rank: int, ports: list[int]) -> Callable[..., Callable[[], Any]]:
    """Dovetail: a collective op in a session to the member's own server."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import dovetail as tf
    from dovetail.graph.ops.state import collectives

    turn_off()
    members = [f"/job:worker/task:{i}/cpu:0" for i in range(len(ports))]
    server = tf.train.Server({"worker": [f"localhost:{p}" for p in ports]}, "worker", rank)
    config = tf.ConfigProto(device_filters=[f"/job:worker/task:{rank}"])

    def prepare(size: int, kind: str = "all_reduce") -> Callable[[], Any]:
        with tf.Graph().as_default(), tf.device(members[rank]):
            v = tf.get_variable(f"v{size}", initializer=tf.ones([size // 4]), use_resource=True)
            total = getattr(collectives, kind)(v, members, rank, instance=f"{kind} {size}")
            session = tf.Session(server.target, config=config)
            session.run(v.initializer)
            return Step(session, session.make_callable(total.op))

    return prepare


def tensorflow(rank: int, ports: list[int]) -> Callable[[int], Callable[[], Any]]:
    """TensorFlow: MultiWorkerMirroredStrategy with RING, in a tf.function."""
    cluster = {"worker": [f"localhost:{p}" for p in ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)

    def prepare(size: int) -> Callable[[], Any]:
        with strategy.scope():
            v = tf.Variable(tf.ones([size // 4]))

        @tf.function  # type: ignore[untyped-decorator,unused-ignore]
        def step() -> Any:
            def replica() -> Any:
                total = tf.distribute.get_replica_context().all_reduce("SUM", v.read_value())
                return tf.reshape(total, [-1])[0]

            return strategy.run(replica)

        return lambda: float(strategy.experimental_local_results(step())[0])

    return prepare


def gloo(rank: int, ports: list[int]) -> Callable[[int], Callable[[], Any]]:
    """PyTorch: gloo, in place."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{ports[0]}", rank=rank, world_size=len(ports))

    def prepare(size: int) -> Callable[[], Any]:
        x = torch.ones(size // 4)

        def run() -> None:
            dist.all_reduce(x)

        return run

    return prepare


def main() -> None:
    """Measure until the input ends."""
    system, rank, ports = sys.argv[1], int(sys.argv[2]), [int(p) for p in sys.argv[3].split(",")]
    prepare = {"dovetail": dovetail, "tensorflow": tensorflow, "gloo": gloo}[system](rank, ports)
    known: dict[tuple[str, ...], Callable[[], Any]] = {}
    for line in sys.stdin:
        size, warm, count, *kind = line.split()
        what, warm, count = (size, *kind), int(warm), int(count)
        if what not in known:
            known = {what: prepare(int(size), *kind)}  # the array of the size before goes
        run, seconds = known[what], []
        for i in range(warm + count):
            began = time.perf_counter()
            run()
            if i >= warm:
                seconds.append(time.perf_counter() - began)
        if rank == 0:
            print("RESULT " + json.dumps(seconds), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
