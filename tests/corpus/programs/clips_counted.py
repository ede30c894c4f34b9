import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


class Loop:
    clip = 1.0

    def __init__(self):
        self.step_function = tf.function(self.step)
        self.epoch = tf.Variable(0)

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights) ** 2)
        gradient = tf.clip_by_norm(tape.gradient(loss, weights), self.clip)
        if self.epoch > 0:
            gradient = gradient * 0.5
        weights.assign_sub(0.1 * gradient)
        return loss

    def run(self, epochs):
        for epoch in range(epochs):
            self.epoch.assign(epoch)
            losses = [self.step_function(tf.random.normal([4, 5])) for _ in range(2)]
            mean = sum(float(one) for one in losses) / len(losses)
            if mean < 1e-9:
                return
            print(epoch, f"{mean:.4f}", int(tf.argmin(losses)))


def train():
    Loop().run(2)
