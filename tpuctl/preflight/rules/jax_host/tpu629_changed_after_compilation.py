"""TPU629 changed-after-compilation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.compiled_functions import decorated
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import dotted
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU629",
    name="changed-after-compilation",
    severity=Severity.risk,
    summary="Attribute changes, but the compiled method keeps its first value",
    rationale=(
        "A method whose `self` is static is compiled once for each object, with the attributes "
        "that it has at that time. Changing one later has no effect: a new learning rate never "
        "reaches the step. An argument does."
    ),
    bad="""\
from functools import partial

import jax
import jax.numpy as jnp


class Trainer:
    def __init__(self):
        self.rate = 0.1

    @partial(jax.jit, static_argnums=0)
    def step(self, weights):
        return weights - self.rate * weights

    def decay(self):
        self.rate *= 0.5


trainer = Trainer()
weights = trainer.step(jnp.ones(8))
trainer.decay()
print(trainer.step(weights))
""",
    good="""\
from functools import partial

import jax
import jax.numpy as jnp


class Trainer:
    def __init__(self):
        self.rate = 0.1

    @partial(jax.jit, static_argnums=0)
    def step(self, weights, rate):
        return weights - rate * weights

    def decay(self):
        self.rate *= 0.5


trainer = Trainer()
weights = trainer.step(jnp.ones(8), trainer.rate)
trainer.decay()
print(trainer.step(weights, trainer.rate))
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for owner in module.of_types(ast.ClassDef):
            methods = [part for part in owner.body if isinstance(part, ast.FunctionDef)]
            # Objects that compare by their values, such as dataclasses, are compiled again.
            if owner.decorator_list or owner.bases:
                continue
            if any(method.name in ("__hash__", "__eq__", "__call__") for method in methods):
                continue
            compiled = {
                attribute: method.name
                for method in methods
                for attribute in _read_when_compiled(module, method)
            }
            for method in methods:
                if method.name != "__init__":
                    yield from _changes(module, method, compiled)


def _read_when_compiled(module: Module, method: ast.FunctionDef) -> set[str]:
    """The attributes whose values are constants in a compiled method."""
    compiled = decorated(module, method)
    if compiled is None or "self" not in (compiled.static or ()):
        return set()
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and dotted(node.value) == "self"
    }


def _changes(
    module: Module, method: ast.FunctionDef, compiled: dict[str, str]
) -> Iterator[Finding]:
    for node in module.own_nodes(method):
        if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Attribute):
            continue
        attribute = node.target
        if dotted(attribute.value) == "self" and attribute.attr in compiled:
            step = compiled[attribute.attr]
            message = f"{quoted(module, node)} does not reach `{step}`, which is compiled already"
            hint = f"Pass {attribute.attr} as an argument of `{step}`."
            yield finding_at(RULE, module, node, message, hint)
