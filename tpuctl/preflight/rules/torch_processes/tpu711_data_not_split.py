"""TPU711 data-not-split."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.library_names import uses
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function, parameters_of
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.torch.loaders import training_loaders
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(index):
    device = torch_xla.device()
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = TensorDataset(torch.ones(1000, 8))
"""
LOOP = """\
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x.to(device)).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()


if __name__ == "__main__":
    torch_xla.launch(train)
"""

RULE = Rule(
    code="TPU711",
    name="data-not-split",
    severity=Severity.risk,
    summary="Each process of PyTorch/XLA trains on the whole dataset",
    rationale=(
        "`torch_xla.launch` and `xmp.spawn` run the function in a process for each chip. A "
        "`DataLoader` without a sampler reads the whole dataset in each of them, so that an epoch "
        "takes as many steps as on one chip, and without shuffling all compute the same. "
        "`DistributedSampler` gives each process its part."
    ),
    bad=SCRIPT + "    loader = DataLoader(dataset, batch_size=32, drop_last=True)\n" + LOOP,
    good=SCRIPT
    + "    sampler = DistributedSampler(dataset, xr.world_size(), xr.global_ordinal())\n"
    + "    loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)\n"
    + LOOP,
)

LAUNCHERS = {"torch_xla.launch", "torch_xla.distributed.xla_multiprocessing.spawn"}
# Whatever tells processes apart, or splits data.
SPLITS = re.compile(
    r"(?:.*\.)?(?:DistributedSampler|split_dataset_by_node|shard|\w*ordinal|\w*world_size"
    r"|get_rank|process_index|use_spmd|xla_device_count|random_split_by_node)"
)
UNSPLIT = {"sampler", "batch_sampler", None}


def find(project: Project, target: Target) -> Iterator[Finding]:
    launched = [
        definition
        for module in project
        for call in module.calls
        if module.names.of(call.func) in LAUNCHERS and call.args
        and not any(keyword.arg == "nprocs" for keyword in call.keywords)
        for definition in [function_of(project, module, call.args[0])]
        if definition is not None
    ]  # fmt: skip
    if not launched or uses(project, SPLITS) or any(_passes_index(*each) for each in launched):
        return
    for module, loader in training_loaders(project):
        if not {keyword.arg for keyword in loader.keywords} & UNSPLIT and len(loader.args) < 4:
            message = "each process trains on the whole dataset"
            hint = "Pass sampler=DistributedSampler(dataset, xr.world_size(), xr.global_ordinal())."
            yield finding_at(RULE, module, loader, message, hint)


def _passes_index(module: Module, function: Function) -> bool:
    """Whether a launched function hands its index on, or computes with it."""
    parameters = parameters_of(function)
    name = parameters[0].arg if parameters else ""
    return any(
        isinstance(node, ast.Name) and node.id == name and not isinstance(
            module.parents[node], (ast.FormattedValue, ast.Compare)
        )
        for node in ast.walk(function)
    )  # fmt: skip
