"""Subclassed Keras model with its own train_step; bfloat16; exact padded evaluation."""
import numpy as np
import tensorflow as tf

PER_REPLICA = 32
DIM, LATENT = 64, 8


def tpu_or_default():
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    except ValueError:
        return tf.distribute.get_strategy(), False
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver), True


class VAE(tf.keras.Model):
    def __init__(self, use_kl=True):
        super().__init__()
        self.use_kl = use_kl
        self.enc = tf.keras.Sequential([tf.keras.layers.Dense(128, activation="gelu"),
                                        tf.keras.layers.Dense(2 * LATENT, dtype="float32")])
        self.dec = tf.keras.Sequential([tf.keras.layers.Dense(128, activation="gelu"),
                                        tf.keras.layers.Dense(DIM, dtype="float32")])
        self.loss_tracker = tf.keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, x, training=False):
        mean, logvar = tf.split(self.enc(x), 2, axis=-1)
        z = mean
        if training:
            z = mean + tf.random.normal(tf.shape(mean)) * tf.exp(0.5 * logvar)
        return self.dec(z), mean, logvar

    def example_losses(self, x, training):
        recon, mean, logvar = self(x, training=training)
        loss = tf.reduce_sum(tf.square(recon - x), -1)
        if self.use_kl:
            loss += 0.5 * tf.reduce_sum(tf.exp(logvar) + tf.square(mean) - 1.0 - logvar, -1)
        return loss

    def train_step(self, x):
        with tf.GradientTape() as tape:
            losses = self.example_losses(x, training=True)
            loss = tf.nn.compute_average_loss(losses)
        grads = tape.gradient(loss, self.trainable_variables)
        grads = [tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)) for g in grads]
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.loss_tracker.update_state(losses)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        x, weight = data
        self.loss_tracker.update_state(self.example_losses(x, training=False), sample_weight=weight)
        return {"loss": self.loss_tracker.result()}


def sample(n, seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, 4)) @ np.random.default_rng(5).normal(size=(4, DIM))).astype(np.float32)


def padded_eval(x, batch):
    pad = -len(x) % batch
    weight = np.concatenate([np.ones(len(x)), np.zeros(pad)]).astype(np.float32)
    x = np.concatenate([x, np.zeros((pad, DIM), np.float32)])
    return tf.data.Dataset.from_tensor_slices((x, weight)).batch(batch, drop_remainder=True)


def main():
    strategy, on_tpu = tpu_or_default()
    if on_tpu:
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    batch = PER_REPLICA * strategy.num_replicas_in_sync
    train = tf.data.Dataset.from_tensor_slices(sample(4000, 0))
    train = train.cache().shuffle(4000).batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        model = VAE()
        model.build((batch, DIM))
        model.compile(optimizer=tf.keras.optimizers.Adam(1e-3), steps_per_execution=5)
    history = model.fit(train, epochs=3, verbose=2)
    print("first/last loss", history.history["loss"][0], history.history["loss"][-1])
    print("eval", model.evaluate(padded_eval(sample(333, 1), batch), verbose=0))


if __name__ == "__main__":
    main()
