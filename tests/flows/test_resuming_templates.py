"""The templates for JAX and PyTorch: interrupted, they end as if they had never been.

Losses are compared to the last bit: each depends on all weights and on the state of the optimizer.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.locked_environment import TORCH_LOCK, locked_python
from tests.support.polling import async_until, until
from tests.support.python_mirror import portable_interpreter, python_mirror
from tests.support.recovery_jobs import inject_fault, log_of
from tpuctl import assets
from tpuctl.api import Tpuctl
from tpuctl.interpreters import current
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event
from tpuctl.model.scripts.requirement_files import declared

pytestmark = pytest.mark.long
# Without CUDA and PyTorch/XLA, which cannot connect the CPUs of several hosts.
CPU_TORCH = """\
torch==2.13.0
numpy
gcsfs
"""


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Pythons that the jobs bring: the templates' and, for CPU_TORCH, that of the tests, for
    which an index on this computer may have a build without CUDA."""
    with python_mirror(tmp_path / "mirror", sorted({"3.12", current().minor})) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        yield


def copy_template(name: str, stack: Tpuctl) -> Path:
    """Return the script of a template's job, copied next to the stack file."""
    folder = stack.stack_file.parent / name
    shutil.copytree(assets.templates() / "jobs" / name, folder)
    if name == "torch":
        (folder / "requirements.txt").write_text(CPU_TORCH, "utf-8")
        (folder / "pyproject.toml").unlink()
        (folder / ".python-version").write_text(current().minor, "utf-8")
    return folder / "train.py"


def require_releases(template: str, log: str) -> None:
    """The job ran on the template's Python, with its releases."""
    if template == "jax":
        version = portable_interpreter("3.12").version
        assert f"tpuctl: unpacked Python {version} from the bucket" in log
        locked = {entry.name: entry.clauses for entry in declared(assets.templates() / "jobs/jax")}
        assert f"JAX {locked['jax'].strip().removeprefix('==')}\n" in log


