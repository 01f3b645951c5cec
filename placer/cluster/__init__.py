"""The cluster that a graph is placed on.

    spec.py          `ClusterSpec` (jobs, tasks, addresses) and `Cluster` (devices with memory and speed, links between tasks)
    file_format.py   what a cluster file holds: the types it is checked against, and the JSON schema for editors
    calibration.py   a machine's profile: what kernels, launches and messages take on it
    load.py          reads clusters: mappings, YAML files, numbers of tasks, running servers

All packages of the placer may import it. It imports none of them.
"""
