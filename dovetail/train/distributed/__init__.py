"""Optimizers that need several tasks: `sync_replicas_optimizer` (synchronous data parallelism), `pipeline_optimizer` (GPipe and 1F1B)."""
