"""The CPU backend: kernels compiled by Numba, and regions of them that run without Python in between.

    backend      what a worker asks for kernels: fused, hand-written, or NumPy's; the compiler passes of CPUs
    regions/     region formation: runs of calls become one native call
    kernels/     the kernels: fused loop nests, products, convolutions, updates
    native/      plans: launch tables that compiled code runs, with helper threads; and what records launches into them
    emit/        loop nests to source text for Numba
    schedule     chooses the loops of a kernel (what threads share, what is a vector), and the tiles of products and convolutions
    jit          compiles source texts and keeps them on disk; kernels start on NumPy until they have cost enough
    work_parts   how work is divided for threads

Imports go downwards in this list, and to `ir`, `passes`, `fusion`, `memory`, `lower` and `vecmath` of the code generator, never to `gpu`.
The pipeline, the report of kernels (`codegen.explain`) and the worker import this package.
"""
