"""Training sessions, which initialize variables, call hooks, save checkpoints and recover from lost tasks.

- `monitored_session`: the public sessions. They recreate the plain session when a task is lost.
- `session_manager`, `scaffold`: create, restore and initialize plain sessions.
- `session_run_hook`: the interface of hooks. `basic_session_run_hooks`, `checkpoint_hooks`: hooks.
- `coordinator`, `queue_runner`: the threads that fill queues.

`train` and `compat` may import it.
"""
