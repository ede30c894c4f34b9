import tensorflow as tf

from devices import start

strategy = tf.distribute.TPUStrategy(start())

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(tf.zeros([1024, 64]), tf.zeros([1024]), batch_size=128)
