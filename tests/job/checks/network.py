"""Checks of the network, its loss and its optimizer; run by a Python with TensorFlow."""

import random

import numpy as np
import tensorflow as tf

from training.model import build_network, masked_logits, masked_loss, set_seed
from training.optimizers import Schedule, build_optimizer
from training.schedule import learning_rate

LENGTH, VOCABULARY = 16, 120


def first_weights(seed: int) -> np.ndarray:
    set_seed(seed)
    return build_network("tiny", VOCABULARY, LENGTH, dropout=0.0).get_weights()[0]


# The first weights follow from the seed, asking Python for nothing that 3.12 refuses.
randrange = random.Random.randrange


def strict_randrange(self: random.Random, start: int, *more: int) -> int:
    assert all(isinstance(bound, int) for bound in (start, *more)), (start, more)
    return randrange(self, start, *more)


random.Random.randrange = strict_randrange
assert (first_weights(1) == first_weights(1)).all()
assert (first_weights(1) != first_weights(2)).any()

set_seed(1)
network = build_network("tiny", VOCABULARY, LENGTH, dropout=0.0)
generator = np.random.default_rng(3)
batch = {
    "input_ids": tf.constant(generator.integers(5, VOCABULARY, (4, LENGTH)), tf.int32),
    "input_mask": tf.constant([[1] * 12 + [0] * 4] * 4),
    "segment_ids": tf.zeros((4, LENGTH), tf.int32),
    "masked_lm_positions": tf.constant([[1, 5, 0], [2, 3, 11], [4, 0, 0], [1, 2, 3]]),
    "masked_lm_ids": tf.constant([[9, 8, 0], [7, 6, 5], [9, 0, 0], [20, 21, 22]]),
    "masked_lm_weights": tf.constant([[1.0, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]]),
}

# The same as the whole network's scores at those positions.
whole = network(
    batch["input_ids"],
    attention_mask=batch["input_mask"],
    token_type_ids=batch["segment_ids"],
).logits
logits = masked_logits(network, batch, training=False)
assert logits.shape == (4, 3, VOCABULARY)
expected, right = 0.0, 0
for row in range(4):
    for place in range(3):
        scores = whole[row, int(batch["masked_lm_positions"][row, place])].numpy()
        np.testing.assert_allclose(logits[row, place].numpy(), scores, atol=1e-4)
        if batch["masked_lm_weights"][row, place]:
            truth = int(batch["masked_lm_ids"][row, place])
            shifted = scores - scores.max()
            expected += float(np.log(np.exp(shifted).sum()) - shifted[truth])
            right += int(scores.argmax() == truth)
loss, correct = masked_loss(logits, batch)
assert abs(float(loss) - expected) < 1e-3, (float(loss), expected)
assert float(correct) == right

# What stands in an unused place makes no difference.
filled = {**batch, "masked_lm_ids": tf.where(batch["masked_lm_weights"] > 0, 0, 99)}
filled["masked_lm_ids"] = tf.where(
    batch["masked_lm_weights"] > 0, batch["masked_lm_ids"], filled["masked_lm_ids"]
)
assert float(masked_loss(logits, filled)[0]) == float(loss)

# The optimizer's rate is the plain function's.
schedule = Schedule(2e-3, 10, 100)
for step in (0, 3, 10, 57, 99, 100):
    plain = learning_rate(step, 2e-3, 10, 100)
    assert abs(float(schedule(step)) - plain) < 1e-8, step

# With gradients of zero only decay moves weights: kernels and embeddings, nothing else.
variables = network.trainable_variables
optimizer = build_optimizer("adamw", variables, Schedule(0.1, 0, 10), 0.5)
before = [variable.numpy() for variable in variables]
optimizer.apply_gradients([(tf.zeros_like(variable), variable) for variable in variables])
moved = set()
for variable, old in zip(variables, before, strict=True):
    if not np.array_equal(variable.numpy(), old):
        np.testing.assert_allclose(variable.numpy(), old * (1 - 0.1 * 0.5), rtol=1e-5)
        moved.add(variable.name)
kept = {variable.name for variable in variables} - moved
assert moved and all("kernel" in name or "embeddings" in name for name in moved), moved
assert not any("kernel" in name or "word_embeddings" in name for name in kept), kept
print("checked")
