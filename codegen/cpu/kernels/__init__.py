"""The kernels of CPUs. A file `X` plans and launches; `X_source` holds the loops that Numba compiles (`emit.instantiate`).

    families               which family of kernels computes a node, and what makes its kernels; top-k
    fused                  kernels made by fusion, from loop nests
    node                   the common class of hand-written kernels of one op
    gemm                   contractions, which products and convolutions are; matrix products
    contraction_source     blocked and packed GEMM, by tables of offsets
    microkernel            the register tile of products and convolutions, in LLVM
    conv                   convolutions as implicit GEMM
    optimizer              dense and sparse updates of variables
    topk_source            top-k of rows
    copy                   copies of large tensors into pooled memory

`native` is below: a kernel records its launches into a native plan. `regions` and `backend` import this package.
"""
