"""Stacks that share a bucket or a service account."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.support.callers import grant, revoke
from tests.support.projects import Bench, Project
from tpuctl.api import Tpuctl
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import Denied
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.plan import Action
from tpuctl.resources.access.iam_grants import ROLES
from tpuctl.resources.project.stack_record import Record

SET_POLICY = "storage.buckets.setIamPolicy"


async def make_bucket(bench: Bench, name: str) -> None:
    """Create a bucket before any stack uses it."""
    await bench.call("storage", "create_bucket", name, location="europe-west4")


async def granted_roles(bench: Bench, email: str) -> set[str]:
    """The roles that an account has on the stack's bucket."""
    bucket = bench.stack.cloud.client("storage").bucket(bench.stack.stack.bucket)
    policy = await bench.stack.cloud.call(
        "policy", bucket.get_iam_policy, requested_policy_version=3
    )
    member = f"serviceAccount:{email}"
    return {binding["role"] for binding in policy.bindings if member in binding["members"]}


async def recorded_roles(bench: Bench, email: str) -> set[str]:
    """The roles of an account on the bucket according to the stack's record."""
    contents = await Record(bench.stack.stack, bench.stack.cloud).read()
    grants = contents.grants if contents is not None else ()
    resource = f"bucket/{bench.stack.stack.bucket}"
    return {
        grant.role
        for grant in grants
        if grant.member.endswith(f":{email}") and grant.resource == resource
    }


async def service_agent_of(bench: Bench) -> str:
    node = await bench.stack.node()
    return node.service_account


async def two_nodes(project: Project) -> tuple[Bench, Bench]:
    """Two stacks of TPU nodes with a user's bucket; the first one is up."""
    # The first `up` creates the project, which the bucket needs.
    shared = f"{project.id}-shared"
    extra = f"bucket: {{name: {shared}}}"
    await project.stack().provision()
    first, second = (project.stack("kind: node", extra) for _ in range(2))
    await make_bucket(first, shared)
    await first.provision()
    return first, second


async def test_shared_node_account_keeps_grants_until_last_stack_is_down(
    project: Project,
) -> None:
    first, second = await two_nodes(project)
    prepared = await second.provision()
    agent = await service_agent_of(second)
    assert agent.endswith("@cloud-tpu.iam.gserviceaccount.com")
    assert agent == await service_agent_of(first)
    address = f"node-grants/{first.stack.stack.bucket}"
    assert prepared.plan.change(address).action is Action.UPDATE
    assert (await first.stack.plan()).plan.is_empty
    assert (await second.stack.plan()).plan.is_empty, "the grant is recorded"
    assert await recorded_roles(first, agent) == await recorded_roles(second, agent) == {*ROLES}

    assert (await first.stack.down()).leaks == ()
    assert await granted_roles(first, agent) == {*ROLES}, "the second stack keeps its grants"
    assert (await recorded_roles(first, agent), await recorded_roles(second, agent)) == (
        set(),
        {*ROLES},
    )
    own_account = first.stack.stack.service_account
    assert await granted_roles(first, own_account) == set(), "not shared"
    assert (await second.stack.plan()).plan.is_empty

    assert (await second.stack.down()).leaks == ()
    assert await granted_roles(first, agent) == set()
    assert await recorded_roles(second, agent) == set()


async def two_stacks(project: Project, *, has_bucket: bool = True) -> tuple[Bench, Bench, str]:
    """Two stacks with a user's account, and a bucket if requested; the first one is up."""
    before = project.stack()
    await before.provision()
    request = {
        "name": f"projects/{project.id}",
        "account_id": "given-account",
        "service_account": {},
    }
    account = (await before.call("iam", "create_service_account", request)).email
    shared = f"{project.id}-shared"
    extra = [f"service_account: {account}"]
    if has_bucket:
        await make_bucket(before, shared)
        extra.append(f"bucket: {{name: {shared}}}")
    first, second = (project.stack(*extra) for _ in range(2))
    await first.provision()
    return first, second, account


async def test_up_during_down_of_other_stack_keeps_grants(
    project: Project, null_cloud: server_process.LocalCloud
) -> None:
    """`down` has found no other stack and is about to revoke the grants.

    With a user's account `up` does not change the policy, so `down` cannot notice it that way.
    """
    first, second, account = await two_stacks(project)
    fault = remote_control.add_fault(null_cloud, "hold", method=SET_POLICY, project=project.id)
    going = asyncio.create_task(first.stack.down())
    await asyncio.to_thread(remote_control.wait_held, null_cloud, fault["id"], 30)
    await asyncio.wait_for(second.provision(), 60)
    assert await recorded_roles(second, account) == {*ROLES}
    assert await granted_roles(second, account) == {*ROLES}
    remote_control.remove_fault(null_cloud, fault["id"])
    assert (await going).leaks == ()
    assert await granted_roles(second, account) == {*ROLES}
    assert (await second.stack.plan()).plan.is_empty
    assert (await second.stack.down()).leaks == ()
    assert await granted_roles(second, account) == set()


