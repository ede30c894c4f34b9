"""BERT's masked words with transformers on TensorFlow: a collator of our own, static shapes."""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
from transformers import BertConfig, TFBertForMaskedLM

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4


class Collator:
    """Pads to one length and masks 15 % of the words, as BERT's authors did."""

    def __init__(self, vocabulary, length, probability=0.15, seed=0):
        self.vocabulary = vocabulary
        self.length = length
        self.probability = probability
        self.rng = np.random.default_rng(seed)

    def pad(self, sequences):
        ids = np.full((len(sequences), self.length), PAD, "int32")
        for row, sequence in zip(ids, sequences):
            words = [CLS, *sequence[: self.length - 2], SEP]
            row[: len(words)] = words
        return ids

    def __call__(self, sequences):
        ids = self.pad(sequences)
        labels = ids.copy()
        chosen = (self.rng.random(ids.shape) < self.probability) & (ids >= FIRST)
        labels[~chosen] = -100
        masked = chosen & (self.rng.random(ids.shape) < 0.8)
        ids[masked] = MASK
        other = chosen & ~masked & (self.rng.random(ids.shape) < 0.5)
        ids[other] = self.rng.integers(FIRST, self.vocabulary, other.sum())
        return {"input_ids": ids, "attention_mask": (ids != PAD).astype("int32"), "labels": labels}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--output", default=os.environ.get("TPUCTL_OUTPUT"))
    return parser.parse_args()


def make_strategy():
    name = os.environ.get("TPU_NAME")
    if name is None:
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def main():
    args = parse()
    tf.random.set_seed(42)
    strategy = make_strategy()
    if args.batch % strategy.num_replicas_in_sync:
        raise SystemExit(f"a batch of {args.batch} cannot be shared by the replicas")

    config = BertConfig(
        vocab_size=512,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=args.length,
    )
    rng = np.random.default_rng(7)
    corpus = [rng.integers(FIRST, config.vocab_size, rng.integers(8, 60)) for _ in range(256)]
    examples = Collator(config.vocab_size, args.length)(corpus)

    dataset = tf.data.Dataset.from_tensor_slices(examples)
    dataset = dataset.shuffle(256).repeat().batch(args.batch, drop_remainder=True)

    with strategy.scope():
        model = TFBertForMaskedLM(config)
        schedule = tf.keras.optimizers.schedules.PolynomialDecay(args.learning_rate, 1000, 0.0)
        model.compile(optimizer=tf.keras.optimizers.Adam(schedule, clipnorm=1.0))

    callbacks = []
    if args.output:
        path = os.path.join(args.output, "mlm-{epoch:02d}")
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True))
    history = model.fit(dataset, steps_per_epoch=args.steps, epochs=1, callbacks=callbacks)
    loss = history.history["loss"][-1]
    print(f"perplexity {np.exp(loss):.1f}" if loss < 20 else "perplexity too large to tell")


if __name__ == "__main__":
    main()
