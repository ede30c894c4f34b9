"""A user with one custom role in a separate project, and the stack commands to run as them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.callers import Member, grant, make_role
from tests.support.locations import V6E_ZONE, ZONE
from tests.support.projects import Project
from tpuctl.api import Tpuctl
from tpuctl.emulator import server
from tpuctl.emulator.iam.method_permissions import MethodPermissions
from tpuctl.flows.doctor.diagnose import role_of
from tpuctl.flows.stack import permissions
from tpuctl.flows.stack.permissions import ACT_AS, VIEW, required_permissions
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.troubleshooting.role import CustomRole
from tpuctl.resources.composition import kind_of, resources_of

ANN = "user:ann@example.com"
APIS = ("cloudresourcemanager", "compute", "logging", "monitoring", "storage", "tpu")
ACCOUNT = "billingAccounts/010CA1-010CA1-010CA1"
# Keys of the stack file's section `tpu`, and its type.
KINDS = {
    "vm": ("", "v3-8"),
    "disk": ("data_disks: [{size_gb: 20}]", "v3-8"),
    "queued": ("queue: true", "v3-8"),
    "node": ("kind: node", "v3-8"),
    "instance": ("api: compute", "v6e-4"),
    "group": ("api: compute", "v6e-16"),
}


async def needed_by(stack: Tpuctl) -> list[str]:
    """Permissions required to bring a stack up, from its owner's plan."""
    plan = (await stack.plan()).plan
    kinds = {kind_of(resource.address) for resource in resources_of(stack.stack, stack.cloud)}
    return sorted(
        {
            permission.name
            for permission in required_permissions(kinds)
            if permission.action == VIEW or permissions._is_needed(permission, plan)
        }
    )


class Bench:
    """A project with billing, and a user with one role in it."""

    def __init__(self, cloud: LocalCloud, folder: Path, kind: str) -> None:
        self.cloud, project = cloud, Project(folder)
        self.project = project.id
        owner = Member.owner(cloud)
        body = {"projectId": project.id, "parent": "organizations/400000000001"}
        owner.send_ok("POST", "/v3/projects", json=body)
        link = {"billingAccountName": ACCOUNT}
        owner.send_ok("PUT", f"/v1/projects/{project.id}/billingInfo", json=link)
        apis = {"serviceIds": ["iam.googleapis.com"]}  # there are no roles before
        owner.send_ok("POST", f"/v1/projects/{project.id}/services:batchEnable", json=apis)
        tpu, type_name = KINDS[kind]
        zone = V6E_ZONE if type_name.startswith("v6e") else ZONE
        self.bench = project.stack(tpu, type_name=type_name, zones=zone)
        self.file = self.bench.stack.stack_file
        text = self.file.read_text("utf-8")
        project_options = f", create: true, billing_account: {ACCOUNT.partition('/')[2]}"
        assert project_options in text
        self.file.write_text(text.replace(project_options, ""), "utf-8")

    def open(self) -> Tpuctl:
        return Tpuctl(self.file, cloud="local", emit=lambda event: None)

    def let(self, names: Sequence[str]) -> None:
        role = make_role(self.cloud, "stacks", names, project=self.project)
        grant(self.cloud, f"projects/{self.project}", role, ANN)

    async def needed(self) -> list[str]:
        return await needed_by(self.open())

    async def work(self) -> None:
        """The lifecycle of a stack; errors propagate."""
        for _ in range(2):
            stack = self.open()
            await stack.provision(await stack.plan())
        await self.open().status()
        assert (await self.open().down()).leaks == ()


class Pipeline(Bench):
    """A Bench with all APIs enabled, and a service account with one role."""

    def __init__(self, cloud: LocalCloud, folder: Path, kind: str) -> None:
        super().__init__(cloud, folder, kind)
        owner = Member.owner(cloud)
        apis = {"serviceIds": [f"{name}.googleapis.com" for name in APIS]}
        owner.send_ok("POST", f"/v1/projects/{self.project}/services:batchEnable", json=apis)
        body = {"accountId": "a-robot"}
        owner.send_ok("POST", f"/v1/projects/{self.project}/serviceAccounts", json=body)
        self.email = f"a-robot@{self.project}.iam.gserviceaccount.com"
        self.member = f"serviceAccount:{self.email}"

    def let_robot(self, names: Iterable[str]) -> None:
        role = make_role(self.cloud, "robots", names, project=self.project)
        grant(self.cloud, f"projects/{self.project}", role, self.member)

    def role(self) -> CustomRole:
        return role_of(self.open())


def was_refused(cloud: LocalCloud, since: int, permission: str, message: str) -> bool:
    """Whether a call that requires this permission was denied, in any wording."""
    if permission == ACT_AS and "iam.serviceAccountUser" in message:
        return True  # Compute Engine names the role
    permissions = MethodPermissions(api.access.package for api in server.APIS)
    for call in remote_control.calls(cloud, since):
        row, method = permissions.row_of(call["method"]), call["method"]
        if call["status"] == "PERMISSION_DENIED" and row is not None:
            is_write = method in ("storage.objects.insert", "storage.objects.compose")
            if permission in row.permissions or (is_write and ".objects." in permission):
                return True
    return False
