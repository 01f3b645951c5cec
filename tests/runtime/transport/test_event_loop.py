"""The I/O thread of an endpoint: what runs on it, and when it sleeps."""

from __future__ import annotations

import logging
import threading
import time

from echoing import WAIT_S, until

from dovetail.runtime.transport.endpoint import Endpoint


def test_calls_and_ticks_run_on_the_io_thread() -> None:
    seen: list[str] = []
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(time.monotonic())
        seen.append(threading.current_thread().name)
        if len(ticks) == 2:
            raise RuntimeError("a tick that fails does not end the ticking")

    logging.getLogger("dovetail.runtime.transport.event_loop").disabled = True
    try:
        with Endpoint("localhost:0", lambda peer, message: None, on_tick=tick) as endpoint:
            assert not endpoint.on_io_thread()
            ran = threading.Event()
            assert endpoint.call_soon(lambda: (seen.append(threading.current_thread().name), ran.set()))
            assert ran.wait(WAIT_S)
            until(lambda: len(ticks) >= 4, "there are four ticks")
    finally:
        logging.getLogger("dovetail.runtime.transport.event_loop").disabled = False
    assert set(seen) == {f"dovetail-io-{endpoint.address}"}
    assert 0.2 < (ticks[3] - ticks[0]) / 3 < 20
    assert not endpoint.call_soon(lambda: None)
