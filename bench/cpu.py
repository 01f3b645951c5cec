"""Fused CPU kernels beside NumPy, jax.jit, torch.compile and TensorFlow: the same arithmetic, the same data, the same number of cores.

JAX, PyTorch and TensorFlow are no dependencies. They are found in the running interpreter, or in another one that `--peer-python PATH`
(or the environment variable DOVETAIL_PEER_PYTHON) names; the rows of one that is missing are left out. Single
convolutions, with both gradients, are beside PyTorch alone, which has them from oneDNN. The rows of 16 elements compare Dovetail with
itself without fusion: there fusing must not cost anything.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import _convolutions
from _harness import Row, calls_per_sample, main, measure, peer_python, row
from _kernels import System

# workload -> its name, and the target of Dovetail's ratio to each peer
WORKLOADS = {
    "gelu": ("GELU chain, 10,000,000 float32", {"numpy": 0.2, "jax": 1.0, "torch": 1.0}),
    "softmax": ("softmax of rows, 4096 x 1024 float32", {"numpy": 0.334, "jax": 1.0, "torch": 1.0}),
    "mlp": ("MLP training step, 64 x 784-1024-1024-10", {"jax": 1.0, "torch": 1.0, "dovetail-numpy": 1.0}),
    "block": ("transformer block, forward + backward, 8 x 128 x 256", {"jax": 1.0, "torch": 1.0}),
    "lenet": ("LeNet-5 training step, batch 64", {"jax": 1.5, "torch": 1.5}),
    "lstm-forward": ("LSTM by dynamic_rnn, forward, 32 x 50 x 64, 128 units", {"tensorflow": 1.0}),
    "lstm": ("LSTM by dynamic_rnn, forward + backward, 32 x 50 x 64, 128 units", {"tensorflow": 1.0}),
    "unrolled": (
        "LSTM of 50 steps written out, forward + backward, 4 x 50 x 64, 128 units",
        {"jax": 1.0, "torch": 1.0},
    ),
    "tiny": ("60 operations on 16 elements", {"dovetail-numpy": 1.05}),
}
CONVOLUTIONS = 1.11  # the target of their ratios to PyTorch: 0.9 of its speed
TRAINED = ("mlp", "lenet")  # their parameters change from call to call
REST = 0.12  # seconds before a sample: threads of the other system's library spin for somewhat less after a call, on cores that this needs
SAMPLE_S = 0.01  # of calls that follow one another
FAR_OFF = 2e-2  # relative difference of what two systems computed that means that they did not compute the same


def rows(workload: str, quick: bool) -> Iterator[Row]:
    """One row per peer."""
    title, targets = WORKLOADS[workload]
    with ExitStack() as stack:
        ours = stack.enter_context(System("dovetail"))
        for name, target in targets.items():
            peer = stack.enter_context(
                System(name, peer_python()) if name in ("jax", "torch", "tensorflow") else System(name)
            )
            if is_there(name, peer):
                yield compared(workload, title, ours, peer, target, 5 if quick else 15)


def convolutions(quick: bool) -> Iterator[Row]:
    """One row per convolution and what is made of it, beside PyTorch."""
    with System("dovetail") as ours, System("torch", peer_python()) as peer:
        if is_there("torch", peer):
            for workload, title in _convolutions.WORKLOADS.items():
                yield compared(workload, title, ours, peer, CONVOLUTIONS, 5 if quick else 15)


def is_there(name: str, peer: System) -> bool:
    """Whether a peer can run; says so if not."""
    if peer.missing:
        print(f"{name} not installed: no row for it ({peer_python()}: {peer.missing})", file=sys.stderr)
    return not peer.missing


def compared(workload: str, title: str, ours: System, peer: System, target: float, rounds: int) -> Row:
    """Time one workload in both, in turn."""
    mine, theirs = ours.run(workload), peer.run(workload)
    if workload not in TRAINED and abs(mine - theirs) > FAR_OFF * abs(theirs):
        raise SystemExit(f"{title}: Dovetail and {peer.title} do not agree: {mine} and {theirs}")
    # Calls follow one another, as a program's steps do: in pauses between requests the threads would fall asleep.
    calls = calls_per_sample(lambda: ours.run(workload), SAMPLE_S, lambda: ours.seconds)
    peer_calls = calls_per_sample(lambda: peer.run(workload), SAMPLE_S, lambda: peer.seconds)
    seconds, peer_seconds = measure(
        lambda: ours.run(workload, calls), lambda: peer.run(workload, peer_calls),
        rounds=rounds, clock=lambda: ours.seconds + peer.seconds, rest=REST,
    )  # fmt: skip
    assert peer_seconds is not None
    milliseconds, peer_milliseconds = seconds / calls * 1e3, peer_seconds / peer_calls * 1e3
    return row(title, "ms", milliseconds, peer_milliseconds, peer.title, f"ratio <= {target:g}")


if __name__ == "__main__":
    main("CPU kernels", {name: partial(rows, name) for name in WORKLOADS} | {"convolutions": convolutions})
