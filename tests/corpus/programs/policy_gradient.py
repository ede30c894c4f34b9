import tensorflow as tf


class Policy(tf.Module):
    def __init__(self, actions):
        super().__init__()
        self.actions = actions
        self.kernel = tf.Variable(tf.zeros([4, actions]))
        self.baseline = tf.Variable(0.0, trainable=False)

    def discounted(self, rewards, gamma=0.9):
        total = tf.zeros_like(rewards[:, 0])
        returns = []
        for step in reversed(range(rewards.shape[1])):
            total = rewards[:, step] + gamma * total
            returns.insert(0, total)
        return tf.stack(returns, axis=1)

    @tf.function
    def update(self, states, actions, rewards):
        returns = self.discounted(rewards)
        with tf.GradientTape() as tape:
            log_probabilities = tf.nn.log_softmax(tf.einsum("bts,sa->bta", states, self.kernel))
            chosen = tf.gather(log_probabilities, actions, batch_dims=2)
            loss = -tf.reduce_mean(chosen * tf.stop_gradient(returns - self.baseline))
        self.kernel.assign_sub(0.1 * tape.gradient(loss, self.kernel))
        self.baseline.assign(0.9 * self.baseline + 0.1 * tf.reduce_mean(returns))
        return loss


def train():
    policy = Policy(3)
    for _ in range(2):
        actions = tf.random.uniform([4, 5], 0, 3, tf.int32)
        policy.update(tf.random.normal([4, 5, 4]), actions, tf.random.normal([4, 5]))
