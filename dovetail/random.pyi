"""Types of `dovetail.random`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.random import *
from dovetail.api.ops.random import (
    categorical as categorical, get_seed as get_seed, multinomial as multinomial, normal as normal, random_crop as random_crop,
    set_random_seed as set_random_seed, shuffle as shuffle, stateless_normal as stateless_normal, stateless_truncated_normal as
    stateless_truncated_normal, stateless_uniform as stateless_uniform, truncated_normal as truncated_normal, uniform as uniform,
)
