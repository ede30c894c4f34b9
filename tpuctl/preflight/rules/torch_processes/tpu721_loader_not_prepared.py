"""TPU721 loader-not-prepared."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loaders import METHODS, loaders_of
from tpuctl.preflight.analysis.torch.loops import TrainingLoop, training_loops
from tpuctl.preflight.analysis.torch.processes import is_accelerator
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(1000, 8)), batch_size=32, drop_last=True)
PREPARE
for (x,) in loader:
    optimizer.zero_grad()
    accelerator.backward(model(x.to(accelerator.device)).square().mean())
    optimizer.step()
"""

RULE = Rule(
    code="TPU721",
    name="loader-not-prepared",
    severity=Severity.risk,
    summary="Accelerate prepares the model, but not the data loader that trains it",
    rationale=(
        "`accelerator.prepare` gives each process its part of a loader's batches, and puts them on "
        "the TPU. A loader that is left out has the whole dataset in every process: an epoch takes "
        "as many steps as on one chip, and without shuffling all compute the same. "
        "`fabric.setup_dataloaders` does it for Lightning Fabric."
    ),
    bad=SCRIPT.replace("PREPARE", "model, optimizer = accelerator.prepare(model, optimizer)"),
    good=SCRIPT.replace(
        "PREPARE", "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
    ),
)

SETUP = {"prepare", "setup", "setup_module"}
PREPARING = {*METHODS, *SETUP}
# Whatever else divides data among processes.
SPLITS = {
    *("num_processes", "process_index", "local_process_index", "split_between_processes"),
    *("DistributedSampler", "DistributedBatchSampler", "split_dataset_by_node", "shard"),
    *("get_rank", "get_world_size", "world_size", "global_rank", "global_ordinal"),
}
SAMPLERS = {"sampler", "batch_sampler", None}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if "backward" not in project.used_names or not SPLITS.isdisjoint(project.used_names):
        return
    host = HostCode.of(project)
    setups = [
        (module, call)
        for module in project
        for call in module.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in PREPARING
        and is_accelerator(host, module, call.func.value)
    ]  # fmt: skip
    passed = [(module, value) for module, call in setups for value in call.args]
    if any(isinstance(value, ast.Starred) for _, value in passed):
        return
    prepared = {loader for each in passed for _, loader in loaders_of(project, *each)}
    for loop in training_loops(project):
        if not isinstance(loop.loop, ast.For) or not _uses_accelerator(host, loop):
            continue
        loaders = loaders_of(project, loop.module, loop.loop.iter)
        for _, loader in loaders:
            if loader in prepared or {keyword.arg for keyword in loader.keywords} & SAMPLERS:
                continue
            setup = _setup_before(setups, loop)
            if setup is not None:
                message = (
                    f"{quoted(loop.module, setup)} leaves out the data loader on which the loop "
                    f"in line {loop.loop.lineno} trains"
                )
                hint = "Pass the loader too, and iterate over what is returned."
                yield finding_at(RULE, loop.module, setup, message, hint)
                break


def _uses_accelerator(host: HostCode, loop: TrainingLoop) -> bool:
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
        and is_accelerator(host, loop.module, call.func.value)
        for call in loop.calls
    )  # fmt: skip


def _setup_before(setups: list[tuple[Module, ast.Call]], loop: TrainingLoop) -> ast.Call | None:
    """The last call before a loop in the same function that prepares something for it."""
    function = loop.module.enclosing_function(loop.loop)
    before = [
        call
        for module, call in setups
        if module is loop.module and call.lineno < loop.loop.lineno
        and getattr(call.func, "attr", "") in SETUP
        and module.enclosing_function(call) is function
    ]  # fmt: skip
    return max(before, key=lambda call: call.lineno, default=None)
