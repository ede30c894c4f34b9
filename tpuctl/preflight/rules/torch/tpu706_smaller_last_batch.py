"""TPU706 smaller-last-batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import class_of, library_bases
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.torch.loaders import training_loaders
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch
import torch_xla
from torch.utils.data import DataLoader, TensorDataset

device = torch_xla.device()
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = TensorDataset(torch.ones(100, 8))
"""
LOOP = """\
for (x,) in loader:
    optimizer.zero_grad()
    loss = model(x.to(device)).square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
"""

RULE = Rule(
    code="TPU706",
    name="smaller-last-batch",
    severity=Severity.cost,
    summary="Last batch of an epoch of PyTorch's DataLoader is smaller than the others",
    rationale=(
        "`DataLoader` returns what is left of the dataset as the last batch. Its size differs "
        "unless the batch size divides the dataset, and XLA compiles the whole step again for it. "
        "`drop_last=True` leaves it out; shuffled data has other examples there in each epoch."
    ),
    bad=SCRIPT + "loader = DataLoader(dataset, batch_size=32)\n" + LOOP,
    good=SCRIPT + "loader = DataLoader(dataset, batch_size=32, drop_last=True)\n" + LOOP,
)

FULL_BATCHES = ("IterableDataset",)  # which may never end


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module, call in training_loaders(project):
        if _may_leave_rest(project, module, call):
            message = "the last batch may be smaller, and compiles the step again"
            yield finding_at(RULE, module, call, message, "Pass drop_last=True.")


def _may_leave_rest(project: Project, module: Module, call: ast.Call) -> bool:
    keywords = {keyword.arg for keyword in call.keywords}
    size, drops = argument(call, 1, "batch_size"), argument(call, 8, "drop_last")
    if None in keywords or "batch_sampler" in keywords or size is None:
        return False
    host = HostCode.of(project)
    if getattr(size, "value", 0) is None or host.number(module, size) == 1:
        return False
    if drops is not None and getattr(drops, "value", True) is not False:
        return False
    dataset = argument(call, 0, "dataset")
    values = host.assigned_values(module, dataset) if dataset is not None else []
    for value in (dataset, *values):
        owner = class_of(project, module, value.func) if isinstance(value, ast.Call) else None
        if owner and any(base.endswith(FULL_BATCHES) for base in library_bases(project, *owner)):
            return False
    return True
