"""What tests of strategies of one process share: the strategies, and a session on their devices."""

from __future__ import annotations

import pytest

import dovetail as dt
from dovetail import distribute

TWO = ["/cpu:0", "/cpu:1"]
CONFIG = dt.ConfigProto(device_count={"CPU": 3})


def run(fetches, feeds=None):
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        return session.run(fetches, feeds)


STRATEGIES = [
    pytest.param(lambda: distribute.OneDeviceStrategy("/cpu:0"), id="one"),
    pytest.param(lambda: distribute.MirroredStrategy(TWO), id="mirrored"),
    pytest.param(lambda: distribute.MirroredStrategy(["/cpu:0", "/cpu:1", "/cpu:2"]), id="mirrored-3"),
    pytest.param(lambda: distribute.CentralStorageStrategy(TWO, "/cpu:2"), id="central"),
]
