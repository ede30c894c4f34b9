"""The result of training: an evaluation, and the model in Hugging Face's format with its card."""

import copy
import math
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from huggingface_hub import ModelCardData
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from transformers import BertTokenizerFast
from transformers.modeling_tf_pytorch_utils import (
    apply_transpose,
    convert_tf_weight_name_to_pt_weight_name,
)

import files
from files import join
from input_pipeline import held_out
from model import pretraining_logits, weighted_loss
from training import SUM, Trainer

HERE = "/job:localhost/device:CPU:0"  # even if a TPU or a GPU trains
MARKER = "training.json"  # written last, with the step
MAX_BATCHES = 200  # of the evaluation: enough for three digits of the loss
CARD = """\
---
{head}
---

# BERT {size}, pretrained from scratch

A masked language model, to be fine-tuned, trained by tpuctl's bundled job. `AutoTokenizer` and
`AutoModelForMaskedLM` of `transformers` load it for PyTorch; for TensorFlow, `transformers` up to
4.57: `TFAutoModelForMaskedLM.from_pretrained(FOLDER, use_safetensors=False)`. Text is truncated to
{length} tokens: later positions were not trained.

{terms}

| | |
|---|---|
{rows}"""


def is_complete(output: str, step: int) -> bool:
    """Whether the result of a step is completely written."""
    return files.read_json(join(output, "model", MARKER)).get("step") == step


def write_result(trainer: Trainer, summary: dict[str, float], log: Callable[[str], None]) -> None:
    """Evaluate and export the current weights to `model/` in the output folder, with a card.

    `summary` is that of this run's training, or empty.
    """
    options, manifest = trainer.options, trainer.manifest
    target = join(options.output, "model")
    files.remove(join(target, MARKER))
    evaluation = evaluate(trainer)
    if evaluation:
        loss, accuracy = (evaluation[f"held_out_mlm_{name}"] for name in ("loss", "accuracy"))
        values = f"held-out loss {loss:.4f}  held-out accuracy {accuracy:.4f}"
        log(f"step {trainer.step}/{options.steps}  {values}")
        files.write_json(join(options.output, "evaluation.json"), evaluation)
    settings = ("size", "batch", "optimizer", "learning_rate", "warmup_steps", "weight_decay")
    figures = {
        "steps": trainer.step,
        "parameters": trainer.parameters,
        **{name: getattr(options, name) for name in (*settings, "dropout", "predictions", "seed")},
        "precision": trainer.precision,
        "device": trainer.choice.description,
        "tensorflow": tf.__version__,
        **{name: summary[name] for name in ("last_loss", "tokens_per_second") if name in summary},
        **evaluation,
    }
    with tempfile.TemporaryDirectory(prefix="model-") as here:
        text = files.read_text(join(options.data, "tokenizer", "tokenizer.json"))
        pieces = Tokenizer.from_str(text)
        length = manifest["sequence_length"]
        BertTokenizerFast(
            tokenizer_object=pieces, do_lower_case=False, model_max_length=length
        ).save_pretrained(here)
        with tf.device(HERE):
            save_weights(trainer.network, here)
        text = files.read_json(join(options.data, "text", "manifest.json"))
        sources = [source["name"] for source in text.get("sources", [])]
        source = ", ".join(sources) or f"text files in `{options.text.rpartition('/')[2]}`"
        card = model_card(
            {"text": source, **manifest["counts"], "pairs": manifest["pairs"], **figures},
            length,
            text.get("license"),
            is_korean="##다" in pieces.get_vocab(),
        )
        files.write_text(join(here, "README.md"), card)
        files.make_folder(target)
        for name in files.names(here):
            files.gfile().copy(join(here, name), join(target, name), overwrite=True)
    files.write_json(join(target, MARKER), figures)
    log(f"model: {target}, load it with from_pretrained of transformers")


