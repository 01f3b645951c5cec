"""Optimizers that need several tasks.

- `sync_replicas_optimizer`: synchronous data parallelism.
- `pipeline_optimizer`: pipeline parallelism with the schedules GPipe and 1F1B.

Programs use them through `dt.train`. Only `train` imports this package.
"""
