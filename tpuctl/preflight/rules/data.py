"""Data that a TPU node cannot read (TPU301 to TPU304).

A node's input pipelines run on the node's own host, which is another machine: it has neither the
files nor the Python of the one that the script runs on. On a TPU VM both are the same machine.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator

from tpuctl.preflight.analysis.constants import Constants, Known, is_local
from tpuctl.preflight.analysis.functions import class_of, function_of, keras_bases
from tpuctl.preflight.analysis.locations import found_at
from tpuctl.preflight.analysis.names import keras_name
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.syntax import Function, argument, own_nodes
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULES", "find"]

NODE = Target("node")
RULES = (
    Rule(
        "TPU301",
        "local-path-on-node",
        Severity.error,
        "A TPU node cannot read files of the machine that the script runs on.",
        "The input pipeline of a TPU node runs on the node's own host. TensorFlow answers there: "
        "`File system scheme '[local]' not implemented`. The node reads Cloud Storage. What Python "
        "itself reads, with `open` or `numpy.load`, is read where the script runs and is fine.",
        """import tensorflow as tf

dataset = tf.data.TextLineDataset("data/train.txt").batch(128, drop_remainder=True)
""",
        """import os

import tensorflow as tf

path = f"gs://{os.environ['TPUCTL_BUCKET']}/data/train.txt"
dataset = tf.data.TextLineDataset(path).batch(128, drop_remainder=True)
""",
        NODE,
    ),
    Rule(
        "TPU302",
        "generator-on-node",
        Severity.error,
        "A TPU node cannot call a Python generator.",
        "`from_generator`, and Keras for generators and sequences, calls back into the script's "
        "Python for each example. The pipeline of a TPU node runs on another machine, which has "
        "no such Python. Write the examples to TFRecords in the bucket, or give arrays.",
        """import tensorflow as tf


def examples():
    for number in range(1000):
        yield [float(number)]


dataset = tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec([1], tf.float32))
""",
        """import numpy as np
import tensorflow as tf

examples = np.arange(1000, dtype="float32").reshape(-1, 1)
dataset = tf.data.Dataset.from_tensor_slices(examples)
""",
        NODE,
    ),
    Rule(
        "TPU303",
        "python-in-pipeline-on-node",
        Severity.error,
        "A TPU node cannot run Python functions in its pipeline.",
        "`py_function` and `numpy_function` call the process that made them. The pipeline of a TPU "
        "node runs on another machine. Write the step with operations of TensorFlow, or do it "
        "once before, and keep the result in the bucket.",
        """import numpy as np
import tensorflow as tf


def scale(image):
    return tf.numpy_function(lambda x: np.float32(x / 255), [image], tf.float32)


dataset = tf.data.Dataset.from_tensor_slices(np.ones([8, 4, 4], "uint8")).map(scale)
""",
        """import numpy as np
import tensorflow as tf


def scale(image):
    return tf.cast(image, tf.float32) / 255


dataset = tf.data.Dataset.from_tensor_slices(np.ones([8, 4, 4], "uint8")).map(scale)
""",
        NODE,
    ),
    Rule(
        "TPU304",
        "hugging-face-pipeline-on-node",
        Severity.error,
        "`to_tf_dataset` and `prepare_tf_dataset` call Python, which a TPU node cannot.",
        "Hugging Face's data sets reach TensorFlow through `from_generator` or `numpy_function`. "
        "On a TPU VM that works. For a TPU node take arrays where the data fits in memory, or "
        "write TFRecords to the bucket.",
        """import datasets

data = datasets.load_dataset("imdb", split="train")
dataset = data.to_tf_dataset(columns=["input_ids"], batch_size=128, drop_remainder=True)
""",
        """import datasets
import tensorflow as tf

