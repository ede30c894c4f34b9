"""The bundled job's step, handed to be compiled with no data at hand.

    job_step.py SIZE LENGTH

Runs as `tpuctl rehearse --compile` runs a script, with the job on its path. One core's share of the
step: model, losses, gradients, clipping, optimizer.
"""

from __future__ import annotations

import sys
import tempfile

import tensorflow as tf
from _tpuctl.preflight.shim.tensorflow import lowering_session

import pretrain
from devices import Choice
from machine import Stop
from training import Step, Trainer

VOCABULARY = 32_000
BATCHES = {128: 256, 512: 64}  # to begin with


def trainer(size: str, length: int, folder: str) -> Trainer:
    """The job's trainer as on a TPU, with its variables in this machine's memory."""
    options = pretrain.parse(["--size", size, "--output", folder, "--precision", "bfloat16"])
    manifest = {
        "vocabulary_size": VOCABULARY,
        "sequence_length": length,
        "fingerprint": "",
        "pairs": "nsp",
    }
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    return Trainer(options, Choice(strategy, "tpu", 1, "one core"), manifest, Stop())


def predictions(length: int) -> int:
    """How many positions are masked: 15 %, as BERT's own 20 of 128 and 76 of 512."""
    return int(length * 0.15) + 1


def batch_of(size: int, length: int) -> dict[str, tf.TensorSpec]:
    masked = (size, predictions(length))
    return {
        "input_ids": tf.TensorSpec((size, length), tf.int32),
        "input_mask": tf.TensorSpec((size, length), tf.int32),
        "segment_ids": tf.TensorSpec((size, length), tf.int32),
        "masked_lm_positions": tf.TensorSpec(masked, tf.int32),
        "masked_lm_ids": tf.TensorSpec(masked, tf.int32),
        "masked_lm_weights": tf.TensorSpec(masked, tf.float32),
        "next_sentence_labels": tf.TensorSpec((size,), tf.int32),
    }


def main(size: str, length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = trainer(size, length, folder)

        @tf.autograph.experimental.do_not_convert
        def step(batch: dict[str, tf.Tensor]) -> object:
            job.options.batch = batch["input_ids"].shape[0]
            of_replica = Step(job.network, job.optimizer, job.options)
            return job.choice.strategy.run(of_replica, (batch,))

        lowering_session.lower_step(step, [batch_of(BATCHES.get(length, 8), length)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
