"""Optimizers that need several tasks: `sync_replicas_optimizer` (synchronous data parallelism), `pipeline_optimizer` (GPipe and 1F1B).

Programs get them as `dt.train`; only `train` imports it.
"""
