"""TPU501 checkpoint-on-local-disk."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.library_names import uses
from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.scope_definitions import Definitions
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
# The same of PyTorch and the libraries around it.
TORCH_FILES = {
    "torch.save": (1, "f"),
    "torch_xla.core.xla_model.save": (1, "file_or_path"),
    "torch_xla.utils.serialization.save": (1, "path"),
}
TORCH_FOLDERS = {
    "transformers.TrainingArguments": (0, "output_dir"),
    "transformers.Seq2SeqTrainingArguments": (0, "output_dir"),
    "trl.SFTConfig": (0, "output_dir"),
    "torch.distributed.checkpoint.save": (-1, "checkpoint_id"),
    "torch.distributed.checkpoint.FileSystemWriter": (0, "path"),
    **{
        f"{lightning}.{name}": argument
        for lightning in ("lightning", "lightning.pytorch", "pytorch_lightning")
        for name, argument in {
            "callbacks.ModelCheckpoint": (0, "dirpath"),
            "Trainer": (-1, "default_root_dir"),
        }.items()
    },
}
TORCH_METHODS = {"save_state": (0, "output_dir"), "save_checkpoint": (0, "filepath")}
# Methods that only models have, and those that other objects have too.
METHODS = {"save_weights": (0, "filepath"), "save_pretrained": (0, "save_directory")}
MODEL_METHODS = {"save": (0, "filepath"), "export": (0, "filepath")}
CHECKPOINT_METHODS = {"save": (0, "file_prefix"), "write": (0, "file_prefix")}
MODELS = ("Model", "Sequential", "models.Model", "models.Sequential", "models.load_model")
CHECKPOINTS = ("tensorflow.train.Checkpoint", "tensorflow.compat.v1.train.Saver")
KINDS = ("model", "checkpoint")
# Signs that the script uploads its files: what it uses, and the beginnings of its commands.
UPLOADS = re.compile(
    r"(?:google\.cloud|gcsfs|fsspec)\..*"
    r"|(?:.*\.)?(?:upload_from_\w+|upload_folder|upload_file|push_to_hub|log_artifacts?)"
    r"|wandb\.save"
)
COMMANDS = re.compile(r"^\s*(?:sudo\s+)?(?:gsutil|gcloud)\b", re.MULTILINE)
COPIES = {
    "tensorflow.io.gfile.copy",
    "tensorflow.io.gfile.rename",
    "tensorflow.compat.v1.gfile.Copy",
}
MOUNT_POINTS = ("/gcs", "/mnt/", "/media/", "/Volumes/", "/dev/", "/content/drive")
TORCH_HINT = (
    "Save it where the job's next attempt finds it, for example with fsspec:\n"
    '    with fsspec.open(os.environ["TPUCTL_OUTPUT"] + "/checkpoint.pt", "wb") as file:\n'
    "        torch.save(state, file)"
)
FOLDER_HINT = (
    "Copy it to where the job's next attempt finds it, after each save:\n"
    '    fsspec.filesystem("gs").put(folder, os.environ["TPUCTL_OUTPUT"], recursive=True)'
)
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
                if target.kind == "node" and _is_written_by_node(module, call, values):
                    reason = "where a TPU node cannot write"
                text = f"`{callee_text(module, call)}` saves to {location}, {reason}"
                yield finding_at(RULE, module, call, text, _hint(module, call))


def _hint(module: Module, call: ast.Call) -> str:
    name = module.names.of(call.func)
    if name in TORCH_FILES:
        return TORCH_HINT
    is_method = name is None and getattr(call.func, "attr", "") in TORCH_METHODS
    return FOLDER_HINT if is_method or name in TORCH_FOLDERS else HINT


def _written_path(host: HostCode, module: Module, call: ast.Call) -> ast.expr | None:
    """The path that a call writes a checkpoint or model to."""
    name = module.names.of(call.func)
    if name in TORCH_FILES:
        return argument(call, *TORCH_FILES[name]) if _is_state(host, module, call) else None
    if name in TORCH_FOLDERS:
        saves = getattr(argument(call, -1, "save_strategy"), "value", "")
        return None if saves == "no" else argument(call, *TORCH_FOLDERS[name])
    position = WRITERS.get(name or "") or CALLBACKS.get(keras_name(name) or "")
    if position is not None:
        return argument(call, *position)
    if name is not None or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr in METHODS:
        return argument(call, *METHODS[call.func.attr])
    if call.func.attr in TORCH_METHODS:
        is_known = call.func.attr in Definitions.of(host.project).assigned
        return None if is_known else argument(call, *TORCH_METHODS[call.func.attr])
    position = MODEL_METHODS.get(call.func.attr)
    if position is not None and _is_saved(host, module, call.func.value, "model"):
        return argument(call, *position)
    position = CHECKPOINT_METHODS.get(call.func.attr)
    if position is not None and _is_saved(host, module, call.func.value, "checkpoint"):
        return argument(call, *position)
    return None


def _is_state(host: HostCode, module: Module, call: ast.Call) -> bool:
    """Whether a call saves the state of a model, rather than data."""
    state = argument(call, 0, "obj")
    values = [] if state is None else [state, *host.assigned_values(module, state)]
    return any(
        isinstance(part, ast.Attribute) and part.attr == "state_dict"
        for value in values
        if value is not None
        for part in ast.walk(value)
    ) or (state is not None and any(_is_saved(host, module, state, kind) for kind in KINDS))


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


def _is_written_by_node(module: Module, call: ast.Call, values: Constants) -> bool:
    """Whether TensorFlow operations write it, on the node's host, rather than Python."""
    is_python = any(value.text.endswith((".h5", ".hdf5", ".keras")) for value in values)
    is_hugging_face = isinstance(call.func, ast.Attribute) and call.func.attr == "save_pretrained"
    is_torch = _hint(module, call) is not HINT
    return not (is_python or is_hugging_face or is_torch)


def _is_uploaded(project: Project, host: HostCode) -> bool:
    """Whether the script uploads what it saves."""
    if uses(project, UPLOADS) or any(map(COMMANDS.search, project.texts)):
        return True
    for module in project:
        for call in module.calls:
            if getattr(argument(call, -1, "push_to_hub"), "value", None) is True:
                return True
            if module.names.of(call.func) in COPIES:
                values = host.constants(module, argument(call, 1, "dst"))
                if not values or any(is_bucket(value) for value in values):
                    return True
    return False
