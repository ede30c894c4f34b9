"""Jobs whose account lacks a permission get the cloud's error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.callers import Member, grant
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, LogChunk
from tpuctl.polling import Backoff, wait_until

PLAIN = """
import json, os, sys, urllib.error, urllib.request

def ask(url, **headers):
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read()

metadata = "http://" + os.environ["GCE_METADATA_HOST"] + "/computeMetadata/v1/instance/"
account = metadata + "service-accounts/default/token"
token = json.loads(ask(account, **{"Metadata-Flavor": "Google"}))["access_token"]
path = "https://storage.googleapis.com/storage/v1/b/" + sys.argv[1] + "/o/data.txt?alt=media"
try:
    print(ask(path, Authorization="Bearer " + token).decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
    sys.exit(3)
"""
TENSORFLOW = """
import sys
import tensorflow as tf

print(tf.io.gfile.GFile("gs://" + sys.argv[1] + "/data.txt").read())
"""


async def check_job_before_and_after_grant(
    stack: Tpuctl, cloud: LocalCloud, folder: Path, events: list[Event], script: str
) -> None:
    """Run a job that reads another bucket, before and after its account is granted access."""
    account = stack.stack.service_account
    bucket = f"{stack.stack.name}-others-data"
    with Member.owner(cloud).storage() as client:
        client.create_bucket(bucket, location="us-central1").blob("data.txt").upload_from_string(
            "what the job wants to read"
        )
    folder.mkdir()
    (folder / "job.py").write_text(script, "utf-8")

    async def run(arguments: Sequence[str]) -> tuple[int, str]:
        events.clear()
        code = await stack.follow(await stack.submit(folder / "job.py", list(arguments)))
        log = b"".join(event.data for event in events if isinstance(event, LogChunk))
        return code, log.decode()

    await stack.up()
    code, log = await run([bucket])
    assert code not in (0, None)
    assert (
        f"{account} does not have storage.objects.get access to the Google Cloud Storage object. "
        "Permission 'storage.objects.get' denied on resource (or it may not exist)."
    ) in log
    grant(cloud, f"buckets/{bucket}", "roles/storage.objectViewer", f"serviceAccount:{account}")
    code, log = await run([bucket])
    assert code == 0, log
    assert "what the job wants to read" in log
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_job_without_access_gets_google_error(
    make_stack: Callable[..., Tpuctl], local_cloud: LocalCloud, events: list[Event], tmp_path: Path
) -> None:
    stack = make_stack(name="unread")
    await check_job_before_and_after_grant(stack, local_cloud, tmp_path / "job", events, PLAIN)


async def test_up_waits_for_grants_to_propagate(
    make_stack: Callable[..., Tpuctl], local_cloud: LocalCloud
) -> None:
    """Google takes minutes; here, the local cloud denies the machine's first request."""
    stack = make_stack()
    since = remote_control.calls(local_cloud)[-1:] or [{"number": 0}]
    remote_control.change_settings(local_cloud, propagation=10_000)

    def is_denied() -> bool:
        calls = remote_control.calls(local_cloud, since[0]["number"])
        email = stack.stack.service_account
        return any(call["caller"] == email and call["status"] != "OK" for call in calls)

    try:
        coming = asyncio.create_task(stack.up())
        await wait_until(
            lambda: asyncio.sleep(0, is_denied() or None),
            description="the machine being refused",
            seconds=60,
            backoff=Backoff(0.1, 0.2),
        )
        assert not coming.done()
        remote_control.change_settings(local_cloud, propagation=0)
        await coming
    finally:
        remote_control.change_settings(local_cloud, propagation=0)
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
async def test_tensorflow_without_access_gets_google_error(
    make_stack: Callable[..., Tpuctl], local_cloud: LocalCloud, events: list[Event], tmp_path: Path
) -> None:
    stack = make_stack(name="unread-by-tf", runtime="auto")
    await check_job_before_and_after_grant(stack, local_cloud, tmp_path / "job", events, TENSORFLOW)
