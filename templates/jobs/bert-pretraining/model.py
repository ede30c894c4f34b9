"""BERT with its pretraining heads, Hugging Face's; all shapes are static."""

import argparse
import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from transformers import BertConfig
from transformers.models.bert.modeling_tf_bert import TFBertForMaskedLM, TFBertForPreTraining

try:
    import tf_keras as keras  # Keras 2, for TensorFlow 2.16 and later, which include Keras 3
except ImportError:
    from tensorflow import keras  # included in TensorFlow up to 2.15, as on TPU nodes


# name: layers, hidden size, attention heads; the inner layer is four times the hidden size
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
POSITIONS = 512  # as in BERT, so that longer sequences can be trained later
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
# The step and the replica, as int64 scalars. Each replica is traced in a separate thread.
STEP_AND_REPLICA: ContextVar[tuple[Any, Any]] = ContextVar("the step and the replica")


@contextmanager
def masks_of(step: Any, replica: Any) -> Iterator[None]:
    """Use the dropout masks of a step and a replica, below 65,536, within the context."""
    token = STEP_AND_REPLICA.set((tf.cast(step, tf.int64), tf.cast(replica, tf.int64)))
    try:
        yield
    finally:
        STEP_AND_REPLICA.reset(token)


class StatelessDropout(keras.layers.Layer):
    """Drops a share of its input while training; call it within `masks_of`.

    Keras' Dropout draws from a generator that counts its calls: a resumed run, or one with another
    number of replicas, would draw other masks. Here a mask follows from the seed, the step, the
    layer and the replica alone, so checkpoints contain no generator.
    """

    def __init__(self, layer: Any, seed: int, number: int) -> None:
        """Replace a Dropout; its `number`, below 65,536, gives each layer other masks."""
        super().__init__(name=layer.name)
        self.rate = layer.rate
        self.key = (seed << 32) + (number << 16)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the input, while training with `rate` of it zero and the rest scaled up."""
        if not training or not self.rate:
            return inputs
        step, replica = STEP_AND_REPLICA.get()
        # The four numbers use separate bits, so no two masks share a seed.
        seed = tf.stack([step, self.key + replica])
        # In float32 whatever the input is: bfloat16 has too few values between 0 and the rate.
        remains = tf.random.stateless_uniform(inputs.shape, seed) >= self.rate
        return tf.where(remains, inputs * (1 / (1 - self.rate)), tf.zeros([], inputs.dtype))


def set_seed(seed: int) -> None:
    """Make the initial weights deterministic for a seed.

    Not tf_keras.utils.set_random_seed: with it, TF-Keras 2.18 requests a random integer up to a
    float, which Python 3.12 rejects.
    """
    random.seed(seed)
    tf.random.set_seed(seed)


def build_network(
    options: argparse.Namespace, manifest: dict[str, Any], precision: str = "float32"
) -> TFBertForMaskedLM | TFBertForPreTraining:
    """Return a new network with random weights; call it within the strategy's scope.

    If the records have pairs, it has a head for them, otherwise neither that nor the pooler. It
    computes in `precision`; weights are float32. They follow from `set_seed`.
    """
    layers, hidden, heads = SIZES[options.size]
    kind = TFBertForMaskedLM if manifest["pairs"] == "none" else TFBertForPreTraining
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(POLICIES[precision])
    try:
        network = kind(
            BertConfig(
                vocab_size=manifest["vocabulary_size"],
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=4 * hidden,
                max_position_embeddings=max(POSITIONS, manifest["sequence_length"]),
                hidden_dropout_prob=options.dropout,
                attention_probs_dropout_prob=options.dropout,
            )
        )
        number = 0
        for owner in (network, *network.submodules):
            for name, layer in list(vars(owner).items()):
                if isinstance(layer, keras.layers.Dropout):
                    setattr(owner, name, StatelessDropout(layer, options.seed, number))
                    number += 1
        network.build()
    finally:
        keras.mixed_precision.set_global_policy(before)
    return network


def pretraining_logits(network: Any, batch: dict[str, Any], training: bool) -> tuple[Any, Any]:
    """Return float32 scores: [batch, predictions, vocabulary] for the masked positions only, and
    [batch, 2] for the pairs, or None from a network without that head.

    The vocabulary head is the most expensive part of a small BERT, so it skips other positions.
    When training, call it within `masks_of`.
    """
    output = network.bert(
        batch["input_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"],
        training=training,
        return_dict=True,
    )
    positions = batch["masked_lm_positions"]
    masked = tf.gather(output.last_hidden_state, positions, axis=1, batch_dims=1)
    words = tf.cast(network.mlm(masked, training=training), tf.float32)
    if not hasattr(network, "nsp"):
        return words, None
    return words, tf.cast(network.nsp(output.pooler_output), tf.float32)


def weighted_loss(logits: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
    """Return the summed loss and the number of correct predictions, each times its weight.

    Unused predictions have weight zero: a boolean mask would make the shapes dynamic.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    guesses = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    right = tf.cast(tf.equal(guesses, labels), tf.float32)
    return tf.reduce_sum(losses * weights), tf.reduce_sum(right * weights)
