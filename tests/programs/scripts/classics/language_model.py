"""A language model as TensorFlow 1 tutorials have it: stacked LSTMs with dropout, unrolled, two models that share variables."""

import numpy as np

import dovetail as tf

BATCH, STEPS, HIDDEN, VOCAB = 4, 5, 8, 12


def fixed(shape, dtype=None, partition_info=None):
    """Numbers that are the same everywhere."""
    n = int(np.prod(shape))
    return tf.constant((np.sin(np.arange(n) * 1.3) * 0.3).reshape(shape).astype(np.float32))


class Model:
    def __init__(self, is_training):
        self.inputs = tf.placeholder(tf.int32, [BATCH, STEPS])
        self.targets = tf.placeholder(tf.int32, [BATCH, STEPS])

        def cell():
            lstm = tf.contrib.rnn.BasicLSTMCell(
                HIDDEN, forget_bias=0.0, state_is_tuple=True, reuse=tf.get_variable_scope().reuse
            )
            return tf.contrib.rnn.DropoutWrapper(lstm, output_keep_prob=1.0) if is_training else lstm

        stacked = tf.contrib.rnn.MultiRNNCell([cell() for _ in range(2)], state_is_tuple=True)
        self.initial_state = stacked.zero_state(BATCH, tf.float32)
        with tf.device("/cpu:0"):
            embedding = tf.get_variable("embedding", [VOCAB, HIDDEN], dtype=tf.float32)
            inputs = tf.nn.embedding_lookup(embedding, self.inputs)
        outputs, state = [], self.initial_state
        with tf.variable_scope("RNN"):
            for time_step in range(STEPS):
                if time_step > 0:
                    tf.get_variable_scope().reuse_variables()
                cell_output, state = stacked(inputs[:, time_step, :], state)
                outputs.append(cell_output)
        output = tf.reshape(tf.concat(outputs, 1), [-1, HIDDEN])
        softmax_w = tf.get_variable("softmax_w", [HIDDEN, VOCAB], dtype=tf.float32)
        softmax_b = tf.get_variable("softmax_b", [VOCAB], dtype=tf.float32)
        logits = tf.matmul(output, softmax_w) + softmax_b
        loss = tf.contrib.legacy_seq2seq.sequence_loss_by_example(
            [logits], [tf.reshape(self.targets, [-1])], [tf.ones([BATCH * STEPS], dtype=tf.float32)]
        )
        self.cost = tf.reduce_sum(loss) / BATCH
        self.final_state = state
        if not is_training:
            return
        self.lr = tf.Variable(0.0, trainable=False)
        tvars = tf.trainable_variables()
        grads, self.norm = tf.clip_by_global_norm(tf.gradients(self.cost, tvars), 1.0)
        self.train_op = tf.train.GradientDescentOptimizer(self.lr).apply_gradients(zip(grads, tvars, strict=False))
        self.new_lr = tf.placeholder(tf.float32, shape=[], name="new_learning_rate")
        self.lr_update = tf.assign(self.lr, self.new_lr)


def main():
    rng = np.random.RandomState(0)
    text = (np.arange(BATCH * (2 * STEPS + 1)).reshape(BATCH, -1) + rng.randint(0, 2, (BATCH, 2 * STEPS + 1))) % VOCAB
    with tf.Graph().as_default():
        with tf.name_scope("Train"), tf.variable_scope("Model", reuse=None, initializer=fixed):
            m = Model(is_training=True)
        with tf.name_scope("Valid"), tf.variable_scope("Model", reuse=True, initializer=fixed):
            valid = Model(is_training=False)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            costs, norms = [], []
            for epoch in range(3):
                session.run(m.lr_update, {m.new_lr: 0.5 ** max(epoch - 1, 0)})
                state = session.run(m.initial_state)
                for at in (0, STEPS):
                    feed = {m.inputs: text[:, at : at + STEPS], m.targets: text[:, at + 1 : at + STEPS + 1]}
                    for i, (c, h) in enumerate(m.initial_state):
                        feed[c], feed[h] = state[i].c, state[i].h
                    cost, norm, state, _ = session.run([m.cost, m.norm, m.final_state, m.train_op], feed)
                    costs.append(float(cost))
                    norms.append(float(norm))
            feed = {valid.inputs: text[:, :STEPS], valid.targets: text[:, 1 : STEPS + 1]}
            return {
                "costs": costs,
                "norms": norms,
                "valid": float(session.run(valid.cost, feed)),
                "variables": [v.name for v in tf.trainable_variables()],
            }