data = datasets.load_dataset("imdb", split="train").with_format("numpy")
dataset = tf.data.Dataset.from_tensor_slices({"input_ids": data["input_ids"]})
dataset = dataset.batch(128, drop_remainder=True)
""",
        NODE,
    ),
)

# What reads files on the host of the pipeline: where its paths stand.
READERS = {
    "tensorflow.data.TextLineDataset": (0, "filenames"),
    "tensorflow.data.TFRecordDataset": (0, "filenames"),
    "tensorflow.data.FixedLengthRecordDataset": (0, "filenames"),
    "tensorflow.data.Dataset.list_files": (0, "file_pattern"),
    "tensorflow.data.Dataset.load": (0, "path"),
    "tensorflow.data.experimental.load": (0, "path"),
    "tensorflow.data.experimental.CsvDataset": (0, "filenames"),
    "tensorflow.data.experimental.make_csv_dataset": (0, "file_pattern"),
    "tensorflow.data.experimental.make_batched_features_dataset": (0, "file_pattern"),
    "tensorflow.lookup.TextFileInitializer": (0, "filename"),
    "tensorflow.io.read_file": (0, "filename"),
    "tensorflow.io.matching_files": (0, "pattern"),
    "tensorflow.compat.v1.data.TFRecordDataset": (0, "filenames"),
    "tensorflow.compat.v1.data.TextLineDataset": (0, "filenames"),
    "tensorflow.compat.v1.read_file": (0, "filename"),
}
KERAS_READERS = {
    f"{place}.{kind}_dataset_from_directory": (0, "directory")
    for place in ("utils", "preprocessing", "preprocessing.image", "preprocessing.text")
    for kind in ("image", "text", "audio")
}
PREPARED = ("tensorflow_datasets.load", "tensorflow_datasets.builder")
SLICES = ("tensorflow.data.Dataset.from_tensor_slices", "tensorflow.data.Dataset.from_tensors")
PYTHON = {
    "tensorflow.py_function",
    "tensorflow.numpy_function",
    "tensorflow.py_func",
    "tensorflow.compat.v1.py_func",
}
KEEPS = {"cache", "snapshot", "save"}
FLOWS = {"flow", "flow_from_directory", "flow_from_dataframe"}
GENERATORS = {"utils.Sequence", "utils.PyDataset"}
STEPS = {"map", "flat_map", "interleave", "filter", "apply", "take_while", "scan", "reduce"}
STEPS |= {"group_by_window", "rejection_resample"}
HUGGING_FACE = {"to_tf_dataset", "prepare_tf_dataset"}
TO_BUCKET = (
    "Put it into the bucket, and read it there:\n    gcloud storage cp -r {} gs://BUCKET/data/"
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what breaks these rules; all is well on a TPU VM."""
    if target.kind != "node" or _only_writes(project):
        return
    search = _Search(project)
    for module in project:
        for call in module.calls:
            if not _is_here(search.constants, module, call):
                yield from search.paths(module, call)
                yield from search.generators(module, call)
                yield from search.hugging_face(module, call)
    yield from search.python()


