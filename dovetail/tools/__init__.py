"""Programs for a terminal: `cli` is the command `dovetail`, `demo` the example that `dovetail demo` runs.
`calibration` measures a machine for `dovetail calibrate`.

This is the top layer: it may import everything, and nothing imports it but `dovetail/__main__.py`.
"""
