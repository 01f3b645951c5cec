"""How long each detector of failures waits, in one place. Nothing else in runtime/ has such a number.

What must hold between them:

- A user sets the *peer timeout* (`ConfigProto.peer_timeout_s`, 5 s by default): a call ends that long after the last sign of life.
- A caller pings each peer that owes it a reply every `PING_S`, so several pings fit into the smallest useful peer timeout.
- ZeroMQ ends a silent connection after `HEARTBEAT_TIMEOUT_MS`, and TCP a silent stream after `STREAM_SILENCE_MS`. Both are below the
  default peer timeout: a connection that is still up then proves that the process of a silent task runs (`transport/zmq_sockets.py`).
- A lost tensor is asked for every `ASK_S`. `STUCK_LINK_S` is more than `HEARTBEAT_TIMEOUT_MS`: ZeroMQ gets its chance to break a dead
  connection before the loss detector calls it cut.
- A lock of a shared variable is waited for half of the default peer timeout (`LOCK_TIMEOUT_S`): a process that was stopped while it
  held the lock gives an error of its own before the whole task counts as dead.
- Members of collectives ask each other for heartbeats, and for their counts of messages, every `PING_S`, too. A member that says for
  `DEAF_S` that it hears nothing of us is cut off in one direction; four heartbeats fit into that.
- Clients are given up far later than tasks, since only memory is at stake: steps after `SILENT_S` (60 pings), sessions after
  `LEASE_S`, which a living client renews every `TOUCH_S`.
"""

from __future__ import annotations

from typing import Final

# Calls: a client, or a master that waits for workers (`rpc/pending_call.py`, `rpc/failure_detection.py`).
PING_S: Final = 0.5  # between two pings to a task that is waited for
LOOKS: Final = 5  # at the tasks that are waited for, at least, within a peer timeout
REASONS_TIMEOUT_S: Final = 0.5  # for tasks to say what a step waits for, after its time is over
AGAIN_S: Final = 0.5  # between two questions to a server that need not have started
CONTROL_TIMEOUT_S: Final = 60.0  # for one call between servers, such as registering a large part
CLOSE_S: Final = 1.0  # for closing a session: a dead master has lost the session anyway
ANSWER_S: Final = 5.0  # for the first answer of a task that was started; a running task answers at once
STATUS_S: Final = 2.0  # for the state of all tasks, which people wait for

# Connections (`transport/`).
HEARTBEAT_MS: Final = 1_000  # between ZeroMQ's heartbeats
HEARTBEAT_TIMEOUT_MS: Final = 4_000  # for ZeroMQ to end a silent connection; less for a less patient client
ADMISSION_S: Final = 5.0
"""A server that has accepted a connection with keys, and is silent for so long, has refused the key: a busy one is as silent."""
STREAM_SILENCE_MS: Final = 4_000  # the same for a stream over TCP, by the kernel's keep-alive
STREAM_ANSWER_S: Final = 30.0  # for the answer to a stream's token: a kernel may hold the server's interpreter
MONITOR_GRACE_S: Final = 0.75  # a disconnection seen so long after a moment may be older: the monitor is polled
ENDING_S: Final = 0.03  # for the peers of a server that closes to close, too: nothing is sent to those any more

# Tensors between workers (`rpc/failure_detection.py`).
ASK_S: Final = 1.0  # between two questions about the same overdue tensor
CONFIRM_S: Final = 0.2
"""Between two reports of the same loss, at least: a task that could not answer for a while reports several times at once."""
STUCK_LINK_S: Final = 5.0
"""A link on which nothing leaves for so long is cut, at the earliest: the sender does not see how much of a chunk has arrived."""

# Members of a collective (`rpc/failure_detection.py`).
DEAF_S: Final = 2.0  # a member that hears nothing of us for so long is cut off from us

# Replication (`worker/replication.py`).
BEAT_S: Final = 0.5
"""Between two messages to the backup while nothing changes: so it notices a backup that has started anew."""
COMMIT_TIMEOUT_S: Final = 30.0
"""A step whose updates the backup does not confirm fails after this: long enough to start a task again."""
RETRY_S: Final = 0.2  # between two calls of a backup that does not answer
WARN_S: Final = 10.0  # between two warnings that it does not

# Locks of shared variables (`shared_memory/shared_variable.py`).
LOCK_TIMEOUT_S: Final = 2.5  # half of the default peer timeout
CLOSE_LOCK_TIMEOUT_S: Final = 0.2  # when the owner takes the variable back: a running holder releases the lock at once

# A server's own life (`server/server.py`).
DEAD_S: Final = 30.0  # without a tick of the I/O thread, which comes several times a second

# Clients, as servers see them (`rpc/dispatch.py`, `master/handlers.py`).
SILENT_S: Final = 30.0  # steps of a client end when it has given no sign of life for so long
LEASE_S: Final = 300.0  # a session lives so long after its client named it last, and longer while the connection is up
TOUCH_S: Final = 60.0  # a client that runs steps mentions its session this often
