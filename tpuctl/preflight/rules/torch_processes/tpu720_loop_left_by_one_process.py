"""TPU720 loop-left-by-one-process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import Loop, loop_around
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.library_names import uses
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.processes import is_accelerator, is_collective
from tpuctl.preflight.analysis.torch.usage import ACCELERATORS
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr


def train(index):
    device = torch_xla.device()
    torch.manual_seed(xr.global_ordinal())
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(100):
        for step in range(1000):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8, device=device)).square().mean()
            loss.backward()
            xm.optimizer_step(optimizer)
            torch_xla.sync()
        last = loss.item()
"""
END = """\
        if last < 0.1:
            break


if __name__ == "__main__":
    torch_xla.launch(train)
"""

RULE = Rule(
    code="TPU720",
    name="loop-left-by-one-process",
    severity=Severity.risk,
    summary="A process leaves the training loop by a value of its own",
    rationale=(
        "Each process has the loss of its part of the data, and a clock of its own. If one of them "
        "stops by such a value, the others wait forever in their next collective. Exchange the "
        "value first, so that all decide the same."
    ),
    bad=SCRIPT + END,
    good=SCRIPT
    + '        last = xm.mesh_reduce("last", last, lambda values: sum(values) / len(values))\n'
    + END,
)

LAUNCH = re.compile(r"torch_xla\.launch|torch_xla\.distributed\.xla_multiprocessing\.spawn")
PARALLEL = re.compile(r"(?:.*\.)?DistributedDataParallel")
# What gives processes different data; Accelerate's loaders do.
SPLITS = re.compile(
    r"(?:.*\.)?(?:DistributedSampler|split_dataset_by_node|shard|global_ordinal|get_ordinal"
    r"|get_rank|process_index)"
)
CLOCKS = {f"time.{name}" for name in ("time", "monotonic", "perf_counter")}
# Calls with a result that all processes have, as far as their names tell.
EXCHANGES = re.compile(r"reduce|gather|broadcast|barrier|rendezvous|agree")
UPDATES = re.compile(r"optimizer_step|reduce_gradients")  # exchange gradients, not values


def find(project: Project, target: Target) -> Iterator[Finding]:
    has_accelerator = uses(project, ACCELERATORS)
    if not (has_accelerator or uses(project, LAUNCH) or uses(project, PARALLEL)):
        return
    is_split = has_accelerator or uses(project, SPLITS)
    host = HostCode.of(project)
    for module in project:
        for exit_ in module.of_types(ast.Break, ast.Return):
            conditional = module.parents[exit_]
            loop = loop_around(module, exit_)
            if not isinstance(conditional, ast.If) or loop is None or exit_.lineno < loop.lineno:
                continue
            if exit_ not in conditional.body or loop_around(module, conditional) is not loop:
                continue
            if not _meets(project, host, module, loop):
                continue
            reason = _own_value(project, module, conditional.test, is_split)
            if reason:
                message = f"{quoted(module, conditional.test)} is decided by {reason}"
                hint = (
                    "Exchange the value in all processes before, as by\n"
                    '    stop = xm.mesh_reduce("stop", stop, max)'
                )
                yield finding_at(RULE, module, conditional, message, hint)


def _meets(project: Project, host: HostCode, module: Module, loop: Loop) -> bool:
    """Whether processes exchange gradients, or meet otherwise, in a loop or what it calls."""
    for call in (node for node in ast.walk(loop) if isinstance(node, ast.Call)):
        if _is_meeting(project, host, module, call):
            return True
        called = function_of(project, module, call.func)
        if called is not None and any(
            isinstance(node, ast.Call) and _is_meeting(project, host, called[0], node)
            for node in called[0].own_nodes(called[1])
        ):
            return True
    return False


def _is_meeting(project: Project, host: HostCode, module: Module, call: ast.Call) -> bool:
    if is_collective(host, module, call):
        return True
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return False
    return uses(project, PARALLEL) or is_accelerator(host, module, call.func.value)


def _own_value(project: Project, module: Module, test: ast.expr, is_split: bool) -> str:
    """What decides about a conditional and may differ between processes; "" if nothing does."""
    values, names = [test], set[str]()
    for value in values:  # grows during iteration
        for name in (node for node in ast.walk(value) if isinstance(node, ast.Name)):
            if name.id not in names:
                names.add(name.id)
                bindings = HostCode.of(project).bindings(module, name)
                values += [
                    binding.value for binding in bindings
                    if binding.value is not None and not binding.is_element
                ]  # fmt: skip
    calls = [node for value in values for node in ast.walk(value) if isinstance(node, ast.Call)]
    for call in list(calls):
        function = function_of(project, module, call.func)
        nodes = [] if function is None else function[0].own_nodes(function[1])
        inner = [node for node in nodes if isinstance(node, ast.Call)]
        if any(function_of(project, module, node.func) is not None for node in inner):
            return ""  # what these exchange is not known
        calls += [node for node in inner if not UPDATES.search(_written(node))]
    called = [module.names.of(call.func) or _written(call) for call in calls]
    if any(EXCHANGES.search(name.rpartition(".")[2]) for name in called):
        return ""
    if not CLOCKS.isdisjoint(called):
        return "the clock of this process"
    if is_split and any(_written(call) == "item" and not call.args for call in calls):
        return "a value of this process alone"
    return ""


def _written(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))
