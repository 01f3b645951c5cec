"""Names of `dt.nn` that only programs of TensorFlow 1 use: recurrent networks, and losses over sampled classes."""
