"""TPU636 checkpoints-removed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import loop_around
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU636",
    name="checkpoints-removed",
    severity=Severity.risk,
    summary="Script removes its checkpoints before it looks for one to resume from",
    rationale=(
        "After a preemption, the job's script starts again. If it empties its folder first, there "
        "is nothing to resume from, and it begins from scratch each time."
    ),
    bad="""\
import os
import shutil

import jax

FOLDER = os.environ["TPUCTL_OUTPUT"]
if os.path.isdir(FOLDER):
    shutil.rmtree(FOLDER)
os.makedirs(FOLDER)
print(jax.devices(), os.listdir(FOLDER))
""",
    good="""\
import os

import jax

FOLDER = os.environ["TPUCTL_OUTPUT"]
os.makedirs(FOLDER, exist_ok=True)
print(jax.devices(), os.listdir(FOLDER))
""",
)

EXISTENCE = {"os.path.isdir", "os.path.exists"}
LOOKING = ("listdir", "latest_step", "latest_checkpoint", "restore_checkpoint", "scandir")


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not any(part in project.used_names for part in ("jax", "flax", "orbax")):
        return
    for module in project:
        searched = {
            name
            for call in module.calls
            if (module.names.of(call.func) or "").endswith((*LOOKING, ".CheckpointManager"))
            for value in call.args
            for name in _globals_in(value)
        }
        for call in module.calls:
            if module.names.of(call.func) != "shutil.rmtree" or not call.args:
                continue
            folder = call.args[0]
            is_certain = isinstance(folder, ast.Name) and folder.id in searched
            if is_certain and not loop_around(module, call) and _always_runs(module, call):
                message = (
                    f"{quoted(module, call)} removes the checkpoints that the script looks for"
                )
                hint = "Keep the folder: os.makedirs(folder, exist_ok=True)."
                yield finding_at(RULE, module, call, message, hint)


def _globals_in(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id.isupper():
            yield part.id


def _always_runs(module: Module, node: ast.AST) -> bool:
    """Whether only the folder's existence decides whether a node runs."""
    return all(
        not isinstance(part, (ast.If, ast.IfExp, ast.Try, ast.BoolOp))
        or (isinstance(part, ast.If) and module.names.called(part.test) in EXISTENCE)
        or (isinstance(part, ast.If) and "__name__" in module.segment(part.test))
        for part in module.ancestors(node)
    )
