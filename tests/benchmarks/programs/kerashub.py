"""KerasHub's BERT with its masked language modelling task: see exchange.py."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import keras_hub
import tensorflow as tf
from exchange import OPTIMIZER, request, serve

arrays, model = request()
inputs = {
    "token_ids": arrays["input_ids"],
    "padding_mask": arrays["input_mask"],
    "segment_ids": arrays["segment_ids"],
    "mask_positions": arrays["masked_lm_positions"],
}
examples = tf.data.Dataset.from_tensor_slices(
    (inputs, arrays["masked_lm_ids"], arrays["masked_lm_weights"])
)
examples = examples.repeat().batch(model["batch"], drop_remainder=True).prefetch(2)
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=model["vocabulary"],
    num_layers=model["layers"],
    num_heads=model["heads"],
    hidden_dim=model["hidden"],
    intermediate_dim=4 * model["hidden"],
    dropout=model["dropout"],
    max_sequence_length=512,
)
network = keras_hub.models.BertMaskedLM(backbone)
optimizer = keras.optimizers.AdamW(**OPTIMIZER)
optimizer.exclude_from_weight_decay(var_names=["layer_norm", "bias"])
# On a CPU XLA makes it slower.
network.compile(optimizer=optimizer, jit_compile=False)


def train(steps: int) -> float:
    return network.fit(examples, steps_per_epoch=steps, verbose=0).history["loss"][-1]


serve(train, network.count_params)
