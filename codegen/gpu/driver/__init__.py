"""The device layer: the GPUs of this process. Nothing here knows nodes or programs.

    api.py        the door to the CUDA driver (cuda-bindings): calls, error codes, how many GPUs there are; streams, events
    device.py     `Device`: one GPU with its streams, memory and copies; capture of CUDA graphs
    array.py      `DeviceArray`
    allocator.py  the caching allocator
    copies.py     host-device copies through pinned memory
    launch.py     compiled kernels, and launches with prepared arguments
    ipc.py        GPU memory shared with other processes (CUDA IPC)
    nccl.py       communicators of NCCL

The runtime imports `api`, `ipc` and `nccl`; importing them loads no library of NVIDIA's. All of it runs on a stand-in for the driver
(`api.use`), which is how it is tested without a GPU.
"""
