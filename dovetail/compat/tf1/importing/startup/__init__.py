"""A folder for PYTHONPATH: Python runs its `sitecustomize` before a program.

Nothing imports it.
"""
