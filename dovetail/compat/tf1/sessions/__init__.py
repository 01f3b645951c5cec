"""`supervisor` is `tf.train.Supervisor`, the older form of `MonitoredTrainingSession`; `services` are the threads that it runs.

`contrib.slim` and `names` import it.
"""
