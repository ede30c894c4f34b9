"""Creating projects with billing, checking permissions, and granting and revoking roles."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.projects import provision
from tests.support.stack_jobs import request
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, Denied, NotFound
from tpuctl.local_cloud import server_process
from tpuctl.model.plan import Action
from tpuctl.resources.access.iam_grants import ROLES, WRITERS
from tpuctl.resources.composition import resources_of
from tpuctl.resources.project.stack_record import Contents, Grant, Record

MakeStack = Callable[..., Tpuctl]
NOW = datetime(2026, 11, 1, tzinfo=UTC)
FOLDER, ACCOUNT = "folders/500000000001", "010CA1-010CA1-010CA1"
_numbers = itertools.count(1)


@pytest.fixture
def make_project(make_stub_stack: MakeStack) -> Callable[..., Tpuctl]:
    """A stack in a new project, which does not exist yet."""

    def make(id: str = "", **more: str) -> Tpuctl:
        stack = make_stub_stack()
        id = id or f"made-project-{next(_numbers)}"
        section = ", ".join(f"{name}: {value}" for name, value in {"id": id, **more}.items())
        text = stack.stack_file.read_text("utf-8").replace("id: local-project", section)
        stack.stack_file.write_text(text, "utf-8")
        return stack

    return make


@pytest.fixture
def deny_permissions(null_cloud: server_process.LocalCloud) -> Iterator[Callable[..., None]]:
    """Sets the permissions that the caller lacks."""

    def deny(*names: str) -> None:
        settings = {"denied_permissions": list(names)}
        server_process.request(null_cloud, "PATCH", "/_local/settings", settings)

    yield deny
    deny()


async def project_policy(stack: Tpuctl) -> Any:
    body = {"resource": f"projects/{stack.stack.project}"}
    return await request(stack, "projects", "get_iam_policy", body)


async def bucket_pairs(stack: Tpuctl) -> set[tuple[str, str]]:
    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    policy = await stack.cloud.call("policy", bucket.get_iam_policy, requested_policy_version=3)
    return {
        (binding["role"], member) for binding in policy.bindings for member in binding["members"]
    }


async def project_pairs(stack: Tpuctl) -> set[tuple[str, str]]:
    policy = await project_policy(stack)
    return {(binding.role, member) for binding in policy.bindings for member in binding.members}


async def test_up_creates_project_with_billing_and_down_keeps_it(
    make_project: Callable[..., Tpuctl],
) -> None:
    stack = make_project(create="true", parent=FOLDER, billing_account=ACCOUNT)
    await provision(stack)
    project = await request(
        stack, "projects", "get_project", {"name": f"projects/{stack.stack.project}"}
    )
    assert project.parent == FOLDER
    assert project.labels["tpuctl-stack"] == stack.stack.name
    billing = await request(
        stack,
        "billing",
        "get_project_billing_info",
        {"name": f"projects/{stack.stack.project}"},
    )
    assert billing.billing_account_name == f"billingAccounts/{ACCOUNT}"
    assert (await stack.plan()).plan.is_empty
    down = await stack.down(delete_bucket=True)
    assert [
        resource.state for resource in down.remaining if resource.address.startswith("project/")
    ] == ["kept"]
    project = await request(
        stack, "projects", "get_project", {"name": f"projects/{stack.stack.project}"}
    )
    assert project.state.name == "ACTIVE"


async def test_up_without_billing_account_is_denied(make_project: Callable[..., Tpuctl]) -> None:
    stack = make_project(create="true")
    with pytest.raises(Denied, match="Billing") as caught:
        await provision(stack)
    assert "billing_account" in caught.value.diagnostics[0].hint
    # Add what was missing to the file; the same project is used.
    text = stack.stack_file.read_text("utf-8")
    text = text.replace("create: true", f"create: true, billing_account: {ACCOUNT}")
    stack.stack_file.write_text(text, "utf-8")
    again = Tpuctl(stack.stack_file, cloud="local")
    changes = {change.address.partition("/")[0]: change for change in (await again.plan()).plan}
    assert changes["project"].fields == ("billing_account",)
    await provision(again)
    await again.down(delete_bucket=True)


async def test_project_that_is_being_deleted_is_named(make_project: Callable[..., Tpuctl]) -> None:
    """Google denies most calls for it, which would look like a missing permission or project."""
    stack = make_project(create="true", parent=FOLDER, billing_account=ACCOUNT)
    await provision(stack)
    project = stack.stack.project
    await request(stack, "projects", "delete_project", {"name": f"projects/{project}"})
    again = Tpuctl(stack.stack_file, cloud="local")
    by_name = Tpuctl(name=stack.stack.name, project=project, cloud="local")
    work = (again.plan, again.up, again.status, again.down)
    for look in (
        *work,
        by_name.down,
        by_name.status,
        Tpuctl(project=project, cloud="local").orphans,
    ):
        with pytest.raises(Conflict, match="Project is being deleted") as caught:
            await look()
        assert f"    gcloud projects undelete {project}" in caught.value.diagnostics[0].hint
    done = await asyncio.to_thread(run_tpuctl, "doctor", folder=stack.stack_file.parent)
    assert f"    gcloud projects undelete {project}\n" in done.stdout


async def test_other_billing_account_is_not_replaced(
    make_project: Callable[..., Tpuctl],
) -> None:
    stack = make_project(id="local-project", billing_account="FFFFFF-FFFFFF-FFFFFF")
    info = await request(
        stack, "billing", "get_project_billing_info", {"name": "projects/local-project"}
    )
    with pytest.raises(Conflict) as caught:
        await stack.plan()
    for name in ("FFFFFF-FFFFFF-FFFFFF", info.billing_account_name.rpartition("/")[2]):
        assert name in str(caught.value)


async def test_missing_permissions_are_reported_together(
    make_stub_stack: MakeStack, deny_permissions: Callable[..., None]
) -> None:
    stack = make_stub_stack()
    deny_permissions("tpu.nodes.create", "iam.serviceAccounts.create", "storage.buckets.create")
    with pytest.raises(Denied) as caught:
        await provision(stack)
    assert caught.value.exit_code == 77
    diagnostic = caught.value.diagnostics[0]
    for name in ("tpu.nodes.create", "iam.serviceAccounts.create", "storage.buckets.create"):
        assert name in diagnostic.detail
    for role in ("roles/tpu.admin", "roles/iam.serviceAccountAdmin", "roles/storage.admin"):
        assert f"--role={role}" in diagnostic.hint
    assert (await stack.status()).bucket is None


async def test_permissions_not_needed_by_plan_may_be_denied(
    make_stub_stack: MakeStack, deny_permissions: Callable[..., None]
) -> None:
    stack = make_stub_stack()
    await provision(stack)
    deny_permissions(
        "tpu.nodes.create",
        "serviceusage.services.enable",
        "storage.buckets.create",
        "iam.serviceAccounts.create",
        "iam.serviceAccounts.actAs",
        "resourcemanager.projects.setIamPolicy",
    )
    assert (await stack.plan()).plan.is_empty
    deny_permissions()
    await stack.down(delete_bucket=True)


async def test_missing_permissions_on_parent_and_billing_account(
    make_project: Callable[..., Tpuctl], deny_permissions: Callable[..., None]
) -> None:
    stack = make_project(create="true", parent=FOLDER, billing_account=ACCOUNT)
    deny_permissions("resourcemanager.projects.create", "billing.resourceAssociations.create")
    with pytest.raises(Denied) as caught:
        await provision(stack)
    diagnostic = caught.value.diagnostics[0]
    assert "resourcemanager.projects.create" in diagnostic.detail
    assert "billing.resourceAssociations.create" in diagnostic.detail
    assert "folders add-iam-policy-binding 500000000001" in diagnostic.hint
    assert f"billing accounts add-iam-policy-binding {ACCOUNT}" in diagnostic.hint


async def test_grants_are_recorded_and_revoked_by_down(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    member = f"serviceAccount:{stack.stack.service_account}"
    role = stack.stack.names.watchdog_role
    assert {role for role, who in await bucket_pairs(stack) if who == member} == {*ROLES}
    on_project = {role for role, who in await project_pairs(stack) if who == member}
    assert on_project == {*WRITERS, role}
    contents = await Record(stack.stack, stack.cloud).read()
    assert contents is not None
    assert {(grant.resource.partition("/")[0], grant.role) for grant in contents.grants} == {
        *(("bucket", role) for role in ROLES),
        *(("project", role) for role in on_project),
    }
    others = {pair for pair in await project_pairs(stack) if pair[1] != member}
    await stack.down()
    assert await project_pairs(stack) == others, "only the stack's grants are removed"
    assert not any(stack.stack.name in who for _, who in await bucket_pairs(stack))
    contents = await Record(stack.stack, stack.cloud).read()
    assert contents is not None
    assert contents.grants == ()


async def create_account_with_grant(stack: Tpuctl, name: str) -> str:
    """Create a user's service account with an existing grant."""
    await request(
        stack,
        "iam",
        "create_service_account",
        {"name": "projects/local-project", "account_id": name, "service_account": {}},
    )
    return f"{name}@local-project.iam.gserviceaccount.com"


