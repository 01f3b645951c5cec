"""Placement by rules, as TensorFlow's placer works: requests, colocation and kernels restrict the devices of a node; rules choose.

    replica_device_setter.py   a device function that spreads variables over parameter servers
    colocation.py              groups of nodes that must share a device (union-find)
    constraints.py             the merged request of a group, and the devices that meet it
    place.py                   the pass: one device for each group, with the rule that chose it
    placement.py               the result: `Placement`, and a `Decision` per node
    provenance.py              what a decision depends on, as data that can be saved
    unsat_core.py              the smallest contradictory set of requests (QuickXplain), and remedies
    diagnostics.py             decisions and errors as text

Search, serialization and views may import it. It imports `cluster`.
"""
