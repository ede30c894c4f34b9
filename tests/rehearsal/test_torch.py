"""Scripts with PyTorch, with and without XLA, observed from inside as in a rehearsal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rehearsal.conftest import Rehearsed
from tests.support.locked_environment import TORCH_LOCK, locked_python
from tpuctl import assets
from tpuctl.preflight.rehearsal.assessment import assess
from tpuctl.preflight.rehearsal.findings import Assessment, Finding, Target
from tpuctl.preflight.rehearsal.observations import Checkpoint, Ended, Started, Step
from tpuctl.preflight.rehearsal.passes import Mode, Pass

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]  # may create the environment

DEVICES, STEPS = 4, 8
TARGET = Target("v5litepod-4", "v5e", DEVICES, DEVICES, 16 << 30, per_hour=4.8)
# Trains on all devices with the loader that synchronizes, and resumes from what it saves: before
# the next synchronization, so that XLA compiles a program for each tensor, once.
CLEAN = """
import os

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.parallel_loader as loading
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

xr.use_spmd()
torch.manual_seed(0)
count = xr.global_runtime_device_count()
mesh = xs.Mesh(np.arange(count), (count,), ("data",))
device = torch_xla.device()
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
path = os.environ["TPUCTL_OUTPUT"] + "/checkpoint.pt"
if os.path.exists(path):
    model.load_state_dict(torch.load(path))
inputs = torch.randn(1024, 8)
batches = DataLoader(TensorDataset(inputs, inputs[:, :4]), batch_size=32, drop_last=True)
sharding = xs.ShardingSpec(mesh, ("data", None))
step = 0
for epoch in range(100):
    for inputs, targets in loading.MpDeviceLoader(batches, device, input_sharding=sharding):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 4 == 0:
            state = {name: value.cpu() for name, value in model.state_dict().items()}
            with open(path, "wb") as file:
                torch.save(state, file)
"""
# Batches of three sizes, a mask, an operation that XLA does not have, a loss that is read after
# every step and becomes NaN, one device of four, and nothing saved.
CARELESS = """
import torch
import torch_xla
from torch import nn

device = torch_xla.device()
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(1000):
    batch = torch.randn(8 + 4 * (step % 3), 8).to(device)
    optimizer.zero_grad()
    outputs = model(batch)
    sizes = torch.special.bessel_j0(outputs.detach())
    large = outputs[sizes > 0.5]
    loss = (outputs**2).mean() + large.mean() + (float("nan") if step == 5 else 0)
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    print("loss", loss.item())
"""
UNSYNCHRONIZED = """
import torch
import torch_xla
from torch import nn

device = torch_xla.device()
model = nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    batch = torch.randn(16, 8).to(device)
    optimizer.zero_grad()
    loss = (model(batch) ** 2).mean()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        print("loss", loss.item())
"""
LAUNCHED = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn


def train(index, size):
    device = torch_xla.device()
    model = nn.Linear(8, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        batch = torch.randn(size, 8).to(device)
        optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)


if __name__ == "__main__":
    torch_xla.launch(train, args=(16,))
"""
# Two optimizers, a loader with processes, and a gradient that becomes infinite in the last step.
PLAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = torch.compile(nn.Linear(8, 4), backend="eager")
scale = nn.Parameter(torch.ones(()))
optimizers = [torch.optim.Adam(model.parameters()), torch.optim.SGD([scale], lr=0.1)]
batches = DataLoader(TensorDataset(torch.randn(1024, 8)), batch_size=16, num_workers=1)
for step, (batch,) in enumerate(batches, 1):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = ((scale * model(batch) - 1) ** 2).mean()
    loss.backward()
    if step == 8:
        model.weight.grad[0, 0] = float("inf")
    for optimizer in optimizers:
        optimizer.step()
"""


class TorchRehearsal:
    """Runs a script's passes like `tpuctl rehearse`, and assesses them."""

    def __init__(self, rehearse: Callable[..., Rehearsed], folder: Path) -> None:
        self.rehearse, self.folder = rehearse, folder
        self.script = folder / "train.py"
        (folder / "output").mkdir()

    def run(self, mode: Mode, *arguments: str, steps: int = STEPS) -> Pass:
        rehearsed = self.rehearse(
            str(self.script),
            command=[str(locked_python(TORCH_LOCK)), str(self.script), *arguments],
            folder=self.folder,
            mode=mode,
            steps=steps,
            torch_devices=DEVICES,
            environment={"PJRT_DEVICE": "CPU", "TPUCTL_OUTPUT": str(self.folder / "output")},
        )
        return Pass(mode, DEVICES, tuple(rehearsed.observations), rehearsed.code)

    def assess(self, *passes: Pass) -> Assessment:
        return assess(passes, TARGET, requested_steps=STEPS)

    def problems(self, source: str) -> tuple[Pass, list[Finding]]:
        """The first pass of a script, and the problems that it has."""
        self.script.write_text(source, "utf-8")
        first = self.run("xla")
        return first, problems_of(self.assess(first))


