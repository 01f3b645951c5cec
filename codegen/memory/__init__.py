"""The memory plan of a program: lifetimes of tensors, the peak, and arena offsets (`plan.py`).

`graph/resources/buffer_pool.py` has the allocator.

Lowering and the back ends may import it; it imports only `ir`.
"""
