"""A ps and a worker in one process, for tests of what tasks do in each other's memory."""

import dovetail as tf
from dovetail.runtime.server.server import Server

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


class Pair:
    """A ps and a worker in this process, and a client that waits no longer than a test may take."""

    def __init__(self) -> None:
        self.ps = Server({"ps": ["localhost:0"], "worker": ["localhost:1"]}, "ps", 0)
        jobs = {"ps": [self.ps.address], "worker": ["localhost:0"]}
        self.worker = Server(jobs, "worker", 0)
        self.ps._responder.addresses["/job:worker/replica:0/task:0"] = self.worker.address
        self.wants: list[int] = []

    def session(self, **config) -> tf.Session:
        return tf.Session(self.worker.target, config=tf.ConfigProto(**config))

    def close(self) -> None:
        self.worker.stop()
        self.ps.stop()
