"""Bytes between processes: all sockets of Dovetail, and access control.

    endpoint            a server's end: sends and receives messages, bounds the queues, refuses malformed messages
    client              a client's end: its connections to servers, which one thread polls
    peers               the peers of either end: does what `peer` asks for
    event_loop          watches their descriptors, on an endpoint's I/O thread or in a client's
    zmq_links           their ZeroMQ sockets; zmq_sockets: contexts, CurveZMQ, the monitor of a connection
    stream              a framed stream socket, Unix or TCP: faster than ZeroMQ where no encryption is needed
    stream_listener     accepts streams
    peer                one end of a connection, without sockets and clocks: handshake, upgrade to a stream, what waits, chunks
    keys                key files; access_control: decides which clients may connect, and logs refusals
    address, fault_injection

Only modules named zmq_* import zmq (`.importlinter`). It imports wire and shared_memory.
"""
