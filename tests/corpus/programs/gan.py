import keras
import numpy as np
import tensorflow as tf


class Adversaries(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.layers.Dense(4)])
        self.critic = keras.Sequential([keras.layers.Dense(1)])
        self.generator.build((None, 3))
        self.critic.build((None, 4))

    def compile(self, generator_optimizer, critic_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.critic_optimizer = critic_optimizer

    def penalty(self, real, fake):
        mix = tf.random.uniform([tf.shape(real)[0], 1])
        between = mix * real + (1.0 - mix) * fake
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self.critic(between)
        slopes = tape.gradient(score, between)
        return tf.reduce_mean((tf.norm(slopes + 1e-6, axis=1) - 1.0) ** 2)

    def train_step(self, real):
        noise = tf.random.normal([tf.shape(real)[0], 3])
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.generator(noise)
                loss = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(real))
                loss += 10.0 * self.penalty(real, fake)
            variables = self.critic.trainable_variables
            self.critic_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        with tf.GradientTape() as tape:
            generator_loss = -tf.reduce_mean(self.critic(self.generator(noise)))
        variables = self.generator.trainable_variables
        gradients = tape.gradient(generator_loss, variables)
        self.generator_optimizer.apply_gradients(zip(gradients, variables))
        return {"critic": loss, "generator": generator_loss}


def train():
    model = Adversaries()
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3))
    model.fit(np.random.rand(8, 4).astype("float32"), batch_size=4)
