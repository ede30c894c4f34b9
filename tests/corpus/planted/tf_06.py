"""Custom loop on TPU with several steps per host call; masks keep shapes static."""
import os
import tempfile

import numpy as np
import tensorflow as tf

PER_REPLICA_BATCH = 32
STEPS_PER_CALL = 20
TOTAL_STEPS = 200
MAXLEN = 48


def get_strategy():
    if os.environ.get("NO_TPU"):
        return tf.distribute.get_strategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def clean_text(raw):
    return np.frombuffer(raw.numpy().ljust(MAXLEN, b"\0")[:MAXLEN], np.uint8).astype(np.int32)


def parse(line):
    ids = tf.py_function(clean_text, [line], tf.int32)
    ids = tf.ensure_shape(ids, (MAXLEN,))
    label = tf.cast(tf.strings.regex_full_match(line, ".*a.*e.*"), tf.int32)
    return ids, label


def make_dataset(path, batch):
    ds = tf.data.TextLineDataset(path).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    ds = ds.cache().shuffle(2048).repeat()
    return ds.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def write_corpus(path, n=2000):
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghij "))
    with open(path, "w") as f:
        for _ in range(n):
            f.write("".join(rng.choice(letters, size=int(rng.integers(5, MAXLEN)))) + "\n")


def main():
    strategy = get_strategy()
    replicas = strategy.num_replicas_in_sync
    global_batch = PER_REPLICA_BATCH * replicas
    path = os.path.join(tempfile.gettempdir(), "corpus.txt")
    write_corpus(path)

    with strategy.scope():
        emb = tf.keras.layers.Embedding(128, 64)
        head = tf.keras.Sequential([tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(2)])
        emb.build((None, MAXLEN))
        head.build((None, 64))
        variables = emb.trainable_variables + head.trainable_variables
        optimizer = tf.keras.optimizers.Adam(1e-3)
        optimizer.build(variables)
        train_loss = tf.keras.metrics.Mean()
        loss_obj = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(ids, labels):
        with tf.GradientTape() as tape:
            vec = emb(ids)
            mask = tf.cast(ids > 0, vec.dtype)[..., None]
            vec = tf.where(mask > 0, vec, tf.zeros_like(vec))
            pooled = tf.reduce_sum(vec, 1) / tf.maximum(tf.reduce_sum(mask, 1), 1.0)
            per_example = loss_obj(labels, head(pooled))
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=global_batch)
        grads = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(grads, variables))
        train_loss.update_state(loss * replicas)

    @tf.function
    def train_steps(iterator):
        print("tracing train_steps")
        for _ in tf.range(STEPS_PER_CALL):
            strategy.run(replica_step, args=next(iterator))

    iterator = iter(strategy.experimental_distribute_dataset(make_dataset(path, global_batch)))
    manager = None
    if os.environ.get("OUT_DIR"):
        ckpt = tf.train.Checkpoint(emb=emb, head=head, optimizer=optimizer)
        manager = tf.train.CheckpointManager(ckpt, os.environ["OUT_DIR"], max_to_keep=3)
        ckpt.restore(manager.latest_checkpoint)
    for step in range(0, TOTAL_STEPS, STEPS_PER_CALL):
        train_steps(iterator)
        if (step + STEPS_PER_CALL) % 100 == 0:
            print(f"step {step + STEPS_PER_CALL} loss {float(train_loss.result()):.4f}")
            train_loss.reset_state()
            if manager is not None:
                manager.save()


if __name__ == "__main__":
    main()
