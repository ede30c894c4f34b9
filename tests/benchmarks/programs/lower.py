"""Write the bundled job's own step as the TPU's compiler takes it, without a TPU.

    lower.py FOLDER SIZE LENGTH < BATCHES

One core's share of the step: model, losses, gradients, clipping, optimizer. For each batch, a
number on a line, `FOLDER/BATCH.hlo` is the program and a line of JSON says what is in it; so does
`FOLDER/BATCH.json`. Needs tensorflow-tpu and the job on its path.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

os.environ.update(
    TPU_LIBRARY_PATH="/nonexistent",  # the import waits for minutes for a TPU otherwise
    TF_USE_LEGACY_KERAS="1",
    FORCE_TF_AVAILABLE="1",  # transformers does not know the package of a TPU's TensorFlow
    TF_CPP_MIN_LOG_LEVEL="3",
)
import tensorflow as tf
from functional import FunctionOfValues

import options
from training.interruption import Stop
from training.loop import Trainer
from training.step import Step
from training.strategy import Choice

VOCABULARY = 32_000


def trainer(size: str, length: int, folder: str) -> Trainer:
    """The job's trainer as on a TPU, with its variables in this machine's memory."""
    chosen = options.parse(["--size", size, "--output", folder, "--sequence-length", str(length)])
    manifest = {
        "vocabulary_size": VOCABULARY,
        "sequence_length": length,
        "predictions": predictions(length),
        "fingerprint": "",
        "pairs": "nsp",
    }
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    return Trainer(chosen, Choice(strategy, "tpu", 1, "one core"), manifest, Stop())


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


def lowered(job: Trainer, size: int, length: int) -> SimpleNamespace:
    clip = job.options.clip_norm
    replica_step = Step(job.network, job.optimizer, batch=size, clip_norm=clip)

    def step(batch: dict[str, tf.Tensor]) -> object:
        return job.choice.run(replica_step, (batch,))

    traced = tf.function(step, autograph=False).get_concrete_function(batch_of(size, length))
    whole = FunctionOfValues(traced)
    free = [one for one in traced.inputs if one.dtype != tf.resource][: len(batch_of(1, 1))]
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in [*whole.variables, *free]]
    function = tf.function(whole, jit_compile=True, autograph=False)
    ir = function.experimental_get_compiler_ir(*specs)
    return SimpleNamespace(
        program=ir(stage="hlo_serialized", platform_name="TPU"),
        text=ir(stage="hlo", platform_name="TPU"),
        results=len(whole.outputs),
        changed=whole.changed,
        variables=len(whole.variables),
    )


def main(folder: str, size: str, length: int) -> None:
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = trainer(size, length, folder)
    for batch in map(int, sys.stdin):
        began = time.monotonic()
        step = lowered(job, batch, length)
        row = {
            "batch": batch,
            "parameters": job.parameters,
            "variables": step.variables,
            "results": step.results,
            "changed": step.changed,
            "dynamic": step.text.count("<="),
            "bfloat16": step.text.count(" bf16["),
            "seconds": round(time.monotonic() - began, 1),
        }
        Path(folder, f"{batch}.json").write_text(json.dumps(row), "utf-8")
        Path(folder, f"{batch}.hlo").write_bytes(step.program)
        print(json.dumps(row), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
