"""Addresses of tasks, `host:port`, and which machines can reach them.

A cluster knows a task by one address as long as it lives. Where an engine starts the task again elsewhere, on another machine or at
another port, the address stays and its *location* changes: all connections to the address are then made to the location.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket

# A name, an IPv4 address or `*` (every address of this machine); or an IPv6 address in brackets.
_ADDRESS = re.compile(r"\s*(?:(?P<name>[A-Za-z0-9._-]+|\*)|\[(?P<v6>[0-9A-Fa-f:.%]+)\]):\s*(?P<port>[0-9]{1,5})\s*")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 host stands in brackets. Spaces around either are ignored, as in TensorFlow.

    >>> split_address("localhost: 2222"), split_address("[::1]:0")
    (('localhost', 2222), ('::1', 0))
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(
            f"bad address {address!r}: it must read host:port, as in 'localhost:2222', with a port up to "
            "65535; port 0 picks a free one"
        )
    return match["v6"] or match["name"], int(match["port"])


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach `address`. A name must resolve to loopback addresses only.

    >>> is_loopback("localhost:2222"), is_loopback("0.0.0.0:2222")
    (True, False)
    """
    try:
        return all_loopback(resolve(split_address(address)[0]))
    except OSError:
        return False


def all_loopback(ips: list[str]) -> bool:
    return all(ipaddress.ip_address(ip).is_loopback for ip in ips)


def resolve(host: str) -> list[str]:
    """The IP addresses of `host`, IPv4 first, since servers bind IPv4 by default.

    Raises:
        OSError: the name does not resolve.
    """
    if host == "localhost":
        return ["127.0.0.1"]
    if host == "*":
        return ["0.0.0.0"]
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return sorted(found, key=lambda ip: (":" in ip, ip))


locations: dict[str, str] = {}  # address of a task that was moved -> where it listens now


def location_of(address: str) -> str:
    """Where the task listens that a cluster knows by `address`: there, unless it was moved (`endpoint.relocate`)."""
    return locations.get(address, address)


def set_location(address: str, location: str) -> bool:
    """Have new connections to `address` made to `location`; whether that is a change."""
    before, locations[address] = location_of(address), location
    return before != location
