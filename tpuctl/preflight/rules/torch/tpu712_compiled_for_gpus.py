"""TPU712 compiled-for-gpus."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch
import torch_xla

model = torch.nn.Linear(8, 1).to(torch_xla.device())
"""

RULE = Rule(
    code="TPU712",
    name="compiled-for-gpus",
    severity=Severity.risk,
    summary="Script for PyTorch/XLA compiles with the backend for GPUs and CPUs",
    rationale=(
        "The default backend of `torch.compile`, inductor, generates code for GPUs and CPUs, and "
        "has none for XLA devices. `backend='openxla'` compiles with XLA. PyTorch/XLA compiles "
        "each step without it, too."
    ),
    bad=SCRIPT
    + """\
model = torch.compile(model)
""",
    good=SCRIPT
    + """\
model = torch.compile(model, backend="openxla")
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        decorators = [
            decorator
            for function in module.of_types(ast.FunctionDef)
            for decorator in function.decorator_list
            if module.names.of(decorator) == "torch.compile"
        ]
        for node in (*module.calls, *decorators):
            if not isinstance(node, ast.Call) or _uses_inductor(module, node):
                message = f"{quoted(module, node)} compiles for GPUs and CPUs"
                yield finding_at(RULE, module, node, message, 'Pass backend="openxla".')


def _uses_inductor(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func) or ""
    if name.startswith("transformers.") and name.endswith("TrainingArguments"):
        compiles = getattr(argument(call, -1, "torch_compile"), "value", False) is True
        backend = argument(call, -1, "torch_compile_backend")
        return compiles and getattr(backend, "value", "inductor") == "inductor"
    if name != "torch.compile" or any(keyword.arg is None for keyword in call.keywords):
        return False
    backend = argument(call, -1, "backend")
    disabled = getattr(argument(call, -1, "disable"), "value", False) is True
    is_default = backend is None or getattr(backend, "value", None) == "inductor"
    return is_default and not disabled
