"""Messages and their bytes. Pure: no sockets, no clocks, no threads, so it can be tested and fuzzed alone.

    schema       the protocol's table: each kind of message with its fields, sender, receiver and reply
    messages     `Message`, `encode` and `decode`, which checks every byte before it allocates; its docstring describes the format
    tensors      tensors as bytes, in a frame or in shared memory
    chunking     large messages over ZeroMQ in chunks: `in_chunks`, `Reassembler`
    reassembly   memory for a large message during reception

Any package of runtime/ may import it. It imports graph/ only.
"""
