"""Programs for a terminal: `cli` is the command `dovetail`, `demo` the example that `dovetail demo` runs.

This is the top layer: it may import everything, and nothing imports it but `dovetail/__main__.py`.
"""
