"""Requests and replies over the transport: who answers, how long a caller waits, and how failures are noticed.

    dispatch        a server's side: `Responder` (replies, errors, messages to other tasks), `RequestExecutor` (thread pools),
                    `Quota` (limits per client)
    pending_call    a client's side: `call` and `PendingReplies` wait for replies and ping whoever owes one
    liveness        a server's side: leases of sessions, and the registry of clients whose steps run here
    loss_detection  a worker's side: tensors that are overdue, from a task that died, a cut link or a broken connection

`runtime/timeouts.py` has the constants of all detectors, and how they relate.
"""
