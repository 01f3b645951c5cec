"""Bytes between processes: all sockets of Dovetail, and access control.

    endpoint            a server's end: sends and receives messages, bounds the queues, refuses malformed messages
    client, client_set  a client's connection to one server, and a set of them that one thread polls
    event_loop          the I/O thread of an endpoint
    zmq_router          a server's ZeroMQ sockets; zmq_sockets: their options; zmq_auth: CurveZMQ; zmq_liveness: their monitor
    stream              a framed stream socket, Unix or TCP: faster than ZeroMQ where no encryption is needed
    stream_listener     accepts streams
    peer                one end of a connection, without sockets and clocks: handshake, upgrade to a stream, what waits, chunks
    server_peers        the peers of an endpoint: does what `peer` asks for
    keys                key files; access_control: decides which clients may connect, and logs refusals
    address, file_descriptors, fault_injection

Only modules named zmq_* and client import zmq (`.importlinter`). It imports wire and shared_memory.
"""
