"""What a message is, and its bytes. Pure: no sockets, no clocks, no threads; it can be tested, fuzzed and reused without any.

    schema       the protocol's table: each kind of message with its fields, sender, receiver, reply and ordering
    messages     `Message`, limits, errors; the module's text describes the bytes
    codec        `encode` and `decode`; every byte that arrives is checked before anything is allocated
    tensors      tensors as bytes; which of them travel in shared memory
    compression  zlib for tensors over slow networks
    chunking     large messages over ZeroMQ in chunks, with a send window: `ChunkedSender`, `Reassembler`
    reassembly   memory for a large message while it arrives

Any package of runtime/ may import it. It imports graph/ only.
"""
