"""Collective operations between tasks: all-reduce, all-gather, reduce-scatter, broadcast and barrier.

    coordinator               the `CollectiveContext` of kernels: chooses messages, shared memory or a device link; takes requests and
                              messages, and watches which tasks are missing
    membership                which tasks form a membership, and which requests wait there; if a member fails, all fail
    algorithms                ring, recursive doubling, tree, direct exchange: one member's share, by messages
    executors                 run these algorithms, and those in shared memory
    shared_buffer             memory that the members on one machine share, and their agreement on it
    shared_memory_algorithms  all-reduce, gather and reduce-scatter in such memory
    device_link               the agreement before a collective on device links, such as NCCL's

A collective fails in all members or in none. If one member is gone, the others get an error and start a new session. The package
has no sockets: the coordinator is given a function that sends. The worker and the server may import it. Kernels know only
`graph/resources/collective_context.py`.
"""
