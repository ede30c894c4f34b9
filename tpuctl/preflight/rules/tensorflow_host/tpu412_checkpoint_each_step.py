"""TPU412 checkpoint-each-step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import Scopes
from tpuctl.preflight.analysis.tensorflow.training_loops import step_calls
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TRAINING_LOOP

CHECKPOINT = """
checkpoint = tf.train.Checkpoint(weights=weights)
manager = tf.train.CheckpointManager(checkpoint, "gs://my-bucket/run", max_to_keep=3)
"""

RULE = Rule(
    code="TPU412",
    name="checkpoint-each-step",
    severity=Severity.cost,
    summary="Training loop saves a checkpoint after each step",
    rationale=(
        "A checkpoint copies all variables from the TPU and writes them to storage, which takes "
        "longer than most steps, and the TPU waits meanwhile. Save one every few minutes: what a "
        "preemption may lose."
    ),
    bad=TRAINING_LOOP.replace("for number", f"{CHECKPOINT.lstrip()}for number")
    + """\
    manager.save()
""",
    good=TRAINING_LOOP.replace("for number", f"{CHECKPOINT.lstrip()}for number")
    + """\
    if number % 1000 == 0:
        manager.save()
""",
)

SAVERS = ("tensorflow.train.Checkpoint", "tensorflow.train.CheckpointManager")
SAVING_METHODS = {"save", "write", "save_weights"}
OFTEN = 10  # steps between checkpoints


def find(project: Project, target: Target) -> Iterator[Finding]:
    search = Scopes(project)
    hint = "Save every few minutes, such as `if step % 1000 == 0:`."
    for step in step_calls(project):
        for node in ast.walk(step.loop):
            if not isinstance(node, ast.Call) or not _saves(search, step.module, node):
                continue
            if step.repeats(node):
                message = f"{quoted(step.module, node)} saves a checkpoint after each step"
                yield finding_at(RULE, step.module, node, message, hint)
    for module in project:
        for call in module.calls:
            if keras_name(module.names.of(call.func)) == "callbacks.ModelCheckpoint":
                frequency = argument(call, -1, "save_freq")
                steps = search.host.number(module, frequency)
                if steps is not None and 0 < steps <= OFTEN:
                    often = "each step" if steps == 1 else f"every {steps} steps"
                    message = f"`ModelCheckpoint` saves a checkpoint after {often}"
                    hint = 'Use save_freq="epoch".'
                    yield finding_at(RULE, module, frequency or call, message, hint)


def _saves(search: Scopes, module: Module, node: ast.Call) -> bool:
    """Whether a call certainly saves the variables of a model or checkpoint."""
    if module.names.of(node.func) == "tensorflow.saved_model.save":
        return True
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in SAVING_METHODS:
        return False
    receiver = node.func.value
    if search.host.evaluate(module, receiver).name in SAVERS:
        makers = search.host.assigned_values(module, receiver)
        keywords = [key.arg for maker in makers for key in getattr(maker, "keywords", [])]
        return "checkpoint_interval" not in keywords
    return bool(search.creations(module, receiver, "model"))
