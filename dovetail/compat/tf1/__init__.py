"""What only programs of TensorFlow 1 use. It is frozen: it moves and is mended, but does not grow.

High-level libraries: `keras`, `estimator`, `feature_column`, `layers`, `losses`, `metrics`, `rnn`, `image`, `contrib`. What programs are
made of: `programs` (flags, app, logging, test), `queues` (input by queues, readers), `sessions` (`Supervisor`), `training` (averages,
warm starts, schedules, optimizers). `names` has single old names, `ops` the ops that only these use. `importing` lets
`import tensorflow` give Dovetail. Nothing outside `compat` imports it but `tools` and, when an old name or op is used,
`dovetail/__init__`.
"""
