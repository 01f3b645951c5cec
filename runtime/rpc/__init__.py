"""Requests and replies over the transport: servers answer, callers wait with limits, and both detect failures.

    dispatch        a server's side: `Responder` (replies, errors, messages to other tasks), `RequestExecutor` (thread pools),
                    `Quota` (limits per client)
    pending_call    a client's side: `call` and `PendingReplies` wait for replies and ping the tasks that owe one
    failure_detector  which tasks are silent or were restarted: for callers, and for members of collectives
    liveness        a server's side: leases of sessions
    loss_detection  a worker's side: tensors and collectives' messages after a task's death, a cut link or a broken connection

`runtime/timeouts.py` has the constants of all failure detectors, and how they relate.
"""
