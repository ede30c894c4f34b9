"""The first bucket access of a TPU node's account, which `up` cannot test."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.projects import Bench, Project
from tests.support.stack_jobs import displayed_log
from tpuctl.api import Tpuctl
from tpuctl.flows.machines.controller import first_access
from tpuctl.jobs.launch import FirstAccess
from tpuctl.jobs.logs import worker_records
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event
from tpuctl.resources.project.stack_record import Contents, Record

MINUTES = timedelta(minutes=7)
# The node itself reads the file.
READ = """
import os
import tensorflow as tf

left = os.path.exists("left")  # by an earlier start
open("left", "w").close()
print("attempt", os.environ["TPUCTL_ATTEMPT"], "left" if left else "fresh", flush=True)
resolver = tf.distribute.cluster_resolver.TPUClusterResolver("")
tf.config.experimental_connect_to_cluster(resolver)
path = "gs://" + os.environ["TPUCTL_BUCKET"] + "/greeting"
with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
    print(tf.io.read_file(path).numpy().decode(), flush=True)
"""


@pytest.mark.soak
@pytest.mark.tensorflow("2.12.1")
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_script_restarts_after_denied_bucket_access(
    make_stack: Callable[..., Tpuctl],
    local_cloud: server_process.LocalCloud,
    events: list[Event],
    tmp_path: Path,
) -> None:
    stack = make_stack(runtime="auto, kind: node")
    await stack.up()
    agent = (await stack.node()).service_account
    await stack.store.put_bytes("greeting", b"hello from gs")
    script = tmp_path / "job" / "read.py"
    script.parent.mkdir()
    script.write_text(READ, "utf-8")
    text = f"{agent} does not have storage.objects.get access to the Google Cloud Storage object."
    fault = remote_control.add_fault(
        local_cloud, "deny", method="storage.objects.*", caller=agent, text=text, times=1
    )
    try:
        assert await stack.run(script) == 0, displayed_log(events)
    finally:
        applied = remote_control.remove_fault(local_cloud, fault["id"])["applied"]
    assert applied == 1
    log = displayed_log(events)
    assert text in log, "logged by TensorFlow"
    starts = [line for line in log.splitlines() if line.startswith("attempt ")]
    assert starts == ["attempt 1 fresh", "attempt 1 fresh"], "the restarted script has a new folder"
    lines = [line for line in log.splitlines() if line.startswith("tpuctl: ")]
    assert lines == [
        "tpuctl: waiting for the TPU's service account to get access: restarting the script in 1 s"
    ]
    assert log.splitlines()[-1] == "hello from gs"

    job = await stack.job()
    (record,) = (await worker_records(stack.store, job)).values()
    assert (record.state, record.attempt, record.restarts) == ("succeeded", 1, 1)
    copy = await stack.store.get_bytes(job.log_name(0))
    assert copy.decode() == log, "every byte once, here and in the bucket"

    await make_grants_old(stack)
    events.clear()
    remote_control.add_fault(
        local_cloud, "deny", method="storage.objects.*", caller=agent, text=text, times=1
    )
    assert await stack.run(script) == 1, "the grant is old, so the denial has another reason"
    assert "tpuctl: " not in displayed_log(events)
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def make_grants_old(stack: Tpuctl) -> None:
    """Change the record as if the grants were an hour old."""

    def change(contents: Contents) -> Contents:
        then = datetime.now(UTC) - timedelta(hours=1)
        return contents.with_grants(
            *(grant.model_copy(update={"time": then}) for grant in contents.grants)
        )

    await Record(stack.stack, stack.cloud).update(change)


async def access_of(bench: Bench) -> FirstAccess | None:
    stack = bench.stack
    return await first_access(stack.stack, stack.cloud, await stack.node())


async def test_first_access_ends_minutes_after_grant(project: Project) -> None:
    bench = project.stack("kind: node")
    before = datetime.now(UTC)
    await bench.provision()
    access = await access_of(bench)
    assert access is not None
    assert access.account == (await bench.stack.node()).service_account
    assert before + MINUTES <= access.until <= datetime.now(UTC) + MINUTES

    await make_grants_old(bench.stack)
    access = await access_of(bench)
    assert access is not None
    assert access.until < datetime.now(UTC)


async def test_first_access_is_not_extended_by_fast_clock(project: Project) -> None:
    bench = project.stack("kind: node")
    await bench.provision()

    def change(contents: Contents) -> Contents:
        then = datetime.now(UTC) + timedelta(hours=5)
        return contents.with_grants(
            *(grant.model_copy(update={"time": then}) for grant in contents.grants)
        )

    await Record(bench.stack.stack, bench.stack.cloud).update(change)
    access = await access_of(bench)
    assert access is not None
    assert access.until <= datetime.now(UTC) + MINUTES


async def test_first_access_ignores_foreign_grants(project: Project) -> None:
    bench = project.stack("kind: node")
    await bench.provision()
    record = Record(bench.stack.stack, bench.stack.cloud)
    await record.update(lambda contents: contents.without_grants(*contents.grants))
    assert await access_of(bench) is None
