import keras
import numpy as np
import tensorflow as tf


class Sampling(keras.layers.Layer):
    def call(self, inputs):
        mean, log_variance = inputs
        noise = tf.random.normal(tf.shape(mean))
        return mean + tf.exp(0.5 * log_variance) * noise


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(4)
        self.sampling = Sampling()
        self.decoder = keras.layers.Dense(6)

    def call(self, x):
        mean, log_variance = tf.split(self.encoder(x), 2, axis=-1)
        divergence = -0.5 * tf.reduce_mean(1 + log_variance - mean**2 - tf.exp(log_variance))
        self.add_loss(divergence)
        return self.decoder(self.sampling((mean, log_variance)))


model = Autoencoder()
model.compile("adam", "mse")


def train():
    x = np.random.rand(8, 6)
    model.fit(x, x, batch_size=4)
