"""The cluster that a graph is placed on.

    spec.py   `ClusterSpec` (jobs, tasks, addresses) and `Cluster` (devices with memory and speed, links between tasks)
    load.py   reads clusters: mappings, YAML files, numbers of tasks, running servers

All packages of the placer may import it. It imports none of them.
"""
