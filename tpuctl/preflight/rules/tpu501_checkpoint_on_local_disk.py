"""TPU501 checkpoint-on-local-disk."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.constants import Constants, ConstantValue, is_bucket, is_local
from tpuctl.preflight.analysis.qualified_names import keras_name
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.source_findings import callee_text, finding_at
from tpuctl.preflight.analysis.syntax import argument, dotted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU501",
    name="checkpoint-on-local-disk",
    severity=Severity.risk,
    summary="A checkpoint on the machine's own disk is gone with the machine.",
    rationale=(
        "Preemptible and spot machines are taken away, with their disks; the job's next attempt "
        "runs on a new one and finds nothing to go on from. A TPU node cannot write there at all. "
        "The folder in $TPUCTL_OUTPUT is in Cloud Storage, and the same for all attempts of a job."
    ),
    bad="""\
import tensorflow as tf

checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
manager = tf.train.CheckpointManager(checkpoint, "checkpoints", max_to_keep=3)
""",
    good="""\
import os

import tensorflow as tf

folder = os.path.join(os.environ["TPUCTL_OUTPUT"], "checkpoints")
checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=3)
""",
)

# What writes checkpoints: the number and the name of the argument with the path.
WRITERS = {
    "tensorflow.train.CheckpointManager": (1, "directory"),
    "tensorflow.saved_model.save": (1, "export_dir"),
    "tensorflow.keras.models.save_model": (1, "filepath"),
    "keras.models.save_model": (1, "filepath"),
    "keras.saving.save_model": (1, "filepath"),
    "tensorflow.compat.v1.train.MonitoredTrainingSession": (2, "checkpoint_dir"),
}
CALLBACKS = {
    "callbacks.ModelCheckpoint": (0, "filepath"),
    "callbacks.BackupAndRestore": (0, "backup_dir"),
    "callbacks.experimental.BackupAndRestore": (0, "backup_dir"),
    "callbacks.SwapEMAWeights": (-1, "filepath"),
}
# Methods whose names say enough, and those that many things have.
METHODS = {"save_weights": (0, "filepath"), "save_pretrained": (0, "save_directory")}
OF_MODELS = {"save": (0, "filepath"), "export": (0, "filepath")}
OF_CHECKPOINTS = {"save": (0, "file_prefix"), "write": (0, "file_prefix")}
MODELS = ("Model", "Sequential", "models.Model", "models.Sequential", "models.load_model")
CHECKPOINTS = ("tensorflow.train.Checkpoint", "tensorflow.compat.v1.train.Saver")
# What brings files to where they stay.
UPLOADS: tuple[str, ...] = (
    "gsutil",
    "gcloud storage",
    "google.cloud",
    "upload_from_filename",
    "push_to_hub",
)
UPLOADS += ("gcsfs", "fsspec", "wandb.save", "log_artifact", "upload_folder", "upload_file")
COPIES = {
    "tensorflow.io.gfile.copy",
    "tensorflow.io.gfile.rename",
    "tensorflow.compat.v1.gfile.Copy",
}
MOUNTED = ("/gcs", "/mnt/", "/media/", "/Volumes/", "/dev/", "/content/drive")
HINT = 'Save where the job\'s next attempt finds it: os.environ["TPUCTL_OUTPUT"].'


def find(project: Project, target: Target) -> Iterator[Finding]:
    constants = Constants.of(project)
    if _is_uploaded(project, constants):
        return
    for module in project:
        for call in module.calls:
            path = _written(constants, module, call)
            values = constants.values(module, path)
            if path is not None and values and all(_is_lost(value) for value in values):
                location = values[0].text if values[0].is_complete else f"{values[0].text}…"
                reason = "which is gone with the machine"
                if target.kind == "node" and _is_written_by_node(call, values):
                    reason = "where no TPU node can write"
                text = f"`{callee_text(module, call)}` saves to {location}, {reason}"
                yield finding_at(RULE, module, call, text, HINT)


def _written(constants: Constants, module: Module, call: ast.Call) -> ast.expr | None:
    """Where a call writes a checkpoint or a model to."""
    name = module.names.of(call.func)
    place = WRITERS.get(name or "") or CALLBACKS.get(keras_name(name) or "")
    if place is not None:
        return argument(call, *place)
    if name is not None or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr in METHODS:
        return argument(call, *METHODS[call.func.attr])
    place = OF_MODELS.get(call.func.attr)
    if place is not None and _is_saved(constants, module, call.func.value, "model"):
        return argument(call, *place)
    place = OF_CHECKPOINTS.get(call.func.attr)
    if place is not None and _is_saved(constants, module, call.func.value, "checkpoint"):
        return argument(call, *place)
    return None


def _is_saved(constants: Constants, module: Module, node: ast.expr, kind: str) -> bool:
    """Whether it is a model or a checkpoint, as its making or its name tells."""
    values = [value for value in constants.assigned_values(module, node) if value is not None]
    for name in (module.names.called(value) for value in values):
        if kind == "checkpoint" and name in CHECKPOINTS:
            return True
        keras = keras_name(name) or ""
        if kind == "model" and (keras.startswith("applications.") or keras in MODELS):
            return True
    written = (dotted(node) or "").rpartition(".")[2].lower()
    return written == kind or written.endswith(f"_{kind}")


def _is_lost(path: ConstantValue) -> bool:
    """Whether a path is surely on the machine's own disk, and not for a moment only."""
    is_mounted = path.text.startswith(MOUNTED)
    is_passing = path.text == "/tmp/" and not path.is_complete  # of `tempfile`
    return is_local(path) and path.is_certain and not is_mounted and not is_passing


def _is_written_by_node(call: ast.Call, values: tuple[ConstantValue, ...]) -> bool:
    """Whether operations of TensorFlow write it, on the node's host, and not Python."""
    is_python = any(value.text.endswith((".h5", ".hdf5", ".keras")) for value in values)
    is_hugging_face = isinstance(call.func, ast.Attribute) and call.func.attr == "save_pretrained"
    return not is_python and not is_hugging_face


def _is_uploaded(project: Project, constants: Constants) -> bool:
    """Whether the script itself copies what it saved to where it stays."""
    for module in project:
        if any(word in module.text for word in UPLOADS):
            return True
        for call in module.calls:
            if module.names.of(call.func) in COPIES:
                values = constants.values(module, argument(call, 1, "dst"))
                if not values or any(is_bucket(value) for value in values):
                    return True
    return False
