"""One training step of a replica: gradients of its share of the batch, then the common update."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from training.dropout import masks_of
from training.model import masked_loss, pairs_loss, pretraining_logits
from training.strategy import Choice

__all__ = ["MEASURES", "Step", "several_steps"]

SUM = tf.distribute.ReduceOp.SUM
MEASURES = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "gradient_norm")


class Step:
    """One step of training on a replica; call it with the replica's share of the batch.

    Losses are divided by the weight of the whole batch, so sums over replicas and parts are exact:
    the result depends on the batch, not on how it is split.

    There is no random state: dropout masks follow from the seed, the optimizer's step count, the
    part, the layer and the replica.
    """

    def __init__(
        self,
        network: Any,
        optimizer: Any,
        *,
        batch: int,
        parts: int = 1,
        clip_norm: float,
        xla: bool = False,
    ) -> None:
        """`batch` is over all replicas; each splits its share into `parts`, computed in sequence.

        `xla` compiles the gradients with XLA; a TPU always compiles everything.
        """
        self.network, self.optimizer, self.variables = (
            network,
            optimizer,
            network.trainable_variables,
        )
        self.batch, self.parts, self.clip_norm = batch, parts, clip_norm
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
            more_measures, more_gradients = self.part(
                part, weight, first + tf.cast(number, first.dtype), replica
            )
            sums = [
                gradient + other for gradient, other in zip(gradients, more_gradients, strict=True)
            ]
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
        self, part: dict[str, Any], weight: Any, number: Any, replica: Any
    ) -> tuple[Any, list[Any]]:
        """Return a part's contribution to the measures and gradients of the batch."""
        with tf.GradientTape() as tape, masks_of(number, replica):
            words, pairs = pretraining_logits(self.network, part, training=True)
            loss, right = (value / weight for value in masked_loss(words, part))
            total, pairs_measures = loss, (tf.constant(0.0), tf.constant(0.0))
            if pairs is not None:
                pairs_measures = tuple(value / self.batch for value in pairs_loss(pairs, part))
                total = loss + pairs_measures[0]
        gradients = tape.gradient(total, self.variables)
        # Embedding gradients are sparse slices; deduplicating them would have a dynamic shape.
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return tf.stack([loss, right, *pairs_measures]), dense


def several_steps(choice: Choice, step: Step) -> Any:
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
            measures = choice.run(replica_step, (next(iterator),))
            sums += choice.strategy.reduce(SUM, measures, axis=None)
        return sums

    return take
