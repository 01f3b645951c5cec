"""Other systems' formats: `onnx` (models in and out), `tensorflow` (saved models, checkpoints, meta graphs), `tensorboard` (event files).

Each needs an optional package, which is loaded when it is used. `train`, `compat` and `tools` may import from here.
"""
