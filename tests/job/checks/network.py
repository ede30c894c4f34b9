"""Checks of the network, its loss and its optimizer; run by a Python with TensorFlow."""

import math
import random

import numpy as np
import tensorflow as tf
import tf_keras
from settings import options_of

from model import POSITIONS, SIZES, build_network, pretraining_logits, set_seed, weighted_loss
from training import Schedule, Step, build_optimizer

LENGTH, VOCABULARY = 16, 120
MANIFEST = {"vocabulary_size": VOCABULARY, "sequence_length": LENGTH, "pairs": "none"}


def schedule_of(peak: float, warmup_steps: int, steps: int, decay: str = "linear") -> Schedule:
    return Schedule(
        options_of(learning_rate=peak, warmup_steps=warmup_steps, steps=steps, decay=decay)
    )


def learning_rate(
    step: int, peak: float, warmup_steps: int, steps: int, decay: str = "linear"
) -> float:
    """The rate by its definition, in double precision."""
    left = min(max((steps - step) / max(steps - warmup_steps, 1), 0), 1)
    falling = {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "constant": 1}[decay]
    return peak * min((step + 1) / (warmup_steps + 1), 1, falling)


def first_weights(seed: int) -> np.ndarray:
    set_seed(seed)
    return build_network(options_of(), MANIFEST).get_weights()[0]


# The initial weights follow from the seed, without calls that Python 3.12 rejects.
randrange = random.Random.randrange


def strict_randrange(self: random.Random, start: int, *more: int) -> int:
    assert all(isinstance(bound, int) for bound in (start, *more)), (start, more)
    return randrange(self, start, *more)


random.Random.randrange = strict_randrange
assert (first_weights(1) == first_weights(1)).all()
assert (first_weights(1) != first_weights(2)).any()

set_seed(1)
network = build_network(options_of(), MANIFEST)
generator = np.random.default_rng(3)

# It has the weights of BERT, with the head of masked words and without a pooler.
layers, width, _ = SIZES[options_of().size]
normalized = 2 * width
layer = 4 * (width * width + width) + 2 * 4 * width * width + 5 * width + 2 * normalized
embeddings = (VOCABULARY + POSITIONS + 2) * width + normalized
head = width * width + width + normalized + VOCABULARY
assert network.count_params() == embeddings + layers * layer + head

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
logits = pretraining_logits(network, batch, training=False)[0]
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


def masked_loss(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return weighted_loss(logits, batch["masked_lm_ids"], batch["masked_lm_weights"])


loss, correct = masked_loss(batch)
assert abs(float(loss) - expected) < 1e-3, (float(loss), expected)
assert float(correct) == right

# Unused predictions have no effect.
filled = {**batch, "masked_lm_ids": tf.where(batch["masked_lm_weights"] > 0, 0, 99)}
filled["masked_lm_ids"] = tf.where(
    batch["masked_lm_weights"] > 0, batch["masked_lm_ids"], filled["masked_lm_ids"]
)
assert float(masked_loss(filled)[0]) == float(loss)

# The learning rate warms up linearly, and decays to zero: first slower by the cosine.
for decay in ("linear", "cosine", "constant"):
    schedule = schedule_of(2e-3, 10, 100, decay)
    for step in (0, 3, 10, 57, 99, 100, 200):
        plain = learning_rate(step, 2e-3, 10, 100, decay)
        assert abs(float(schedule(step)) - plain) < 1e-8, (decay, step)
rates = [float(schedule_of(1.0, 10, 110)(step)) for step in range(111)]
assert abs(rates[0] - 1 / 11) < 1e-6 and max(rates) == rates[10] == 1.0 and rates[110] == 0.0
assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
assert abs(rates[60] - 0.5) < 1e-6 and 0 < rates[109] < 0.02
# A third of the way down: the cosine of 60 degrees is a half.
for decay, expected_rate in (("linear", 2 / 3), ("cosine", 3 / 4), ("constant", 1.0)):
    assert abs(float(schedule_of(1.0, 10, 100, decay)(40)) - expected_rate) < 1e-6, decay
assert float(schedule_of(1.0, 0, 5)(0)) == 1.0


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
    optimizer = build_optimizer(
        options_of(optimizer=name, weight_decay=0.5), variables, schedule_of(0.1, 0, 10)
    )
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
    options = options_of(batch=4)
    network = build_network(options, MANIFEST, precision)
    assert {variable.dtype for variable in network.get_weights()} == {np.dtype("float32")}
    variables = network.trainable_variables
    optimizer = build_optimizer(options, variables, schedule_of(1e-3, 0, 1000))
    step = Step(network, optimizer, options)
    kind = network.bert(batch["input_ids"]).last_hidden_state.dtype
    assert kind == precision, kind
    assert pretraining_logits(network, batch, training=False)[0].dtype == tf.float32
    train = tf.function(step)
    losses[precision] = [float(train(batch)[0]) for _ in range(40)]
for first, second in zip(*losses.values(), strict=True):
    assert abs(first - second) < 0.1, losses
assert losses["bfloat16"] != losses["float32"]
assert losses["bfloat16"][-1] < losses["bfloat16"][0] / 2, losses
assert tf_keras.mixed_precision.global_policy().name == "float32"

print("checked")