async def test_grant_revoked_by_other_stack_is_granted_again(
    project: Project, null_cloud: server_process.LocalCloud
) -> None:
    """The first stack is deleted after the second one read records and before it reads policies."""
    first, second, account = await two_stacks(project)
    fault = remote_control.add_fault(
        null_cloud, "hold", method="storage.objects.list", project=project.id
    )
    coming = asyncio.create_task(second.provision())
    await asyncio.to_thread(remote_control.wait_held, null_cloud, fault["id"], 30)
    assert (await first.stack.down()).leaks == ()
    remote_control.remove_fault(null_cloud, fault["id"])
    await coming
    assert await granted_roles(second, account) == {*ROLES}
    assert (await second.stack.plan()).plan.is_empty


async def has_watchdog_role(bench: Bench, account: str) -> bool:
    """Whether the account has the role that machines need to delete themselves."""
    names = bench.stack.stack.names
    policy = await bench.call(
        "projects", "get_iam_policy", {"resource": f"projects/{names.project}"}
    )
    member = f"serviceAccount:{account}"
    return any(
        binding.role == names.watchdog_role and member in binding.members
        for binding in policy.bindings
    )


@pytest.mark.parametrize("has_bucket", [True, False], ids=["one-bucket", "two-buckets"])
async def test_shared_account_keeps_watchdog_role_until_last_stack_is_down(
    project: Project, has_bucket: bool
) -> None:
    first, second, account = await two_stacks(project, has_bucket=has_bucket)
    await second.provision()
    assert (await first.stack.down()).leaks == ()
    assert await has_watchdog_role(second, account)
    assert (await second.stack.plan()).plan.is_empty
    assert (await second.stack.down()).leaks == ()
    assert not await has_watchdog_role(second, account)


@pytest.mark.parametrize("text", ["not a record", '{"version": 2, "stack": "other"}'])
async def test_unreadable_record_of_other_stack_keeps_shared_grants(
    project: Project, text: str
) -> None:
    first, _ = await two_nodes(project)
    agent = await service_agent_of(first)
    bucket = first.stack.cloud.client("storage").bucket(first.stack.stack.bucket)
    blob = bucket.blob("tpuctl/stacks/other.json")
    await first.stack.cloud.call("record", blob.upload_from_string, text)
    assert (await first.stack.plan()).plan.is_empty
    assert (await first.stack.down()).leaks == ()
    assert await granted_roles(first, agent) == {*ROLES}
    assert await granted_roles(first, first.stack.stack.service_account) == set()


async def test_grants_are_recorded_with_time(project: Project) -> None:
    """The wait for a node's first access depends on it."""
    before = datetime.now(UTC)
    first, second = await two_nodes(project)
    await second.provision()
    bucket = first.stack.cloud.client("storage").bucket(first.stack.stack.bucket)
    times = []
    for bench in (first, second):
        name = bench.stack.stack.names.record
        blob = bucket.blob(name)
        record = json.loads(await bench.stack.cloud.call("record", blob.download_as_bytes))
        times.append(
            {grant["time"] for grant in record["grants"] if "@cloud-tpu." in grant["member"]}
        )
    (time,) = times[0]
    assert before <= datetime.fromisoformat(time) <= datetime.now(UTC)
    assert times[1] == {time}, "the second stack records the same time"


async def test_bucket_of_another_project_needs_permissions_of_its_own(
    project: Project, make_stub_stack: Callable[..., Tpuctl], null_cloud: server_process.LocalCloud
) -> None:
    """Permissions in the stack's project are none on it: said before anything is created."""
    owners = project.stack()
    await owners.provision()
    name = f"{project.id}-data"
    await owners.call("storage", "create_bucket", name, location="us-central1")
    ann, stack = "user:ann@example.com", make_stub_stack(extra=f"bucket: {{name: {name}}}\n")
    url, token = null_cloud.url, remote_control.token(null_cloud, ann)
    stack.endpoint = Endpoint("local", url, token)  # type: ignore[misc]
    grant(null_cloud, "projects/local-project", "roles/owner", ann)
    for role in ("roles/storage.legacyBucketReader", "roles/storage.objectViewer"):
        grant(null_cloud, f"buckets/{name}", role, ann)
    with pytest.raises(Denied) as caught:
        await stack.plan()
    revoke(null_cloud, "projects/local-project", "roles/owner", ann)
    [diagnostic] = caught.value.diagnostics
    assert "storage.objects.create" in diagnostic.detail
    assert "storage.objects.get" not in diagnostic.detail
    command = f"gcloud storage buckets add-iam-policy-binding gs://{name} --member=user:YOU "
    assert command in diagnostic.hint
    assert not [item for item in await owners.stack.orphans() if item.stack == stack.stack.name]
