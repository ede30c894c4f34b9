"""TPU625 debugging-left-on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.reachability import Caller, reachability_of
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU625",
    name="debugging-left-on",
    severity=Severity.cost,
    summary="Option of JAX that is for debugging, or for CPUs, is on in a training job",
    rationale=(
        '`jax_platforms="cpu"` leaves the TPU idle while it is paid for, and `jax_disable_jit` '
        "runs each operation as a program of its own. `jax_debug_nans` reads every result on the "
        "host before the next step starts. TPUs have no 64-bit floating point: with "
        "`jax_enable_x64`, which makes it the default, XLA computes with several numbers for each."
    ),
    bad="""\
import jax
import jax.numpy as jnp

jax.config.update("jax_debug_nans", True)


@jax.jit
def step(weights, x):
    return weights - 0.1 * jax.grad(lambda weights: jnp.mean((x @ weights) ** 2))(weights)


print(step(jnp.ones(8), jnp.ones((4, 8))))
""",
    good="""\
import os

import jax
import jax.numpy as jnp

if os.environ.get("DEBUG"):
    jax.config.update("jax_debug_nans", True)


@jax.jit
def step(weights, x):
    return weights - 0.1 * jax.grad(lambda weights: jnp.mean((x @ weights) ** 2))(weights)


print(step(jnp.ones(8), jnp.ones((4, 8))))
""",
)

CHECKS = "reads every result on the host before the next step"
IDLE = "leaves the TPU idle"
COSTS = {
    "jax_debug_nans": CHECKS,
    "jax_debug_infs": CHECKS,
    "jax_disable_jit": "runs each operation as a program of its own",
    "jax_enable_x64": "makes 64 bits the default, which TPUs emulate",
    "jax_platforms": IDLE,
    "jax_platform_name": IDLE,
}
ON = {"1", "true", "True", "TRUE", "yes", "on"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    # A script that takes no gradients may be one that prepares data, or a test.
    if not any(name.endswith(("grad", "value_and_grad")) for name in project.used_names):
        return
    if not any(traced.is_reached for traced in infer_jax(project).functions()):
        return
    reachability = reachability_of(project)
    for module in project:
        for node in module.of_types(ast.Call, ast.Assign):
            option = _option(module, node)
            if not option or is_in_branch(module, node, None):
                continue
            function = module.enclosing_function(node)
            callers = reachability.of(module, function) if function is not None else ()
            if function is None or Caller.SCRIPT in callers:
                message = f"{quoted(module, node)} {COSTS[option]}"
                hint = "Remove it, or set it by an option of the script."
                yield finding_at(RULE, module, node, message, hint)


def _option(module: Module, node: ast.AST) -> str:
    """The option that a statement turns on, if it costs anything."""
    name, value = "", None
    if isinstance(node, ast.Call) and len(node.args) == 2:
        if module.names.of(node.func) in ("jax.config.update", "jax.config.config.update"):
            name, value = str(getattr(node.args[0], "value", "")), node.args[1]
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        name, value = module.names.of(node.targets[0]) or "", node.value
        name = name.removeprefix("jax.config.") if name.startswith("jax.config.jax_") else ""
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0]
        if module.names.of(target.value) == "os.environ":
            name, value = str(getattr(target.slice, "value", "")).lower(), node.value
    if name not in COSTS or not isinstance(value, ast.Constant):
        return ""
    is_on = value.value == "cpu" if COSTS[name] is IDLE else value.value in (True, *ON)
    return name if is_on else ""
