"""The master service of a session: it turns a run signature (fetches, targets, feeds) into programs on tasks.

    master.py         `Master`: place, partition, lower and register; it takes no part in the steps themselves. One-sided access:
                      which variables are read and updated in the memory of another task
    handlers.py       requests of clients: sessions, graphs, plans; leases and limits of sessions
    workers.py        how a master reaches the workers of a cluster; finds out which tasks have started
    lowering.py       turns a partition into the program that its task registers

Servers and sessions import it. It imports the placer and `worker`.
"""
