"""TPU705 gradients-not-reduced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.library_names import uses
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import is_optimizer, training_loops
from tpuctl.preflight.analysis.torch.usage import uses_training_library, uses_xla_device
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU705",
    name="gradients-not-reduced",
    severity=Severity.risk,
    summary="Processes of PyTorch/XLA train without exchanging gradients",
    rationale=(
        "`torch_xla.launch` and `xmp.spawn` start a process for each chip. `optimizer.step()` "
        "updates the model of one process with its own gradients, so that each trains a model of "
        "its own on a part of the data. `xm.optimizer_step(optimizer)` averages the gradients of "
        "all processes first."
    ),
    bad="""\
import torch
import torch_xla


def train(index):
    device = torch_xla.device()
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()


if __name__ == "__main__":
    torch_xla.launch(train)
""",
    good="""\
import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train(index):
    device = torch_xla.device()
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, device=device)).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()


if __name__ == "__main__":
    torch_xla.launch(train)
""",
)

LAUNCHERS = ("torch_xla.launch", "torch_xla.distributed.xla_multiprocessing.spawn")
# Whatever exchanges gradients, or shards one model over all chips.
EXCHANGES = re.compile(
    r"(?:.*\.)?(?:optimizer_step|reduce_gradients"
    r"|all_reduce\w*|reduce_scatter\w*|all_gather\w*|DistributedDataParallel"
    r"|\w*FullyShardedDataParallel|fully_shard|ZeroRedundancyOptimizer|use_spmd|mark_sharding)"
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    loops = training_loops(project) if uses_xla_device(project) else []
    if not loops or uses_training_library(project) or uses(project, EXCHANGES):
        return
    launched = {
        definition[1]
        for module in project
        for call in module.calls
        if module.names.of(call.func) in LAUNCHERS and call.args
        for definition in [function_of(project, module, call.args[0])]
        if definition is not None
    }
    for loop in loops:
        if loop.module.enclosing_function(loop.loop) not in launched:
            continue
        for call in loop.calls:
            is_step = isinstance(call.func, ast.Attribute) and call.func.attr == "step"
            if is_step and is_optimizer(call.func):
                message = f"{quoted(loop.module, call)} uses the gradients of this process alone"
                hint = "Average them: xm.optimizer_step(optimizer)."
                yield finding_at(RULE, loop.module, call, message, hint)
