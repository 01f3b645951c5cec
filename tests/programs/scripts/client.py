"""A client of its own: python client.py TARGET TIMES. Adds 1 to the ps's variable `visits`, TIMES times."""

import sys

import dovetail as tf

target, times = sys.argv[1:]
with tf.device("/job:ps"):
    visits = tf.Variable(0, name="visits")
    visit = tf.assign_add(visits, 1)
with tf.Session(target) as sess:
    for _ in range(int(times)):
        sess.run(visit.op)
    print(sess.run(visits))
