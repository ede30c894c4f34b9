"""The permissions that `up` grants to machines are necessary and sufficient."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.callers import Member, grant, make_role, revoke
from tests.support.projects import Bench, Project
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.resources.access.custom_roles import watchdog_permissions
from tpuctl.resources.access.iam_grants import ROLES, WRITERS

OBJECTS, BUCKET = ROLES
LOGS, METRICS = WRITERS
Requests = Mapping[str, tuple[str, str, str]]  # verb, path, and the required permission


@dataclass(frozen=True)
class Machine:
    """A service account of a stack that is up, and the paths of the stack's resources."""

    member: Member
    bench: Bench
    cloud: LocalCloud

    @property
    def project(self) -> str:
        return f"projects/{self.bench.stack.stack.project}"

    @property
    def zone(self) -> str:
        return self.bench.stack.stack.zone

    @property
    def bucket(self) -> str:
        return self.bench.stack.stack.bucket

    @property
    def on_bucket(self) -> str:
        return f"buckets/{self.bucket}"

    @property
    def watchdog_role(self) -> str:
        return self.bench.stack.stack.names.watchdog_role

    def objects(self) -> Requests:
        """The requests to the bucket of a job, its record, and TensorFlow's gs://."""
        root = f"/storage/v1/b/{self.bucket}"
        upload = f"/upload/storage/v1/b/{self.bucket}/o?uploadType=media&name=job%2Flog"
        return {
            "look at the bucket": ("GET", root, "storage.buckets.get"),
            "list": ("GET", f"{root}/o?prefix=job/", "storage.objects.list"),
            "write": ("POST", upload, "storage.objects.create"),
            "replace": ("POST", upload, "storage.objects.create"),
            "read": ("GET", f"{root}/o/job%2Flog?alt=media", "storage.objects.get"),
            "change": ("PATCH", f"{root}/o/job%2Flog", "storage.objects.update"),
            "copy": (
                "POST",
                f"{root}/o/job%2Flog/copyTo/b/{self.bucket}/o/c",
                "storage.objects.get",
            ),
            "delete": ("DELETE", f"{root}/o/c", "storage.objects.delete"),
        }

    def outcome(self, requests: Requests) -> dict[str, str]:
        """By request name: "" on success, else the permission that the error names."""
        outcomes = {}
        for name, (verb, path, _) in requests.items():
            body = {} if verb in ("GET", "DELETE") else {"json": {}}
            answer = self.member.send(verb, path, **body)
            assert answer.status_code in (200, 204, 403, 404), answer.text
            match = re.search(r"'([a-z]+(?:\.[A-Za-z]+){2,})'", answer.text)
            if answer.status_code == 403:
                assert match is not None, answer.text
            outcomes[name] = match[1] if answer.status_code == 403 and match else ""
        return outcomes

    def granted_permissions(self, *names: str) -> list[str]:
        """The permissions of these that the account has on the project."""
        path = f"/v3/{self.project}:testIamPermissions"
        answer = self.member.send_ok("POST", path, json={"permissions": list(names)})
        return list(answer.get("permissions", ()))

    def denied_without(self, resource: str, role: str, requests: Requests) -> dict[str, str]:
        """The requests that are denied while this grant is removed."""
        revoke(self.cloud, resource, role, self.member.name)
        try:
            return {name: outcome for name, outcome in self.outcome(requests).items() if outcome}
        finally:
            grant(self.cloud, resource, role, self.member.name)


def machine_of(bench: Bench, cloud: LocalCloud) -> Machine:
    email = bench.stack.stack.service_account
    return Machine(Member(cloud, f"serviceAccount:{email}"), bench, cloud)


def requests_that_need(requests: Requests, *permissions: str) -> dict[str, str]:
    return {
        name: permission
        for name, (_, _, permission) in requests.items()
        if permission in permissions
    }


