"""The role that `doctor --role` prints is necessary and sufficient for a pipeline's account.

Each permission must be required, or be listed in the role as required only for a named path.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.callers import OWNER, Member, grant, make_role, revoke
from tests.support.grants import Pipeline, was_refused
from tests.support.projects import Project
from tpuctl.api import Tpuctl
from tpuctl.errors import TpuctlError
from tpuctl.flows.doctor.diagnose import role_of
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.troubleshooting.role import CustomRole
from tpuctl.view.diagnosis import role_text
from tpuctl.view.responses.checks import Role

KINDS = ("vm", "queued", "node", "instance", "group")
SAMPLE = 2  # permissions that are removed in the suite; `make soak` removes each one
# Without it every API is assumed to be disabled, and is enabled again, which the role allows.
OPTIONAL = {"serviceusage.services.list"}


@pytest.fixture
def as_robot(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[[Pipeline], None]:
    return lambda caller: monkeypatch.setenv("TPUCTL_LOCAL_CALLER", caller.member)


@pytest.mark.parametrize("kind", KINDS)
async def test_role_is_sufficient(
    null_cloud: LocalCloud,
    tmp_path: Path,
    as_robot: Callable[[Pipeline], None],
    kind: str,
) -> None:
    """The printed file as gcloud parses it."""
    pipeline = Pipeline(null_cloud, tmp_path, kind)
    role = pipeline.role()
    printed_role = yaml.safe_load(role_text(role))
    printed_role["includedPermissions"].sort()
    assert printed_role == Role.from_object(role, role=role).as_json()["role"]
    pipeline.let_robot(printed_role["includedPermissions"])
    as_robot(pipeline)
    since = remote_control.calls(null_cloud)[-1]["number"]
    await pipeline.work()
    callers = {call["caller"] for call in remote_control.calls(null_cloud, since)}
    assert pipeline.member.partition(":")[2] in callers
    assert OWNER not in callers


async def test_role_is_sufficient_for_nat(
    null_cloud: LocalCloud, tmp_path: Path, as_robot: Callable[[Pipeline], None]
) -> None:
    pipeline = Pipeline(null_cloud, tmp_path, "vm")
    with pipeline.file.open("a", encoding="utf-8") as file:
        file.write("network: {ssh: internal, nat: true}\n")
    pipeline.let_robot(pipeline.role().permissions)
    as_robot(pipeline)
    await pipeline.work()


async def check_permission_is_required(
    cloud: LocalCloud,
    folder: Path,
    kind: str,
    missing: str,
    as_robot: Callable[[Pipeline], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run with the role minus one permission, and without the permission check."""
    monkeypatch.delenv("TPUCTL_LOCAL_CALLER", raising=False)
    pipeline = Pipeline(cloud, folder, kind)
    pipeline.let_robot([name for name in pipeline.role().permissions if name != missing])
    as_robot(pipeline)
    # Operations are polled only if they take a while.
    remote_control.change_settings(cloud, pace="quick" if "perations.get" in missing else "instant")
    since = remote_control.calls(cloud)[-1]["number"]
    try:
        await pipeline.work()
    except TpuctlError as error:
        message = str(error)
        assert missing in message or was_refused(cloud, since, missing, message), (
            kind,
            missing,
            message,
        )
    else:
        assert missing in OPTIONAL, f"{kind}: {missing} is listed as always required"
    finally:
        remote_control.change_settings(cloud, pace="instant")


def required_permissions(role: CustomRole) -> list[str]:
    """The permissions that the role requires on every path."""
    return [
        permission for group in role.groups if not group.path for permission in group.permissions
    ]


async def test_sampled_permissions_are_required(
    null_cloud: LocalCloud,
    tmp_path: Path,
    as_robot: Callable[[Pipeline], None],
    no_permission_check: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    role = Pipeline(null_cloud, tmp_path, "vm").role()
    quick = [
        permission for permission in required_permissions(role) if "perations.get" not in permission
    ]
    for missing in random.sample(quick, SAMPLE):
        await check_permission_is_required(
            null_cloud, tmp_path, "vm", missing, as_robot, monkeypatch
        )


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
async def test_all_permissions_are_required(
    null_cloud: LocalCloud,
    tmp_path: Path,
    as_robot: Callable[[Pipeline], None],
    no_permission_check: None,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    vm_permissions = (
        required_permissions(Pipeline(null_cloud, tmp_path, "vm").role()) if kind != "vm" else []
    )
    for missing in required_permissions(Pipeline(null_cloud, tmp_path, kind).role()):
        if missing not in vm_permissions:
            await check_permission_is_required(
                null_cloud, tmp_path, kind, missing, as_robot, monkeypatch
            )


async def test_named_account_needs_only_grant_on_itself(
    null_cloud: LocalCloud, tmp_path: Path, as_robot: Callable[[Pipeline], None]
) -> None:
    pipeline = Pipeline(null_cloud, tmp_path, "vm")
    owner = Member.owner(null_cloud)
    body = {"accountId": "workers"}
    owner.send_ok("POST", f"/v1/projects/{pipeline.project}/serviceAccounts", json=body)
    email = f"workers@{pipeline.project}.iam.gserviceaccount.com"
    text = pipeline.file.read_text("utf-8")
    pipeline.file.write_text(text.replace("tpu: {", f"tpu: {{service_account: {email}, "), "utf-8")
    role = pipeline.role()
    names = {*role.permissions}
    assert names.isdisjoint(
        {"iam.serviceAccounts.actAs", "iam.serviceAccounts.create", "iam.serviceAccounts.delete"}
    )
    command = next(grant.command for grant in role.grants if email in grant.command)
    assert "--role=roles/iam.serviceAccountUser" in command
    pipeline.let_robot(names)
    account = f"projects/{pipeline.project}/serviceAccounts/{email}"
    grant(null_cloud, account, "roles/iam.serviceAccountUser", pipeline.member)
    as_robot(pipeline)
    await pipeline.work()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("robots-vm", "tpu-ubuntu2204-base"),
        ("robots-queue", "tpu-ubuntu2204-base, queue: true"),
        ("robots-node", "auto, kind: node"),
    ],
)
async def test_role_is_sufficient_for_job_on_real_machines(
    make_stack: Callable[..., Tpuctl],
    local_cloud: LocalCloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    runtime: str,
) -> None:
    owner = Member.owner(local_cloud)
    path = "/v1/projects/local-project/services:batchEnable"
    owner.send_ok("POST", path, json={"serviceIds": ["iam.googleapis.com"]})
    path = "/v1/projects/local-project/serviceAccounts"
    assert owner.send("POST", path, json={"accountId": "a-robot"}).status_code in (200, 409)
    member = "serviceAccount:a-robot@local-project.iam.gserviceaccount.com"
    names = role_of(make_stack(name=name, runtime=runtime)).permissions
    role = make_role(local_cloud, name.replace("-", "_"), names)
    grant(local_cloud, "projects/local-project", role, member)
    monkeypatch.setenv("TPUCTL_LOCAL_CALLER", member)
    stack = make_stack(name=name, runtime=runtime)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.py").write_text("print('finished')", "utf-8")
    since = remote_control.calls(local_cloud)[-1]["number"]
    await stack.up()
    assert await stack.run(tmp_path / "job" / "job.py", []) == 0
    assert (await stack.down()).leaks == ()
    assert OWNER not in {call["caller"] for call in remote_control.calls(local_cloud, since)}
    revoke(local_cloud, "projects/local-project", role, member)
