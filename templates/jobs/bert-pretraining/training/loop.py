"""The training loop: many steps for each call of the host, and a line of the log for each."""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import tensorflow as tf

import files
from errors import JobError
from training.checkpoints import Checkpoints
from training.interruption import Stop
from training.model import build_network, masked_logits, masked_loss, set_seed
from training.optimizers import WarmupThenLinear, build_optimizer
from training.reading import dataset
from training.strategy import Choice

__all__ = ["Trainer"]


class Trainer:
    """One model under one strategy, with its optimizer, checkpoints and compiled loop."""

    def __init__(
        self, options: argparse.Namespace, choice: Choice, manifest: dict[str, Any], stop: Stop
    ) -> None:
        self.options, self.choice, self.manifest, self.stop = options, choice, manifest, stop
        set_seed(options.seed)
        self.schedule = WarmupThenLinear(options.learning_rate, options.warmup_steps, options.steps)
        with choice.strategy.scope():
            self.network = build_network(
                options.size,
                manifest["vocabulary_size"],
                manifest["sequence_length"],
                options.dropout,
            )
            self.variables = self.network.trainable_variables
            self.optimizer = build_optimizer(
                self.variables, self.schedule, options.weight_decay, options.clip_norm
            )
        self.checkpoints = Checkpoints(
            files.join(options.output, "checkpoints"),
            tf.train.Checkpoint(model=self.network, optimizer=self.optimizer),
            of={
                "size": options.size,
                "batch": options.batch,
                "seed": options.seed,
                "records": manifest["fingerprint"],
            },
            keep=options.keep_checkpoints,
            minutes=options.checkpoint_minutes,
            steps=options.checkpoint_steps,
        )
        self.loop = tf.function(self._loop)
        self.iterator: Any = None

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(math.prod(variable.shape) for variable in self.variables)

    @property
    def step(self) -> int:
        """The number of steps taken since the weights were random, earlier attempts included."""
        return int(self.optimizer.iterations.numpy())

    def compile(self) -> None:
        """Trace the loop, its input placed at the current step."""
        examples = dataset(
            files.join(self.options.output, "records"),
            self.manifest,
            self.options.batch,
            self.options.seed,
            self.step,
        )
        self.iterator = iter(self.choice.strategy.experimental_distribute_dataset(examples))
        # No steps: the graph is built and optimised without anything being trained.
        self.loop(self.iterator, tf.constant(0))

    def run(self) -> dict[str, float]:
        """Train, once compiled, to the last step or until a signal; return what a summary needs."""
        first: dict[str, float] | None = None
        row: dict[str, float] = {}
        began, started_at = time.monotonic(), self.step
        self.checkpoints.begin(started_at)
        while self.step < self.options.steps and self.stop.signal is None:
            row = self._call(self._next_steps(alone=first is None))
            first = first or row
            print(json.dumps(row), flush=True)
            if not math.isfinite(row["loss"]):
                raise JobError(
                    f"the loss is {row['loss']} at step {self.step}: the last checkpoint is kept; "
                    "try a lower --learning-rate"
                )
            if self.checkpoints.are_due(self.step):
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

    def _next_steps(self, alone: bool) -> int:
        """Return how many steps to take in one call: a first one alone, then up to the next line.

        The first loss of a new model is then the one of random weights, the vocabulary's logarithm.
        """
        if alone:
            return 1
        until_line = self.options.steps_per_call - self.step % self.options.steps_per_call
        return min(until_line, self.options.steps - self.step)

    def _call(self, steps: int) -> dict[str, float]:
        began = time.monotonic()
        loss, accuracy = self.loop(self.iterator, tf.constant(steps))
        loss, accuracy = float(loss) / steps, float(accuracy) / steps
        seconds = time.monotonic() - began
        return {
            "step": self.step,
            "loss": round(loss, 4),
            "mlm_accuracy": round(accuracy, 4),
            "tokens_per_second": round(self._tokens(steps) / seconds),
            "learning_rate": float(f"{float(self.schedule(self.step - 1)):.3g}"),
        }

    def _tokens(self, steps: int) -> int:
        return steps * self.options.batch * int(self.manifest["sequence_length"])

    def _loop(self, iterator: Any, steps: Any) -> tuple[Any, Any]:
        """Take `steps` steps; return the sums of their losses and accuracies."""
        strategy = self.choice.strategy
        # The network has no Python control flow on tensors: not converting it halves the tracing.
        replica_step = tf.autograph.experimental.do_not_convert(self._replica_step)
        loss = accuracy = tf.constant(0.0)
        for _ in tf.range(steps):
            losses, accuracies = self.choice.run(replica_step, (next(iterator),))
            loss += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
            accuracy += strategy.reduce(tf.distribute.ReduceOp.SUM, accuracies, axis=None)
        return loss, accuracy

    def _replica_step(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """Take one step on one replica's share; return its part of the batch's loss, accuracy."""
        # Divided by the whole batch's weight, so that the sum over replicas is exact whatever
        # their number.
        context = tf.distribute.get_replica_context()
        weight = context.all_reduce(
            tf.distribute.ReduceOp.SUM, tf.reduce_sum(batch["masked_lm_weights"])
        )
        with tf.GradientTape() as tape:
            logits = masked_logits(self.network, batch, training=True)
            loss, right = masked_loss(logits, batch)
            loss /= weight
        gradients = tape.gradient(loss, self.variables)
        # Embedding gradients come as slices; making them unique has a dynamic shape.
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        # Sums the gradients over the replicas, then clips, then decays.
        self.optimizer.apply_gradients(zip(dense, self.variables, strict=True))
        return loss, right / weight
