"""Checks of a training step, on one device and on two; run by a Python with TensorFlow.

XLA logs what it compiled to standard error, as the server of scripts configures it: see
`check_compiles_once`.
"""

import os
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras
from settings import options_of

from model import SIZES, build_network, masks_of, pretraining_logits, set_seed
from training import MEASURES, Schedule, Step, build_optimizer, several_steps

LOG = Path(sys.argv[1], "log")
LOG.touch()
os.dup2(os.open(LOG, os.O_WRONLY | os.O_APPEND), 2)
LENGTH, VOCABULARY, PREDICTIONS, BATCH, DEVICES = 16, 120, 3, 8, 2
SIZES["smallest"] = (1, 16, 2)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
)
tf.get_logger().setLevel("ERROR")
generator = np.random.default_rng(3)


def random_batches(count: int) -> dict[str, np.ndarray]:
    """Return sequences with different numbers of predictions, so means of means are wrong."""
    size = count * BATCH
    used = generator.integers(0, PREDICTIONS + 1, size)
    used[0] = PREDICTIONS
    integers = {
        "input_ids": generator.integers(5, VOCABULARY, (size, LENGTH)),
        "input_mask": np.arange(LENGTH) < generator.integers(6, LENGTH + 1, (size, 1)),
        "segment_ids": np.tile(np.arange(LENGTH) > 4, (size, 1)),
        "masked_lm_positions": generator.integers(1, 6, (size, PREDICTIONS)),
        "masked_lm_ids": generator.integers(5, VOCABULARY, (size, PREDICTIONS)),
        "next_sentence_labels": generator.integers(0, 2, size),
    }
    weights = (np.arange(PREDICTIONS) < used[:, None]).astype(np.float32)
    return {
        **{name: value.astype(np.int32) for name, value in integers.items()},
        "masked_lm_weights": weights,
    }


ROWS = random_batches(6)
FIRST = {name: tf.constant(value[:BATCH]) for name, value in ROWS.items()}


def strategy_of(replicas: int) -> tf.distribute.Strategy:
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    return tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])


KEPT = []  # deleting the input of several devices can wait a minute for tf.data's tuner


class Training:
    """A network and a step on a number of replicas, with ROWS as input."""

    def __init__(self, replicas=1, parts=1, dropout=0.0, optimizer=None, clip_norm=1e9, **more):
        self.strategy = strategy_of(replicas)
        options = options_of(
            size="smallest",
            dropout=dropout,
            seed=7,
            batch=BATCH,
            accumulation=parts,
            clip_norm=clip_norm,
            optimizer=optimizer,
            learning_rate=1e-2,
            warmup_steps=2,
            steps=100,
        )
        manifest = {"vocabulary_size": VOCABULARY, "sequence_length": LENGTH}
        manifest["pairs"] = more.pop("pairs", "nsp")
        set_seed(1)
        with self.strategy.scope():
            self.network = build_network(options, manifest)
            self.variables = self.network.trainable_variables
            if optimizer is None:  # plain gradients
                self.optimizer = tf_keras.optimizers.SGD(0.5)
                self.optimizer.build(self.variables)
            else:
                self.optimizer = build_optimizer(options, self.variables, Schedule(options))
        self.step = Step(self.network, self.optimizer, options, **more)
        self.loop = several_steps(self.strategy, self.step)
        self.feed(0)

    def feed(self, step: int) -> None:
        rows = tf.data.Dataset.from_tensor_slices(ROWS).repeat().batch(BATCH, drop_remainder=True)
        self.rows = iter(self.strategy.experimental_distribute_dataset(rows.skip(step)))
        KEPT.append(self.rows)

    def take(self, steps: int) -> dict[str, float]:
        sums = self.loop(self.rows, tf.constant(steps)).numpy() / steps
        return dict(zip(MEASURES, sums.tolist(), strict=True))

    def weights(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.variables]


@cache
def dropping() -> Training:
    return Training(2, parts=2, dropout=0.3, optimizer="lamb")


@cache
def alone() -> Training:
    return Training(parts=2, dropout=0.1, optimizer="adamw")


