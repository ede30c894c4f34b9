"""Ticket classifier: raw title text plus a token sequence, Keras on TPU."""
import os

import numpy as np
import tensorflow as tf

BATCH = 128
VOCAB = 1000

tf.keras.mixed_precision.set_global_policy("mixed_float16")

WORDS = ["disk", "login", "error", "slow", "crash", "invoice", "refund", "network", "update", "password"]


def examples(n=1024, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        label = int(rng.integers(0, 4))
        title = " ".join(rng.choice(WORDS, size=4))
        body = rng.integers(1, VOCAB, size=int(rng.integers(10, 120))).astype(np.int32)
        yield {"title": title, "body": body}, label


def make_dataset():
    ds = tf.data.Dataset.from_generator(
        examples,
        output_signature=(
            {"title": tf.TensorSpec((), tf.string), "body": tf.TensorSpec((None,), tf.int32)},
            tf.TensorSpec((), tf.int32),
        ),
    )
    ds = ds.cache().shuffle(1024).repeat()
    ds = ds.padded_batch(BATCH, padded_shapes=({"title": [], "body": [None]}, []), drop_remainder=True)
    return ds.prefetch(tf.data.AUTOTUNE)


def build(vectorizer):
    title = tf.keras.Input((), dtype=tf.string, name="title")
    body = tf.keras.Input((None,), dtype=tf.int32, name="body")
    ids = vectorizer(title)
    t = tf.keras.layers.Embedding(VOCAB, 64)(ids)
    b = tf.keras.layers.Embedding(VOCAB, 64)(body)
    x = tf.keras.layers.Concatenate()([
        tf.keras.layers.GlobalAveragePooling1D()(t),
        tf.keras.layers.GlobalMaxPooling1D()(b),
    ])
    x = tf.keras.layers.Dense(128, activation="relu")(x)
    out = tf.keras.layers.Dense(4, dtype="float32")(x)
    return tf.keras.Model({"title": title, "body": body}, out)


def main():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)

    with strategy.scope():
        vectorizer = tf.keras.layers.TextVectorization(
            max_tokens=VOCAB, output_mode="int", output_sequence_length=8, vocabulary=WORDS)
        model = build(vectorizer)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(2e-3),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=8,
        )

    backup = tf.keras.callbacks.BackupAndRestore("/tmp/tickets_backup")
    model.fit(make_dataset(), epochs=2, steps_per_epoch=8, callbacks=[backup], verbose=2)
    model.save_weights(os.path.join(os.environ.get("OUT_DIR", "gs://my-bucket/tickets"), "final.weights.h5"))


if __name__ == "__main__":
    main()
