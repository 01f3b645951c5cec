"""Native plans: launches of compiled kernels in a table that compiled code runs, without Python or its lock in between.

    plan_cache     runs kernels and regions by plans, which it makes and keeps by shapes
    planner        traces calls with placeholder arrays, on which kernels ask for launches; lays out memory and records
    plan           a plan for one set of shapes, ready to run
    worker_pool    the helper threads: they share launches, and spin between those of one table
    table          the words of the launch table, and its trampolines
    launch_source  the loops that run a table, and those of the helper threads
    machine        what these need beyond Numba: atomic counters, calls through addresses
    copy_source    strided copies for plans

Only `kernels` and `regions` import it: they record into plans, and run by them. This package knows neither.
"""
