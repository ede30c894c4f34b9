"""A finding is an error only in code that a running step reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.preflight.check import check_program, check_project
from tpuctl.preflight.findings import Target
from tpuctl.preflight.submit_gate import runnable

VM = Target("vm", "2.18.0", 8)
HEAD = "import tensorflow as tf\n\nstrategy = tf.distribute.TPUStrategy()\n"
DATA = "data = tf.data.Dataset.range(64)\n"
LAYER = """
class Own(tf.keras.layers.Layer):
    def call(self, x):
        return tf.strings.as_string(x)
"""
STEP = """
@tf.function
def own(x):
    return tf.strings.as_string(x)
"""
TRAINS = """
@tf.function
def step(x):
    return x * 2

step(tf.ones([8]))
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder.joinpath(*name.split("/")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def codes(folder: Path, source: str, **files: str) -> list[str]:
    """Codes and severities of findings about compiled code, in all files."""
    write(folder, {"train": source, **files})
    report = check_project(folder / "train.py", VM)
    compiled = [finding for finding in report.findings if finding.code.startswith("TPU0")]
    return [f"{finding.code} {finding.severity.value}" for finding in compiled]


ON_HOST = {
    "function in map": STEP + DATA + "data = data.map(own)\n",
    "function in a lambda in map": STEP + DATA + "data = data.map(lambda x: own(x))\n",
    "function wrapped by name": STEP.replace("@tf.function\n", "")
    + DATA
    + "parse = tf.function(own)\ndata = data.map(parse, num_parallel_calls=4)\n",
    "lambda by name": STEP + DATA + "parse = lambda x: own(x)\ndata = data.map(parse)\n",
    "function called by one in map": STEP
    + DATA
    + "def parse(x):\n    return own(x)\n\ndata = data.map(parse)\n",
    "partial in map": STEP + DATA + "import functools\ndata = data.map(functools.partial(own))\n",
    "layer in map": LAYER + DATA + "own = Own()\ndata = data.map(own)\n",
    "layer in a lambda in map": LAYER + DATA + "own = Own()\ndata = data.map(lambda x: own(x))\n",
    "layer in a sequence in map": LAYER
    + DATA
    + "own = tf.keras.Sequential([Own(), tf.keras.layers.Rescaling(2)])\n"
    "data = data.map(lambda x: own(x, training=True))\n",
    "layer of a function in map": LAYER
    + DATA
    + "def made():\n    return tf.keras.Sequential([Own()])\n\n"
    "def load(data, augment):\n    return data.map(augment)\n\ndata = load(data, made())\n",
    "layer of a pipeline object": LAYER
    + DATA
    + "class Pipeline:\n    def __init__(self):\n        self.own = Own()\n\n"
    "    def parse(self, x):\n        return self.own(x)\n\n"
    "    def load(self, data):\n        return data.map(self.parse)\n\n"
    "data = Pipeline().load(data)\n",
    "layer that may be None": LAYER
    + DATA
    + "def load(data, own=None):\n    if own is not None:\n        data = data.map(own)\n"
    "    if own:\n        print(f'with {own}')\n    return data\n\ndata = load(data, own=Own())\n",
    "layer that is adapted": LAYER + DATA + "own = Own()\nown.adapt(data)\ndata = data.map(own)\n",
    "function in reduce of an unknown dataset": STEP.replace("own(x)", "own(x, y)")
    + "import sys\n\ndef count(data):\n    return data.reduce(0, own)\n\n"
    "count(getattr(sys, 'data'))\n",
    "function in an operation that is applied": STEP
    + DATA
    + "data = data.apply(tf.data.experimental.map_and_batch(own, 8))\n",
    "method in map": "class Reader:\n    @tf.function\n    def own(self, x):\n"
    "        return tf.strings.as_string(x)\n\n" + DATA + "data = data.map(Reader().own)\n",
}


@pytest.mark.parametrize("source", ON_HOST.values(), ids=ON_HOST)
def test_pipeline_only_code_has_no_findings(source: str, tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + source + TRAINS) == []


SERVING = STEP.replace("@tf.function", "@tf.function(input_signature=[tf.TensorSpec([None])])")
MODULE = "class Server(tf.Module):\n" + SERVING.replace("own(x)", "own(self, x)").replace(
    "\n", "\n    "
)
SAVE = "tf.saved_model.save(tf.keras.Model(), 'gs://b/m', signatures="
EXPORTED = {
    "signature of a saved model": SERVING + SAVE + "{'serving_default': own})\n",
    "signature alone": SERVING + SAVE + "own)\n",
    "signature by name": SERVING + "signatures = {'a': own}\n" + SAVE + "signatures)\n",
    "concrete function": SERVING
    + SAVE
    + "own.get_concrete_function(tf.TensorSpec([8], tf.float32)))\n",
    "lambda of a signature": SERVING.replace(
        "tf.strings.as_string(x)", "tf.map_fn(lambda y: tf.strings.as_string(y), x)"
    )
    + SAVE
    + "own)\n",
    "signature of a factory": "def make(model):\n"
    + SERVING.replace("\n", "\n    ")
    + "\n    return own\n\nmodel = tf.keras.Model()\n"
    "model.save('gs://b/m', signatures={'serving_default': make(model)})\n",
    "Keras' older function": SERVING
    + "tf.keras.models.save_model(tf.keras.Model(), 'gs://b/m', signatures=own)\n",
    "endpoint": SERVING + "archive = tf.keras.export.ExportArchive()\n"
    "archive.add_endpoint(name='serve', fn=own)\narchive.write_out('gs://b/m')\n",
    "TensorFlow Lite": SERVING
    + "tf.lite.TFLiteConverter.from_concrete_functions([own.get_concrete_function()])\n",
    "method of a module": MODULE + "\nserver = Server()\n" + SAVE + "server.own)\n",
    "method of a module that is saved": MODULE + "\ntf.saved_model.save(Server(), 'gs://b/m')\n",
    "method of a model": MODULE.replace("tf.Module", "tf.keras.Model")
    + "\nserver = Server()\nserver.save('gs://b/m', signatures={'serve': server.own})\n",
}


@pytest.mark.parametrize("source", EXPORTED.values(), ids=EXPORTED)
def test_exported_functions_are_no_steps(source: str, tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + TRAINS + source) == []


METRIC = """
class Own(tf.keras.metrics.Metric):
    def update_state(self, x):
        self.seen = x.numpy()

    def result(self):
        return self.seen

own = Own()
"""
LOSS = METRIC.replace("metrics.Metric", "losses.Loss").replace("update_state", "call")
ON_HOST_ITSELF = {
    "metric": METRIC + "own.update_state(step(tf.ones([8])))\nprint(own.result())\n",
    "metric of an evaluator": METRIC
    + "class Evaluator:\n    def __init__(self):\n        self.own = Own()\n\n"
    "    def run(self):\n        self.own.update_state(tf.ones([8]))\n\nEvaluator().run()\n",
    "loss": LOSS + "print(own(tf.ones([8]), tf.ones([8])))\n",
}


@pytest.mark.parametrize("source", ON_HOST_ITSELF.values(), ids=ON_HOST_ITSELF)
def test_metrics_of_the_host_are_not_traced(source: str, tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + TRAINS + source) == []


UNUSED = {
    "layer": LAYER,
    "layer that is created": LAYER + "own = Own()\n",
    "model": LAYER.replace("layers.Layer", "Model"),
    "function": STEP,
    "layer of an unused function": LAYER + "def made():\n    return Own()(tf.ones([8]))\n",
    "function passed by an unused function": STEP.replace("@tf.function\n", "")
    + "def old():\n    strategy.run(own, args=(tf.ones([8]),))\n",
}


@pytest.mark.parametrize("source", UNUSED.values(), ids=UNUSED)
def test_uncalled_code_is_a_risk(source: str, tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + source + TRAINS) == ["TPU004 risk"]


@pytest.mark.parametrize("source", [LAYER, STEP], ids=["layer", "function"])
def test_imported_but_uncalled_code_is_a_risk(source: str, tmp_path: Path) -> None:
    parts = {"parts": "import tensorflow as tf\n" + source}
    assert codes(tmp_path, HEAD + "import parts\n" + TRAINS, **parts) == ["TPU004 risk"]


def test_registered_code_is_a_risk(tmp_path: Path) -> None:
    registry = (
        "MODELS = {}\n\ndef register(name):\n    def wrap(kind):\n        MODELS[name] = kind\n"
        "        return kind\n    return wrap\n\ndef create(name):\n    return MODELS[name]()\n"
    )
    models = "import tensorflow as tf\nfrom registry import register\n" + LAYER.replace(
        "class Own", "@register('own')\nclass Own"
    )
    script = HEAD + (
        "import sys\nimport models\nfrom registry import create\n\n"
        "model = create(sys.argv[1])\nmodel.fit(tf.ones([8]))\n"
    )
    assert codes(tmp_path, script, registry=registry, models=models) == ["TPU004 risk"]


REACHED = {
    "function called": STEP + "own(tf.ones([8]))\n",
    "function called in main": STEP
    + "def main():\n    own(tf.ones([8]))\n\nif __name__ == '__main__':\n    main()\n",
    "function in map and in a step": STEP
    + DATA
    + "data = data.map(own)\nfor x in data:\n    own(x)\n",
    "function of a strategy": STEP.replace("@tf.function\n", "")
    + "@tf.function\ndef step(x):\n    strategy.run(own, args=(x,))\n\nstep(tf.ones([8]))\n",
    "helper in map and in a step": STEP.replace("@tf.function\n", "")
    + DATA
    + "data = data.map(own)\n\n@tf.function\ndef step(x):\n    return own(x)\n\n"
    "for x in data:\n    step(x)\n",
    "function passed to a function": STEP
    + "def train(step):\n    step(tf.ones([8]))\n\ntrain(own)\n",
    "function of a factory": "def make():\n"
    + STEP.replace("\n", "\n    ")
    + "\n    return own\n\nstep = make()\nstep(tf.ones([8]))\n",
    "function from a table": STEP
    + "import sys\nSTEPS = {'own': own}\nSTEPS[sys.argv[1]](tf.ones([8]))\n",
    "function of a library of steps": STEP,
    "command": STEP + "import click\n\n@click.command()\ndef main():\n    own(tf.ones([8]))\n",
    "layer called": LAYER + "own = Own()\nown(tf.ones([8]))\n",
    "layer of a functional model": LAYER
    + "x = tf.keras.Input([8])\nmodel = tf.keras.Model(x, Own()(x))\nmodel.fit(tf.ones([8, 8]))\n",
    "layer of a sequence": LAYER
    + "model = tf.keras.Sequential([Own()])\nmodel.fit(tf.ones([8, 8]))\n",
    "layer that is added": LAYER
    + "model = tf.keras.Sequential()\nmodel.add(Own())\nmodel.fit(tf.ones([8, 8]))\n",
    "layer of layers in a list": LAYER
    + "class Net(tf.keras.Model):\n    def __init__(self):\n        super().__init__()\n"
    "        self.parts = []\n        for _ in range(3):\n            self.parts.append(Own())\n\n"
    "    def call(self, x):\n        for part in self.parts:\n            x = part(x)\n"
    "        return x\n\n"
    "net = Net()\nnet.fit(tf.ones([8, 8]))\n",
    "layer in map and in a model": LAYER
    + DATA
    + "own = Own()\ndata = data.map(own)\nmodel = tf.keras.Sequential([own])\nmodel.fit(data)\n",
    "train_step": "class Net(tf.keras.Model):\n    def train_step(self, data):\n"
    "        return {'loss': tf.strings.as_string(data)}\n\n"
    "net = Net()\nnet.compile('sgd')\nnet.fit(tf.ones([8, 8]))\n",
    "train_step of a base": "class Base(tf.keras.Model):\n    def train_step(self, data):\n"
    "        return {'loss': self.own(data)}\n\n    def own(self, data):\n"
    "        return tf.strings.as_string(data)\n\nclass Net(Base):\n    pass\n\n"
    "def build():\n    return Net()\n\nbuild().fit(tf.ones([8, 8]))\n",
    "loss": STEP.replace("own(x)", "own(x, y)").replace("@tf.function\n", "")
    + "model = tf.keras.Sequential()\nmodel.compile('sgd', own)\nmodel.fit(tf.ones([8, 8]))\n",
    "activation": STEP.replace("@tf.function\n", "")
    + "model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation=own)])\n"
    "model.fit(tf.ones([8, 8]))\n",
    "step within a reduction alone": STEP.replace("@tf.function\n", "")
    + "@tf.function\ndef step(x):\n"
    "    return strategy.reduce('SUM', strategy.run(own, args=(x,)), axis=None)\n\n"
    "step(tf.ones([8]))\n",
    "step within the reduction of an unknown strategy": STEP.replace("@tf.function\n", "")
    + "import sys\n\nclass Trainer:\n    def __init__(self, strategy):\n"
    "        self.strategy = strategy\n\n    @tf.function\n    def step(self, x):\n"
    "        return self.strategy.reduce('SUM', self.strategy.run(own, args=(x,)), axis=None)\n\n"
    "Trainer(getattr(sys, 'strategy')).step(tf.ones([8]))\n",
    "step within the method of another object": STEP
    + "import sys\n\ngetattr(sys, 'history').apply(own(tf.ones([8])))\n",
    "method of a trainer": "class Trainer:\n    def __init__(self, data):\n"
    "        self.data = data\n\n    def run(self):\n        for x in self.data:\n"
    "            self.step(x)\n\n    @tf.function\n    def step(self, x):\n"
    "        strategy.run(self.replica, args=(x,))\n\n    def replica(self, x):\n"
    "        return tf.strings.as_string(x)\n\nTrainer([]).run()\n",
    "method that a library calls": "import orbit\n\n"
    "class Trainer(orbit.StandardTrainer):\n    def train_step(self, iterator):\n"
    "        strategy.run(self.replica, args=(next(iterator),))\n\n    def replica(self, x):\n"
    "        return tf.strings.as_string(x)\n\n"
    "orbit.Controller(trainer=Trainer(None)).train(8)\n",
}


METRIC_REACHED = {
    "compiled": METRIC + "model = tf.keras.Sequential()\nmodel.compile('sgd', metrics=[own])\n"
    "model.fit(tf.ones([8, 8]))\n",
    "in a step": METRIC
    + "@tf.function\ndef step(x):\n    own.update_state(x)\n\nstep(tf.ones([8]))\n",
    "in a list in a step": METRIC
    + "metrics = [own]\n\n@tf.function\ndef step(x):\n    for metric in metrics:\n"
    "        metric.update_state(x)\n\nstep(tf.ones([8]))\n",
    "in a model's step": METRIC + "class Net(tf.keras.Model):\n    def __init__(self):\n"
    "        super().__init__()\n        self.own = Own()\n\n"
    "    def train_step(self, data):\n        self.own.update_state(data)\n"
    "        return {'own': self.own.result()}\n\n"
    "net = Net()\nnet.compile()\nnet.fit(tf.ones([8, 8]))\n",
}


@pytest.mark.parametrize("source", METRIC_REACHED.values(), ids=METRIC_REACHED)
def test_metrics_of_steps_are_traced(source: str, tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + source) == ["TPU005 error"]


@pytest.mark.parametrize("source", REACHED.values(), ids=REACHED)
def test_code_reached_from_step_is_an_error(source: str, tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + source) == ["TPU004 error"]


def test_code_in_other_files_reached_from_step_is_an_error(tmp_path: Path) -> None:
    files = {
        "parts/__init__": "from parts.layers import Own\n",
        "parts/layers": "import tensorflow as tf\n" + LAYER,
        "parts/build": "from . import Own as Layer\n\ndef model():\n    return Layer()\n",
    }
    source = HEAD + "from parts import build\nmodel = build.model()\nmodel.fit(tf.ones([8, 8]))\n"
    assert codes(tmp_path, source, **files) == ["TPU004 error"]


LOSSES = "import tensorflow as tf\n\ndef loss(x):\n    return tf.strings.as_string(x)\n"
PACKAGE = {
    "pkg/mod": "from .sub.steps import step\n\nif __name__ == '__main__':\n    step(8)\n",
    "pkg/sub/steps": "import tensorflow as tf\nfrom ..losses import loss\nfrom . import deep\n\n"
    "@tf.function\ndef step(x):\n    return loss(x), deep.loss(x)\n",
    "pkg/sub/deep": LOSSES,
    "pkg/losses": LOSSES,
}


@pytest.mark.parametrize("has_init", [True, False])
def test_module_is_checked_with_relative_imports(has_init: bool, tmp_path: Path) -> None:
    """Relative imports of parent packages and subpackages; also without `__init__.py`."""
    files = PACKAGE | ({"pkg/__init__": "", "pkg/sub/__init__": ""} if has_init else {})
    write(tmp_path, files)
    program = runnable("pkg.mod", "module", tmp_path)
    report = check_program(program, VM)
    assert {path.relative_to(tmp_path.absolute()).as_posix() for path in report.files} == {
        f"{name}.py" for name in files
    }
    assert {(finding.path.stem, finding.line) for finding in report.errors} == {
        ("losses", 4),
        ("deep", 4),
    }


def test_package_is_checked_with_relative_imports(tmp_path: Path) -> None:
    write(tmp_path, PACKAGE | {"src/own/__main__": "from .mod import step\n\nstep(8)\n"})
    write(tmp_path, {f"src/own/{name[4:]}": text for name, text in PACKAGE.items()})
    report = check_program(runnable("own", "module", tmp_path), VM)
    assert {(finding.path.stem, finding.line) for finding in report.errors} == {
        ("losses", 4),
        ("deep", 4),
    }


def test_rules_of_tensorflow_find_nothing_in_jax_programs(tmp_path: Path) -> None:
    steps = (
        "import jax\nimport numpy as np\nfrom flax import linen as nn\n\n"
        "class Net(nn.Module):\n    def __call__(self, x):\n        if x.sum() > 0:\n"
        "            return x\n        return np.sum(x)\n\n"
        "def train_step(x):\n    if x > 0:\n        print(float(x), x.item())\n    return x\n"
    )
    program = (
        "import jax\nfrom .steps import Net, train_step\n\n"
        "def main(trainer, data):\n    step = jax.jit(train_step)\n"
        "    trainer.run(step, args=(data.batch(8),))\n    trainer.run(train_step)\n"
        "    Net()(data.map(step))\n\nmain(None, None)\n"
    )
    write(tmp_path, {"prog/main": program, "prog/steps": steps, "prog/__init__": ""})
    findings = check_program(runnable("prog.main", "module", tmp_path), VM).findings
    assert {finding.code[:4] for finding in findings} == {"TPU6"}