@cache
def undivided() -> tuple[list[dict[str, float]], list[list[np.ndarray]]]:
    """Three steps of one replica without parts: their measures, and the weights before and after
    each."""
    training = Training()
    measures, weights = [], [training.weights()]
    for _ in range(3):
        measures.append(training.take(1))
        weights.append(training.weights())
    return measures, weights


def check_result_is_independent_of_replicas_and_parts() -> None:
    first, weights = undivided()
    # Compare with the network, one batch at a time and without the step's sums.
    fresh = Training().network
    words, pairs = pretraining_logits(fresh, FIRST, training=False)
    used = FIRST["masked_lm_weights"].numpy()
    scores = tf.nn.log_softmax(words).numpy()
    truth = np.take_along_axis(scores, FIRST["masked_lm_ids"].numpy()[..., None], -1)[..., 0]
    right = scores.argmax(-1) == FIRST["masked_lm_ids"].numpy()
    labels = FIRST["next_sentence_labels"].numpy()
    expected = {
        "mlm_loss": -(truth * used).sum() / used.sum(),
        "mlm_accuracy": (right * used).sum() / used.sum(),
        "nsp_loss": -tf.nn.log_softmax(pairs).numpy()[np.arange(BATCH), labels].mean(),
        "nsp_accuracy": (pairs.numpy().argmax(-1) == labels).mean(),
    }
    for name, value in expected.items():
        assert abs(first[0][name] - value) < 1e-5, (name, first[0][name], value)

    divided = Training(2, parts=2)
    for row in first:
        other = divided.take(1)
        for name in MEASURES:
            assert abs(other[name] - row[name]) < 1e-4, (name, other, row)
    for expected_weight, two in zip(weights[-1], divided.weights(), strict=True):
        np.testing.assert_allclose(two, expected_weight, atol=2e-5)
    assert first[0]["mlm_loss"] != first[1]["mlm_loss"]


def check_clipping_uses_global_norm() -> None:
    measures, (before, free, *_) = undivided()
    norm = measures[0]["gradient_norm"]
    training = Training(parts=2, clip_norm=0.25)
    assert abs(training.take(1)["gradient_norm"] - norm) < 1e-4 and norm > 0.25
    moves = [
        np.sqrt(sum(((new - old) ** 2).sum() for new, old in zip(after, before, strict=True)))
        for after in (free, training.weights())
    ]
    np.testing.assert_allclose(moves, [0.5 * norm, 0.5 * 0.25], rtol=1e-3)


def check_masks_depend_on_step_layer_and_replica_only() -> None:
    network = dropping().network
    layer = network.bert.embeddings.dropout
    other = network.bert.encoder.layer[0].attention.dense_output.dropout
    ones = tf.ones((40, 50))

    def mask(layer, step, replica):
        with masks_of(step, replica):
            return layer(ones, training=True).numpy()

    here = mask(layer, 5, 1)
    assert (here == mask(layer, 5, 1)).all()
    share = (here == 0).mean()
    assert 0.25 < share < 0.35 and np.allclose(here[here > 0], 1 / 0.7)
    others = [mask(layer, 6, 1), mask(layer, 5, 0), mask(other, 5, 1), mask(layer, 5 + 2**32, 1)]
    for number, mask_of in enumerate(others):
        for two in [here, *others[:number]]:
            agree = (mask_of == two).mean()  # 0.58 by chance
            assert agree < 0.65, agree
    assert (layer(ones, training=False) == ones).numpy().all()
    try:
        layer(ones, training=True)
    except LookupError:
        return
    raise AssertionError("dropout worked outside masks_of")


def check_masks_of_replicas_differ() -> None:
    # The same sequence everywhere: without dropout, both losses would be equal.
    same = {name: tf.repeat(value[:1], BATCH, 0) for name, value in FIRST.items()}
    strategy = dropping().strategy
    shares = strategy.experimental_distribute_values_from_function(lambda _: same)

    def on_one(share):
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return dropping().step.part(share, 1.0, 0, number)[0][0]

    losses = tf.function(lambda: strategy.run(on_one, (shares,)))()
    first, two = map(float, strategy.experimental_local_results(losses))
    assert first != two and abs(first / two - 1) < 0.5, (first, two)


