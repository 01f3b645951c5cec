"""Programs for a terminal.

- `cli`: the command `dovetail`. `demo`: the example that `dovetail demo` runs.
- `calibration`: measures a machine for `dovetail calibrate`.

This is the top layer: it may import everything, and only `dovetail/__main__.py` imports it.
"""
