"""Requests and replies over the transport: servers answer, callers wait with limits, and both detect failures.

    dispatch           a server's side: `Responder` (replies, errors, messages to other tasks), `RequestExecutor` (thread pools),
                       `Limit` (limits per client)
    pending_call       a client's side: `call` and `PendingReplies` wait for replies and ping the tasks that owe one
    failure_detection  silent and restarted tasks; tensors and collectives' messages that were lost

`runtime/timeouts.py` has the constants of all failure detectors, and how they relate.

Collectives, worker, master, server and session may import it.
"""