def evaluate(trainer: Trainer) -> dict[str, float]:
    """Return loss, accuracy and perplexity on the held-out records; empty if there are none."""
    options, manifest, strategy = trainer.options, trainer.manifest, trainer.choice.strategy
    count = manifest["counts"]["held_out_sequences"]
    if not count:
        return {}

    def add_up(batch: dict[str, Any]) -> Any:
        words, pairs = pretraining_logits(trainer.network, batch, training=False)
        weights = batch["masked_lm_weights"]
        # The last batch is padded with rows without tokens.
        real = tf.cast(tf.reduce_any(batch["input_mask"] > 0, axis=1), tf.float32)
        sums = [*weighted_loss(words, batch["masked_lm_ids"], weights), tf.reduce_sum(weights)]
        if pairs is not None:
            sums += weighted_loss(pairs, batch["next_sentence_labels"], real)
        return tf.stack([*sums, tf.reduce_sum(real)])

    step = tf.autograph.experimental.do_not_convert(add_up)

    @tf.function
    def on_replicas(iterator: Any) -> Any:
        return strategy.reduce(SUM, strategy.run(step, args=(next(iterator),)), axis=None)

    # A fixed number of batches, with next() inside the function: iterating to the end of a remote
    # dataset, as on a TPU node, logs errors about its end.
    batches = held_out(join(options.data, "records"), manifest, options)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    steps = min(MAX_BATCHES, math.ceil(count / options.batch))
    sums = sum(on_replicas(iterator).numpy().astype(np.float64) for _ in range(steps))
    loss, right, words, *of_pairs, sequences = sums.tolist()
    loss, right = loss / max(words, 1.0), right / max(words, 1.0)
    return {
        "step": trainer.step,
        "held_out_sequences": round(sequences),
        "held_out_predictions": round(words),
        "held_out_mlm_loss": round(loss, 4),
        "held_out_mlm_accuracy": round(right, 4),
        "held_out_perplexity": float(f"{math.exp(min(loss, 700.0)):.4g}"),
        **{
            f"held_out_nsp_{name}": round(value / sequences, 4)
            for name, value in zip(("loss", "accuracy"), of_pairs, strict=bool(of_pairs))
        },
    }


def save_weights(network: Any, target: str) -> None:
    """Write config.json, tf_model.h5 for TensorFlow and model.safetensors for PyTorch.

    Twice, as transformers 4.57 cannot load the latter in TensorFlow: it tries to iterate over a
    safetensors file. The weights are those of a copy in float32, made without a strategy: variables
    of the trained network may be mirrored, and their names lack the model's name.
    """
    plain = type(network)(copy.deepcopy(network.config))
    plain(plain.dummy_inputs)
    values = {variable.name: variable for variable in network.weights}
    for variable in plain.weights:
        name = variable.name.partition("/")[2]
        variable.assign(values[name if name in values else variable.name].numpy())
    plain.save_pretrained(target, safe_serialization=False)
    config = copy.deepcopy(network.config)
    config.architectures = [type(network).__name__.removeprefix("TF")]
    config.save_pretrained(target)
    weights = {}
    for variable in plain.weights:
        name, turn = convert_tf_weight_name_to_pt_weight_name(
            variable.name, tf_weight_shape=variable.shape
        )
        weight = apply_transpose(turn, variable.numpy(), pt_to_tf=False)
        # safetensors writes the memory layout, which a transposed view does not change.
        weights[name] = np.ascontiguousarray(weight)
    save_file(weights, join(target, "model.safetensors"), metadata={"format": "pt"})


def model_card(
    figures: Mapping[str, Any], length: int, license_name: str | None, *, is_korean: bool
) -> str:
    """Return the card as Markdown, with front matter for the Hugging Face Hub."""
    head = ModelCardData(
        language="ko" if is_korean else None,
        license=license_name or "other",
        license_name=None if license_name else "that-of-the-text",
        library_name="transformers",
        pipeline_tag="fill-mask",
        mask_token="[MASK]",
        tags=["bert", "pretraining", *(["korean"] if is_korean else [])],
    )
    terms = f"The text is licensed under `{license_name}`, and so is the model."
    if not license_name:
        terms = "The license of the text is unknown: look it up before you publish the model."
    rows = "".join(
        f"| {name.replace('_', ' ')} | {f'{value:,}' if isinstance(value, int) else value} |\n"
        for name, value in figures.items()
    )
    return CARD.format(
        head=head.to_yaml(), size=figures["size"], length=length, terms=terms, rows=rows
    )
