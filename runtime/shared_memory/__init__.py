"""Tensors and variables that several processes of one machine map, without a copy and without a message per access.

    segment             a memory file (memfd) with blocks; how other processes map it and give blocks back: `Segment`, `Mapper`
    pool                the blocks that this process lends to others: `Pool`
    shared_variable     a double-buffered value that several processes read and change, guarded by a file lock; the record that says
                        where its buffers are
    variable_reader     the side of other processes: copies of values, and variables that are changed remotely
    remote_variables    a task's service: publishes variables, reads those of other tasks, and sends messages where that fails
    cuda_ipc            GPU memory lent to other processes by CUDA IPC

It imports wire. It has no sockets: the transport's messages do the handshakes.
"""
