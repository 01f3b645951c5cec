"""Collective ops: their members run in one step each, which a row cannot say; runtime/collectives/test_coordinator.py has them."""

CASES = ()

_OPS = ("CollectiveReduce", "CollectiveGather", "CollectiveReduceScatter", "CollectiveBroadcast", "CollectiveBarrier")
EXEMPT = dict.fromkeys(_OPS, "runtime/collectives/test_coordinator.py")
