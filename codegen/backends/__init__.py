"""Backends: where a node's kernel comes from, one backend per kind of device."""
