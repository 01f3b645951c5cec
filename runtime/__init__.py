"""Running a plan on one machine or many: tasks push tensors as soon as they exist, and a dead peer ends a step instead of hanging it.

The packages, lowest first. Each may import those above it in this list, never those below:

    wire            messages: their schema, their bytes, chunks of large ones. Pure: no sockets, no clocks
    shared_memory   tensors and variables that processes of one machine map: segments, pools, published variables, CUDA IPC
    transport       bytes between processes: the only sockets, and who may connect
    rpc             requests and replies: dispatch, limits per client, pending calls, failure and loss detection
    observability   what tasks and steps report: metrics, step notes, traces, timelines
    config          ConfigProto, RunOptions, RunMetadata
    collectives     collective operations over messages, shared memory and NCCL
    worker          runs partitions: executor, rendezvous, step scheduler
    master          places and partitions graphs, registers partitions with workers
    server          a task's process: wiring, dispatch, local clusters, monitoring
    session         the public Session, and what runs its steps: in this process or on a cluster

`logs` (formats of log lines) and `timeouts` (how long each detector waits) are below all of them.
"""
