"""Input by queues: `input` (`tf.train.batch`, `string_input_producer`), `readers` (`tf.TextLineReader`).

Only `names` imports it.
"""
