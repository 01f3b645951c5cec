"""Names of `dt.random` that only programs of TensorFlow 1 use."""
