"""BERT with its masked language modelling head, every shape fixed."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf
from transformers import BertConfig
from transformers.models.bert.modeling_tf_bert import TFBertForMaskedLM

from options import SIZES

__all__ = [
    "build_network",
    "masked_logits",
    "masked_loss",
    "set_seed",
]

POSITIONS = 512  # BERT's own, so that longer sequences can be trained later


def set_seed(seed: int) -> None:
    """Make the first weights the same for a seed.

    tf_keras.utils.set_random_seed would do so too, but makes TF-Keras 2.18 ask Python for a random
    number up to a float, which Python 3.12 refuses.
    """
    random.seed(seed)
    tf.random.set_seed(seed)


def build_network(
    size: str, vocabulary_size: int, sequence_length: int, dropout: float
) -> TFBertForMaskedLM:
    """Return a new network with random weights; call it within the strategy's scope."""
    layers, hidden, heads = SIZES[size]
    network = TFBertForMaskedLM(
        BertConfig(
            vocab_size=vocabulary_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            max_position_embeddings=max(POSITIONS, sequence_length),
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )
    network.build()
    return network


def masked_logits(network: TFBertForMaskedLM, batch: dict[str, Any], training: bool) -> Any:
    """Return vocabulary scores [batch, predictions, vocabulary] for the masked positions only.

    The vocabulary head is the dearest part of a small BERT: it need not see the other positions.
    """
    hidden = network.bert(
        batch["input_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"],
        training=training,
    )[0]
    masked = tf.gather(hidden, batch["masked_lm_positions"], axis=1, batch_dims=1)
    return tf.cast(network.mlm(masked, training=training), tf.float32)


def masked_loss(logits: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
    """Return the summed loss and the number of right guesses.

    Unused places count through their weight of zero: leaving them out with a boolean mask would
    make the shapes dynamic.
    """
    weights = batch["masked_lm_weights"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["masked_lm_ids"], logits)
    guesses = tf.argmax(logits, axis=-1, output_type=tf.int32)
    right = tf.cast(tf.equal(guesses, batch["masked_lm_ids"]), tf.float32)
    return tf.reduce_sum(losses * weights), tf.reduce_sum(right * weights)
