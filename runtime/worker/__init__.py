"""The worker service of a task: it keeps compiled programs and state, and runs the task's part of each step.

    worker.py             `Worker`: sessions, registered programs, running steps
    handlers.py           what clients (run, abort) and masters (register, release, publish) ask of a worker
    tensor_exchange.py    what workers send each other during steps: tensors, GPU memory, lost and unreadable tensors
    step_scheduler.py     which thread runs which segment of a program; send coalescing; the inline fast path
    traced_step.py        a step that takes notes for a trace
    step.py               `TaskStep`: the rendezvous and the lifetime of one step
    executor.py           `Executor`: the interpreter of one program, which suspends where it must wait
    async_kernel.py       a kernel that runs beside its program
    registration.py       the payload of a `register` message and its codec
    colocated.py          servers of this process: a session hands them steps without messages
    throttled_kernels.py  fault injection: kernels that are slower than they are

Masters, servers and sessions import it. It knows no sockets: messages' contents are handed to it, and it sends through callbacks.
"""
