"""BERT with its pretraining heads; all shapes are static."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf
from transformers import BertConfig
from transformers.models.bert.modeling_tf_bert import TFBertForMaskedLM, TFBertForPreTraining

from options import SIZES
from training.dropout import make_stateless
from training.precision import compute_precision

__all__ = [
    "build_network",
    "masked_logits",
    "masked_loss",
    "pairs_loss",
    "pretraining_logits",
    "set_seed",
]

POSITIONS = 512  # as in BERT, so that longer sequences can be trained later


def set_seed(seed: int) -> None:
    """Make the initial weights deterministic for a seed.

    Not tf_keras.utils.set_random_seed: with it, TF-Keras 2.18 requests a random integer up to a
    float, which Python 3.12 rejects.
    """
    random.seed(seed)
    tf.random.set_seed(seed)


def build_network(
    size: str,
    vocabulary_size: int,
    sequence_length: int,
    dropout: float,
    *,
    pairs: bool = False,
    precision: str = "float32",
    seed: int = 0,
) -> TFBertForMaskedLM | TFBertForPreTraining:
    """Return a new network with random weights; call it within the strategy's scope.

    With `pairs` it has a head for segment pairs, otherwise neither that nor the pooler. `seed` is
    for the dropout masks; the weights follow from `set_seed`.
    """
    layers, hidden, heads = SIZES[size]
    kind = TFBertForPreTraining if pairs else TFBertForMaskedLM
    with compute_precision(precision):
        network = kind(
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
        make_stateless(network, seed)
        network.build()
    return network


def pretraining_logits(
    network: TFBertForMaskedLM | TFBertForPreTraining, batch: dict[str, Any], training: bool
) -> tuple[Any, Any]:
    """Return float32 scores: [batch, predictions, vocabulary] for the masked positions only, and
    [batch, 2] for the segments, or None from a network without that head.

    The vocabulary head is the most expensive part of a small BERT, so it skips other positions.
    When training, call it within `dropout.masks_of`.
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


def masked_logits(network: Any, batch: dict[str, Any], training: bool) -> Any:
    """Return the first of `pretraining_logits`."""
    return pretraining_logits(network, batch, training)[0]


def masked_loss(logits: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
    """Return the summed loss of the masked positions and the number of correct predictions.

    Unused predictions have weight zero: a boolean mask would make the shapes dynamic.
    """
    return weighted_loss(logits, batch["masked_lm_ids"], batch["masked_lm_weights"])


def pairs_loss(logits: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
    """Return the summed loss of the segments' labels and the number of correct predictions."""
    labels = batch["next_sentence_labels"]
    return weighted_loss(logits, labels, tf.ones(labels.shape))


def weighted_loss(logits: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    guesses = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    right = tf.cast(tf.equal(guesses, labels), tf.float32)
    return tf.reduce_sum(losses * weights), tf.reduce_sum(right * weights)
