"""The master service of a session: it turns a run signature (fetches, targets, feeds) into programs on tasks.

    master.py           `Master`: place, partition, lower and register; then it is out of the way of the steps
    handlers.py         what clients ask of a master: sessions, graphs, plans; leases and limits of sessions
    worker_clients.py   how a master reaches the workers of a cluster
    remote_memory.py    one-sided access: which variables are read and updated in the memory of another task
    lowering.py         a partition becomes the program that its task registers
    session_state.py    what a master keeps of a session, and the interface to workers

Servers and sessions import it. It imports the placer and `worker`.
"""
