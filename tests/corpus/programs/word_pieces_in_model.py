import tensorflow as tf
import tf_keras as K

texts = tf.constant(["one two three", "four five", "six", "seven eight nine"])


class Hashed(K.layers.Layer):
    def call(self, text):
        words = tf.strings.split(text)
        return tf.strings.to_hash_bucket_fast(words.to_tensor("", shape=[None, 3]), 20)


model = K.Sequential([Hashed(), K.layers.Embedding(20, 4), K.layers.Flatten(), K.layers.Dense(1)])
model.compile("adam", "mse")


def train():
    model.fit(texts, tf.random.uniform([4, 1]), batch_size=2)