class _Search:
    """Looks through one project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.constants = Constants.of(project)

    # Files ------------------------------------------------------------------------------------

    def paths(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        name = module.names.of(call.func) or ""
        place = READERS.get(name) or KERAS_READERS.get(keras_name(name) or "")
        if place is not None:
            yield from self._read(module, call, argument(call, *place))
        elif name in PREPARED:
            yield from self._prepared(module, call)
        elif name in SLICES:
            known = [one for one in self._known(module, call.args) if "/" in one.text]
            if known and self._reads_elements(module, call):
                yield self._unreadable(module, call, known)
        elif call.args and self._is_kept(module, call.func):
            yield from self._read(module, call, call.args[0])

    def _read(self, module: Module, call: ast.Call, paths: ast.expr | None) -> Iterator[Finding]:
        known = self.constants.values(module, paths)
        if known and all(is_local(one) for one in known):
            yield self._unreadable(module, call, list(known))

    def _is_kept(self, module: Module, node: ast.expr) -> bool:
        """Whether it is a method of a data set, as far as is seen, that keeps it in files."""
        is_named = isinstance(node, ast.Attribute) and node.attr in KEEPS
        return is_named and self._is_dataset(module, node, set())

    def _is_dataset(self, module: Module, node: ast.AST | None, seen: set[ast.AST]) -> bool:
        while isinstance(node, (ast.Attribute, ast.Call)):
            if (module.names.of(node) or "").startswith("tensorflow.data."):
                return True
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name) or node in seen:
            return False
        seen.add(node)
        given = self.constants.given(module, node)
        return any(self._is_dataset(module, one, seen) for one in given)

    def _known(self, module: Module, given: list[ast.expr]) -> list[Known]:
        """The local paths that elements of a data set are; none where they may be anything."""
        first = given[0] if given else None
        if isinstance(first, ast.Tuple):
            first = first.elts[0] if first.elts else None
        found = self.constants.values(module, first)
        return list(found) if all(is_local(one) for one in found) else []

    def _unreadable(self, module: Module, call: ast.Call, known: list[Known]) -> Finding:
        one = known[0]
        shown = one.text if one.is_whole else f"{one.text}…"
        option = next((other.option for other in known if other.option), "")
        unless = f" unless {option} says otherwise" if option else ""
        sure = all(other.is_sure for other in known)
        text = f"`{_called(module, call)}` reads {shown}, which a TPU node cannot{unless}"
        where = shlex.quote(shown) if one.is_whole and "*" not in shown else "FOLDER"
        severity = Severity.error if sure else Severity.risk
        return found_at("TPU301", severity, module, call, text, TO_BUCKET.format(where))

    def _prepared(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        """TensorFlow Datasets reads from the home folder, unless it is told of another."""
        place = argument(call, 3 if _is_load(module, call) else -1, "data_dir")
        given = {one.arg for one in call.keywords}
        if place is not None:
            yield from self._read(module, call, place)
        elif not given & {"try_gcs", None}:
            text = "a TPU node cannot read what TensorFlow Datasets keeps in the home folder"
            hint = "Keep it in the bucket: data_dir=f\"gs://{os.environ['TPUCTL_BUCKET']}/tfds\""
            yield found_at("TPU301", Severity.error, module, call, text, hint)

    def _reads_elements(self, module: Module, call: ast.Call) -> bool:
        """Whether what is done with the elements reads them as files."""
        for one in module.around(call):
            if isinstance(one, ast.stmt):
                break
            if isinstance(one, ast.Call) and _is_step(one):
                given = one.args[0] if one.args else None
                if given is not None and self._is_reader(module, given):
                    return True
        return any(
            self._is_reader(module, one.args[0])
            for one in module.calls
            if _is_step(one) and one.args
        )

    def _is_reader(self, module: Module, node: ast.expr) -> bool:
        if module.names.of(node) in READERS:
            return True
        return any(
            where.names.of(one.func) in READERS for where, one in self._reached(module, node)
        )

    # Python -----------------------------------------------------------------------------------

    def generators(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        name = module.names.of(call.func) or ""
        hint = "Write the examples to TFRecords in the bucket, or give arrays."
        if name.startswith("tensorflow.") and name.endswith("data.Dataset.from_generator"):
            text = "`from_generator` calls Python, which a TPU node cannot"
            yield found_at("TPU302", Severity.error, module, call, text, hint)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "fit":
            given = argument(call, 0, "x")
            if given is not None and self._is_generator(module, given):
                text = f"`{module.segment(given)}` is Python, which a TPU node cannot call"
                yield found_at("TPU302", Severity.error, module, given, text, hint)

    def _is_generator(self, module: Module, node: ast.expr) -> bool:
        """Whether Keras has to call Python for each of its batches."""
        if isinstance(node, ast.Name):
            found = self.constants.bindings(module, node)
            given = [one.value for one in found if one.value is not None and not one.is_element]
            return len(given) == 1 == len(found) and self._is_generator(module, given[0])
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in FLOWS:
            return True
        owner = class_of(self.project, module, node.func)
        if owner is not None:
            bases = (keras_name(one) for one in keras_bases(self.project, *owner))
            return any(one in GENERATORS for one in bases)
        told = function_of(self.project, module, node.func)
        if told is None:
            return False
        return any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in own_nodes(told[1]))

    def hugging_face(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in HUGGING_FACE:
            return
        text = f"`{call.func.attr}` calls Python in the pipeline, which a TPU node cannot"
        hint = "Give arrays, or write TFRecords to the bucket."
        yield found_at("TPU304", Severity.error, module, call, text, hint)

    def python(self) -> Iterator[Finding]:
        """Calls of Python in all that pipelines run."""
        hint = "Write it with operations of TensorFlow, or do it once before."
        seen: set[ast.AST] = set()
        steps = [(module, one) for module in self.project for one in module.calls if _is_step(one)]
        for module, step in steps:
            for where, one in self._reached(module, step.args[0]) if step.args else ():
                if where.names.of(one.func) in PYTHON and one not in seen:
                    seen.add(one)
                    called = _called(where, one)
                    text = f"`{called}` in the pipeline calls Python, which a TPU node cannot"
                    yield found_at("TPU303", Severity.error, where, one, text, hint)

    def _reached(self, module: Module, node: ast.expr) -> Iterator[tuple[Module, ast.Call]]:
        """The calls in a function, and in those of the project that it calls."""
        first = function_of(self.project, module, node)
        waiting = [first] if first is not None else []
        seen: set[Function] = set()
        while waiting:
            where, function = waiting.pop()
            if function in seen:
                continue
            seen.add(function)
            for one in own_nodes(function):
                if isinstance(one, ast.Call):
                    yield where, one
                    told = function_of(self.project, where, one.func)
                    waiting += [told] if told is not None else []


def _is_step(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in STEPS


def _is_load(module: Module, call: ast.Call) -> bool:
    return module.names.of(call.func) == "tensorflow_datasets.load"


def _is_here(constants: Constants, module: Module, node: ast.AST) -> bool:
    """Whether it is put on the machine that the script runs on."""
    for one in module.around(node):
        for item in one.items if isinstance(one, ast.With) else ():
            device = item.context_expr
            if module.names.called(device) == "tensorflow.device" and isinstance(device, ast.Call):
                known = constants.values(module, argument(device, 0, "device_name"))
                if any("localhost" in name.text for name in known):
                    return True
    return False


def _only_writes(project: Project) -> bool:
    """Whether the script makes records and trains nothing: then no TPU takes part in it."""
    texts = [module.text for module in project]
    if not any("TFRecordWriter" in text for text in texts):
        return False
    return not any(word in text for text in texts for word in (".fit(", "TPU", "GradientTape"))


def _called(module: Module, call: ast.Call) -> str:
    """What is called, shortly."""
    return module.segment(call.func).rpartition("(")[2].rpartition(")")[2][-60:]
