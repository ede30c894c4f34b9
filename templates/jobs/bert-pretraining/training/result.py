"""The result of training: an evaluation, and the model in Hugging Face's format."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from transformers import AutoTokenizer, TFAutoModelForMaskedLM

import files
from training import input_pipeline
from training.card import model_card
from training.evaluation import evaluate
from training.examples import fill_mask, sentences
from training.export import HERE, write_model
from training.loop import Trainer

__all__ = ["is_complete", "write_result"]

FOLDER, MARKER = "model", "training.json"  # MARKER is written last, with the step
WIKIPEDIA_LICENSE = "cc-by-sa-4.0"  # as the Hub calls it
SEARCHED_BATCHES = 50  # for example sentences


def is_complete(output: str, step: int) -> bool:
    """Whether the result of a step is completely written."""
    return files.read_json(files.join(output, FOLDER, MARKER)).get("step") == step


def write_result(trainer: Trainer, summary: dict[str, float], log: Callable[[str], None]) -> None:
    """Evaluate and export the current weights, test the exported model and write its card.

    `summary` is that of this run's training, or empty. The model is written to a local folder,
    loaded from there, and copied to `model/` in the output folder.
    """
    options, manifest = trainer.options, trainer.manifest
    figures = training_figures(trainer, summary)
    evaluation = evaluate(trainer.network, trainer.choice, options.data, manifest, options.batch)
    if evaluation:
        evaluation = {"step": trainer.step, **evaluation}
        log(json.dumps(evaluation))
        files.write_json(files.join(options.output, "evaluation.json"), evaluation)
    target = files.join(options.output, FOLDER)
    files.remove(files.join(target, MARKER))
    tokenizer_folder = files.join(options.data, "tokenizer")
    with tempfile.TemporaryDirectory(prefix="model-") as here:
        write_model(trainer.network, tokenizer_folder, manifest["sequence_length"], here)
        examples = example_guesses(here, trainer)
        for line in examples:
            log(f"example: {line}")
        card = model_card(
            source=text_source(options),
            training=figures,
            records=manifest,
            evaluation=evaluation,
            examples=examples,
            vocabulary=files.lines(files.join(here, "vocab.txt")),
        )
        files.write_text(files.join(here, "README.md"), card)
        for name in files.names(here):
            files.copy(files.join(here, name), files.join(target, name))
    files.write_json(files.join(target, MARKER), {**figures, **evaluation, "step": trainer.step})
    log(f"model: {target}, load it with from_pretrained of transformers")


def text_source(options: argparse.Namespace) -> dict[str, str]:
    """Return the name of the text's source, and its license if known."""
    if not options.is_prepared:
        return {"name": f"text files in `{options.text.rstrip('/').rpartition('/')[2]}`"}
    sources = files.read_json(files.join(options.data, "text", "manifest.json")).get("sources", [])
    names = [source["path"].rpartition("/")[2] for source in sources]
    dump = files.read_json(files.join(options.data, "dump", "manifest.json"))
    if names and set(names) <= {file["name"] for file in dump.get("files", [])}:
        return {"name": f"{dump['wiki']}, dump of {dump['date']}", "license": WIKIPEDIA_LICENSE}
    return {"name": ", ".join(names)}


def training_figures(trainer: Trainer, summary: dict[str, float]) -> dict[str, Any]:
    """Return the settings and figures of the training for the model card."""
    options = trainer.options
    return {
        "size": options.size,
        "parameters": trainer.parameters,
        "steps": trainer.step,
        "batch": options.batch,
        "optimizer": options.optimizer,
        "learning_rate": options.learning_rate,
        "warmup_steps": options.warmup_steps,
        "weight_decay": options.weight_decay,
        "dropout": options.dropout,
        "seed": options.seed,
        "precision": trainer.precision,
        "device": trainer.choice.description,
        "tensorflow": tf.__version__,
        **{name: summary[name] for name in ("last_loss", "tokens_per_second") if name in summary},
    }


def example_guesses(folder: str, trainer: Trainer) -> list[str]:
    """Return a few guesses of the exported model, for held-out text if there is some."""
    options, manifest = trainer.options, trainer.manifest
    records = files.join(options.data, "records")
    has_held_out = any(item["sequences"] for item in manifest.get("held_out", ()))
    with tf.device(HERE):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = TFAutoModelForMaskedLM.from_pretrained(folder, use_safetensors=False)
        examples = (
            input_pipeline.held_out(records, manifest, options.batch)
            if has_held_out
            else input_pipeline.dataset(records, manifest, options.batch, options.seed, 0)
        )
        return list(
            fill_mask(model, tokenizer, sentences(tokenizer, examples.take(SEARCHED_BATCHES)))
        )