async def test_machine_grants_are_necessary_and_sufficient(
    project: Project, null_cloud: LocalCloud
) -> None:
    bench = project.stack()
    await bench.provision()
    machine = machine_of(bench, null_cloud)
    node = f"/v2/{machine.project}/locations/{machine.zone}/nodes/{bench.stack.stack.names.node}"
    requests = {**machine.objects(), "look at the node": ("GET", node, "tpu.nodes.get")}
    assert not any(machine.outcome(requests).values())
    object_requests = {
        name: permission
        for name, (_, _, permission) in requests.items()
        if ".objects." in permission
    }
    del object_requests["list"]  # also allowed for the bucket's reader
    assert machine.denied_without(machine.on_bucket, OBJECTS, requests) == object_requests
    assert machine.denied_without(machine.on_bucket, BUCKET, requests) == requests_that_need(
        requests, "storage.buckets.get"
    )
    for role in ROLES:
        revoke(null_cloud, machine.on_bucket, role, machine.member.name)
    outcomes = machine.outcome(requests)
    assert outcomes["list"] == "storage.objects.list"
    for role in ROLES:
        grant(null_cloud, machine.on_bucket, role, machine.member.name)

    watchdog_requests = {
        "look": ("GET", node, "tpu.nodes.get"),
        "end": ("DELETE", node, "tpu.nodes.delete"),
    }
    outcomes = {name: permission for name, (_, _, permission) in watchdog_requests.items()}
    assert (
        machine.denied_without(machine.project, machine.watchdog_role, watchdog_requests)
        == outcomes
    )
    for name, (_, _, permission) in watchdog_requests.items():
        remaining_permissions = [
            name for name in watchdog_permissions(bench.stack.stack) if name != permission
        ]
        make_role(null_cloud, "tpuctl.watchdog", remaining_permissions, project=project.id)
        expected = {name: watchdog_requests[name]}
        assert machine.outcome(expected) == {name: permission}
    make_role(
        null_cloud, "tpuctl.watchdog", watchdog_permissions(bench.stack.stack), project=project.id
    )

    writer_permissions = {
        LOGS: "logging.logEntries.create",
        METRICS: "monitoring.timeSeries.create",
    }
    assert machine.granted_permissions(*writer_permissions.values()) == [
        *writer_permissions.values()
    ]
    for role, permission in writer_permissions.items():
        revoke(null_cloud, machine.project, role, machine.member.name)
        assert permission not in machine.granted_permissions(*writer_permissions.values())
        grant(null_cloud, machine.project, role, machine.member.name)
    assert not any(machine.outcome(watchdog_requests).values())  # it deletes itself last
    assert (await bench.stack.down(delete_bucket=True)).leaks == ()


async def test_machine_has_no_other_permissions(project: Project, null_cloud: LocalCloud) -> None:
    bench, other = project.stack(), project.stack()
    await bench.provision()
    await other.provision()
    machine = machine_of(bench, null_cloud)
    foreign = f"/storage/v1/b/{other.stack.stack.bucket}"
    root = f"/storage/v1/b/{machine.bucket}"
    place = f"/v2/{machine.project}/locations/{machine.zone}"
    compute = f"/compute/v1/{machine.project}"
    accounts = f"/v1/{machine.project}/serviceAccounts"
    requests = {
        "look at another bucket": ("GET", foreign, "storage.buckets.get"),
        "list another bucket": ("GET", f"{foreign}/o", "storage.objects.list"),
        "read another's record": (
            "GET",
            f"{foreign}/o/tpuctl%2Fstacks%2F{other.stack.stack.name}.json",
            "storage.objects.get",
        ),
        "list buckets": ("GET", f"/storage/v1/b?project={project.id}", "storage.buckets.list"),
        "read the bucket's policy": ("GET", f"{root}/iam", "storage.buckets.getIamPolicy"),
        "set the bucket's policy": ("PUT", f"{root}/iam", "storage.buckets.setIamPolicy"),
        "change the bucket": ("PATCH", root, "storage.buckets.update"),
        "delete the bucket": ("DELETE", root, "storage.buckets.delete"),
        "list nodes": ("GET", f"{place}/nodes", "tpu.nodes.list"),
        "make a node": ("POST", f"{place}/nodes?nodeId=n", "tpu.nodes.create"),
        "queue for a node": (
            "POST",
            f"{place}/queuedResources?queuedResourceId=q",
            "tpu.nodes.create",
        ),
        "stop its node": (
            "POST",
            f"{place}/nodes/{bench.stack.stack.names.node}:stop",
            "tpu.nodes.stop",
        ),
        "list instances": ("GET", f"{compute}/aggregated/instances", "compute.instances.list"),
        "make an instance": (
            "POST",
            f"{compute}/zones/{machine.zone}/instances",
            "compute.instances.create",
        ),
        "read the project's policy": (
            "POST",
            f"/v3/{machine.project}:getIamPolicy",
            "resourcemanager.projects.getIamPolicy",
        ),
        "set the project's policy": (
            "POST",
            f"/v3/{machine.project}:setIamPolicy",
            "resourcemanager.projects.setIamPolicy",
        ),
        "make an account": ("POST", accounts, "iam.serviceAccounts.create"),
        "look at itself": (
            "GET",
            f"{accounts}/{machine.member.email}",
            "iam.serviceAccounts.get",
        ),
    }
    expected = {name: permission for name, (_, _, permission) in requests.items()}
    assert machine.outcome(requests) == expected
    # It can delete other nodes of its project: IAM has no policies for single nodes, and every
    # plan says so.
    neighbor = f"{place}/nodes/{other.stack.stack.names.node}"
    assert machine.member.status_and_message("GET", neighbor)[0] == 200
    acts = [
        "iam.serviceAccounts.actAs",
        "iam.roles.create",
        "serviceusage.services.enable",
        "resourcemanager.projects.get",
        "logging.logEntries.list",
    ]
    assert machine.granted_permissions(*acts) == []


