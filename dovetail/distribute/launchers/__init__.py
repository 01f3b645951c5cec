"""Modules that start the tasks of clusters on this machine, Ray, Slurm and Kubernetes.

    engines.py                reads a cluster file, and starts its cluster on an engine
    supervisor.py             `LocalSupervisor` restarts the tasks of this machine; `Supervisor` is its interface
    ray_cluster.py            `RayCluster`: a Ray actor per task, in a placement group
    slurm_cluster.py          `SlurmCluster`: a step in a Slurm job; the job's options and batch script
    kubernetes_manifests.py   manifests for `kubectl apply`: a StatefulSet per job
    kubectl.py                applies the manifests, and runs a program in a pod

The Python package of an engine is loaded when it is first used.

`dt.compile` and the command `dovetail` import them.
"""
