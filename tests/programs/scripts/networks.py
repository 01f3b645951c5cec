"""A cluster whose tasks have a network of their own each, as if they were machines. Run by `test_networks.py` in a fresh user and
network namespace: `unshare --map-root-user --net python networks.py KEYS`.

One bridge joins the networks. The parameter servers are plain servers, the workers those of the demo; every task and the client has
keys of its own. Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import dovetail as tf
from dovetail.runtime.transport.keys import part_of, revoke, write_cluster, write_keys
from dovetail.runtime.transport.zmq_sockets import new_key_pair
from dovetail.tools.demo.worker import build

STEPS = 300
CLIENT = "10.77.0.1"
CLUSTER = {
    "ps": ["10.77.0.11:2222", "10.77.0.12:2222"],
    "worker": ["10.77.0.21:2222", "10.77.0.22:2222"],
}


def ip(*words: str, inside: int | None = None) -> None:
    """Run `ip`, in the network of a process or here."""
    enter = [] if inside is None else ["nsenter", "-t", str(inside), "-n"]
    subprocess.run([*enter, "ip", *words], check=True)


def network(stack: ExitStack, number: int, address: str) -> int:
    """A network with one address, joined to the bridge; gives a process that is inside, and keeps it."""
    holder = stack.enter_context(subprocess.Popen(["unshare", "--net", "sleep", "600"]))
    stack.callback(holder.kill)
    while Path(f"/proc/{holder.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
        time.sleep(0.01)
    ip("link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
    ip("link", "set", f"veth{number}", "master", "bridge0", "up")
    ip("addr", "add", f"{address}/24", "dev", "eth0", inside=holder.pid)
    for device in ("lo", "eth0"):
        ip("link", "set", device, "up", inside=holder.pid)
    return holder.pid


def main(folder: Path) -> None:
    """Make the networks, start the cluster, train, look at it with and without a key."""
    tasks = [(job, i, address) for job, addresses in CLUSTER.items() for i, address in enumerate(addresses)]
    pairs = iter(new_key_pair, None)
    keys = folder / "keys"
    write_cluster(keys, [(part_of(job, i), a) for job, i, a in tasks], ["client", "alice"], pairs)
    write_keys(folder / "stranger", "stranger", new_key_pair())
    found: dict[str, object] = {}
    with ExitStack() as stack:
        ip("link", "set", "lo", "up")
        ip("link", "add", "bridge0", "type", "bridge")
        ip("addr", "add", f"{CLIENT}/24", "dev", "bridge0")
        ip("link", "set", "bridge0", "up")
        logs = {}
        running = {}
        for number, (job, i, address) in enumerate(tasks):
            inside = network(stack, number, address.partition(":")[0])
            place = {"cluster": CLUSTER, "task": {"type": job, "index": i}}
            command = (
                [sys.executable, "-m", "dovetail.tools.demo.worker", "--steps", str(STEPS)]
                if job == "worker"
                else [sys.executable, "-m", "dovetail", "server"]
            )
            logs[job, i] = folder / f"{job}-{i}.log"
            output = stack.enter_context(logs[job, i].open("wb"))
            # Each task gets its own part of the keys, as it would on a machine of its own.
            environment = {
                **os.environ, "TF_CONFIG": json.dumps(place), "DOVETAIL_KEYS": str(keys / part_of(job, i)),
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            }  # fmt: skip
            running[job, i] = process = stack.enter_context(
                subprocess.Popen(
                    ["nsenter", "-t", str(inside), "-n", *command],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )  # fmt: skip
            )
            stack.callback(process.kill)
        target = f"zmq://{CLUSTER['worker'][0]}"
        config = tf.ConfigProto(keys=str(keys / "client"), wait_for_cluster_s=60.0, peer_timeout_s=30.0)
        replica = build(tf.train.ClusterSpec(CLUSTER), 0)
        deadline = time.monotonic() + 120
        with tf.Session(target, config=config) as session:
            while not all(b"finished" in logs["worker", i].read_bytes().lower() for i in range(2)):
                if time.monotonic() > deadline or any(p.poll() is not None for p in running.values()):
                    break
                time.sleep(0.2)
            found["steps"] = int(session.run(replica.global_step))
        for name, given in (("nobody", ""), ("stranger", str(folder / "stranger"))):
            try:
                tf.Session(target, config=tf.ConfigProto(keys=given, peer_timeout_s=2.0))
                found[name] = "was let in"
            except tf.errors.OpError as e:
                found[name] = f"{type(e).__name__}: {e}"
            except PermissionError as e:
                found[name] = f"PermissionError: {e}"
        with tf.Session(target, config=tf.ConfigProto(keys=str(keys / "alice"), peer_timeout_s=2.0)) as alice:
            step = replica.global_step
            alice.run(step)
            revoke(keys, "alice")
            time.sleep(2.5)
            try:
                alice.run(step)
                found["revoked"] = "was let in"
            except tf.errors.OpError as e:
                found["revoked"] = type(e).__name__
        found["logs"] = {f"{job}-{i}": path.read_text(errors="replace") for (job, i), path in logs.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
