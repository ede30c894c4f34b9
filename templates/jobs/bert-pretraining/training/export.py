"""Exports the trained network in Hugging Face's format."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file
from tokenizers import Tokenizer, processors
from transformers.modeling_tf_pytorch_utils import (
    apply_transpose,
    convert_tf_weight_name_to_pt_weight_name,
)

import files

__all__ = ["HERE", "pytorch_weights", "write_model"]

HERE = "/job:localhost/device:CPU:0"  # even if a TPU or a GPU trains
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")


def write_model(network: Any, tokenizer_folder: str, sequence_length: int, target: str) -> None:
    """Write config.json, the weights and the tokenizer's files into a local folder.

    The weights are written twice: to model.safetensors for PyTorch, and to tf_model.h5 for
    TensorFlow. transformers 4.57 cannot load the former in TensorFlow: it tries to iterate over a
    safetensors file.
    """
    with tf.device(HERE):
        plain = plain_copy(network)
    plain.save_pretrained(target, safe_serialization=False)
    config = copy.deepcopy(network.config)
    config.architectures = [type(network).__name__.removeprefix("TF")]
    config.save_pretrained(target)
    weights = pytorch_weights(plain)
    save_file(weights, files.join(target, "model.safetensors"), metadata={"format": "pt"})
    for name in TOKENIZER_FILES:
        files.copy(files.join(tokenizer_folder, name), files.join(target, name))
    add_template(files.join(target, "tokenizer.json"))
    settings = files.read_json(files.join(target, "tokenizer_config.json"))
    # Positions beyond the training length have random weights: truncate longer text.
    settings["model_max_length"] = sequence_length
    files.write_json(files.join(target, "tokenizer_config.json"), settings)


def add_template(path: str) -> None:
    """Make a tokenizer add [CLS] and [SEP] to text, as in the records."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(path)


def plain_copy(network: Any) -> Any:
    """Return a copy of the network in float32, created by `transformers` without a strategy.

    Variables of the trained network may be mirrored, and their names lack the model's name, which
    loaders expect.
    """
    plain = type(network)(copy.deepcopy(network.config))
    plain(plain.dummy_inputs)
    values = {variable.name: variable for variable in network.weights}
    for variable in plain.weights:
        name = variable.name.partition("/")[2]
        variable.assign(values[name if name in values else variable.name].numpy())
    return plain


def pytorch_weights(network: Any) -> dict[str, np.ndarray]:
    """Return the weights by their PyTorch names, with kernels transposed for PyTorch.

    The vocabulary head shares its matrix with the word embeddings, so it is not included.
    """
    weights = {}
    for variable in network.weights:
        name, turn = convert_tf_weight_name_to_pt_weight_name(
            variable.name, tf_weight_shape=variable.shape
        )
        weight = apply_transpose(turn, variable.numpy(), pt_to_tf=False)
        # safetensors writes the memory layout, which a transposed view does not change.
        weights[name] = np.ascontiguousarray(weight)
    return weights
