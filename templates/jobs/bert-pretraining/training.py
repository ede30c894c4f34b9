"""Training: the optimizers, one step on a replica, and the loop of many steps for each log line."""

import argparse
import json
import math
import time
from typing import Any

import tensorflow as tf

from checkpoints import Checkpoints
from devices import Choice
from files import join, read_text, write_text
from input_pipeline import dataset
from machine import Stop
from model import build_network, keras, masks_of, pretraining_logits, set_seed, weighted_loss

SUM = tf.distribute.ReduceOp.SUM
SHOWN = ("loss", "mlm_accuracy", "nsp_accuracy")  # in the log; metrics.jsonl has all of them
MEASURES = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "gradient_norm")
UNDECAYED = ("LayerNorm", "bias")  # parts of the names of weights without weight decay
EPSILON = 1e-6


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warmup to the peak rate, then a decay to zero: linear, cosine, or constant."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.peak, self.decay = options.learning_rate, options.decay
        self.warmup_steps, self.steps = options.warmup_steps, options.steps

    def __call__(self, step: Any) -> Any:
        """Return the rate of a step, the first is 0; above zero there, the peak at warmup_steps."""
        step = tf.cast(step, tf.float32)
        left = (self.steps - step) / max(self.steps - self.warmup_steps, 1)
        left = tf.clip_by_value(left, 0.0, 1.0)
        falling = {"linear": left, "cosine": (1 - tf.cos(math.pi * left)) / 2, "constant": 1.0}
        rising = tf.minimum((step + 1) / (self.warmup_steps + 1), 1.0)
        return self.peak * tf.minimum(rising, falling[self.decay])

    def get_config(self) -> dict[str, Any]:
        return vars(self)


class LAMB(keras.optimizers.Optimizer):
    """LAMB: Adam with each matrix's update scaled to the norm of its weights.

    You et al., Large Batch Optimization for Deep Learning, arXiv:1904.00962, algorithm 2, with the
    identity as the scaling function. As in the authors' code, weights without weight decay are not
    rescaled either.
    """

    def __init__(self, learning_rate: Any, weight_decay: float) -> None:
        # The base class would apply weight decay separately from the update.
        super().__init__(name="LAMB", weight_decay=None, jit_compile=False)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.share, self.beta_1, self.beta_2 = weight_decay, 0.9, 0.999

    def build(self, variables: list[Any]) -> None:
        """Create both moments of every weight."""
        super().build(variables)
        if not hasattr(self, "moments"):
            self.moments = [
                [self.add_variable_from_reference(variable, name) for variable in variables]
                for name in ("mean", "square")
            ]

    def update_step(self, gradient: Any, variable: Any) -> None:
        """Update one weight with its dense gradient."""
        number = self._index_dict[self._var_key(variable)]
        mean, square = (moments[number] for moments in self.moments)
        steps = tf.cast(self.iterations + 1, tf.float32)
        mean.assign_add((gradient - mean) * (1 - self.beta_1))
        square.assign_add((tf.square(gradient) - square) * (1 - self.beta_2))
        deviation = tf.sqrt(square / (1 - self.beta_2**steps))
        change = mean / (1 - self.beta_1**steps) / (deviation + EPSILON)
        rate = tf.cast(self.learning_rate, tf.float32)
        if not any(part in variable.name for part in UNDECAYED):
            change += self.share * variable
            # l2_loss sums the squares in one pass, without storing them.
            weight_norm = tf.sqrt(tf.nn.l2_loss(tf.convert_to_tensor(variable)))
            trust = tf.math.divide_no_nan(weight_norm, tf.sqrt(tf.nn.l2_loss(change)))
            rate = rate * tf.where(trust > 0, trust, 1.0)
        variable.assign_sub(rate * change)


def build_optimizer(options: argparse.Namespace, variables: list[Any], schedule: Any) -> Any:
    """Return an optimizer with its state created; biases and normalizations have no weight decay.

    It is adamw (Loshchilov and Hutter, arXiv:1711.05101) or lamb. Gradients must be dense, clipped,
    and summed over the replicas. Call it within the strategy's scope.
    """
    decay = options.weight_decay
    if options.optimizer == "lamb":
        optimizer = LAMB(schedule, decay)
    else:
        optimizer = keras.optimizers.AdamW(
            schedule, weight_decay=decay, beta_2=0.98, epsilon=EPSILON, jit_compile=False
        )
        optimizer.exclude_from_weight_decay(var_names=list(UNDECAYED))
    optimizer.build(variables)
    return optimizer