async def test_existing_grants_of_user_account_are_kept(make_stub_stack: MakeStack) -> None:
    first = make_stub_stack()
    await provision(first)  # enables APIs and creates the bucket before the second stack
    email = await create_account_with_grant(first, f"mine-{next(_numbers)}")
    stack = make_stub_stack()
    text = stack.stack_file.read_text("utf-8")
    text = text.replace("tpu: {", f"tpu: {{service_account: {email}, ")
    text += f"bucket: {{name: {first.stack.bucket}}}\n"
    stack.stack_file.write_text(text, "utf-8")
    bucket = stack.cloud.client("storage").bucket(first.stack.bucket)
    policy = await stack.cloud.call("policy", bucket.get_iam_policy, requested_policy_version=3)
    member = f"serviceAccount:{email}"
    policy.bindings.append({"role": ROLES[0], "members": {member}})
    await stack.cloud.call("policy", bucket.set_iam_policy, policy)

    await provision(stack)
    assert {role for role, who in await bucket_pairs(stack) if who == member} == {*ROLES}
    assert (stack.stack.names.watchdog_role, member) in await project_pairs(stack)
    assert not {(role, member) for role in WRITERS} & await project_pairs(stack)
    # As if local state were lost: only the record has the account.
    await stack.down()
    assert {role for role, who in await bucket_pairs(stack) if who == member} == {ROLES[0]}
    assert member not in {who for _, who in await project_pairs(stack)}
    await first.down(delete_bucket=True)


