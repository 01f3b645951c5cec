"""A model on two parameter servers and two workers: its cluster, its devices, and its graph."""

import numpy as np

import dovetail as dt

PS0, PS1, W0, W1 = (
    f"/job:{j}/replica:0/task:{t}/device:CPU:0" for j, t in (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1))
)
CLUSTER = {"ps": 2, "worker": 2}


def model(balanced=True, reads=1):
    """Two tables on two servers, worked on by two workers."""
    with dt.Graph().as_default() as g:
        made = []
        for i in range(2):
            with dt.device(f"/job:ps/task:{i if balanced else 0}"):
                v = dt.Variable(np.zeros((200, 200), "float32"), use_resource=True, name=f"v{i}")
            with dt.device(f"/job:worker/task:{i}"):
                made.append(dt.add_n([dt.matmul(v.read_value(), v.read_value()) for _ in range(reads)]))
    return g, made
