"""Machines that fail under a job, and transfers that are interrupted."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.job_following import follow
from tests.support.polling import async_until
from tests.support.recovery_jobs import inject_fault, script
from tests.support.stack_jobs import displayed_log
from tpuctl.api import Tpuctl
from tpuctl.assets import program
from tpuctl.errors import RemoteFailed
from tpuctl.jobs import logs
from tpuctl.jobs.launch import SHIPPED
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, Note, WarningIssued
from tpuctl.remote.ssh import SshTransport

MIB = 1 << 20
BLOCK = 4096  # file sizes are rounded up to it
PROGRAMS = sum(-(-len(program(name).encode()) // BLOCK) for name in SHIPPED) * BLOCK
MakeStack = Callable[..., Tpuctl]


@pytest.fixture
async def stack(
    make_stack: MakeStack, local_cloud: LocalCloud, events: list[Event]
) -> AsyncIterator[Tpuctl]:
    stack = make_stack()
    await stack.up()
    events.clear()  # `up` may warn of quota used by other tests
    yield stack
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def wait_for_fault(cloud: LocalCloud, fault: str) -> tuple[int, str]:
    """Wait until the fault was applied; return how often, and its error."""

    async def fault_if_applied() -> Any:
        fault_state = await asyncio.to_thread(remote_control.fault, cloud, fault)
        return fault_state if fault_state["applied"] else None

    fault_state = await async_until(fault_if_applied, f"the fault {fault}")
    return fault_state["applied"], fault_state["error"]


def tpuctl(stack: Tpuctl, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_tpuctl(*arguments, folder=stack.stack_file.parent)


@pytest.mark.parametrize("mode", ["silent", "refused"])
async def test_job_on_unreachable_machine_is_lost(
    stack: Tpuctl,
    local_cloud: LocalCloud,
    events: list[Event],
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "REPORT_SECONDS", 0.1)
    record = await stack.submit(
        script(stack, "import time\nprint('began', flush=True)\ntime.sleep(600)\n")
    )
    (transport,) = (await stack.transports()).values()
    worker = SshTransport(0, transport.address, stack.key.path, connect_seconds=0.5)
    following = asyncio.ensure_future(
        follow(record, stack.store, {0: worker}, events.append, timeout=3)
    )
    await async_until(lambda: "began" in displayed_log(events), "the start of the script")
    node = await stack.node()
    assert await wait_for_fault(
        local_cloud, await inject_fault(local_cloud, "host-unreachable", node=node.name, mode=mode)
    )
    assert (await stack.node()).state == "READY"
    if mode == "silent":  # keepalive would take a minute to notice
        await worker.close()
    assert await asyncio.wait_for(following, 90) == 69
    (verdict,) = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    assert verdict.summary == "Job was lost"
    assert "worker 0 is gone" in str(verdict.detail)
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert "worker 0" in note
    assert "retrying" in note
    await worker.close()


@pytest.mark.soak
async def test_job_fails_when_disk_is_full(
    stack: Tpuctl, local_cloud: LocalCloud, events: list[Event]
) -> None:
    node = await stack.node()
    fault = await inject_fault(local_cloud, "disk-full", node=node.name, after_bytes=MIB)
    assert await wait_for_fault(local_cloud, fault) == (1, "")
    script(stack, "out = open('big', 'wb')\nwhile True:\n    out.write(bytes(65536))\n")
    done = await asyncio.to_thread(tpuctl, stack, "run", "job.py")
    assert done.returncode == 1
    assert done.stdout == "", "no space for a traceback either"
    assert "failed with exit code 1; the machine's disk is full" in done.stderr
    fault_state = await asyncio.to_thread(remote_control.fault, local_cloud, fault)
    assert fault_state["free_bytes"] is not None
    await asyncio.to_thread(remote_control.remove_fault, local_cloud, fault)
    script(stack, "print('there is room')\n")
    done = await asyncio.to_thread(tpuctl, stack, "run", "job.py")
    assert (done.returncode, done.stdout) == (0, "there is room\n")


async def test_submit_fails_when_disk_is_full(stack: Tpuctl, local_cloud: LocalCloud) -> None:
    node = await stack.node()
    for free, message in (
        (0, "No space left on device"),  # no space for the uploaded programs
        (PROGRAMS + 30_000, "the machine's disk is full"),  # no space for a job's log and records
    ):
        fault = await inject_fault(local_cloud, "disk-full", node=node.name, after_bytes=free)
        assert await wait_for_fault(local_cloud, fault) == (1, "")
        with pytest.raises(RemoteFailed) as caught:
            await stack.submit(script(stack, "print('never')\n"))
        assert "worker 0" in str(caught.value)
        assert message in str(caught.value)
        await asyncio.to_thread(remote_control.remove_fault, local_cloud, fault)


@pytest.mark.soak
async def test_requirements_fail_when_disk_is_full(
    make_stack: MakeStack, local_cloud: LocalCloud
) -> None:
    stack = make_stack()
    await stack.up()
    folder = stack.stack_file.parent
    (folder / "requirements.txt").write_text("./package\n")
    package = folder / "package"
    (package / "big").mkdir(parents=True)
    (package / "big/__init__.py").write_text(f"x = {'1' * MIB!r}\n")
    (package / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='big', version='1', packages=['big'])\n"
    )
    script(stack, "import big\n")
    node = await stack.node()
    await inject_fault(local_cloud, "disk-full", node=node.name, after_bytes=2 * MIB)
    done = await asyncio.to_thread(tpuctl, stack, "run", "job.py")
    assert done.returncode == 1
    assert "No space left on device" in done.stdout
    assert "requirements.txt could not be installed" in done.stderr
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_interrupted_transfers_are_retried(stack: Tpuctl, local_cloud: LocalCloud) -> None:
    (stack.stack_file.parent / "data.txt").write_text(str(list(range(200_000))))
    script(stack, "print(len(open('data.txt').read()))\nprint('x' * 300_000)\n")
    upload_fault = await inject_fault(
        local_cloud, "truncate", method="storage.objects.insert", times=2
    )
    got = await inject_fault(
        local_cloud,
        "truncate",
        method="storage.objects.get",
        name=".tar.gz",
        after_bytes=10_000,
    )
    done = await asyncio.to_thread(tpuctl, stack, "run", "job.py")
    assert done.returncode == 0, done.stderr
    whole = done.stdout
    assert whole.count("x") == 300_000
    assert (
        await wait_for_fault(local_cloud, upload_fault),
        await wait_for_fault(local_cloud, got),
    ) == (
        (2, ""),
        (1, ""),
    )
    node = await stack.node()
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)
    assert await wait_for_fault(
        local_cloud,
        await inject_fault(local_cloud, "host-unreachable", node=node.name, mode="refused"),
    )
    cut = await inject_fault(
        local_cloud,
        "truncate",
        method="storage.objects.get",
        name="worker-0.log",
        after_bytes=200_000,
    )
    read = await asyncio.to_thread(tpuctl, stack, "logs")
    assert read.returncode == 0, read.stderr
    assert read.stdout == whole
    assert await wait_for_fault(local_cloud, cut) == (1, "")
