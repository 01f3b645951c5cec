"""Partitioning: a placed graph becomes, for every device, the steps that it runs, joined by channels.

A value that another device needs is sent right after it is made and received just before its first use. It
crosses once per destination, however many nodes there use it. Between tasks the destination is the *task*: a
value that two devices of a remote task need crosses the network once, to the device that uses it first, and
is sent on from there inside the task. A control edge crosses as an empty message of its own.

The steps of all partitions follow one global order of the graph's nodes, in which every send stands before
its receive. So no set of partitions can wait for each other in a circle: the step that comes first in the
global order can always run.

A reference (the place of a TF1 variable) does not travel; its value does, read at the moment in the global
order at which the consumer uses it. So a graph gives the same numbers on one device and on twenty. Such
reads are not shared between consumers.

Fed values come straight from the client to every partition that needs them; they never cross between devices.
Nor need small constants cross between tasks: each device that needs one can have its own copy of the node.

A loop stands in one piece, in every partition that takes part in it: a mark at its begin, what this device
does in each iteration, up to the point where the LoopCond is known, a mark there, the rest, a mark at its
end. Every device that takes part is sent the LoopCond, so that it knows when to stop. A value that comes from
outside the loop crosses before it, once; a value that is made inside crosses once per iteration. A dead value
crosses too, as a message that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...graph.core.frames import has_control_flow
from ...graph.core.graph import Node, Tensor
from .insert_channels import ChannelInserter, inserter_with_loops
from .partitioned_graph import Partitioned


def partition(
    nodes: Sequence[Node],
    device_of: Callable[[Node], str],
    *,
    feeds: Iterable[Tensor] = (),
    fetches: Iterable[Tensor] = (),
    enable_bfloat16_sendrecv: bool = False,
    bypassed: Mapping[Node, tuple[Node, ...]] | None = None,
    copies: bool = False,
) -> Partitioned:
    """Partition what one step runs by device.

    Args:
        nodes: the nodes to run, in an order in which inputs come first (`needed`).
        device_of: complete device name of a node; nodes that share a place of state share a device.
        feeds: tensors that the client gives.
        fetches: tensors that the client gets; one that is fed comes back without any partition.
        enable_bfloat16_sendrecv: float32 values cross as bfloat16: half the bytes, a relative error of up to 2**-9.
        bypassed: nodes that do not run, each with those to wait for in its place (`control_edges.bypassed_noops`).
        copies: small constants do not cross between tasks: each device that needs one has a copy of the node. Steps with
            branches or loops send theirs.

    Returns:
        the partitions of the devices that have something to run, in the order in which they first do, and the
        channels.
    """
    fed = set(feeds)
    fetched = [t for t in dict.fromkeys(fetches) if t not in fed]
    if not has_control_flow(nodes):
        inserter = ChannelInserter(
            fed, {n.index: device_of(n) for n in nodes}, enable_bfloat16_sendrecv, bypassed or {}, copies
        )
        for node in nodes:
            if not (bypassed and node in bypassed):
                inserter.add(node)
    else:
        inserter = inserter_with_loops(nodes, device_of, fed, fetched, enable_bfloat16_sendrecv)
    return inserter.result(fetched)
