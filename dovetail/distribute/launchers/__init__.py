"""Clusters on Ray, Slurm and Kubernetes: modules that start tasks there.

    engines.py                a cluster file, and the cluster that it describes, on any engine
    supervisor.py             `Supervisor` restarts the tasks of this machine; the interface that Ray's and Slurm's jobs share with it
    ray_cluster.py            `RayCluster`: a Ray actor per task, in a placement group
    slurm_cluster.py          `SlurmCluster`: a step in a Slurm job; the job's options and batch script
    kubernetes_manifests.py   manifests for `kubectl apply`: a StatefulSet per job
    kubectl.py                applies the manifests, and runs a program in a pod

An engine's own package is loaded when it is used.

`dt.compile` and the command `dovetail` import them.
"""
