"""What a training leaves behind: an evaluation, and the model for Hugging Face's libraries."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from transformers import AutoTokenizer, TFAutoModelForMaskedLM

import files
from training import reading
from training.card import model_card
from training.evaluation import evaluate
from training.examples import fill_mask, sentences
from training.export import HERE, write_model
from training.loop import Trainer

__all__ = ["is_there", "leave_result"]

FOLDER, LAST = "model", "training.json"  # LAST is written last, and names the step
WIKIPEDIA_LICENSE = "cc-by-sa-4.0"  # as the Hub calls it
SEARCHED = 50  # batches, for sentences to show


def is_there(output: str, step: int) -> bool:
    """Say whether the result of a step has been written, to its end."""
    return files.read_json(files.join(output, FOLDER, LAST)).get("step") == step


def leave_result(trainer: Trainer, summary: dict[str, float], say: Callable[[str], None]) -> None:
    """Evaluate, export, try the exported model and write its card, all for the present weights.

    `summary` is that of the training just done, empty when there was none. The model is put
    together on this machine, loaded from there as anybody would load it, and then copied to
    `model/` of the output folder.
    """
    options, manifest = trainer.options, trainer.manifest
    figures = figures_of(trainer, summary)
    evaluation = evaluate(trainer.network, trainer.choice, options.data, manifest, options.batch)
    if evaluation:
        evaluation = {"step": trainer.step, **evaluation}
        say(json.dumps(evaluation))
        files.write_json(files.join(options.output, "evaluation.json"), evaluation)
    target = files.join(options.output, FOLDER)
    files.remove(files.join(target, LAST))
    tokenizer_folder = files.join(options.data, "tokenizer")
    with tempfile.TemporaryDirectory(prefix="model-") as here:
        write_model(trainer.network, tokenizer_folder, manifest["sequence_length"], here)
        examples = tried(here, trainer)
        for line in examples:
            say(f"example: {line}")
        card = model_card(
            source=source_of(options),
            training=figures,
            records=manifest,
            evaluation=evaluation,
            examples=examples,
            vocabulary=files.lines(files.join(here, "vocab.txt")),
        )
        files.write_text(files.join(here, "README.md"), card)
        for name in files.names(here):
            files.copy(files.join(here, name), files.join(target, name))
    files.write_json(files.join(target, LAST), {**figures, **evaluation, "step": trainer.step})
    say(f"model: {target}, for transformers' from_pretrained")


def source_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the name of the text's source, and its license where that is known."""
    if not options.is_prepared:
        return {"name": f"text files in `{options.text.rstrip('/').rpartition('/')[2]}`"}
    sources = files.read_json(files.join(options.data, "text", "manifest.json")).get("sources", [])
    names = [source["path"].rpartition("/")[2] for source in sources]
    dump = files.read_json(files.join(options.data, "dump", "manifest.json"))
    if names and set(names) <= {file["name"] for file in dump.get("files", [])}:
        return {"name": f"{dump['wiki']}, dump of {dump['date']}", "license": WIKIPEDIA_LICENSE}
    return {"name": ", ".join(names)}


def figures_of(trainer: Trainer, summary: dict[str, float]) -> dict[str, Any]:
    """Return what is worth knowing later of how the model was trained."""
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


def tried(folder: str, trainer: Trainer) -> list[str]:
    """Return a few guesses of the exported model, for held-out text where there is some."""
    options, manifest = trainer.options, trainer.manifest
    records = files.join(options.data, "records")
    apart = any(item["sequences"] for item in manifest.get("held_out", ()))
    with tf.device(HERE):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = TFAutoModelForMaskedLM.from_pretrained(folder, use_safetensors=False)
        examples = (
            reading.held_out(records, manifest, options.batch)
            if apart
            else reading.dataset(records, manifest, options.batch, options.seed, 0)
        )
        return list(fill_mask(model, tokenizer, sentences(tokenizer, examples.take(SEARCHED))))
