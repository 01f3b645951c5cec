"""Compiles Triton text to binaries ahead of time, for GPUs that need not be in this machine.

    compile.py  one kernel: cubin, its ELF facts, with what a launch needs, kept on disk by a hash of everything that it depends on
    workers.py  helper processes that compile kernels in parallel

Only this package imports Triton, when it compiles. Launchers and the `driver` layer's users import it; it imports `gpu/ir.py`.
"""