def check_masks_of_parts_differ() -> None:
    same = {name: tf.repeat(value[:1], BATCH, 0) for name, value in FIRST.items()}
    half = {name: value[: BATCH // 2] for name, value in same.items()}
    step = alone().step
    first, two = (step.part(half, 1.0, number, 0)[0][0].numpy() for number in (0, 1))
    assert first != two
    np.testing.assert_allclose(step._share(same, 1.0, 0)[0][0], first + two, rtol=1e-5)


def check_resume_is_exact() -> None:
    training = dropping()
    training.take(2)
    checkpoint = tf.train.Checkpoint(model=training.network, optimizer=training.optimizer)
    path = checkpoint.write(str(Path(sys.argv[1], "at-2")))
    training.take(4)
    whole = training.weights()
    checkpoint.read(path).assert_consumed()
    assert any((old != two).any() for old, two in zip(whole, training.weights(), strict=True))
    training.feed(2)
    training.take(1)
    training.take(3)
    assert all((old == two).all() for old, two in zip(whole, training.weights(), strict=True))
    assert training.loop.experimental_get_tracing_count() == 1


def dynamic_shapes(function) -> int:
    """Count the bounded dimensions in the HLO of a function of a batch."""
    part = tf.function(function, jit_compile=True)
    arguments = (FIRST, tf.constant(9.0), tf.constant(4, tf.int64), tf.constant(0))
    return part.experimental_get_compiler_ir(*arguments)(stage="hlo").count("<=")


def check_shapes_are_static() -> None:
    training = alone()
    assert dynamic_shapes(training.step._part) == 0

    def without_weights(part, weight, number, replica):
        with tf.GradientTape() as tape, masks_of(number, replica):
            words, _ = pretraining_logits(training.network, part, training=True)
            used = part["masked_lm_weights"] > 0
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.boolean_mask(part["masked_lm_ids"], used), tf.boolean_mask(words, used)
                )
            )
        return tape.gradient(loss, training.variables[-1])

    assert dynamic_shapes(without_weights) > 0


def random_state(function) -> set[str]:
    """Return the stateful random operations of a traced function, including those it calls."""
    graph = function.graph.as_graph_def()
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    drawing = re.compile("Random|Rng|Multinomial|TruncatedNormal|Dropout")
    return {node.op for node in nodes if drawing.search(node.op) and "Stateless" not in node.op}


def check_randomness_is_stateless() -> None:
    training = alone()
    traced = training.loop.get_concrete_function(training.rows, tf.TensorSpec([], tf.int32))
    assert random_state(traced) == set()
    nodes = [
        node.op
        for function in traced.graph.as_graph_def().library.function
        for node in function.node_def
    ]
    assert any(name.startswith("StatelessRandom") for name in nodes)
    # Keras' dropout layer would be detected.
    training.network.bert.embeddings.dropout = tf_keras.layers.Dropout(0.1)
    loop = several_steps(training.strategy, training.step)
    traced = loop.get_concrete_function(training.rows, tf.TensorSpec([], tf.int32))
    assert random_state(traced) == {"RandomUniform"}


def check_compiles_once() -> None:
    plain, fast = Training(pairs="none"), Training(pairs="none", xla=True)
    assert not hasattr(fast.network, "nsp")
    before = LOG.stat().st_size
    for steps in (1, 3, 2):
        first, two = plain.take(steps), fast.take(steps)
        for name in MEASURES:
            assert abs(first[name] - two[name]) < 1e-3, (name, first, two)
    for training in (plain, fast):
        assert training.loop.experimental_get_tracing_count() == 1
    log = LOG.read_bytes()[before:].decode("utf-8", "replace")
    counts = re.findall(r"Compiled (\S+) (\d+) times", log)
    assert len(counts) == 1 and "part" in counts[0][0] and counts[0][1] == "1", counts


CHECKS = [
    check_result_is_independent_of_replicas_and_parts,
    check_clipping_uses_global_norm,
    check_masks_depend_on_step_layer_and_replica_only,
    check_masks_of_replicas_differ,
    check_masks_of_parts_differ,
    check_resume_is_exact,
    check_shapes_are_static,
    check_randomness_is_stateless,
    check_compiles_once,
]
for check in CHECKS:
    check()
print("checked", flush=True)
os._exit(0)