def losses(log: str) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [(row["step"], row["loss"]) for row in rows]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("template", "parts", "steps"),
    [("jax", "chips: 8 (cpu), hosts: 1", 120), ("torch", "parts: 1 (CPU), hosts: 1", 400)],
)
async def test_template_on_preempted_tpu_resumes_where_it_stopped(
    make_stack: Callable[..., Tpuctl],
    reset_cloud: LocalCloud,
    events: list[Event],
    template: str,
    parts: str,
    steps: int,
) -> None:
    stack = make_stack(
        name=f"{template}-spot",
        type_name="v5litepod-8",
        runtime="v2-alpha-tpuv5-lite, capacity: spot",
        zone="us-east1-b",
        extra="job: {env: {PIP_RETRIES: '0', OMP_NUM_THREADS: '1'}}\n",
    )
    script = copy_template(template, stack)
    await stack.up()
    arguments = ["--steps", str(steps), "--batch", "16", "--save-every", "1000"]
    assert await stack.run(script, arguments) == 0
    log = log_of(events, 1)
    events.clear()
    assert parts in log
    require_releases(template, log)
    undisturbed = losses(log)

    following = asyncio.ensure_future(stack.follow(await stack.submit(script, arguments)))
    await async_until(lambda: len(losses(log_of(events, 1))) > 2, "rows of attempt 1", 600)
    # Notices last as long as Google's, and everything else takes no time.
    await asyncio.to_thread(remote_control.change_settings, reset_cloud, pace="real")
    await inject_fault(reset_cloud, "preempt", node=(await stack.node()).name)
    await async_until(lambda: "stopped after step" in log_of(events, 1), "the end of attempt 1")
    await asyncio.to_thread(remote_control.change_settings, reset_cloud, pace="instant")
    assert await asyncio.wait_for(following, 600) == 0
    first, second = log_of(events, 1), log_of(events, 2)
    step = losses(first)[-1][0]
    assert f"stopped after step {step}, which is saved\n" in first
    assert f"resuming after step {step}\n" in second
    assert losses(first) + losses(second) == undisturbed
    await stack.down(delete_bucket=True)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("template", "parts"), [("jax", "chips: 4 (cpu), hosts: 4"), ("torch", "parts: 4 (CPU)")]
)
async def test_template_on_slice_survives_signals_of_one_worker(
    make_stack: Callable[..., Tpuctl],
    one_device: LocalCloud,
    events: list[Event],
    template: str,
    parts: str,
) -> None:
    stack = make_stack(
        name=f"{template}-slice",
        type_name="v5litepod-16",
        runtime="v2-alpha-tpuv5-lite",
        zone="us-east1-b",
        extra="job: {env: {PIP_RETRIES: '0'}, retries: {failure: 3}}\n",
    )
    script = copy_template(template, stack)
    await stack.up()
    arguments = ["--steps", "60", "--batch", "16", "--log-every", "2", "--save-every", "6"]
    assert await stack.run(script, arguments) == 0
    log = log_of(events, 1)
    events.clear()
    assert parts in log
    require_releases(template, log)
    undisturbed = losses(log)
    assert undisturbed[-1][1] < 0.8 * undisturbed[0][1], "it learns"

    async def send(signal: str, worker: int) -> None:
        line = f"pkill -{signal} -f '^[^ ]*python train.py'"
        (result,) = await stack.run_on_workers(line, worker)
        assert result.exit_code == 0

    record = await stack.submit(script, arguments)
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: len(losses(log_of(events, 1))) > 2, "rows of attempt 1", 600)
    await send("TERM", worker=2)
    await async_until(lambda: len(losses(log_of(events, 2))) > 6, "rows of attempt 2", 600)
    await send("KILL", worker=1)
    assert await asyncio.wait_for(following, 900) == 0

    first, second, third = (log_of(events, attempt) for attempt in (1, 2, 3))
    step = losses(first)[-1][0]
    assert f"stopped after step {step}, which is saved\n" in first, "all workers save together"
    assert f"resuming after step {step}\n" in second
    reached = losses(second)[-1][0]
    (saved,) = [
        saved
        for saved in {step, *range(6, reached + 1, 6)}
        if f"resuming after step {saved}\n" in third
    ]
    assert saved > step, "checkpoints are complete soon after the step"
    assert losses(first) + losses(second) == undisturbed[: reached // 2]
    assert losses(third) == undisturbed[saved // 2 :]
    await stack.down(delete_bucket=True)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_jax_template_on_two_slices_survives_loss_of_one(
    make_stack: Callable[..., Tpuctl], one_device: LocalCloud, events: list[Event]
) -> None:
    # Gloo waits 30 s for each process, and only the first one finds its compiled program again.
    env = "{PIP_RETRIES: '0', JAX_ENABLE_COMPILATION_CACHE: 'false'}"
    stack = make_stack(
        name="jax-slices",
        type_name="v4-16",
        runtime="tpu-ubuntu2204-base, slices: 2, capacity: spot",
        zone="us-central2-b",
        extra=f"job: {{env: {env}, retries: {{failure: 1}}}}\n",
    )
    script = copy_template("jax", stack)
    await stack.up()
    arguments = ["--steps", "60", "--batch", "16", "--log-every", "2", "--save-every", "6"]
    assert await stack.run(script, arguments) == 0
    log = log_of(events, 1)
    events.clear()
    assert "chips: 4 (cpu), hosts: 4, slices: 2" in log
    undisturbed = losses(log)
    assert undisturbed[-1][1] < 0.8 * undisturbed[0][1], "it learns"

    following = asyncio.ensure_future(stack.follow(await stack.submit(script, arguments)))
    await async_until(lambda: len(losses(log_of(events, 1))) > 4, "rows of attempt 1", 900)
    (result,) = await stack.run_on_workers("pkill -KILL -f '^[^ ]*python train.py'", 3)
    assert (result.exit_code, result.slice) == (0, 1)
    await async_until(lambda: len(losses(log_of(events, 2))) > 4, "rows of attempt 2", 900)
    await inject_fault(one_device, "preempt", node=stack.stack.nodes[1])
    assert await asyncio.wait_for(following, 900) == 0

    rows = dict(undisturbed)
    for attempt in (1, 2, 3):
        log = log_of(events, attempt)
        assert ("resuming after step" in log) == (attempt > 1)
        assert dict(losses(log)).items() <= rows.items()
    assert losses(log)[-1] == undisturbed[-1]
    await stack.down(delete_bucket=True)


class LockedTorch:
    """The template for PyTorch with the packages of its lock, on the CPUs of this computer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "torch"
        shutil.copytree(TORCH_LOCK.parent, self.folder)
        self.log = folder / "log.txt"
        self.python = locked_python(TORCH_LOCK)

    def start(self, *arguments: str, chips: int = 1) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [self.python, "train.py", "--batch", "8", *arguments],
                cwd=self.folder,
                env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(chips)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def read_log(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def run(self, *arguments: str, chips: int = 1) -> list[tuple[int, float]]:
        """Run it to its end; returns the losses."""
        assert self.start(*arguments, chips=chips).wait() == 0, self.read_log()
        assert f"parts: {chips} (XLA on CPU), hosts: 1, PyTorch 2.9.0" in self.read_log()
        return losses(self.read_log())

    def interrupt(self, *arguments: str, signal_number: signal.Signals) -> int:
        """Run it until it has logged twice, and send it the signal; returns the exit code."""
        process = self.start(*arguments)
        try:
            until(lambda: len(losses(self.read_log())) > 1, self.read_log, 600)
            process.send_signal(signal_number)
            return process.wait(120)
        finally:
            process.kill()


@pytest.fixture
def locked_torch(tmp_path: Path) -> LockedTorch:
    return LockedTorch(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_locked_torch_template_survives_signals(locked_torch: LockedTorch) -> None:
    undisturbed = locked_torch.run("--steps", "70", "--output", "undisturbed")
    # Much longer, so that the signals arrive in time.
    longer = ("--steps", "10000", "--save-every", "10")
    exit_code = locked_torch.interrupt(*longer, signal_number=signal.SIGTERM)
    first = locked_torch.read_log()
    assert exit_code == 128 + signal.SIGTERM
    saved = losses(first)[-1][0]
    assert f"stopped after step {saved}, which is saved\n" in first

    exit_code = locked_torch.interrupt(*longer, signal_number=signal.SIGKILL)
    second = locked_torch.read_log()
    assert exit_code == -signal.SIGKILL
    assert f"resuming after step {saved}\n" in second
    reached = losses(second)[-1][0]

    third = locked_torch.run("--steps", str(max(70, reached + 20)))
    assert any(
        f"resuming after step {step}\n" in locked_torch.read_log()
        for step in (reached, reached - 10)
    )
    rows = dict(undisturbed)
    for resumed in (losses(first), losses(second), third):
        assert [(step, rows.get(step, loss)) for step, loss in resumed] == resumed
    assert set(rows) <= {step for step, _ in [*losses(first), *losses(second), *third]}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_torch_template_distributes_batch_over_chips(locked_torch: LockedTorch) -> None:
    alone, together = (
        locked_torch.run("--steps", "20", "--output", f"output-{chips}", chips=chips)
        for chips in (1, 4)
    )
    assert len(alone) == 2
    assert [step for step, _ in together] == [step for step, _ in alone]
    assert [loss for _, loss in together] == pytest.approx([loss for _, loss in alone], rel=1e-4)
