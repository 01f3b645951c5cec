"""Cluster resolvers, by which a process finds its cluster and its task.

- `cluster_resolver`: resolvers for TF_CONFIG, Slurm, Kubernetes and others.
- `roles`: parses TF_CONFIG, and defines the roles of tasks: chief, worker, parameter server, evaluator.

`distribute` and its launchers, `compat` and the command `dovetail` may import it.
"""