@asynccontextmanager
async def busy_policy(stack: Tpuctl, role: str) -> AsyncIterator[list[str]]:
    """Another client that keeps granting roles on the same project."""
    granted: list[str] = []

    async def edit() -> None:
        while True:
            policy = await project_policy(stack)
            member = f"user:other-{len(granted)}@tpuctl.example"
            policy.bindings.add(role=role, members=[member])
            body = {"resource": f"projects/{stack.stack.project}", "policy": policy}
            try:
                await request(stack, "projects", "set_iam_policy", body)
            except Conflict:
                continue
            granted.append(member)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(edit())
    try:
        yield granted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_concurrent_policy_changes_lose_no_grant(make_stub_stack: MakeStack) -> None:
    stacks = [make_stub_stack() for _ in range(3)]
    async with busy_policy(stacks[0], "roles/browser") as granted:
        await asyncio.gather(*(provision(stack) for stack in stacks))
    pairs = await project_pairs(stacks[0])
    for stack in stacks:
        member = f"serviceAccount:{stack.stack.service_account}"
        assert {role for role, who in pairs if who == member} >= {*WRITERS}
    assert granted
    assert {("roles/browser", member) for member in granted} <= pairs
    await asyncio.gather(*(stack.down(delete_bucket=True) for stack in stacks))
    pairs = await project_pairs(stacks[0])
    assert {("roles/browser", member) for member in granted} <= pairs
    assert not any(stack.stack.names.service_account in who for stack in stacks for _, who in pairs)


