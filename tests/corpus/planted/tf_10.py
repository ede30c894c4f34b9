"""Word2vec-like embeddings with TPUStrategy.run."""
import os

import numpy as np
import tensorflow as tf

VOCAB, DIM = 2000, 64
GLOBAL_BATCH = 512
NEGATIVES = 5
STEPS = 40


def skipgrams(seed=0):
    rng = np.random.default_rng(seed)
    centre = rng.integers(0, VOCAB, size=20_000).astype(np.int32)
    context = ((centre + rng.integers(-3, 4, size=centre.shape)) % VOCAB).astype(np.int32)
    return centre, context


def make_dataset():
    ds = tf.data.Dataset.from_tensor_slices(skipgrams())
    ds = ds.shuffle(20_000).repeat().batch(GLOBAL_BATCH, drop_remainder=True)
    return ds.prefetch(tf.data.AUTOTUNE)


def main():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)

    with strategy.scope():
        init = tf.random_normal_initializer(stddev=0.05)
        emb_in = tf.Variable(init((VOCAB, DIM)), name="in")
        emb_out = tf.Variable(init((VOCAB, DIM)), name="out")
        optimizer = tf.keras.optimizers.Adagrad(0.1)
        optimizer.build([emb_in, emb_out])

    def step_fn(centre, context):
        negative = tf.random.uniform((tf.shape(centre)[0], NEGATIVES), 0, VOCAB, tf.int32)
        with tf.GradientTape() as tape:
            c = tf.gather(emb_in, centre)
            pos = tf.reduce_sum(c * tf.gather(emb_out, context), -1)
            neg = tf.einsum("bd,bkd->bk", c, tf.gather(emb_out, negative))
            loss = -tf.math.log_sigmoid(pos) - tf.reduce_sum(tf.math.log_sigmoid(-neg), -1)
            loss = tf.nn.compute_average_loss(loss, global_batch_size=GLOBAL_BATCH)
        grads = tape.gradient(loss, [emb_in, emb_out])
        optimizer.apply_gradients(zip(grads, [emb_in, emb_out]))
        return loss

    iterator = iter(make_dataset())
    for step in range(STEPS):
        centre, context = next(iterator)
        losses = strategy.run(step_fn, args=(centre, context))
        if step % 20 == 0:
            loss = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
            print(f"step {step} loss {float(loss):.4f}")

    ckpt = tf.train.Checkpoint(emb_in=emb_in, emb_out=emb_out)
    ckpt.save(os.path.join(os.environ.get("OUT_DIR", "gs://my-bucket/w2v"), "embeddings"))


if __name__ == "__main__":
    main()
