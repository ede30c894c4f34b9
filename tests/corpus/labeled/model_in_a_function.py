import tensorflow as tf


def build(width):
    inputs = tf.keras.Input((64,))
    x = tf.keras.layers.Dense(width, activation="relu")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(10)(x))
    optimizer = tf.keras.optimizers.Adam(1e-3)
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu="local")
    strategy = tf.distribute.TPUStrategy(resolver)
    with strategy.scope():
        model = build(128)
    model.fit(tf.zeros([256, 64]), tf.zeros([256]), batch_size=64)


if __name__ == "__main__":
    main()
