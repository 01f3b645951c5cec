"""Formats of other systems.

- `onnx`: imports and exports models.
- `tensorflow`: reads and writes saved models, checkpoints and meta graphs.
- `tensorboard`: writes event files.

Each needs an optional package, which is loaded when it is used. `train`, `compat` and `tools` may import from here.
"""
