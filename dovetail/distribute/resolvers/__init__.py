"""Where a strategy learns of its cluster: `cluster_resolver` (TF_CONFIG, Slurm, Kubernetes and others).

`roles` parses the variable TF_CONFIG, and says what a task of a cluster does: chief, worker, evaluator, parameter server.
"""
