"""Native plans: launches of compiled kernels in a table, which compiled code runs without Python between them and without the GIL.

    plan_cache     runs kernels and regions by plans, which it makes and keeps by shapes
    planner        traces calls with placeholder arrays: kernels record their launches; then it lays out the memory
    plan           a plan for one set of shapes, ready to run
    worker_pool    the helper threads: they share launches, and spin between those of one table
    table          the layout of the launch table and of its records, and the trampolines
    launch_source  the loops that run a table, and those of the helper threads
    machine        instructions that Numba lacks: atomic counters, calls through addresses
    copy_source    strided copies for plans

Only `kernels` and `regions` import it: they record into plans, and run by them. This package knows neither.
"""
