"""Checks of the network, its loss and its optimizer; run by a Python with TensorFlow."""

import random
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.model import build_network, masked_logits, masked_loss, set_seed
from training.optimizers import Schedule, build_optimizer
from training.precision import precision_on
from training.schedule import learning_rate
from training.step import Step
from training.summaries import Summaries

LENGTH, VOCABULARY = 16, 120


def first_weights(seed: int) -> np.ndarray:
    set_seed(seed)
    return build_network("tiny", VOCABULARY, LENGTH, dropout=0.0).get_weights()[0]


# The initial weights follow from the seed, without calls that Python 3.12 rejects.
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

# Equal to the whole network's scores at those positions.
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

# Unused predictions have no effect.
filled = {**batch, "masked_lm_ids": tf.where(batch["masked_lm_weights"] > 0, 0, 99)}
filled["masked_lm_ids"] = tf.where(
    batch["masked_lm_weights"] > 0, batch["masked_lm_ids"], filled["masked_lm_ids"]
)
assert float(masked_loss(logits, filled)[0]) == float(loss)

# The optimizer's learning rate matches the plain function.
schedule = Schedule(2e-3, 10, 100)
for step in (0, 3, 10, 57, 99, 100):
    plain = learning_rate(step, 2e-3, 10, 100)
    assert abs(float(schedule(step)) - plain) < 1e-8, step


# Only kernels and embeddings decay, and with LAMB only they are rescaled. Each optimizer's updates
# match its paper, computed in NumPy with double precision: two steps with known gradients.
def after_adam(weight: np.ndarray, gradients: list[np.ndarray], decay: float) -> np.ndarray:
    """Loshchilov and Hutter, algorithm 2; the betas are RoBERTa's."""
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for step, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient**2
        change = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.98**step)) + 1e-6)
        weight = weight - learning_rate(step - 1, 0.1, 0, 10) * (change + decay * weight)
    return weight


def after_lamb(weight: np.ndarray, gradients: list[np.ndarray], decay: float) -> np.ndarray:
    """You et al., algorithm 2."""
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for step, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        ratio = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-6)
        change, trust = ratio, 1.0
        if decay:
            change = ratio + decay * weight
            trust = np.linalg.norm(weight) / np.linalg.norm(change) if weight.any() else 1.0
        weight = weight - learning_rate(step - 1, 0.1, 0, 10) * trust * change
    return weight


variables = network.trainable_variables
start = [variable.numpy() for variable in variables]
# Away from zero: Keras adds epsilon before it divides by the bias, the paper after.
steps = [
    [
        (generator.choice([-1, 1], value.shape) * generator.uniform(0.5, 1.5, value.shape)).astype(
            np.float32
        )
        for value in start
    ]
    for _ in range(2)
]
for name, formula in (("adamw", after_adam), ("lamb", after_lamb)):
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    optimizer = build_optimizer(name, variables, Schedule(0.1, 0, 10), 0.5)
    for gradients in steps:
        optimizer.apply_gradients(zip(map(tf.constant, gradients), variables, strict=True))
    decaying = set()
    for number, variable in enumerate(variables):
        decay = 0.0 if "LayerNorm" in variable.name or "bias" in variable.name else 0.5
        decaying.add((decay, variable.name.split("/")[-1]))
        np.testing.assert_allclose(
            variable.numpy(),
            formula(np.float64(start[number]), [np.float64(step[number]) for step in steps], decay),
            atol=2e-5,
            err_msg=f"{name} {variable.name}",
        )
    assert decaying == {
        *((0.5, part) for part in ("kernel:0", "weight:0", "embeddings:0")),
        *((0.0, part) for part in ("gamma:0", "beta:0", "bias:0")),
    }

# bfloat16 computation with float32 weights: it learns the same batch nearly as well.
losses = {}
for precision in ("float32", "bfloat16"):
    set_seed(1)
    network = build_network("tiny", VOCABULARY, LENGTH, 0.0, precision=precision)
    assert {variable.dtype for variable in network.get_weights()} == {np.dtype("float32")}
    variables = network.trainable_variables
    optimizer = build_optimizer("adamw", variables, Schedule(1e-3, 0, 1000), 0.01)
    step = Step(network, optimizer, batch=4, clip_norm=1.0)
    kind = network.bert(batch["input_ids"]).last_hidden_state.dtype
    assert kind == precision, kind
    assert masked_logits(network, batch, training=False).dtype == tf.float32
    train = tf.function(step)
    losses[precision] = [float(train(batch)[0]) for _ in range(40)]
for first, second in zip(*losses.values(), strict=True):
    assert abs(first - second) < 0.1, losses
assert losses["bfloat16"] != losses["float32"]
assert losses["bfloat16"][-1] < losses["bfloat16"][0] / 2, losses
assert tf_keras.mixed_precision.global_policy().name == "float32"
assert [precision_on(kind) for kind in ("tpu", "cpu")] == ["bfloat16", "float32"]
assert precision_on("tpu", "float32") == "float32"

# Each step is logged once, even if a run got further than its last checkpoint.
folder = str(Path(sys.argv[1], "tensorboard"))
for begin, end in ((0, 5), (3, 7), (7, 8), (2, 4)):
    summaries = Summaries(folder, begin)
    for step in range(begin + 1, end + 1):
        summaries.add(step, {"loss": begin + step / 10})
        if (begin, step) == (0, 5):  # killed while it wrote
            path = next(Path(folder).iterdir())
            path.write_bytes(path.read_bytes()[:-3])
    summaries.close()
    events = EventAccumulator(folder)
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("loss")]
    if end == 8:
        expected = [(1, 0.1), (2, 0.2), (3, 0.3), *((n, 3 + n / 10) for n in range(4, 8)), (8, 7.8)]
        np.testing.assert_allclose(sorted(points), expected, rtol=1e-6)
np.testing.assert_allclose(sorted(points), [(1, 0.1), (2, 0.2), (3, 2.3), (4, 2.4)], rtol=1e-6)
print("checked")
