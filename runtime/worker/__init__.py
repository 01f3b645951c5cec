"""The worker service of a task: it keeps compiled programs and state, and runs the task's part of each step.

    worker.py             `Worker`: sessions, registered programs, running steps; the servers of this process, to which sessions hand steps
    handlers.py           requests of clients (run, abort) and of masters (register, release, publish)
    tensor_exchange.py    messages between workers during steps: tensors, GPU memory, lost and unreadable tensors
    step_scheduler.py     which thread runs which segment of a program; send coalescing; the inline fast path
    step.py               `TaskStep`: the rendezvous and the lifetime of one step; one that records its events for a trace
    executor.py           `Executor`: the interpreter of one program, which suspends where it must wait; a kernel that runs concurrently
    registration.py       the payload of a `register` message and its codec
    replication.py        keeps the values of a parameter server's variables on the next one, too

Masters, servers and sessions import it. It does not use sockets: the server passes it the contents of messages, and it sends
through callbacks.
"""
