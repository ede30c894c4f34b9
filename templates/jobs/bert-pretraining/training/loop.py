"""The training loop: many steps per host call, and one log line per call."""

from __future__ import annotations

import argparse
import json
import math
import time
from contextlib import closing
from typing import Any

import tensorflow as tf

import files
from training.checkpoints import Checkpoints
from training.input_pipeline import dataset
from training.interruption import Stop
from training.model import build_network, set_seed
from training.optimizers import Schedule, build_optimizer
from training.precision import precision_on
from training.step import MEASURES, Step, several_steps
from training.strategy import Choice
from training.summaries import Summaries

__all__ = ["Trainer"]


class Trainer:
    """One model under one strategy, with its optimizer, checkpoints and compiled loop.

    The optimizer's step count is the only position in the run: the batch, the learning rate and
    the dropout masks follow from it and the seed. So a checkpoint of the network and the optimizer
    is enough to resume.
    """

    def __init__(
        self, options: argparse.Namespace, choice: Choice, manifest: dict[str, Any], stop: Stop
    ) -> None:
        self.options, self.choice, self.manifest, self.stop = options, choice, manifest, stop
        self.pairs = manifest.get("pairs", "none") != "none"
        self.precision = precision_on(choice.kind, options.precision)
        set_seed(options.seed)
        self.schedule = Schedule(
            options.learning_rate, options.warmup_steps, options.steps, options.decay
        )
        with choice.strategy.scope():
            self.network = build_network(
                options.size,
                manifest["vocabulary_size"],
                manifest["sequence_length"],
                options.dropout,
                pairs=self.pairs,
                precision=self.precision,
                seed=options.seed,
            )
            self.variables = self.network.trainable_variables
            self.optimizer = build_optimizer(
                options.optimizer, self.variables, self.schedule, options.weight_decay
            )
        step = Step(
            self.network,
            self.optimizer,
            batch=options.batch,
            parts=options.accumulation,
            clip_norm=options.clip_norm,
            xla=uses_xla(choice.kind, options.xla),
        )
        self.loop = several_steps(choice, step)
        self.checkpoints = Checkpoints(
            files.join(options.output, "checkpoints"),
            tf.train.Checkpoint(model=self.network, optimizer=self.optimizer),
            identity={
                "size": options.size,
                "optimizer": options.optimizer,
                "batch": options.batch,
                "seed": options.seed,
                "records": manifest["fingerprint"],
            },
            keep=options.keep_checkpoints,
            minutes=options.checkpoint_minutes,
            steps=options.checkpoint_steps,
        )
        self.iterator: Any = None

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(math.prod(variable.shape) for variable in self.variables)

    @property
    def step(self) -> int:
        """The number of steps since initialization, including earlier attempts."""
        return int(self.optimizer.iterations.numpy())

    def compile(self) -> None:
        """Trace the loop, with the input positioned at the current step."""
        examples = dataset(
            files.join(self.options.data, "records"),
            self.manifest,
            self.options.batch,
            self.options.seed,
            self.step,
        )
        self.iterator = iter(self.choice.strategy.experimental_distribute_dataset(examples))
        # Zero steps: builds and optimizes the graph without training.
        self.loop(self.iterator, tf.constant(0))

    def run(self) -> dict[str, float]:
        """Train to the last step or until a signal, after `compile`; return a summary.

        Raises JobError if the loss or the gradient is not finite; the weights may not be finite
        either, so nothing is saved.
        """
        first: dict[str, float] | None = None
        row: dict[str, float] = {}
        began, started_at = time.monotonic(), self.step
        self.checkpoints.restart_interval(started_at)
        folder = files.join(self.options.output, "tensorboard")
        with closing(Summaries(folder, started_at)) as summaries:
            while self.step < self.options.steps and self.stop.signal is None:
                row = self._call(self._next_steps())
                first = first or row
                print(json.dumps(row), flush=True)
                summaries.add(self.step, {name: row[name] for name in row if name != "step"})
                if self.checkpoints.is_due(self.step):
                    summaries.flush()
                    self.checkpoints.save(self.step)
        seconds = time.monotonic() - began
        done = self.step - started_at
        return {
            "steps": done,
            "seconds": seconds,
            "first_loss": first["loss"] if first else math.nan,
            "last_loss": row.get("loss", math.nan),
            "tokens_per_second": round(self._tokens(done) / max(seconds, 1e-9)),
        }

    def _next_steps(self) -> int:
        """Return the number of steps of the next call: one at first, then up to the next line.

        So the first loss of a new model is that of random weights, the vocabulary's logarithm.
        The ends of calls depend on the step alone, so a resumed run prints the same lines as an
        uninterrupted one.
        """
        if self.step == 0:
            return 1
        until_line = self.options.steps_per_call - self.step % self.options.steps_per_call
        return min(until_line, self.options.steps - self.step)

    def _call(self, steps: int) -> dict[str, float]:
        """Run some steps in one call; return their log line, with means over these steps."""
        began = time.monotonic()
        sums = self.loop(self.iterator, tf.constant(steps)).numpy()
        seconds = time.monotonic() - began
        means = {name: float(value) / steps for name, value in zip(MEASURES, sums, strict=True)}
        loss = means["mlm_loss"] + means["nsp_loss"]
        for name, value in (("loss", loss), ("gradient's norm", means["gradient_norm"])):
            if not math.isfinite(value):
                raise self.checkpoints.not_finite(self.step, f"the {name} is {value}")
        logged = MEASURES if self.pairs else ("mlm_accuracy", "gradient_norm")
        return {
            "step": self.step,
            "loss": round(loss, 4),
            **{name: round(means[name], 4) for name in logged},
            "tokens_per_second": round(self._tokens(steps) / seconds),
            "learning_rate": float(f"{float(self.schedule(self.step - 1)):.3g}"),
        }

    def _tokens(self, steps: int) -> int:
        return steps * self.options.batch * int(self.manifest["sequence_length"])


def uses_xla(kind: str, setting: str) -> bool:
    """Whether to enable XLA on a kind of device: tpu, gpu or cpu.

    A TPU always compiles with XLA. On a CPU it only costs compile time here; on a GPU it fuses the
    many small operations between the matrix products.
    """
    return kind != "tpu" and (setting == "on" or (setting == "auto" and kind == "gpu"))
