"""Arrays of the searches: the types of their elements, and a problem as compiled loops take it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Arrays(NamedTuple):
    """The problem as compiled loops take it: n nodes, V values, E ends of values, K classes, D devices."""

    seconds: Floats  # (K, n)
    device_class: Ints  # (D,)
    slots: Ints  # (D,)
    place: Ints  # (D,) the row of each device in tables of links: P places
    seat: Ints  # (D,) its number in its place
    seats: int  # of a place at most
    link_latency: Floats  # (P, P)
    link_per_byte: Floats  # (P, P)
    port_latency: Floats  # (D,)
    port_per_byte: Floats  # (D,)
    first_value: Ints  # (n + 1,) the values of node i are first_value[i] : first_value[i + 1]
    value_start: Ints  # (V + 1,)
    value_target: Ints  # (E,)
    value_bytes: Floats  # (V,)
    input_start: Ints  # (n + 1,)
    input_value: Ints  # (E,)
    value_source: Ints  # (V,)
    handling: Floats  # (P, P)
    alone: Floats  # (V,) 0.0: it travels in the message of another value; or (0,): none does
    handling_per_byte: Floats  # (P, P)
    memory: Floats  # (n,)
    capacity: Floats  # (D,)
    home_memory: Floats  # (V,), or (0,): all fits at every moment, whatever is where
    away_memory: Floats  # (V,)
    fed_at: Floats  # (D, n), or (0, n): all at once
    back_after: Floats  # (D, n), or (0, n): at once
    used: Floats  # (n,) cores; or (0,), with what follows: no machine was measured
    host: Ints  # (D,) machine that several devices share, or -1
    shared: float
    wake: float
    polls: float
