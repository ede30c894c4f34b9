"""Several GPUs of one machine: MirroredStrategy, an own loop, evaluation in the same strategy."""

import argparse

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--per-replica", type=int, default=16)
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()

for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)

strategy = tf.distribute.MirroredStrategy()
BATCH = args.per_replica * strategy.num_replicas_in_sync
print(f"{strategy.num_replicas_in_sync} replicas, batches of {BATCH}")

rng = np.random.default_rng(0)
x = rng.normal(size=(512, 20)).astype("float32")
weights = rng.normal(size=20)
y = (x @ weights > 0).astype("int32")

train = tf.data.Dataset.from_tensor_slices((x[:384], y[:384])).shuffle(384).repeat()
train = strategy.experimental_distribute_dataset(train.batch(BATCH, drop_remainder=True))
test = tf.data.Dataset.from_tensor_slices((x[384:], y[384:])).batch(BATCH, drop_remainder=True)
test = strategy.experimental_distribute_dataset(test)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((20,)),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


def train_step(inputs):
    features, labels = inputs
    with tf.GradientTape() as tape:
        losses = loss_object(labels, model(features, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    if args.clip > 0:
        gradients = [tf.clip_by_norm(gradient, args.clip) for gradient in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def test_step(inputs):
    features, labels = inputs
    accuracy.update_state(labels, model(features, training=False))


@tf.function
def distributed_train_step(inputs):
    losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


@tf.function
def distributed_test_step(inputs):
    strategy.run(test_step, args=(inputs,))


best, waited = float("inf"), 0
for number, batch in enumerate(train):
    if number >= args.steps:
        break
    loss = distributed_train_step(batch).numpy()
    if loss < best:
        best, waited = loss, 0
    else:
        waited += 1
    if waited > 50:
        print("no better for a while")
        break

for batch in test:
    distributed_test_step(batch)
print(f"loss {best:.3f}, accuracy {accuracy.result().numpy():.3f}")
