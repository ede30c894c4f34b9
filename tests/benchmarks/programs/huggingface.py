"""BERT as Hugging Face's TensorFlow scripts train it, `fit` with its own loss: see exchange.py."""

import os

os.environ.update(TF_USE_LEGACY_KERAS="1", USE_TORCH="0")
import numpy as np
import tensorflow as tf
import tf_keras
from exchange import OPTIMIZER, request, serve
from transformers import BertConfig, TFBertForMaskedLM

arrays, model = request()
# The loss is that of the positions with a label; -100 is none.
labels = np.full_like(arrays["input_ids"], -100)
np.put_along_axis(labels, arrays["masked_lm_positions"], arrays["masked_lm_ids"], axis=1)
examples = tf.data.Dataset.from_tensor_slices(
    {
        "input_ids": arrays["input_ids"],
        "attention_mask": arrays["input_mask"],
        "token_type_ids": arrays["segment_ids"],
        "labels": labels,
    }
)
examples = examples.repeat().batch(model["batch"], drop_remainder=True).prefetch(2)
network = TFBertForMaskedLM(
    BertConfig(
        vocab_size=model["vocabulary"],
        hidden_size=model["hidden"],
        num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"],
        intermediate_size=4 * model["hidden"],
        hidden_dropout_prob=model["dropout"],
        attention_probs_dropout_prob=model["dropout"],
    )
)
network.build()
optimizer = tf_keras.optimizers.AdamW(**OPTIMIZER)
optimizer.exclude_from_weight_decay(var_names=["LayerNorm", "bias"])
network.compile(optimizer=optimizer)


def train(steps: int) -> float:
    return network.fit(examples, steps_per_epoch=steps, verbose=0).history["loss"][-1]


serve(train, network.count_params)
