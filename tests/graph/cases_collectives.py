"""Collective ops: their members run in one step each, which a row cannot say; test_collectives.py has them."""

CASES = ()

_OPS = ("CollectiveReduce", "CollectiveGather", "CollectiveReduceScatter", "CollectiveBroadcast", "CollectiveBarrier")
EXEMPT = dict.fromkeys(_OPS, "test_collectives.py")
