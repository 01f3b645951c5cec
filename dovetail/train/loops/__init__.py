"""Sessions that train: they initialize, call hooks, save checkpoints and recover from lost tasks.

`monitored_session` is the public entry, and recreates its session when a task is lost; `session_manager` and `scaffold` make it.
`session_run_hook` is the interface of hooks. `basic_session_run_hooks` and `checkpoint_hooks` are hooks. `coordinator` and
`queue_runner` manage the threads that fill queues. `compat` and the package above may import it.
"""
