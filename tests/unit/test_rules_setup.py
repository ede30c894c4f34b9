"""Strategies, objects created in their scopes, and per-replica batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target

CODES = ("TPU401", "TPU402", "TPU403", "TPU404")
VM = Target("vm", "2.18.0", 8)
OLD = Target("vm", "2.15.1", 8)
NODE = Target("node", "2.12.1", 8)
HEAD = """import functools
import contextlib

import keras
import numpy as np
import tensorflow as tf

"""
TPU = (
    HEAD
    + """resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def create():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    return model


class Own(tf.keras.Model):
    pass


"""
)
CREATED = "with strategy.scope():\n    model = create()\n    model.compile('adam', 'mse')\n"


def check(folder: Path, source: str, target: Target) -> None:
    RuleChecker(folder, *CODES).assert_marked(source, target)


@pytest.mark.parametrize(
    "source",
    [
        "m = keras.Model()\nm.compile('adam', jit_compile=True)  # TPU401 risk",
        "@tf.function(jit_compile=True)  # TPU401 risk\ndef f(x):\n    return x",
        "outputs = input()\nif outputs:\n    tf.function(print, jit_compile=True)  # TPU401 risk",
        "@tf.function(experimental_compile=True)  # TPU401 risk\ndef f(x):\n    return x",
        "f = tf.function(lambda x: x, jit_compile=True)  # TPU401 risk",
        "@functools.partial(tf.function, jit_compile=True)  # TPU401 risk\ndef f(x):\n    return x",
        "m = keras.Model()\nm.compile('adam', jit_compile=False)",
        "m = keras.Model()\nm.compile('adam', jit_compile='auto')",
        "m = keras.Model()\nm.compile('adam', jit_compile=not input())",
        "m = keras.Model()\nif not input('TPU?'):\n    m.compile('adam', jit_compile=True)",
        "import jax_like\njax_like.compile(jit_compile=True)",
    ],
)
def test_jit_compile_flags(tmp_path: Path, source: str) -> None:
    check(tmp_path, HEAD + source, VM)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("m.compile('adam', jit_compile=True)", "m.compile('adam', jit_compile=False)"),
        ("m.compile(jit_compile=True)", "m.compile(jit_compile=False)"),
        ("f = tf.function(g, jit_compile=True)", "f = tf.function(g)"),
        ("f = tf.function(g, jit_compile=True,)", "f = tf.function(g,)"),
        ("d = tf.function(jit_compile=True)", "d = tf.function()"),
        (
            "d = functools.partial(tf.function, jit_compile=True)",
            "d = functools.partial(tf.function)",
        ),
        (
            "d = tf.function(jit_compile=True, autograph=False)",
            "d = tf.function(autograph=False)",
        ),
        (
            "f = tf.function(\n    g,\n    experimental_compile=True,\n)",
            "f = tf.function(\n    g,\n)",
        ),
        ("s = 'é'; f = tf.function(g, jit_compile=True)", "s = 'é'; f = tf.function(g)"),
        (
            "f = tf.function(\n    g,  # not x\n    jit_compile=True,\n)",
            "f = tf.function(\n    g,  # not x\n    jit_compile=True,\n)",
        ),
    ],
)
def test_flag_is_removed(tmp_path: Path, before: str, after: str) -> None:
    source = HEAD + "m = keras.Model()\n"
    assert RuleChecker(tmp_path, *CODES).apply_fixes(source + before, VM) == source + after


OUTSIDE = [
    "model = create()  # TPU402 error\nwith strategy.scope():\n    model.compile('adam', 'mse')",
    "model = create()  # TPU402 error\nmodel.compile('adam', 'mse')\nmodel.fit(np.ones([8, 4]))",
    "model = Own()  # TPU402 error\nmodel.compile('adam')\nmodel.fit(np.ones([8, 4]))",
    "def main():\n    model = create()  # TPU402 error\n    model.fit(np.ones([8, 4]))\nmain()",
    "model = tf.keras.models.load_model('gs://b/m')  # TPU402 error\nmodel.fit(np.ones([8, 4]))",
    "model = create()  # TPU402 error\n\n\ndef step(x):\n    return model(x)\n\n\n"
    "strategy.run(step, args=(tf.ones([8, 4]),))",
    "with tf.name_scope('model'):\n    model = create()  # TPU402 error\nmodel.fit(1)",
    "with open('strategy.txt') as file:\n    model = create()  # TPU402 error\nmodel.fit(1)",
    "class Trainer:\n    def __init__(self):\n        self.model = create()  # TPU402 error\n"
    "    def step(self, x):\n        return self.model(x)\n"
    "    def go(self):\n        strategy.run(self.step, args=(1,))\nTrainer().go()",
    "total = tf.Variable(0.0)  # TPU402 error\nstrategy.run(lambda: total.assign_add(1.0))",
]
INSIDE = [
    CREATED + "model.fit(np.ones([8, 4]))",
    "with strategy.scope():\n    model = tf.keras.Sequential([])\n"
    "    model.compile(tf.keras.optimizers.Adam(), metrics=[tf.keras.metrics.Mean()])\n"
    "model.fit(np.ones([8, 4]))",
    "def build():\n    with strategy.scope():\n        model = create()\n"
    "        model.compile('adam')\n    return model\n\n\nmodel = build()\nmodel.fit(1)",
    "def build():\n    model = create()\n    model.compile('adam')\n    return model\n\n\n"
    "with strategy.scope():\n    model = build()\nmodel.fit(1)",
    "def main():\n    model = create()\n    model.compile('adam')\n    model.fit(1)\n\n\n"
    "with strategy.scope():\n    main()",
    "with strategy.scope() if input() else contextlib.nullcontext():\n    model = create()\n"
    "    model.compile('adam')\nmodel.fit(1)",
    "if input():\n    with strategy.scope():\n        model = create()\n"
    "else:\n    model = create()\nmodel.fit(1)",
    "scope = strategy.scope()\nwith scope:\n    model = create()\nmodel.fit(1)",
    "stack = contextlib.ExitStack()\nstack.enter_context(strategy.scope())\nmodel = create()\n"
    "model.fit(1)",
    "tf.distribute.experimental_set_strategy(strategy)\nmodel = create()\nmodel.fit(1)",
    "loss = tf.keras.losses.MeanSquaredError()\nwith strategy.scope():\n    model = create()\n"
    "    model.compile('adam', loss)\nmodel.fit(1)",
    "schedule = tf.keras.optimizers.schedules.CosineDecay(1e-3, 8)\nwith strategy.scope():\n"
    "    model = create()\n    model.compile(tf.keras.optimizers.Adam(schedule))\nmodel.fit(1)",
    "teacher = create()\nteacher.predict(np.ones([8, 4]))\n" + CREATED + "model.fit(1)",
    "steps = tf.Variable(0)\ntf.train.Checkpoint(steps=steps)\n" + CREATED + "model.fit(1)",
    "with strategy.scope():\n    total = tf.Variable(0.0)\nstrategy.run(lambda: total + 1)",
    "with strategy.scope():\n    model = create()\n    optimizer = tf.keras.optimizers.Adam()\n"
    "model.compile(optimizer)\nmodel.fit(1)",
    "def use(model):\n    model.fit(1)\n\n\nuse(input())",
    "import unknown\nmodel = unknown.build()\nmodel.fit(1)",
    "def scoped(make):\n    def inner():\n        with strategy.scope():\n"
    "            return make()\n    return inner\n\n\n"
    "@scoped\ndef build():\n    return create()\n\n\nmodel = build()\nmodel.fit(1)",
    "@contextlib.contextmanager\ndef tpu():\n    with strategy.scope():\n        yield\n\n\n"
    "with tpu():\n    model = create()\nmodel.fit(1)",
    "register = [create]\nmodel = register[0]()\nmodel.fit(1)",
]


@pytest.mark.parametrize("source", [*OUTSIDE, *INSIDE])
@pytest.mark.parametrize("target", [VM, OLD], ids=["Keras 3", "Keras 2"])
def test_objects_created_outside_scope(tmp_path: Path, source: str, target: Target) -> None:
    check(tmp_path, TPU + source, target)


@pytest.mark.parametrize(
    "source",
    [
        "with strategy.scope():\n    model = create()\n"
        "model.compile('adam', 'mse')  # TPU402 error",
        "with strategy.scope():\n    model = create()\n"
        "model.compile(tf.keras.optimizers.Adam(), 'mse')  # TPU402 error",
        "optimizer = tf.keras.optimizers.Adam()  # TPU402 error\nwith strategy.scope():\n"
        "    model = create()\n    model.compile(optimizer)",
        "with strategy.scope():\n    model = create()\n"
        "optimizer = keras.optimizers.SGD()  # TPU402 error\n\n\ndef step(gradients):\n"
        "    optimizer.apply_gradients(gradients)\n\n\nstrategy.run(step, args=(1,))",
    ],
)
def test_keras_3_optimizers_belong_in_scope(tmp_path: Path, source: str) -> None:
    check(tmp_path, TPU + source, VM)
    if "keras.optimizers.SGD" not in source:
        check(tmp_path, TPU + source.replace("  # TPU402 error", ""), OLD)


def test_metrics_belong_in_scope_in_all_versions(tmp_path: Path) -> None:
    source = (
        "metric = tf.keras.metrics.Mean()  # TPU402 error\nwith strategy.scope():\n"
        "    model = create()\n    model.compile('adam', 'mse', metrics=[metric])\n"
    )
    check(tmp_path, TPU + source, VM)
    check(tmp_path, TPU + source, OLD)


@pytest.mark.parametrize(
    "constructor", ["tf.distribute.get_strategy()", "tf.distribute.MirroredStrategy()"]
)
def test_other_strategies_are_ignored(tmp_path: Path, constructor: str) -> None:
    for source in OUTSIDE:
        plain = TPU.replace("tf.distribute.TPUStrategy(resolver)", constructor) + source
        check(tmp_path, plain.replace("  # TPU402 error", ""), VM)


RESOLVER = "resolver = tf.distribute.cluster_resolver.TPUClusterResolver()"
CONNECT = "tf.config.experimental_connect_to_cluster(resolver)\n"
START = "tf.tpu.experimental.initialize_tpu_system(resolver)\n"
STRATEGY = "strategy = tf.distribute.TPUStrategy(resolver)"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (f"{RESOLVER}\n{STRATEGY}  # TPU403 error", VM),
        (f"{RESOLVER}\n{CONNECT}{STRATEGY}  # TPU403 error", NODE),
        (f"{RESOLVER}  # TPU403 error\n{START}{STRATEGY}", NODE),
        (f"{RESOLVER}\n{START}{STRATEGY}", VM),
        (f"{RESOLVER}\n{CONNECT}{START}{STRATEGY}", NODE),
        (f"{RESOLVER}\n{STRATEGY}  # TPU403 error\n{START}", VM),
        ("s = tf.distribute.TPUStrategy()  # TPU403 error", VM),
        ("s = tf.distribute.experimental.TPUStrategy()  # TPU403 error", VM),
        (
            "s = tf.distribute.TPUStrategy("
            "tf.distribute.cluster_resolver.TPUClusterResolver.connect())",
            NODE,
        ),
        (f"def start(resolver):\n    {START}\n{RESOLVER}\nstart(resolver)\n{STRATEGY}", VM),
        ("if tf.config.list_logical_devices('TPU'):\n    s = tf.distribute.TPUStrategy()", VM),
        ("s = tf.distribute.MirroredStrategy()", NODE),
        ("import others\ns = tf.distribute.TPUStrategy(others.connected())", NODE),
    ],
)
def test_tpu_must_be_initialized_first(tmp_path: Path, source: str, target: Target) -> None:
    check(tmp_path, HEAD + source, target)


@pytest.mark.parametrize(
    "source",
    [
        "model.fit(1, batch_size=100)  # TPU404 error",
        "SIZE = 100\nmodel.fit(1, batch_size=SIZE)  # TPU404 error",
        "model.fit(1, batch_size=10 * 7)  # TPU404 error",
        "d = tf.data.Dataset.range(8).batch(100)  # TPU404 error\nmodel.fit(d)",
        "d = tf.data.Dataset.range(8)\nd = d.batch(100).prefetch(1)  # TPU404 error\nmodel.fit(d)",
        "def data(size):\n    return tf.data.Dataset.range(8).batch(size)  # TPU404 error\n\n\n"
        "model.fit(data(100))",
        "d = tf.data.Dataset.range(8).batch(100)  # TPU404 cost\n"
        "strategy.experimental_distribute_dataset(d)",
        "def data(context):\n    size = context.get_per_replica_batch_size(100)  # TPU404 error\n"
        "    return tf.data.Dataset.range(8).batch(size)\n\n\n"
        "strategy.distribute_datasets_from_function(data)",
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--size', type=int, default=100)\n"
        "model.fit(1, batch_size=p.parse_args().size)  # TPU404 risk",
        "model.fit(1, batch_size=128)",
        "model.fit(1, batch_size=16 * strategy.num_replicas_in_sync)",
        "model.fit(1, batch_size=int(input()))",
        "model.fit(1)",
        "d = tf.data.Dataset.range(8).batch(100).unbatch().batch(128)\nmodel.fit(d)",
        "d = tf.data.Dataset.range(8).batch(100)\nfor x in d:\n    print(x)",
        "def data(context):\n    return tf.data.Dataset.range(8).batch(7)\n\n\n"
        "strategy.distribute_datasets_from_function(data)",
        "from sklearn.linear_model import LinearRegression\n"
        "other = LinearRegression()\nother.fit([[1]], [1], batch_size=7)",
    ],
)
def test_batches_are_shared_equally(tmp_path: Path, source: str) -> None:
    check(tmp_path, TPU + CREATED + source, VM)
    plain = source.replace("  # TPU404 error", "").replace("  # TPU404 cost", "")
    if "risk" not in source:
        check(tmp_path, TPU + CREATED + plain, Target("vm", "2.18.0"))
        check(tmp_path, TPU + CREATED + plain, Target("vm", "2.18.0", 1))


def test_uneven_batch_in_keras_2_fit_is_a_cost(tmp_path: Path) -> None:
    check(tmp_path, TPU + CREATED + "model.fit(1, batch_size=100)  # TPU404 cost", OLD)
    first = Target("node", "2.1.0", 8)
    findings = RuleChecker(tmp_path, *CODES).findings(
        TPU + CREATED + "model.fit(1, batch_size=100)", first, {}
    )
    assert [(finding.code, finding.severity) for finding in findings] == [("TPU404", "error")]
