"""Memory of a program: planned before it runs, and donated while it runs. `graph/resources/buffer_pool.py` has the allocator.

    plan.py       lifetimes of tensors, the peak, and arena offsets
    donation.py   whether an array is held by the program alone, so that a kernel may write into it
"""
