import keras
import numpy as np
import tensorflow as tf


def make_network():
    return keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3)])


class MeanTeacher(keras.Model):
    def __init__(self, decay=0.99):
        super().__init__()
        self.student, self.teacher = make_network(), make_network()
        self.teacher.trainable = False
        self.decay = decay

    def call(self, x, training=False):
        return self.student(x) if training else self.teacher(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            agreement = tf.reduce_mean((self.student(x) - tf.stop_gradient(self.teacher(x))) ** 2)
            loss = self.compute_loss(x, y, self(x, training=True)) + agreement
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.student.trainable_weights), self.student.trainable_weights)
        )
        for slow, fast in zip(self.teacher.weights, self.student.weights):
            slow.assign(self.decay * slow + (1 - self.decay) * fast)
        return {"loss": loss}


model = MeanTeacher()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def train():
    model.fit(np.random.rand(8, 5), np.random.randint(0, 3, 8), batch_size=4)
