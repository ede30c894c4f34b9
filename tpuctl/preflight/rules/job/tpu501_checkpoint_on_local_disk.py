"""TPU501 checkpoint-on-local-disk."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, dotted
from tpuctl.preflight.analysis.source_findings import callee_text, finding_at
from tpuctl.preflight.analysis.values.constants import Constant, Constants, is_bucket, is_local
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU501",
    name="checkpoint-on-local-disk",
    severity=Severity.risk,
    summary="Checkpoint saved on the machine's disk, which is lost with the machine",
    rationale=(
        "Preemptible and spot machines are deleted with their disks; the job's next attempt runs "
        "on a new machine and finds no checkpoint to resume from. A TPU node cannot write there at "
        "all. $TPUCTL_OUTPUT is a folder in Cloud Storage, the same for all attempts of a job."
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

# Functions that write checkpoints: position and name of the path argument.
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
# Methods that only models have, and those that other objects have too.
METHODS = {"save_weights": (0, "filepath"), "save_pretrained": (0, "save_directory")}
MODEL_METHODS = {"save": (0, "filepath"), "export": (0, "filepath")}
CHECKPOINT_METHODS = {"save": (0, "file_prefix"), "write": (0, "file_prefix")}
MODELS = ("Model", "Sequential", "models.Model", "models.Sequential", "models.load_model")
CHECKPOINTS = ("tensorflow.train.Checkpoint", "tensorflow.compat.v1.train.Saver")
# Signs that the script uploads its files: what it uses, and the beginnings of its commands.
UPLOADS = re.compile(
    r"google\.cloud\..*|upload_from_\w+|upload_folder|upload_file|push_to_hub|gcsfs|fsspec"
    r"|wandb\.save|log_artifacts?"
)
COMMANDS = re.compile(r"^\s*(?:sudo\s+)?(?:gsutil|gcloud)\b", re.MULTILINE)
COPIES = {
    "tensorflow.io.gfile.copy",
    "tensorflow.io.gfile.rename",
    "tensorflow.compat.v1.gfile.Copy",
}
MOUNT_POINTS = ("/gcs", "/mnt/", "/media/", "/Volumes/", "/dev/", "/content/drive")
HINT = 'Save it where the job\'s next attempt finds it: os.environ["TPUCTL_OUTPUT"].'


def find(project: Project, target: Target) -> Iterator[Finding]:
    host = HostCode.of(project)
    if _is_uploaded(project, host):
        return
    for module in project:
        for call in module.calls:
            path = _written_path(host, module, call)
            values = host.constants(module, path)
            if path is not None and values and all(_is_lost(value) for value in values):
                location = values[0].text if values[0].is_complete else f"{values[0].text}…"
                reason = "which is lost with the machine"
                if target.kind == "node" and _is_written_by_node(call, values):
                    reason = "where a TPU node cannot write"
                text = f"`{callee_text(module, call)}` saves to {location}, {reason}"
                yield finding_at(RULE, module, call, text, HINT)


def _written_path(host: HostCode, module: Module, call: ast.Call) -> ast.expr | None:
    """The path that a call writes a checkpoint or model to."""
    name = module.names.of(call.func)
    position = WRITERS.get(name or "") or CALLBACKS.get(keras_name(name) or "")
    if position is not None:
        return argument(call, *position)
    if name is not None or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr in METHODS:
        return argument(call, *METHODS[call.func.attr])
    position = MODEL_METHODS.get(call.func.attr)
    if position is not None and _is_saved(host, module, call.func.value, "model"):
        return argument(call, *position)
    position = CHECKPOINT_METHODS.get(call.func.attr)
    if position is not None and _is_saved(host, module, call.func.value, "checkpoint"):
        return argument(call, *position)
    return None


def _is_saved(host: HostCode, module: Module, node: ast.expr, kind: str) -> bool:
    """Whether a value is a model or checkpoint, judged by its constructor or its name."""
    values = [value for value in host.assigned_values(module, node) if value is not None]
    for name in (module.names.called(value) for value in values):
        if kind == "checkpoint" and name in CHECKPOINTS:
            return True
        keras = keras_name(name) or ""
        if kind == "model" and (keras.startswith("applications.") or keras in MODELS):
            return True
    written = (dotted(node) or "").rpartition(".")[2].lower()
    return written == kind or written.endswith(f"_{kind}")


def _is_lost(path: Constant) -> bool:
    """Whether a path is certainly on the machine's disk, and not a temporary file."""
    is_mounted = path.text.startswith(MOUNT_POINTS)
    is_temporary = path.text == "/tmp/" and not path.is_complete  # of `tempfile`
    return is_local(path) and path.is_certain and not is_mounted and not is_temporary


def _is_written_by_node(call: ast.Call, values: Constants) -> bool:
    """Whether TensorFlow operations write it, on the node's host, rather than Python."""
    is_python = any(value.text.endswith((".h5", ".hdf5", ".keras")) for value in values)
    is_hugging_face = isinstance(call.func, ast.Attribute) and call.func.attr == "save_pretrained"
    return not is_python and not is_hugging_face


def _is_uploaded(project: Project, host: HostCode) -> bool:
    """Whether the script uploads what it saves."""
    if project.uses_name(UPLOADS) or any(map(COMMANDS.search, project.texts)):
        return True
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) in COPIES:
                values = host.constants(module, argument(call, 1, "dst"))
                if not values or any(is_bucket(value) for value in values):
                    return True
    return False
