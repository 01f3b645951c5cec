"""Checkpoints: `saver` writes and restores what `saved_items` lists.

`checkpoint_state` keeps the list of those in a folder and waits for new ones. `meta_graph` and `import_meta_graph` write and
read the graph beside it. The file format is in `graph/formats/checkpoints.py`.
"""
