"""The client side: a session prepares a signature at its first run, and then runs steps.

    session.py           `Session`: the public class
    fetches.py           converts users' fetches and feeds to names and back
    prepared_steps.py    the cache of prepared signatures; the interface of backends; restarts of tasks
    local_backend.py     runs steps in this process, without servers
    cluster_backend.py   runs steps on a cluster of servers: messages, answers, abort
    partial_run.py       one step in several calls
    functions.py         compiles graphs to functions that kernels of data sets call
    profiling.py         measures devices, links and steps

The public packages import it. It does not import `server`, nor `server` it.
"""
