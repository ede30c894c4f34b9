"""The bundled job's own trainer, with batches from memory: see exchange.py."""

import os
import sys
import tempfile

os.environ.update(TF_USE_LEGACY_KERAS="1", USE_TORCH="0")
import tensorflow as tf
from exchange import OPTIMIZER, request, serve

import pretrain
from devices import choose
from machine import Stop
from training import Trainer

arrays, model = request()
NAMES = {"dropout": "dropout", "size": "size", "batch": "batch", "length": "sequence-length"}
arguments = [part for name, flag in NAMES.items() for part in (f"--{flag}", str(model[name]))]
arguments += ["--learning-rate", str(OPTIMIZER["learning_rate"]), "--device", "cpu", *sys.argv[3:]]
manifest = {
    "vocabulary_size": model["vocabulary"],
    "sequence_length": model["length"],
    "pairs": "none",
    "fingerprint": "",
}
with tempfile.TemporaryDirectory() as folder:
    choice = choose("cpu", 1)
    trainer = Trainer(pretrain.parse([*arguments, "--output", folder]), choice, manifest, Stop())
arrays["next_sentence_labels"] = arrays["input_ids"][:, 0] * 0
examples = tf.data.Dataset.from_tensor_slices(arrays).repeat()
examples = examples.batch(model["batch"], drop_remainder=True).prefetch(2)
iterator = iter(choice.strategy.experimental_distribute_dataset(examples))


def train(steps: int) -> float:
    return float(trainer.loop(iterator, tf.constant(steps))[0]) / steps


serve(train, lambda: trainer.parameters)
print("traced", trainer.loop.experimental_get_tracing_count(), file=sys.stderr)
