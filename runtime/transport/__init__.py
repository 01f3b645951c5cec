"""Bytes between processes: the only sockets of Dovetail, and who may connect.

    endpoint            a server's end: sends and receives messages, bounds what waits, refuses what is broken
    client, client_set  a client's connection to one server, and a set of them that one thread polls
    event_loop          the I/O thread of an endpoint
    zmq_router          a server's ZeroMQ sockets; zmq_sockets: their options; zmq_auth: CurveZMQ; zmq_liveness: their monitor
    stream              a framed stream socket, Unix or TCP: faster than ZeroMQ where no encryption is needed
    stream_listener     accepts streams
    connection_upgrade  what two peers tell each other when they meet, and the steps from ZeroMQ to a stream
    server_streams      the streams of an endpoint
    keys                key files; access_control: who may connect, and the log of who was refused
    address, file_descriptors, fault_injection

Only modules named zmq_* and client import zmq (`.importlinter`). It imports wire and shared_memory.
"""
