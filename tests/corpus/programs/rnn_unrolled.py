import tensorflow as tf

STEPS = 4


class Cell(tf.Module):
    def __init__(self, width):
        super().__init__()
        self.kernel = tf.Variable(tf.random.normal([2 * width, width]) * 0.1)

    def __call__(self, x, state):
        return tf.tanh(tf.matmul(tf.concat([x, state], 1), self.kernel))


cell = Cell(6)


@tf.function
def step(sequence):
    with tf.GradientTape() as tape:
        state = tf.zeros([sequence.shape[0], 6])
        for i in range(STEPS):
            state = cell(sequence[:, i], state)
        loss = tf.reduce_mean(state**2)
    for variable, gradient in zip(
        cell.trainable_variables, tape.gradient(loss, cell.trainable_variables)
    ):
        variable.assign_sub(gradient * 0.1)
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, STEPS, 6]))
