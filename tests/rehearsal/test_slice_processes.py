"""A script in several processes, as the workers of a slice run it, with the real JAX."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rehearsal.conftest import SCRIPTS, SHIM, clean_environment
from tests.support.locked_environment import locked_python
from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import read
from tpuctl.preflight.rehearsal.passes import Pass
from tpuctl.preflight.rehearsal.script_process import Command, last_lines
from tpuctl.preflight.rehearsal.slice_processes import SliceProcess, run_together
from tpuctl.preflight.rehearsal.topics.process_findings import processes
from tpuctl.simulated_tpu.jax_devices import unused_address

pytestmark = pytest.mark.timeout(900)  # may create the environment

JAX_LOCK = Path(__file__).resolve().parents[2] / "requirements" / "jax.lock"
SCRIPT = SCRIPTS / "processes_jax.py"
COUNT, DEVICES = 2, 4
TARGET = Target("v5litepod-16", "v5e", 16, 16, 16 << 30, workers=COUNT)
Processes = Callable[..., Finding]


@pytest.fixture
def finding_of(tmp_path: Path) -> Processes:
    """Run the script and return the finding about its processes."""

    def run(*arguments: str) -> Finding:
        address = unused_address()
        members = [member(number, address, arguments) for number in range(COUNT)]
        exits = asyncio.run(run_together(members, seconds=300, poll=lambda: None))
        passes = tuple(
            Pass(
                *("replicas", DEVICES, tuple(read(process.observations)), ended.code),
                log=process.folder / "log",
                tail=last_lines(process.folder / "log"),
                stopped=ended.stopped,
            )
            for process, ended in zip(members, exits, strict=True)
        )
        [finding] = processes(replace(passes[0], processes=passes), TARGET)
        return finding

    def member(number: int, address: str, arguments: tuple[str, ...]) -> SliceProcess:
        folder = tmp_path / str(number)
        folder.mkdir()
        observations, settings = folder / "observations.jsonl", folder / "settings.json"
        plain = {
            "observations": str(observations),
            "mode": "replicas",
            "steps": 3,
            "grace": 60,
            "script": str(SCRIPT),
            "root": str(SCRIPTS),
            "devices": DEVICES // COUNT,
            "processes": COUNT,
            "process": number,
            "coordinator": address,
        }
        settings.write_text(json.dumps(plain), "utf-8")
        environment = {
            **clean_environment(),
            "PYTHONPATH": str(SHIM),
            "JAX_PLATFORMS": "cpu",
            "TPUCTL_REHEARSAL": str(settings),
        }
        argv = [str(locked_python(JAX_LOCK)), str(SCRIPT), *arguments]
        return SliceProcess(Command(argv, folder, environment), folder, observations)

    return run


def text_of(finding: Finding) -> str:
    return "" if finding.where is None else finding.where.text


def test_processes_train_together(finding_of: Processes) -> None:
    finding = finding_of()
    assert finding.severity == "fine", finding
    assert "2 processes of 2 devices each" in finding.message
    assert "16 examples in all, 8 in each" in finding.message


def test_barrier_of_one_process_is_reported_instead_of_hanging(finding_of: Processes) -> None:
    finding = finding_of("barrier")
    assert finding.severity == "error", finding
    assert "process 0 of 2 waits in sync_global_devices" in finding.message
    assert text_of(finding).startswith("multihost_utils.sync_global_devices")


def test_failure_of_one_process_is_reported_at_its_line(finding_of: Processes) -> None:
    finding = finding_of("read")
    assert finding.severity == "error", finding
    assert "process 0 of 2 fails: RuntimeError" in finding.message
    assert text_of(finding) == "print(np.asarray(batch).sum())"
