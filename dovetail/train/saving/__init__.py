"""Checkpoints: `saver` writes and restores them, `checkpoint_state` keeps the list of those in a folder.

`new_checkpoints` waits for the next one. `warm_starting` and `vocabularies` start a model from another model's checkpoint. `meta_graph` and
`import_meta_graph` write and read the graph beside it. The file format is in `graph/formats/checkpoints.py`.
"""
