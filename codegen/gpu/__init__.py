"""The GPU back end: partitions as Triton kernels, CUDA graphs and calls of NCCL on one NVIDIA GPU.

    backend.py            `CudaBackend`: makes the kernels of works; the compiler passes of GPUs
    families.py           which family of kernels computes a node or fused group, and by which template
    transfers.py          pass: inserts copies between host and device
    horizontal_fusion.py  pass: one launch for many small optimizer updates (multi-tensor apply)
    graph_regions.py      pass: runs of launches become regions, each of which is captured and replayed as a CUDA graph
    kernels.py            launchers: inputs to the device, candidates compiled and tuned, one launch per call
    variables.py          variables in GPU memory: assignments, dense and sparse updates, gathers
    collectives.py        NCCL all-reduce, all-gather, broadcast
    residency.py          which tensors live in GPU memory and which on the host; kernels that launch nothing
    autotune.py           measures candidates and keeps the fastest on disk
    roofline.py           what a program's calls launch, and what that takes by binaries and the maker's figures; without a GPU
    schedule.py           chooses tiles, warps and blocks of loop nests, products, convolutions, attention and copies
    ir.py                 kernels, launches and routines as plain data

    ops/        ops and shapes -> routines of a template           emit/       loop nests -> Triton text
    templates/  kernels that are written by hand                   toolchain/  Triton text -> binaries, ahead of time
    driver/     the CUDA driver: memory, streams, copies, launches

`codegen/pipeline.py` and `codegen/explain.py` import this package, and only when there is a GPU to ask about. The runtime imports
`driver` alone. Nothing here imports Triton or CUDA before a kernel is compiled or a device is opened.
"""