class Step:
    """One step of training on a replica; call it with the replica's share of the batch.

    Losses are divided by the weight of the whole batch, so sums over replicas and parts are exact:
    the result depends on the batch, not on how it is split. There is no random state: dropout
    masks follow from the seed, the optimizer's step count, the part, the layer and the replica.
    """

    def __init__(
        self, network: Any, optimizer: Any, options: argparse.Namespace, *, xla: bool = False
    ) -> None:
        """`xla` compiles the gradients with XLA; a TPU always compiles everything.

        Of the options, `batch` is over all replicas; each splits its share into `accumulation`
        parts, computed in sequence.
        """
        self.network, self.optimizer = network, optimizer
        self.variables = network.trainable_variables
        self.batch, self.parts = options.batch, options.accumulation
        self.clip_norm = options.clip_norm
        self.part = tf.function(self._part, jit_compile=True) if xla else self._part

    def __call__(self, share: dict[str, Any]) -> Any:
        """Update the weights; return the MEASURES, which callers sum over the replicas."""
        context = tf.distribute.get_replica_context()
        weight = context.all_reduce(SUM, tf.reduce_sum(share["masked_lm_weights"]))
        measures, gradients = self._share(
            share, tf.maximum(weight, 1.0), context.replica_id_in_sync_group
        )
        gradients = context.all_reduce(SUM, gradients)
        norm = tf.linalg.global_norm(gradients)
        gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm, use_norm=norm)
        self.optimizer.apply_gradients(
            zip(gradients, self.variables, strict=True), skip_gradients_aggregation=True
        )
        return tf.concat([measures, [norm / context.num_replicas_in_sync]], 0)

    def _share(self, share: dict[str, Any], weight: Any, replica: Any) -> tuple[Any, list[Any]]:
        """Return the measures and gradients of a share, summed over its parts."""
        first = self.optimizer.iterations * self.parts
        if self.parts == 1:
            return self.part(share, weight, first, replica)
        parts = {
            name: tf.reshape(value, [self.parts, value.shape[0] // self.parts, *value.shape[1:]])
            for name, value in share.items()
        }

        def add(number: Any, measures: Any, gradients: list[Any]) -> tuple[Any, Any, list[Any]]:
            part = {name: tf.gather(value, number) for name, value in parts.items()}
            step = first + tf.cast(number, first.dtype)
            more_measures, more = self.part(part, weight, step, replica)
            sums = [gradient + other for gradient, other in zip(gradients, more, strict=True)]
            return number + 1, measures + more_measures, sums

        zeros = [tf.zeros(variable.shape) for variable in self.variables]
        _, measures, gradients = tf.while_loop(
            lambda number, *_: number < self.parts,
            add,
            (0, tf.zeros([len(MEASURES) - 1]), zeros),
            maximum_iterations=self.parts,
        )
        return measures, gradients

    def _part(
        self, part: dict[str, Any], weight: Any, step: Any, replica: Any
    ) -> tuple[Any, list[Any]]:
        """Return a part's contribution to the measures and gradients of the batch."""
        with tf.GradientTape() as tape, masks_of(step, replica):
            words, pairs = pretraining_logits(self.network, part, training=True)
            ids, weights = part["masked_lm_ids"], part["masked_lm_weights"]
            measures = [value / weight for value in weighted_loss(words, ids, weights)]
            total, of_pairs = measures[0], (tf.constant(0.0), tf.constant(0.0))
            if pairs is not None:
                labels = part["next_sentence_labels"]
                of_pairs = weighted_loss(pairs, labels, tf.ones(labels.shape) / self.batch)
                total += of_pairs[0]
        gradients = tape.gradient(total, self.variables)
        # Embedding gradients are sparse slices; deduplicating them would have a dynamic shape.
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return tf.stack([*measures, *of_pairs]), dense


def several_steps(strategy: Any, step: Step) -> Any:
    """Return a compiled function of an iterator over batches and a number of steps.

    It returns the sums of the steps' MEASURES. The number must be a tensor: each new Python number
    would be traced and compiled again.
    """
    # The network has no Python control flow on tensors: skipping AutoGraph halves tracing time.
    replica_step = tf.autograph.experimental.do_not_convert(step)

    @tf.function
    def take(iterator: Any, steps: Any) -> Any:
        sums = tf.zeros([len(MEASURES)])
        for _ in tf.range(steps):
            measures = strategy.run(replica_step, args=(next(iterator),))
            sums += strategy.reduce(SUM, measures, axis=None)
        return sums

    return take


class Trainer:
    """One model under one strategy, with its optimizer, checkpoints and compiled loop.

    The optimizer's step count is the only position in the run: the batch, the masks and the
    learning rate follow from it and the seed. So a checkpoint of the network and the optimizer is
    enough to resume.
    """

    def __init__(
        self, options: argparse.Namespace, choice: Choice, manifest: dict[str, Any], stop: Stop
    ) -> None:
        self.options, self.choice, self.manifest, self.stop = options, choice, manifest, stop
        self.precision = options.precision.replace("auto", choice.precision)
        self.schedule = Schedule(options)
        set_seed(options.seed)
        with choice.strategy.scope():
            self.network = build_network(options, manifest, self.precision)
            variables = self.network.trainable_variables
            self.optimizer = build_optimizer(options, variables, self.schedule)
        self.parameters = sum(math.prod(variable.shape) for variable in variables)
        # A TPU always compiles with XLA. On a CPU it only costs compile time here; on a GPU it
        # fuses the many small operations between the matrix products.
        xla = {"auto": choice.kind == "gpu", "on": choice.kind != "tpu", "off": False}[options.xla]
        step = Step(self.network, self.optimizer, options, xla=xla)
        self.loop = several_steps(choice.strategy, step)
        state = tf.train.Checkpoint(model=self.network, optimizer=self.optimizer)
        self.checkpoints = Checkpoints(state, options, manifest["fingerprint"])
        self.iterator: Any = None
        self.rows: list[dict[str, float]] = []  # log lines since the last checkpoint
        self.writer: Any = None

    @property
    def step(self) -> int:
        """The number of steps since initialization, including earlier attempts."""
        return int(self.optimizer.iterations.numpy())

    def compile(self) -> None:
        """Trace the loop, with the input positioned at the current step."""
        folder = join(self.options.data, "records")
        batches = dataset(folder, self.manifest, self.options, self.step)
        self.iterator = iter(self.choice.strategy.experimental_distribute_dataset(batches))
        self.loop(self.iterator, tf.constant(0))  # builds the graph without training

    def run(self) -> dict[str, float]:
        """Train to the last step or until a signal, after `compile`; return a summary.

        Raises JobError if the loss or the gradient is not finite; the weights may not be finite
        either, so nothing is saved.
        """
        began, first = time.monotonic(), self.step
        losses: list[float] = []
        self.checkpoints.restart_interval(first)
        while self.step < self.options.steps and self.stop.signal is None:
            row = self._call(self._next_steps())
            values = [f"{name.replace('_', ' ')} {row[name]:.4f}" for name in SHOWN if name in row]
            speed = f"{row['tokens_per_second']:,} tokens/s"
            print(f"step {row['step']}/{self.options.steps}", *values, speed, sep="  ", flush=True)
            self.rows.append(row)
            losses = [*losses[:1], row["loss"]]
            if self.checkpoints.is_due(self.step):
                self.save()
        return {
            "steps": self.step - first,
            "seconds": time.monotonic() - began,
            "first_loss": losses[0] if losses else math.nan,
            "last_loss": losses[-1] if losses else math.nan,
            "tokens_per_second": self._speed(self.step - first, began),
        }

    def save(self) -> str:
        """Save a checkpoint, and the values of the log lines up to it; return its path.

        Later lines are printed again by a run that resumes, so each line is in TensorBoard and in
        metrics.jsonl once.
        """
        metrics = join(self.options.output, "metrics.jsonl")
        lines = [line for line in read_text(metrics).splitlines() if line.endswith("}")]
        rows = {row["step"]: row for row in [*map(json.loads, lines), *self.rows]}
        write_text(metrics, "".join(f"{json.dumps(row)}\n" for row in rows.values()))
        path = self.checkpoints.save(self.step)
        # Written by this machine, even if a TPU node computes.
        with tf.device("/job:localhost/device:CPU:0"):
            folder = join(self.options.output, "tensorboard")
            self.writer = self.writer or tf.summary.create_file_writer(folder)
            with self.writer.as_default():
                for row in self.rows:
                    for name in set(row) - {"step"}:
                        tf.summary.scalar(name, row[name], int(row["step"]))
            self.writer.flush()
        self.rows.clear()
        return path

    def _next_steps(self) -> int:
        """Return the number of steps of the next call: one at first, then up to the next line.

        So the first loss of a new model is that of random weights, the vocabulary's logarithm, and
        a resumed run prints the same lines as an uninterrupted one.
        """
        until_line = self.options.steps_per_call - self.step % self.options.steps_per_call
        return min(until_line, self.options.steps - self.step) if self.step else 1

    def _call(self, steps: int) -> dict[str, float]:
        """Run some steps in one call; return their log line, with means over these steps."""
        began = time.monotonic()
        sums = self.loop(self.iterator, tf.constant(steps)).numpy()
        speed = self._speed(steps, began)
        means = {name: float(value) / steps for name, value in zip(MEASURES, sums, strict=True)}
        loss = means["mlm_loss"] + means["nsp_loss"]
        for name, value in (("loss", loss), ("gradient's norm", means["gradient_norm"])):
            if not math.isfinite(value):
                raise self.checkpoints.not_finite(self.step, f"the {name} is {value}")
        has_pairs = self.manifest["pairs"] != "none"
        logged = MEASURES if has_pairs else ("mlm_accuracy", "gradient_norm")
        return {
            "step": self.step,
            "loss": round(loss, 4),
            **{name: round(means[name], 4) for name in logged},
            "tokens_per_second": speed,
            "learning_rate": float(f"{float(self.schedule(self.step - 1)):.3g}"),
        }

    def _speed(self, steps: int, began: float) -> int:
        tokens = steps * self.options.batch * self.manifest["sequence_length"]
        return round(tokens / max(time.monotonic() - began, 1e-9))
