"""Machines with OS Login: the key is in the caller's profile, which names the user."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.callers import OWNER, Member
from tests.support.controllers import read_work
from tests.support.locations import PROJECT
from tests.support.polling import async_until
from tests.support.stack_jobs import write_script
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control, server_process

MakeStack = Callable[..., Tpuctl]
USER = "owner_local_cloud_invalid"
RUNTIME = "tpu-ubuntu2204-base, metadata: {enable-oslogin: 'TRUE'}"
DAY_SECONDS = 86400
# The first attempt waits forever.
JOB = """
import getpass, os, time
print(getpass.getuser(), flush=True)
while os.environ["TPUCTL_ATTEMPT"] == "1" and "WAIT" in os.environ:
    time.sleep(0.1)
"""


async def remaining_days(cloud: server_process.LocalCloud) -> float:
    """How long the key of the caller's profile is valid."""
    path = f"/v1/users/{OWNER}/loginProfile?projectId={PROJECT}"
    profile: Any = await asyncio.to_thread(Member.owner(cloud).send_ok, "GET", path)
    (key,) = profile["sshPublicKeys"].values()
    return (int(key["expirationTimeUsec"]) / 1e6 - time.time()) / DAY_SECONDS


async def test_job_runs_as_the_profiles_user(
    make_stack: MakeStack, local_cloud: server_process.LocalCloud
) -> None:
    stack = make_stack(runtime=RUNTIME)
    await stack.up()
    assert 6.9 < await remaining_days(local_cloud) <= 7
    assert await stack.run(write_script(stack, JOB)) == 0
    (job,) = await stack.jobs()
    assert await stack.store.get_bytes(job.record.log_name(0)) == f"{USER}\n".encode()
    assert any(part.startswith(f"{USER}@") for part in await stack.ssh_command(0))
    assert [host.address.user for host in await stack.ssh_hosts()] == [USER]
    await stack.down(delete_bucket=True)


@pytest.mark.soak
@pytest.mark.usefixtures("startup_scripts")
async def test_controller_works_on_what_another_account_started(
    make_stack: MakeStack, local_cloud: server_process.LocalCloud
) -> None:
    """The controller logs in as its service account, and sees the job of the caller's user. After
    a preemption it is the other way round."""
    stack = make_stack(
        runtime=f"{RUNTIME}, capacity: spot",
        extra="controller: {}\njob: {env: {WAIT: '1'}}\n",
    )
    await stack.up()
    record = await stack.submit(write_script(stack, JOB))

    async def is_running() -> bool | None:
        summary = next(job for job in await stack.jobs() if job.record.id == record.id)
        return summary.status.state == "running" or None

    async def result() -> Any:
        return await read_work(stack, record.id, "result.json")

    await async_until(is_running, "the job running")
    node = await stack.node()
    remote_control.add_fault(local_cloud, "preempt", node=node.name)
    answer = await async_until(result, "the end of the job")
    assert (answer["state"], answer["exit_code"]) == ("succeeded", 0)
    log = await stack.store.get_bytes(record.at(2).log_name(0))
    assert log.startswith(b"sa_")
    async with stack.connections() as workers:
        owner = await workers[0].run(["sh", "-c", 'ls -d .tpuctl; echo "${HOME##*/}"'])
    assert owner.stdout == b".tpuctl\n" + log, "commands find the files of the other account"
    assert await stack.follow(record, show=False) == 0
    await stack.down(delete_bucket=True)
