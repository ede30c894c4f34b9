"""TPU631 checkpoint-overwritten."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.control_flow import LOOPS
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU631",
    name="checkpoint-overwritten",
    severity=Severity.risk,
    summary="The only checkpoint is overwritten in place",
    rationale=(
        "A machine that goes away while it writes leaves half a file. If that was the only "
        "checkpoint, the last good one is lost: write another file, and let `os.replace` put it "
        "in place."
    ),
    bad="""\
import os
import pickle

import jax
import jax.numpy as jnp

weights = jnp.ones(8)
if os.path.exists("state.pkl"):
    with open("state.pkl", "rb") as file:
        weights = pickle.load(file)
step = jax.jit(jax.grad(lambda weights: jnp.mean(weights**2)), donate_argnums=0)
for number in range(1000):
    weights = step(weights)
    if number % 100 == 0:
        with open("state.pkl", "wb") as file:
            pickle.dump(weights, file)
""",
    good="""\
import os
import pickle

import jax
import jax.numpy as jnp

weights = jnp.ones(8)
if os.path.exists("state.pkl"):
    with open("state.pkl", "rb") as file:
        weights = pickle.load(file)
step = jax.jit(jax.grad(lambda weights: jnp.mean(weights**2)), donate_argnums=0)
for number in range(1000):
    weights = step(weights)
    if number % 100 == 0:
        with open("state.pkl.new", "wb") as file:
            pickle.dump(weights, file)
        os.replace("state.pkl.new", "state.pkl")
""",
)

REPLACING = {"replace", "rename", "move", "renames"}
MAX_CALLS = 3  # functions between a loop and what it saves with


def find(project: Project, target: Target) -> Iterator[Finding]:
    opened = [
        (module, call, *_opened(module, call))
        for module in project
        for call in module.calls
        if getattr(call.func, "id", "") == "open" or module.names.of(call.func) == "io.open"
    ]
    read = {path for _, _, path, mode in opened if mode == "rb"}
    if not read or not any(traced.is_reached for traced in infer_jax(project).functions()):
        return
    if not REPLACING & project.used_names:
        for module, call, path, mode in opened:
            if mode == "wb" and path in read and _is_repeated(project, module, call, MAX_CALLS):
                message = f"{quoted(module, call)} empties the last checkpoint before it writes"
                hint = "Write to another file, and rename it with os.replace."
                yield finding_at(RULE, module, call, message, hint)


def _opened(module: Module, call: ast.Call) -> tuple[str, str]:
    """What a call opens, if it is one name or text, and how."""
    path, mode = argument(call, 0, "file"), argument(call, 1, "mode")
    is_single = isinstance(path, (ast.Name, ast.Attribute, ast.Constant))
    is_global = not isinstance(path, ast.Name) or path.id.isupper()
    text = module.segment(path) if path is not None and is_single and is_global else ""
    return text, str(getattr(mode, "value", "")) if text else ""


def _is_repeated(project: Project, module: Module, node: ast.AST, depth: int) -> bool:
    """Whether a loop runs a node, itself or by the function that it is in."""
    function = module.enclosing_function(node)
    for ancestor in module.ancestors(node):
        if ancestor is function:
            break
        if isinstance(ancestor, LOOPS):
            return True
    if function is None or not depth:
        return False
    calls, _ = calls_of(project, module, function)
    passed = [
        (where, value)
        for where in project
        for call in where.calls
        for value in (keyword.value for keyword in call.keywords)
        if isinstance(value, ast.Name) and value.id == getattr(function, "name", "")
    ]  # such as `Thread(target=write)`
    return any(_is_repeated(project, where, call, depth - 1) for where, call in (*calls, *passed))
