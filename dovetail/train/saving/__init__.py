"""Checkpoints and meta graphs.

- `saver`: writes and restores checkpoints. `saved_items`: the variables and tables that a saver saves.
- `checkpoint_state`: the list of the checkpoints of a folder; waiting for new ones.
- `meta_graph`, `import_meta_graph`: write and read the graph beside a checkpoint.

The file format is in `graph/formats/checkpoints.py`.
"""