async def test_node_service_agent_and_controller(project: Project, null_cloud: LocalCloud) -> None:
    """A TPU node accesses gs:// as Google's service agent; its controller deletes both."""
    bench = project.stack("kind: node")
    await bench.provision()
    live_node = await bench.stack.node()
    agent = Machine(
        Member(null_cloud, f"serviceAccount:{live_node.service_account}"), bench, null_cloud
    )
    requests = agent.objects()
    assert not any(agent.outcome(requests).values())
    object_requests = {
        name: permission
        for name, (_, _, permission) in requests.items()
        if ".objects." in permission
    }
    del object_requests["list"]
    assert agent.denied_without(agent.on_bucket, OBJECTS, requests) == object_requests
    refused = agent.denied_without(agent.on_bucket, BUCKET, requests)
    assert refused == requests_that_need(requests, "storage.buckets.get")

    machine, names = machine_of(bench, null_cloud), bench.stack.stack.names
    node = f"/v2/{machine.project}/locations/{machine.zone}/nodes/{names.node}"
    instance = f"/compute/v1/{machine.project}/zones/{machine.zone}/instances/{names.controller}"
    attributes = f"{instance}/getGuestAttributes?queryPath=hostkeys/"
    ends = {
        "look at the node": ("GET", node, "tpu.nodes.get"),
        "look at itself": ("GET", instance, "compute.instances.get"),
        "read guest attributes": ("GET", attributes, "compute.instances.getGuestAttributes"),
        "end the node": ("DELETE", node, "tpu.nodes.delete"),
        "end itself": ("DELETE", instance, "compute.instances.delete"),
    }
    # The controller's other role is tested in test_handover_grants.py.
    revoke(null_cloud, machine.project, names.recovery_role, machine.member.name)
    permissions = watchdog_permissions(bench.stack.stack)
    assert {*permissions} == {permission for _, _, permission in ends.values()}
    for name, (_, _, permission) in ends.items():
        remaining_permissions = [name for name in permissions if name != permission]
        make_role(null_cloud, "tpuctl.watchdog", remaining_permissions, project=project.id)
        assert machine.outcome({name: ends[name]}) == {name: permission}
    make_role(null_cloud, "tpuctl.watchdog", permissions, project=project.id)
    assert not any(machine.outcome(ends).values())


async def test_queued_resource_is_deleted_with_node_permissions(
    project: Project, null_cloud: LocalCloud
) -> None:
    bench = project.stack("queue: true")
    await bench.provision()
    machine, names = machine_of(bench, null_cloud), bench.stack.stack.names
    place = f"/v2/{machine.project}/locations/{machine.zone}/queuedResources/{names.queued}"
    ends = {
        "look": ("GET", place, "tpu.nodes.get"),
        "end": ("DELETE", f"{place}?force=true", "tpu.nodes.delete"),
    }
    expected = {name: permission for name, (_, _, permission) in ends.items()}
    assert machine.denied_without(machine.project, machine.watchdog_role, ends) == expected
    assert not any(machine.outcome(ends).values())
