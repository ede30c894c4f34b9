"""What a stack creates is encrypted with the key of its file, by Google's service agents."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.callers import Member, grant
from tests.support.crypto_keys import ROLE, Keys, agent
from tests.support.locations import PROJECT, REGION, ZONE
from tests.support.polling import async_until
from tests.support.projects import Bench, Project
from tests.support.queued import in_background
from tpuctl.errors import Conflict, InvalidStack, NotFound
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import StepProgress

SERVICES = ("gs-project-accounts", "compute-system")


@pytest.fixture
async def keys(null_cloud: LocalCloud) -> Keys:
    """Keys of another project than the stacks'."""
    return await asyncio.to_thread(Keys, null_cloud, PROJECT, REGION)


def encrypted_with(key: str) -> str:
    return f"encryption: {{kms_key: {key}}}"


def keys_in_use(bench: Bench, cloud: LocalCloud) -> dict[str, set[str]]:
    """The keys of the stack's bucket, disks, and TPU VM."""
    owner, stack = Member.owner(cloud), bench.stack.stack
    bucket = owner.send_ok("GET", f"/storage/v1/b/{stack.bucket}")
    zone = f"projects/{stack.project}/zones/{ZONE}"
    disks = owner.send_ok("GET", f"/compute/v1/{zone}/disks")["items"]
    location = f"/v2/projects/{stack.project}/locations/{ZONE}"
    nodes = [owner.send_ok("GET", f"{location}/nodes/{stack.names.node}")]
    return {
        "bucket": {bucket["encryption"]["defaultKmsKeyName"]},
        "disks": {disk["diskEncryptionKey"]["kmsKeyName"] for disk in disks},
        "nodes": {node["bootDiskConfig"]["customerEncryptionKey"]["kmsKeyName"] for node in nodes},
    }


@pytest.mark.parametrize("tpu", ["", "queue: true"])
async def test_everything_is_encrypted_with_the_key(
    project: Project, null_cloud: LocalCloud, keys: Keys, tpu: str
) -> None:
    key = await asyncio.to_thread(keys.create, f"key-{len(tpu)}")
    disks = "data_disks: [{size_gb: 20}]"
    bench = project.stack(
        ", ".join(filter(None, [disks, tpu])),
        f"controller: {{secure_boot: true}}\n{encrypted_with(key)}",
    )
    prepared = await bench.provision()
    [change] = [change for change in prepared.plan if change.address.startswith("key/")]
    assert change.fields == (ROLE,)
    version = f"{key}/cryptoKeyVersions/1"
    assert await asyncio.to_thread(keys_in_use, bench, null_cloud) == {
        "bucket": {key},
        "disks": {version},
        "nodes": {key},
    }
    number = (await bench.call("projects", "get_project", {"name": f"projects/{project.id}"})).name
    members = {agent(number.partition("/")[2], service) for service in SERVICES}
    assert await asyncio.to_thread(keys.members, key) == members
    assert (await bench.reopen().plan()).plan.is_empty
    await bench.stack.down()
    assert await asyncio.to_thread(keys.members, key) == members, "the bucket, which is kept"


async def test_waiting_request_with_another_key_is_refused(
    project: Project, null_cloud: LocalCloud, keys: Keys
) -> None:
    key, other = [await asyncio.to_thread(keys.create, name) for name in ("first", "second")]
    bench = project.stack("queue: true", encrypted_with(key))
    name, file = bench.stack.stack.names.queued, bench.stack.stack_file

    def is_waiting() -> bool:
        texts = (event.text for event in bench.events if isinstance(event, StepProgress))
        return any("WAITING_FOR_RESOURCES" in text for text in texts)

    fault = remote_control.add_fault(null_cloud, "stockout", zone=ZONE, times="unlimited")
    try:
        async with in_background(bench.provision()):
            await async_until(is_waiting, "the request waiting")
        change = (await bench.reopen().plan()).plan.change(f"queued/{name}")
        assert change.fields == ("readiness",)
        file.write_text(file.read_text("utf-8").replace(key, other), "utf-8")
        with pytest.raises(Conflict, match="boot disk key") as differs:
            await bench.reopen().plan()
        assert "tpuctl down" in differs.value.diagnostics[0].hint
    finally:
        remote_control.remove_fault(null_cloud, fault["id"])


async def test_administrators_command_is_named_without_the_right_to_grant(
    project: Project, null_cloud: LocalCloud, keys: Keys
) -> None:
    key = await asyncio.to_thread(keys.create, "of-admins")
    await project.stack(name="first").provision()
    bench = project.stack("", encrypted_with(key))
    ann = await asyncio.to_thread(Member, null_cloud, "ann")
    for role in ("roles/owner", "roles/storage.admin"):
        await asyncio.to_thread(grant, null_cloud, f"projects/{project.id}", role, ann.name)
    env = {"TPUCTL_LOCAL_CALLER": ann.name}
    code, _, stderr = await asyncio.to_thread(lambda: bench.type("plan", **env))
    assert code == 0, stderr
    assert "Use of the key not verified" in stderr
    command = f"gcloud kms keys add-iam-policy-binding of-admins {keys.options}"
    assert command in stderr
    assert f"--role={ROLE}" in stderr


async def test_wrong_keys_are_refused_before_anything_is_made(
    project: Project, null_cloud: LocalCloud, keys: Keys
) -> None:
    await project.stack(name="first").provision()
    with pytest.raises(InvalidStack, match="is in us-east1, and cannot encrypt") as caught:
        key = f"projects/{PROJECT}/locations/us-east1/keyRings/r/cryptoKeys/k"
        project.stack("", encrypted_with(key)).stack.stack.require_valid()
    assert "encryption.kms_key" in caught.value.diagnostics[0].detail
    bench = project.stack("", encrypted_with(f"{keys.ring}/cryptoKeys/absent"))
    with pytest.raises(NotFound) as absent:
        await bench.provision()
    assert "gcloud kms keys create absent" in absent.value.diagnostics[0].hint
    disabled = await asyncio.to_thread(keys.create, "disabled")
    await asyncio.to_thread(keys.set_state, disabled, "DISABLED")
    code, out, stderr = await asyncio.to_thread(
        project.stack("", encrypted_with(disabled)).type, "up", "--yes"
    )
    assert (code, out) == (1, ""), stderr
    assert "is DISABLED" in stderr and "gcloud kms keys versions list" in stderr
    assert (await bench.reopen().status()).inventory == ()
