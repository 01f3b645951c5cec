"""The process around a master and a worker, and clusters of such processes.

    server.py          `Server`: one task of a cluster; the table of message kinds and their handlers
    process.py         the program of a plain task (`python -m dovetail.runtime.server.process`)
    running_cluster.py what clusters have in common that a process starts; the state of all tasks of a cluster, seen from outside
    local_cluster.py   `LocalCluster`: a cluster of processes on this machine

The public packages import it. It does not import `session`, nor `session` it.
"""
