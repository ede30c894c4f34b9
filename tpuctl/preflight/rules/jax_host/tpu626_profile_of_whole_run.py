"""TPU626 profile-of-whole-run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import LoopCall, loop_calls
from tpuctl.preflight.analysis.program.control_flow import (
    LOOPS,
    is_in_branch,
    loop_around,
    statements_before,
)
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

STEP = """\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, donate_argnums=0)
def step(weights):
    return weights - 0.1 * jax.grad(lambda weights: jnp.mean(weights**2))(weights)


weights = jnp.ones(8)
"""

RULE = Rule(
    code="TPU626",
    name="profile-of-whole-run",
    severity=Severity.cost,
    summary="Profiler traces the whole training loop",
    rationale=(
        "A trace holds every operation of every step in the host's memory until it stops, slows "
        "the job, and is too large to open; the profiler drops what exceeds its buffers. A few "
        "steps in the middle show the same."
    ),
    bad=STEP
    + """\
jax.profiler.start_trace("profile")
for number in range(1000):
    weights = step(weights)
jax.profiler.stop_trace()
""",
    good=STEP
    + """\
for number in range(1000):
    if number == 100:
        jax.profiler.start_trace("profile")
    weights = step(weights)
    if number == 105:
        jax.profiler.stop_trace()
""",
)

FEW = 50  # steps that a trace may have


def find(project: Project, target: Target) -> Iterator[Finding]:
    reported = set()
    for loop_call in loop_calls(project):
        start = _start(loop_call)
        if start is None or start in reported or _is_short(project, loop_call):
            continue
        reported.add(start)
        message = f"{quoted(loop_call.module, start)} traces all steps of the loop"
        hint = "Start the trace in one iteration of the loop, and stop it a few steps later."
        yield finding_at(RULE, loop_call.module, start, message, hint)


def _start(loop_call: LoopCall) -> ast.Call | None:
    """What starts a trace before a loop of training steps, and certainly goes on in it."""
    module, loop = loop_call.module, loop_call.loop
    if not loop_call.takes_gradients:
        return None
    inside = [module.names.called(part) for part in ast.walk(loop)]
    if "jax.profiler.stop_trace" in inside or "jax.profiler.start_trace" in inside:
        return None
    for ancestor in module.ancestors(loop):
        if isinstance(ancestor, ast.With):
            for item in ancestor.items:
                context = item.context_expr
                if module.names.called(context) == "jax.profiler.trace":
                    is_sure = not is_in_branch(module, ancestor, None)
                    return context if is_sure and isinstance(context, ast.Call) else None
    for statement in statements_before(module, loop):
        for call in ast.walk(statement):
            name = module.names.called(call)
            if name == "jax.profiler.stop_trace":
                return None
            if name == "jax.profiler.start_trace" and isinstance(call, ast.Call):
                is_sure = not is_in_branch(module, call, None) and not loop_around(module, call)
                return call if is_sure else None
    return None


def _is_short(project: Project, loop_call: LoopCall) -> bool:
    """Whether a loop has, or may have, a few iterations."""
    module = loop_call.module
    loops = [part for part in module.ancestors(loop_call.call) if isinstance(part, LOOPS)]
    for loop in loops:
        call = loop.iter if isinstance(loop, ast.For) else None
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "range":
            numbers = HostCode.of(project).numbers(
                module, call.args[-1 if len(call.args) < 2 else 1]
            )
            return bool(numbers) and min(int(str(part.value)) for part in numbers) <= FEW
    return False
