"""Variables for tests of savers."""

import numpy as np

import dovetail as tf


def variables(value=1.0):
    v = tf.get_variable("v", initializer=np.full(4, value, np.float32))
    w = tf.Variable(int(value), name="w", use_resource=True)
    return v, w
