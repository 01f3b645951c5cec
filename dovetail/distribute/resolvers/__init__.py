"""Cluster resolvers, from which a strategy gets its cluster: `cluster_resolver` (TF_CONFIG, Slurm, Kubernetes and others).

`roles` parses the variable TF_CONFIG, and defines the roles of tasks: chief, worker, evaluator, parameter server.

`distribute` and its launchers, `compat` and the command `dovetail` may import it.
"""
