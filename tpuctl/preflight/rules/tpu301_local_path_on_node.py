"""TPU301 local-path-on-node."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator

from tpuctl.preflight.analysis.constants import Constants, Known, is_local
from tpuctl.preflight.analysis.node_pipelines import calls_for_node, calls_reached, is_step
from tpuctl.preflight.analysis.qualified_names import keras_name
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.source_findings import at, called_as
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU301",
    name="local-path-on-node",
    severity=Severity.error,
    summary="A TPU node cannot read files of the machine that the script runs on.",
    why=(
        "The input pipeline of a TPU node runs on the node's own host. TensorFlow answers there: "
        "`File system scheme '[local]' not implemented`. The node reads Cloud Storage. What Python "
        "itself reads, with `open` or `numpy.load`, is read where the script runs and is fine."
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
KEEPS = {"cache", "snapshot", "save"}
TO_BUCKET = (
    "Put it into the bucket, and read it there:\n    gcloud storage cp -r {} gs://BUCKET/data/"
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    search = _Search(project)
    for module, call in calls_for_node(project, target):
        yield from search.paths(module, call)


class _Search:
    """Looks for paths in one project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.constants = Constants.of(project)

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
        text = f"`{called_as(module, call)}` reads {shown}, which a TPU node cannot{unless}"
        where = shlex.quote(shown) if one.is_whole and "*" not in shown else "FOLDER"
        severity = Severity.error if sure else Severity.risk
        return at(RULE, module, call, text, TO_BUCKET.format(where), severity=severity)

    def _prepared(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        """TensorFlow Datasets reads from the home folder, unless it is told of another."""
        place = argument(call, 3 if _is_load(module, call) else -1, "data_dir")
        given = {one.arg for one in call.keywords}
        if place is not None:
            yield from self._read(module, call, place)
        elif not given & {"try_gcs", None}:
            text = "a TPU node cannot read what TensorFlow Datasets keeps in the home folder"
            hint = "Keep it in the bucket: data_dir=f\"gs://{os.environ['TPUCTL_BUCKET']}/tfds\""
            yield at(RULE, module, call, text, hint)

    def _reads_elements(self, module: Module, call: ast.Call) -> bool:
        """Whether what is done with the elements reads them as files."""
        for one in module.around(call):
            if isinstance(one, ast.stmt):
                break
            if isinstance(one, ast.Call) and is_step(one):
                given = one.args[0] if one.args else None
                if given is not None and self._is_reader(module, given):
                    return True
        return any(
            self._is_reader(module, one.args[0])
            for one in module.calls
            if is_step(one) and one.args
        )

    def _is_reader(self, module: Module, node: ast.expr) -> bool:
        if module.names.of(node) in READERS:
            return True
        return any(
            where.names.of(one.func) in READERS
            for where, one in calls_reached(self.project, module, node)
        )


def _is_load(module: Module, call: ast.Call) -> bool:
    return module.names.of(call.func) == "tensorflow_datasets.load"
