"""TPU634 arrays-in-pipeline."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.jax.loops import compiled_of
from tpuctl.preflight.analysis.program.control_flow import names_in
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU634",
    name="arrays-in-pipeline",
    severity=Severity.cost,
    summary="Data pipeline computes with JAX for each example",
    rationale=(
        "Each operation of `jax.numpy` outside of compiled code is a program on the TPU, with its "
        "arguments copied there. For single examples this takes longer than the work, and the "
        "training step waits meanwhile. NumPy computes on the host; or the compiled step does it "
        "for the whole batch."
    ),
    bad="""\
import jax
import jax.numpy as jnp
import numpy as np


def batches(images):
    while True:
        yield np.stack([np.asarray(jnp.flip(image)) for image in images])


step = jax.jit(lambda batch: batch.mean())
print(step(next(batches(np.ones((8, 4))))))
""",
    good="""\
import jax
import numpy as np


def batches(images):
    while True:
        yield np.stack([np.flip(image) for image in images])


step = jax.jit(lambda batch: batch.mean())
print(step(next(batches(np.ones((8, 4))))))
""",
)

CREATING = {"asarray", "array", "dtype", "shape", "float32", "bfloat16", "int32", "uint8"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer_jax(project)
    for module in project:
        for node in module.of_types(ast.ListComp, ast.GeneratorExp):
            function = module.enclosing_function(node)
            if function is None or function in inference.contexts:
                continue
            nodes = module.own_nodes(function)
            yields = any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in nodes)
            example = node.generators[0].target
            if not yields or not isinstance(example, ast.Name):
                continue
            for call in ast.walk(node.elt):
                if not isinstance(call, ast.Call) or example.id not in names_in(call):
                    continue
                where, operation = _operation(project, module, call) or (module, None)
                if operation is not None:
                    text = where.segment(operation.func)
                    message = f"`{text}` is a program on the TPU for each example"
                    hint = "Use NumPy, or compute in the compiled step, for the whole batch."
                    yield finding_at(RULE, where, operation, message, hint)
                    break


def _operation(project: Project, module: Module, call: ast.Call) -> tuple[Module, ast.Call] | None:
    """The first operation of JAX that a call is, or that the function it calls runs."""
    if _computes(module, call):
        return module, call
    function = function_of(project, module, call.func)
    if function is None or compiled_of(project, module, call.func) is not None:
        return None
    where, definition = function
    nodes = [node for node in where.own_nodes(definition) if isinstance(node, ast.Call)]
    computing = sorted(
        (node for node in nodes if _computes(where, node)), key=lambda node: node.lineno
    )
    return (where, computing[0]) if computing else None


def _computes(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func) or ""
    return name.startswith("jax.numpy.") and name.rpartition(".")[2] not in CREATING
