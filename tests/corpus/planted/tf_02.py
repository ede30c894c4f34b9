"""Custom training loop with TPUStrategy: MLP regression."""
import os

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 512
STEPS = 40


def make_strategy():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ.get("TPU_NAME", "local"))
    tf.config.experimental_connect_to_cluster(resolver)
    return tf.distribute.TPUStrategy(resolver)


def make_dataset():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4096, 64)).astype(np.float32)
    y = np.tanh(x @ rng.normal(size=(64, 1)).astype(np.float32) / 8.0)
    ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).repeat()
    return ds.batch(GLOBAL_BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


strategy = make_strategy()

with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(256, activation="gelu"),
        tf.keras.layers.Dense(256, activation="gelu"),
        tf.keras.layers.Dense(1),
    ])
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    mse = tf.keras.losses.MeanSquaredError(reduction="none")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)


@tf.function
def train_step(batch, step):
    def replica_fn(x, y):
        with tf.GradientTape() as tape:
            pred = model(x, training=True)
            loss = tf.reduce_mean(mse(y, pred))
            if step < 10:
                loss = loss * 0.1
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    per_replica = strategy.run(replica_fn, args=batch)
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, per_replica, axis=None)


def main():
    out = os.environ.get("OUT_DIR", "gs://my-bucket/mlp")
    manager = tf.train.CheckpointManager(checkpoint, out, max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)
    iterator = iter(strategy.experimental_distribute_dataset(make_dataset()))
    history = []
    for step in range(int(optimizer.iterations.numpy()), STEPS):
        loss = train_step(next(iterator), step)
        history.append(loss.numpy())
        if step % 20 == 0:
            print(f"step {step}: loss {np.mean(history[-20:]):.4f}")
            manager.save()
    manager.save()


if __name__ == "__main__":
    main()
