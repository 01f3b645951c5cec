"""NoOps that only join control edges are passed over where that takes no more messages."""

import dovetail as dt
from dovetail.placer.partition.control_edges import bypassed_noops
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.prune import needed

A, B, W = (f"/job:{job}/replica:0/task:{i}/device:CPU:0" for job, i in (("ps", 0), ("ps", 1), ("worker", 0)))
AT = {"a": A, "b": B, "w": W}


def cut(graph, *targets):
    nodes = needed(graph, targets=targets)

    def device_of(node):
        return AT[node.name[0]]

    bypassed = bypassed_noops(nodes, device_of)
    found = partition(nodes, device_of, bypassed=bypassed)
    return {n.name for n in bypassed}, sorted((c.name, c.source, c.destination) for c in found.channels), found


def test_a_group_elsewhere_is_left_out():
    with dt.Graph().as_default() as graph:
        a, b = dt.constant(1.0, name="a"), dt.constant(1.0, name="b")
        with dt.control_dependencies([a, b]):
            join = dt.no_op("w_join")
        with dt.control_dependencies([join]):
            end = dt.constant(1.0, name="a_end")
    bypassed, channels, found = cut(graph, end.op)
    assert bypassed == {"w_join"}
    assert channels == [("^b", B, A)]
    assert list(found.partitions) == [A, B]
    # asked for by itself, it brings nobody any message
    assert cut(graph, join)[:2] == ({"w_join"}, [])


def test_joins_of_joins_are_followed_to_their_ends():
    with dt.Graph().as_default() as graph:
        with dt.control_dependencies([dt.constant(1.0, name="a"), dt.constant(1.0, name="a_2")]):
            first = dt.no_op("w_1")
        with dt.control_dependencies([first, dt.constant(1.0, name="b")]):
            second = dt.no_op("w_2")
        with dt.control_dependencies([second]):
            end = dt.constant(1.0, name="a_end")
    bypassed, channels, _ = cut(graph, end.op)
    assert bypassed == {"w_1", "w_2"}
    assert channels == [("^b", B, A)]


def test_a_join_that_saves_messages_stays():
    with dt.Graph().as_default() as graph:
        with dt.control_dependencies([dt.constant(1.0, name="a"), dt.constant(1.0, name="b")]):
            join = dt.no_op("a_join")
        with dt.control_dependencies([join]):
            ends = [dt.constant(1.0, name="w_end").op, dt.constant(1.0, name="a_end").op]
    bypassed, channels, _ = cut(graph, *ends)
    assert bypassed == set()
    assert channels == [("^a_join", A, W), ("^b", B, A)]


def test_without_anybody_elsewhere_nothing_changes():
    with dt.Graph().as_default() as graph, dt.control_dependencies([dt.constant(1.0, name="a")]):
        join = dt.no_op("a_join")
    assert cut(graph, join)[:2] == (set(), [])
