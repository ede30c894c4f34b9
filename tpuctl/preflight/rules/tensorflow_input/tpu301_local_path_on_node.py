"""TPU301 local-path-on-node."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import callee_text, finding_at
from tpuctl.preflight.analysis.tensorflow.node_pipelines import (
    calls_for_node,
    calls_reached,
    is_step,
)
from tpuctl.preflight.analysis.values.constants import Constant, is_local
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU301",
    name="local-path-on-node",
    severity=Severity.error,
    summary="A TPU node cannot read files of the machine that runs the script",
    rationale=(
        "The input pipeline of a TPU node runs on the node's host, where TensorFlow fails with "
        "`File system scheme '[local]' not implemented`. The node can read Cloud Storage. Reading "
        "files in Python, with `open` or `numpy.load`, works, because Python runs on the script's "
        "machine."
    ),
    bad="""\
import tensorflow as tf

dataset = tf.data.TextLineDataset("data/train.txt").batch(128, drop_remainder=True)
""",
    good="""\
import os

import tensorflow as tf

path = f"gs://{os.environ['TPUCTL_BUCKET']}/data/train.txt"
dataset = tf.data.TextLineDataset(path).batch(128, drop_remainder=True)
""",
    target=Target("node"),
)

# Functions that read files on the pipeline's host: position and name of the path argument.
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
    f"{module}.{kind}_dataset_from_directory": (0, "directory")
    for module in ("utils", "preprocessing", "preprocessing.image", "preprocessing.text")
    for kind in ("image", "text", "audio")
}
TFDS_LOADERS = ("tensorflow_datasets.load", "tensorflow_datasets.builder")
FROM_TENSORS = (
    "tensorflow.data.Dataset.from_tensor_slices",
    "tensorflow.data.Dataset.from_tensors",
)
STORING_METHODS = {"cache", "snapshot", "save"}
TO_BUCKET = (
    "Copy it to the bucket and read it from there:\n    gcloud storage cp -r {} gs://BUCKET/data/"
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    search = _Search(project)
    for module, call in calls_for_node(project, target):
        yield from search.paths(module, call)


class _Search:
    """Finds local paths in a project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.host = HostCode.of(project)

    def paths(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        name = module.names.of(call.func) or ""
        position = READERS.get(name) or KERAS_READERS.get(keras_name(name) or "")
        if position is not None:
            yield from self._read(module, call, argument(call, *position))
        elif name in TFDS_LOADERS:
            yield from self._prepared(module, call)
        elif name in FROM_TENSORS:
            values = [value for value in self._local_paths(module, call.args) if "/" in value.text]
            if values and self._reads_elements(module, call):
                yield self._unreadable(module, call, values)
        elif call.args and self._is_stored(module, call.func):
            yield from self._read(module, call, call.args[0])

    def _read(self, module: Module, call: ast.Call, paths: ast.expr | None) -> Iterator[Finding]:
        values = self.host.constants(module, paths)
        if values and all(is_local(value) for value in values):
            yield self._unreadable(module, call, list(values))

    def _is_stored(self, module: Module, node: ast.expr) -> bool:
        """Whether it is likely a dataset method that stores the data in files."""
        is_named = isinstance(node, ast.Attribute) and node.attr in STORING_METHODS
        return is_named and self._is_dataset(module, node, set())

    def _is_dataset(self, module: Module, node: ast.AST | None, visited: set[ast.AST]) -> bool:
        while isinstance(node, (ast.Attribute, ast.Call)):
            if (module.names.of(node) or "").startswith("tensorflow.data."):
                return True
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name) or node in visited:
            return False
        visited.add(node)
        values = self.host.assigned_values(module, node)
        return any(self._is_dataset(module, arg, visited) for arg in values)

    def _local_paths(self, module: Module, arguments: list[ast.expr]) -> list[Constant]:
        """The dataset's elements if all of them are local paths."""
        first = arguments[0] if arguments else None
        if isinstance(first, ast.Tuple):
            first = first.elts[0] if first.elts else None
        values = self.host.constants(module, first)
        return list(values) if all(is_local(value) for value in values) else []

    def _unreadable(self, module: Module, call: ast.Call, values: list[Constant]) -> Finding:
        first = values[0]
        path = first.text if first.is_complete else f"{first.text}…"
        option = next((other.option for other in values if other.option), "")
        unless = f" unless {option} is set" if option else ""
        is_certain_path = all(other.is_certain for other in values)
        text = f"`{callee_text(module, call)}` reads {path}, which a TPU node cannot{unless}"
        where = shlex.quote(path) if first.is_complete and "*" not in path else "FOLDER"
        severity = Severity.error if is_certain_path else Severity.risk
        return finding_at(RULE, module, call, text, TO_BUCKET.format(where), severity=severity)

    def _prepared(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        """TensorFlow Datasets reads from the home folder unless data_dir is set."""
        position = argument(call, 3 if _is_load(module, call) else -1, "data_dir")
        names = {keyword.arg for keyword in call.keywords}
        if position is not None:
            yield from self._read(module, call, position)
        elif not names & {"try_gcs", None}:
            text = "a TPU node cannot read what TensorFlow Datasets stores in the home folder"
            hint = "Store it in the bucket: data_dir=f\"gs://{os.environ['TPUCTL_BUCKET']}/tfds\""
            yield finding_at(RULE, module, call, text, hint)

    def _reads_elements(self, module: Module, call: ast.Call) -> bool:
        """Whether a later pipeline step reads the elements as files."""
        for ancestor in module.ancestors(call):
            if isinstance(ancestor, ast.stmt):
                break
            if isinstance(ancestor, ast.Call) and is_step(ancestor):
                function = ancestor.args[0] if ancestor.args else None
                if function is not None and self._is_reader(module, function):
                    return True
        return any(
            self._is_reader(module, call.args[0])
            for call in module.calls
            if is_step(call) and call.args
        )

    def _is_reader(self, module: Module, node: ast.expr) -> bool:
        if module.names.of(node) in READERS:
            return True
        return any(
            where.names.of(call.func) in READERS
            for where, call in calls_reached(self.project, module, node)
        )


def _is_load(module: Module, call: ast.Call) -> bool:
    return module.names.of(call.func) == "tensorflow_datasets.load"
