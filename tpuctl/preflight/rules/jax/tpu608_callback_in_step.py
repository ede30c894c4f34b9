"""TPU608 callback-in-step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.jax.loops import loop_calls
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU608",
    name="callback-in-step",
    severity=Severity.cost,
    summary="Compiled step calls Python on the host each time it runs",
    rationale=(
        "`jax.debug.print` and other callbacks copy arrays from the TPU to the host in each step, "
        "and `jax.pure_callback` and `io_callback` make the TPU wait for Python. A value that the "
        "step returns can be printed every hundred steps."
    ),
    bad="""\
import jax
import jax.numpy as jnp


@jax.jit
def step(weights):
    loss = jnp.mean(weights**2)
    jax.debug.print("loss {}", loss)
    return weights - 0.1 * weights, loss


weights = jnp.ones(8)
for number in range(1000):
    weights, loss = step(weights)
""",
    good="""\
import jax
import jax.numpy as jnp


@jax.jit
def step(weights):
    loss = jnp.mean(weights**2)
    return weights - 0.1 * weights, loss


weights = jnp.ones(8)
for number in range(1000):
    weights, loss = step(weights)
    if number % 100 == 0:
        print("loss", loss)
""",
)

CALLBACKS = {
    *("jax.debug.print", "jax.debug.callback", "jax.pure_callback"),
    "jax.experimental.io_callback",
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer_jax(project)
    steps = {
        loop_call.compiled.reference.function
        for loop_call in loop_calls(project)
        if loop_call.compiled.reference is not None
    }
    for traced, node in inference.sites:
        name = traced.module.names.called(node)
        is_in_step = bool(inference.roots_of[traced.node] & steps)
        if name in CALLBACKS and is_in_step and node in inference.executed:
            assert isinstance(node, ast.Call)
            message = f"{name} calls Python on the host in each step"
            hint = (
                "Return the value from the step, and print it after some of the steps; or call it "
                "in jax.lax.cond."
            )
            yield finding_at(RULE, traced, node, message, hint)
