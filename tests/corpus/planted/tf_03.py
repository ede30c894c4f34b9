"""Keras fit on TPU: residual MLP with per-epoch logging and checkpoints."""
import os

import numpy as np
import tensorflow as tf

PER_REPLICA_BATCH = 64
EPOCHS = 3
FEATURES = 40


def get_strategy():
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, tf.errors.NotFoundError) as err:
        print("no TPU found, running on the default device:", err)
        return tf.distribute.get_strategy()


def build(width=256, depth=3):
    inp = tf.keras.Input((FEATURES,))
    x = tf.keras.layers.Dense(width)(inp)
    for _ in range(depth):
        h = tf.keras.layers.LayerNormalization()(x)
        h = tf.keras.layers.Dense(width, activation="relu")(h)
        x = tf.keras.layers.Add()([x, h])
    return tf.keras.Model(inp, tf.keras.layers.Dense(2)(x))


def arrays(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, FEATURES)).astype(np.float32)
    y = ((x[:, 0] * x[:, 1]) > 0).astype(np.int32)
    return x, y


def dataset(x, y, batch, training):
    ds = tf.data.Dataset.from_tensor_slices((x, y))
    if training:
        ds = ds.shuffle(len(x), reshuffle_each_iteration=True).repeat()
    ds = ds.batch(batch, drop_remainder=True)
    return ds.prefetch(tf.data.AUTOTUNE)


class EpochPrinter(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        print(f"epoch {epoch}: " + ", ".join(f"{k}={float(v):.4f}" for k, v in logs.items()))


def main():
    strategy = get_strategy()
    batch = PER_REPLICA_BATCH * strategy.num_replicas_in_sync
    x_train, y_train = arrays(6000, 0)
    x_val, y_val = arrays(2048, 1)
    steps = len(x_train) // batch

    with strategy.scope():
        model = build()
        model.compile(
            optimizer=tf.keras.optimizers.Adam(1e-3),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="acc")],
            steps_per_execution=max(1, steps // 2),
        )

    callbacks = [EpochPrinter()]
    out = os.environ.get("OUT_DIR")
    if out:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(
            os.path.join(out, "epoch-{epoch:03d}.weights.h5"), save_weights_only=True))

    model.fit(
        dataset(x_train, y_train, batch, training=True),
        epochs=EPOCHS,
        steps_per_epoch=steps,
        validation_data=dataset(x_val, y_val, batch, training=False),
        callbacks=callbacks,
        verbose=0,
    )
    model.summary(print_fn=lambda line: print("  " + line))


if __name__ == "__main__":
    main()
