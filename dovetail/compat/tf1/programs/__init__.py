"""What programs of TensorFlow 1 are made of: `flags`, `app`, `logging` and `test` (`tf.flags`, `tf.app`, `tf.logging`, `tf.test`).

Only `names` imports it.
"""
