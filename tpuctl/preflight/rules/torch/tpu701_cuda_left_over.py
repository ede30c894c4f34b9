"""TPU701 cuda-left-over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, method_node, quoted
from tpuctl.preflight.analysis.torch.loops import is_unconditional
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU701",
    name="cuda-left-over",
    severity=Severity.error,
    summary="Script for PyTorch/XLA uses a CUDA device",
    rationale=(
        "A TPU VM has no GPU: `.cuda()`, a device called cuda, and the nccl backend raise an "
        "error there. The device of a TPU is `torch_xla.device()`. A call that depends on a "
        "condition, such as `torch.cuda.is_available()`, is not reported. Mixed precision of CUDA "
        "is turned off there: such scripts train in float32."
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
# What PyTorch turns off, with a warning, where there is no GPU.
MIXED_PRECISION = {
    *("torch.cuda.amp.autocast", "torch.cuda.amp.GradScaler"),
    *("torch.autocast", "torch.amp.autocast", "torch.amp.GradScaler"),
}
PROCESS_GROUPS = {"torch.distributed.init_process_group"}
LIGHTNING = re.compile(r"(?:lightning|pytorch_lightning|lightning_fabric)\..*(?:Trainer|Fabric)")


def find(project: Project, target: Target) -> Iterator[Finding]:
    devices = _Devices(project)
    for module in project:
        for call in module.calls:
            if is_in_branch(module, call, None):
                continue
            place = method_node(call) if isinstance(call.func, ast.Attribute) else call
            if devices.are_needed_by(module, call):
                message = f"{quoted(module, call)} needs a GPU, which a TPU VM lacks"
                severity = None
                if not is_unconditional(project, module, call):
                    severity = Severity.risk
                    message += "; an error if it runs"
                hint = _hint(module, call)
                yield finding_at(RULE, module, place, message, hint, severity=severity)
            elif devices.are_ignored_by(module, call):
                message = f"{quoted(module, call)} has no effect without a GPU"
                hint = 'Use torch.autocast("xla", dtype=torch.bfloat16), without a GradScaler.'
                yield finding_at(RULE, module, place, message, hint, severity=Severity.risk)


def _hint(module: Module, call: ast.Call) -> str:
    name = module.names.of(call.func) or ""
    if name in PROCESS_GROUPS:
        return 'Import torch_xla.distributed.xla_backend, and use the backend "xla".'
    if name in FUNCTIONS:
        return "Remove it; torch_xla.sync(wait=True) waits for a TPU."
    if LIGHTNING.fullmatch(name):
        return 'Use accelerator="tpu".'
    return "Use the device torch_xla.device()."


class _Devices:
    """The CUDA devices that calls of a project name."""

    def __init__(self, project: Project) -> None:
        self.host = HostCode.of(project)

    def are_needed_by(self, module: Module, call: ast.Call) -> bool:
        name = module.names.of(call.func)
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        if name in FUNCTIONS:
            return True
        if name in PROCESS_GROUPS:
            return self._text(module, argument(call, 0, "backend")) == "nccl"
        if isinstance(call.func, ast.Attribute) and name is None:
            owner = call.func.value
            if call.func.attr == "cuda":
                return not isinstance(owner, ast.Attribute) or owner.attr != "torch"
            return call.func.attr == "to" and any(self._is_cuda(module, part) for part in values)
        if name is not None and LIGHTNING.fullmatch(name):
            return self._text(module, argument(call, -1, "accelerator")) in ("gpu", "cuda")
        is_factory = (name or "").startswith("torch.") and name not in MIXED_PRECISION
        return is_factory and self._is_cuda(module, argument(call, -1, "device"))

    def are_ignored_by(self, module: Module, call: ast.Call) -> bool:
        name = module.names.of(call.func) or ""
        if name not in MIXED_PRECISION or argument(call, -1, "enabled") is not None:
            return False
        return ".cuda." in name or self._is_cuda(module, argument(call, 0, "device_type"))

    def _is_rebound(self, module: Module) -> bool:
        """Whether other code may assign to the names of a file, such as options do."""
        return any(getattr(call.func, "id", "") in ("exec", "globals") for call in module.calls)

    def _is_cuda(self, module: Module, node: ast.expr | None) -> bool:
        return (self._text(module, node) or "").partition(":")[0] == "cuda"

    def _text(self, module: Module, node: ast.expr | None) -> str | None:
        """The text that an expression certainly is, or that names the device it is."""
        if isinstance(node, ast.Name) and not self._is_rebound(module):
            values = self.host.assigned_values(module, node)
            node = values[0] if len(values) == 1 else None
            if node is None or isinstance(node, ast.Name) or is_in_branch(module, node, None):
                return None
        if isinstance(node, ast.Call) and module.names.of(node.func) == "torch.device":
            node = argument(node, 0, "type")
        value = node.value if isinstance(node, ast.Constant) else None
        return value if isinstance(value, str) else None
