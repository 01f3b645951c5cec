"""The shortest program there is: a local server, and a session on it that prints a constant."""

import dovetail as tf

text = tf.constant("Hello, Dovetail!")
number = tf.constant(42)
server = tf.train.Server.create_local_server()
print("target:", server.target)
with tf.Session(server.target) as sess:
    print(sess.run(text))
    print(sess.run(number))
