"""TPU701 cuda-left-over."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, method_node, quoted
from tpuctl.preflight.analysis.torch.loops import is_unconditional
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU701",
    name="cuda-left-over",
    severity=Severity.error,
    summary="Script for PyTorch/XLA uses a CUDA device",
    rationale=(
        "A TPU VM has no GPU: `.cuda()`, a device called cuda, and the nccl backend raise an "
        "error there. The device of a TPU is `torch_xla.device()`. A call that depends on a "
        "condition, such as `torch.cuda.is_available()`, is not reported."
    ),
    bad="""\
import torch
import torch_xla

device = torch_xla.device()
model = torch.nn.Linear(8, 1).to(device)
batch = torch.ones(4, 8).cuda()
model(batch)
torch_xla.sync()
""",
    good="""\
import torch
import torch_xla

device = torch_xla.device()
model = torch.nn.Linear(8, 1).to(device)
batch = torch.ones(4, 8).to(device)
model(batch)
torch_xla.sync()
""",
)

FUNCTIONS = {
    *(f"torch.cuda.{name}" for name in ("set_device", "synchronize", "current_device")),
    *(f"torch.cuda.{name}" for name in ("get_device_name", "get_device_properties")),
}
PROCESS_GROUPS = {"torch.distributed.init_process_group"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for call in module.calls:
            if _needs_cuda(module, call) and not is_in_branch(module, call, None):
                is_method = isinstance(call.func, ast.Attribute)
                place = method_node(call) if is_method else call
                message = f"{quoted(module, call)} needs a GPU, which a TPU VM lacks"
                severity = None
                if not is_unconditional(project, module, call):
                    severity = Severity.risk
                    message += "; an error if it runs"
                hint = "Use the device torch_xla.device()."
                if module.names.of(call.func) in PROCESS_GROUPS:
                    hint = 'Import torch_xla.distributed.xla_backend, and use the backend "xla".'
                elif module.names.of(call.func) in FUNCTIONS:
                    hint = "Remove it; torch_xla.sync(wait=True) waits for a TPU."
                yield finding_at(RULE, module, place, message, hint, severity=severity)


def _needs_cuda(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func)
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name in FUNCTIONS:
        return True
    if name in PROCESS_GROUPS:
        return any(isinstance(value, ast.Constant) and value.value == "nccl" for value in values)
    if isinstance(call.func, ast.Attribute) and name is None:
        if call.func.attr == "cuda":
            return not isinstance(call.func.value, ast.Attribute) or call.func.value.attr != "torch"
        return call.func.attr == "to" and any(map(_is_cuda, values))
    device = next((keyword.value for keyword in call.keywords if keyword.arg == "device"), None)
    return (name or "").startswith("torch.") and device is not None and _is_cuda(device)


def _is_cuda(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).partition(":")[0] == "cuda"
