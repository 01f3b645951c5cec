"""TensorFlow 1's files.

- `saved_model`: reads and writes saved models. `graph_util`: freezes and prunes graphs.
- `meta_graph_def`: reads and writes `MetaGraphDef`s with their savers.

The protocol buffers and the checkpoint format are in `graph/tensorflow`. `train/saving` and `compat` may import this package.
"""