@pytest.fixture
def torch(rehearse: Callable[..., Rehearsed], tmp_path: Path) -> TorchRehearsal:
    return TorchRehearsal(rehearse, tmp_path)


def line_of(finding: Finding) -> str:
    assert finding.where is not None, finding
    return finding.where.text


def problems_of(assessment: Assessment) -> list[Finding]:
    """Without what a busy machine causes, and that these tests' output is not in a bucket."""
    return [
        problem
        for problem in assessment.problems
        if problem.topic != "data" and "only on the machine's disk" not in problem.message
    ]


def test_clean_script_resumes_on_all_devices_without_findings(torch: TorchRehearsal) -> None:
    torch.script.write_text(CLEAN, "utf-8")
    passes = [torch.run("xla"), torch.run("replicas", steps=3)]
    assessment = torch.assess(*passes)
    assert problems_of(assessment) == []
    assert assessment.measured["torch"] == "2.9.0"
    assert assessment.measured["steps"] == STEPS
    assert assessment.measured["examples"] == 32
    assert assessment.measured["functions"][0]["peak_bytes"] > 0
    assert len(assessment.measured["losses"]) == STEPS
    messages = {finding.topic: finding.message for finding in assessment.findings}
    assert messages["replicas"] == "the step runs on 4 devices"
    assert "after a restart it resumes" in messages["checkpoint"]
    assert passes[0].of(Checkpoint)[0].path == str(torch.folder / "output" / "checkpoint.pt")
    assert passes[0].waited_share is not None


def test_careless_script_has_each_finding_at_its_line(torch: TorchRehearsal) -> None:
    first, problems = torch.problems(CARELESS)
    topics = {(problem.topic, problem.severity) for problem in problems}
    assert topics == {
        ("shapes", "cost"),
        ("transfers", "cost"),
        ("loss", "error"),
        ("checkpoint", "risk"),
        ("replicas", "cost"),
    }
    [shapes] = [problem for problem in problems if problem.topic == "shapes"]
    assert "the batch of input 1 is 8, 12, 16" in shapes.message
    transfers = [problem for problem in problems if problem.topic == "transfers"]
    assert {
        line_of(problem).split(" = ")[0]: problem.message.split()[0] for problem in transfers
    } == {
        "sizes": "aten::special_bessel_j0",
        "large": "aten::nonzero",
        'print("loss", loss.item())': "reads",
    }
    [loss] = [problem for problem in problems if problem.topic == "loss"]
    assert loss.message == "is nan at step 6"
    assert [step.examples for step in first.steps] == [8, 12, 16, 8, 12, 16, 8, 12]


def test_missing_synchronization_is_reported_at_the_update(torch: TorchRehearsal) -> None:
    first, problems = torch.problems(UNSYNCHRONIZED)
    assert len(first.steps) == STEPS
    [compiling] = [problem for problem in problems if problem.topic == "compiling"]
    assert line_of(compiling) == "optimizer.step()"
    assert [step.loss is not None for step in first.steps] == [True, False, False, False] * 2


def test_launched_function_runs_once_in_this_process(torch: TorchRehearsal) -> None:
    first, problems = torch.problems(LAUNCHED)
    assert [problem.topic for problem in problems] == ["checkpoint"]
    assert len(first.of(Started)) == 1
    [finding] = [each for each in torch.assess(first).findings if each.topic == "replicas"]
    assert "one process with one device took the part of 4" in finding.message


def test_plain_torch_trains_on_the_cpu(torch: TorchRehearsal) -> None:
    first, problems = torch.problems(PLAIN)
    assert {problem.topic for problem in problems} == {"loss", "checkpoint", "replicas"}
    assert [step.number for step in first.of(Step)] == list(range(1, STEPS + 1))
    assert all(step.waited is not None for step in first.steps)
    messages = {problem.topic: problem.message for problem in problems}
    assert messages["loss"] == ("1 of 2 parameters are infinite or not a number after step 8")
    assert "trains on the CPU" in messages["replicas"]


def test_template_rehearses_without_findings(torch: TorchRehearsal) -> None:
    template = assets.templates() / "jobs" / "torch"
    shutil.copytree(template, torch.folder, dirs_exist_ok=True)
    passes = [torch.run("xla"), torch.run("replicas", steps=3)]
    assessment = torch.assess(*passes)
    assert problems_of(assessment) == []
    messages = {finding.topic: finding.message for finding in assessment.findings}
    assert messages["replicas"] == "the step runs on 4 devices"
    assert "after a restart it resumes" in messages["checkpoint"]
    [end] = passes[0].of(Ended)
    assert (end.reason, end.grace_expired) == ("steps", False)