async def test_down_removes_grants_of_deleted_account(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    name = f"projects/local-project/serviceAccounts/{stack.stack.service_account}"
    await request(stack, "iam", "delete_service_account", {"name": name})
    left = {who for _, who in await project_pairs(stack) if stack.stack.service_account in who}
    assert left
    assert all(who.startswith("deleted:serviceAccount:") for who in left)
    await stack.down(delete_bucket=True)
    assert not any(stack.stack.service_account in who for _, who in await project_pairs(stack))


KINDS_OF_MACHINES = {
    "node": {"type_name": "v2-8"},
    "queued": {"type_name": "v2-8, queue: true"},
    "controller": {"type_name": "v2-8, kind: node", "runtime": "2.12.0"},
    "instance": {"type_name": "v6e-4, api: compute", "runtime": "auto", "zone": "us-east1-d"},
    "group": {"type_name": "v6e-16, api: compute", "runtime": "auto", "zone": "us-east1-d"},
}


@pytest.mark.parametrize("kind", KINDS_OF_MACHINES)
async def test_machines_of_a_deleted_account_must_be_recreated(
    make_stub_stack: MakeStack, kind: str
) -> None:
    """For them, a new account of the same name is another one."""
    stack = make_stub_stack(**KINDS_OF_MACHINES[kind])
    await provision(stack)
    name = f"projects/local-project/serviceAccounts/{stack.stack.service_account}"
    await request(stack, "iam", "delete_service_account", {"name": name})
    with pytest.raises(Conflict, match="account was deleted") as caught:
        await Tpuctl(stack.stack_file, cloud="local").up()
    assert f"{kind}/{stack.stack.name}" in str(caught.value)
    assert "    tpuctl down" in caught.value.diagnostics[0].hint
    await stack.down(delete_bucket=True)
    again = await Tpuctl(stack.stack_file, cloud="local").plan()
    assert not again.plan.is_empty


async def test_account_that_machines_cannot_use_is_named(make_stub_stack: MakeStack) -> None:
    """Without a wait for it to become visible, as after its creation."""
    account = f"mine-{next(_numbers)}@local-project.iam.gserviceaccount.com"
    stack = make_stub_stack(type_name=f"v2-8, service_account: {account}")
    with pytest.raises(NotFound, match="Service account not found") as caught:
        await stack.plan()
    assert account in str(caught.value)
    fields = {"name": "projects/local-project", "account_id": account.partition("@")[0]}
    await request(stack, "iam", "create_service_account", fields)
    assert not (await stack.plan()).plan.is_empty
    name = f"projects/local-project/serviceAccounts/{account}"
    await request(stack, "iam", "disable_service_account", {"name": name})
    with pytest.raises(Conflict, match="disabled") as disabled:
        await stack.plan()
    command = f"    gcloud iam service-accounts enable {account} --project=local-project"
    assert command in disabled.value.diagnostics[0].hint.splitlines()


async def test_custom_role_is_shared_extended_and_undeleted(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    name = stack.stack.names.watchdog_role
    role = await request(stack, "iam", "get_role", {"name": name})
    assert {"tpu.nodes.get", "tpu.nodes.delete"} <= {*role.included_permissions}
    other = make_stub_stack(extra="controller: {}\n")
    (needed,) = [
        resource
        for resource in resources_of(other.stack, other.cloud)
        if resource.address == f"role/{name.rpartition('/')[2]}"
    ]
    change = needed.diff(await needed.observe())
    if change.is_work:  # unless another test created it
        await needed.apply(change, lambda text, fraction: None)
    role = await request(stack, "iam", "get_role", {"name": name})
    assert {"tpu.nodes.delete", "compute.instances.delete"} <= {*role.included_permissions}
    await stack.down(delete_bucket=True)
    await request(stack, "iam", "delete_role", {"name": name})
    change = needed.diff(await needed.observe())
    assert (change.action, change.fields) == (Action.UPDATE, ("deleted",))
    await needed.apply(change, lambda text, fraction: None)
    assert needed.diff(await needed.observe()).action is Action.NOTHING


async def test_concurrent_record_updates_are_merged(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    record = Record(stack.stack, stack.cloud)
    assert await record.read() is None
    with pytest.raises(NotFound):
        await record.update(lambda contents: contents.with_down(NOW))
    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    await stack.cloud.call("bucket", bucket.create, location="us-central1")
    grants = [Grant(resource="bucket/b", member=f"user:{i}@x", role="roles/r") for i in range(6)]
    unlisted = Grant(resource="bucket/b", member="user:new@x", role="roles/r")
    await asyncio.gather(
        *(
            record.update(lambda contents, grant=new_grant: contents.with_grants(grant))
            for new_grant in grants
        ),
        *(record.update(lambda contents: contents.with_down(NOW)) for _ in range(3)),
        record.update(lambda contents: contents.with_unlisted(unlisted)),
    )
    merged = await record.read()
    assert merged is not None
    assert {*merged.grants} == {*grants, unlisted}
    assert merged.down_count == 3
    generation = (await stack.store.stat(stack.stack.names.record)).generation  # type: ignore[union-attr]
    await record.update(lambda contents: contents.with_unlisted(unlisted))
    after = await stack.store.stat(stack.stack.names.record)
    assert after is not None
    assert after.generation == generation, "an update without changes does not write"


@pytest.mark.parametrize(
    ("text", "names"),
    [(b'{"version": 2, "stack": "s"}', "version 2"), (b"{", "Invalid stack record")],
)
async def test_unreadable_record_is_not_overwritten(
    make_stub_stack: MakeStack, text: bytes, names: str
) -> None:
    stack = make_stub_stack()
    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    await stack.cloud.call("bucket", bucket.create, location="us-central1")
    await stack.store.put_bytes(stack.stack.names.record, text)
    with pytest.raises(Conflict, match=names):
        await Record(stack.stack, stack.cloud).update(lambda contents: contents.with_down(NOW))
    assert await stack.store.get_bytes(stack.stack.names.record) == text
    # Otherwise other tests' stacks would see it.
    await stack.cloud.call("object", bucket.blob(stack.stack.names.record).delete)


def test_record_keeps_unknown_fields() -> None:
    read = Contents.model_validate_json('{"version": 1, "stack": "s", "color": "red"}')
    assert '"color":"red"' in read.with_down(NOW).model_dump_json()


def test_conditional_grants_are_not_changed(tmp_path: Path) -> None:
    from tpuctl.resources.access.iam_policy import granted_pairs, with_pairs, without_pairs

    condition = {"title": "until monday", "expression": "false"}
    pair = ("roles/r", "serviceAccount:a@p.iam.gserviceaccount.com")
    before = [
        {"role": "roles/r", "members": {pair[1]}, "condition": condition},
        {"role": "roles/r", "members": {"user:x@y"}},
    ]
    granted = with_pairs(before, [pair])
    assert granted == [before[0], {"role": "roles/r", "members": {"user:x@y", pair[1]}}]
    assert granted_pairs(granted) == {pair, ("roles/r", "user:x@y")}
    assert without_pairs(granted, {pair}) == before
