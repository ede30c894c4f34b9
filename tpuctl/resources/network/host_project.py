"""What a stack needs to know of the host project that its network belongs to (Shared VPC)."""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.caller_identity import granted_on_project
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict, Denied, Diagnostic, NotFound
from tpuctl.model.stack.stack import Stack
from tpuctl.polling import gather_all

CHANGE_RULES = (
    *(f"compute.firewalls.{verb}" for verb in ("create", "delete", "get", "update")),
    "compute.networks.updatePolicy",
)

NETWORK_USER = "roles/compute.networkUser"
# Predefined roles with compute.subnetworks.use; a custom role may have it, too.
NETWORK_ROLES = {
    *(NETWORK_USER, "roles/tpu.xpnAgent", "roles/editor", "roles/owner"),
    *("roles/compute.admin", "roles/compute.networkAdmin", "roles/compute.instanceAdmin.v1"),
}


async def shared_subnetwork(stack: Stack, cloud: Cloud) -> Any | None:
    """The stack's subnetwork in its host project; None if it does not exist.

    It is looked up, and not its network: a role on the subnetwork alone is enough to use it.
    Raises Conflict if the stack's project may not use it, or if it is another network's.
    """
    host, name = stack.network_project, stack.subnetwork_name
    attached, subnetwork = await gather_all([_host(stack, cloud), _subnetwork(stack, cloud)])
    if attached not in (None, host):
        raise Conflict(
            "Not attached to the host project",
            f"project {stack.project} cannot use networks of {host}: "
            + (f"its host project is {attached}" if attached else "it has no host project"),
            hint="Ask an administrator of Shared VPC to run\n"
            f"    gcloud compute shared-vpc associated-projects add {stack.project} "
            f"--host-project={host}",
        )
    network = "" if subnetwork is None else subnetwork.network.rpartition("/")[2]
    if subnetwork is not None and network != stack.network_name:
        raise Conflict(
            "Subnetwork of another network",
            f"subnetwork {name} belongs to network {network}, not to {stack.network_name}",
            hint=f"Use its network:\n    network: {{name: {stack.network_path(network)}}}",
        )
    return subnetwork


async def _host(stack: Stack, cloud: Cloud) -> str | None:
    """The host project that the stack's is attached to, "" for none; None if it is not visible."""
    path = f"/compute/v1/projects/{stack.project}/getXpnHost"
    try:
        answer = await cloud.call("host project", cloud.client("rest").call, "GET", "compute", path)
    except Denied:
        return None
    return str(answer.get("name", ""))


async def _subnetwork(stack: Stack, cloud: Cloud) -> Any | None:
    try:
        return await cloud.call(
            f"subnetwork {stack.subnetwork_name}",
            cloud.client("subnetworks").get,
            project=stack.network_project,
            region=stack.region,
            subnetwork=stack.subnetwork_name,
        )
    except NotFound:
        return None


async def may_change_rules(stack: Stack, cloud: Cloud) -> bool:
    """Whether the caller may create, change and delete firewall rules in the host project."""
    try:
        granted = await granted_on_project(cloud, stack.network_project, CHANGE_RULES)
    except (NotFound, Denied):
        return False
    return granted == {*CHANGE_RULES}


async def granted_on_subnetwork(stack: Stack, cloud: Cloud, names: list[str]) -> set[str]:
    """Those of the permissions that the caller has on the stack's subnetwork."""
    try:
        answer = await cloud.call(
            f"subnetwork {stack.subnetwork_name}",
            cloud.client("subnetworks").test_iam_permissions,
            project=stack.network_project,
            region=stack.region,
            resource=stack.subnetwork_name,
            test_permissions_request_resource={"permissions": names},
        )
    except (NotFound, Denied):
        return set()
    return {*answer.permissions}


async def agent_warnings(stack: Stack, cloud: Cloud) -> list[Diagnostic]:
    """That accounts which create machines for others have no role in the host project.

    Its policy and the subnetwork's are read, if the caller may. A folder may grant it, too: so
    these are no errors.
    """
    roles = await _agent_roles(stack, cloud)
    bindings = await _bindings(stack, cloud) if roles else None
    if bindings is None:
        return []
    without = {
        member: role for member, role in roles.items() if not _has_network_role(member, bindings)
    }
    if not without:
        return []
    host = stack.network_project
    commands = "".join(
        f"\n    gcloud projects add-iam-policy-binding {host} --member={member} --role={role}"
        for member, role in without.items()
    )
    detail = (
        f"neither project {host} nor subnetwork {stack.subnetwork_name} grants a role to "
        f"{', '.join(member.partition(':')[2] for member in without)}, without which Google "
        "refuses the machines"
    )
    hint = f"Unless a folder or the organization grants it, ask an administrator to run{commands}"
    return [Diagnostic("Service agent without access to the network", detail, hint)]


async def _agent_roles(stack: Stack, cloud: Cloud) -> dict[str, str]:
    """The accounts that use the subnetwork besides the caller, and the role of each.

    cloud.google.com/tpu/docs/shared-vpc-networks; cloud.google.com/vpc/docs/
    provisioning-shared-vpc for groups. A controller creates instances with the stack's account.
    """
    try:
        project = await cloud.call(
            "project", cloud.client("projects").get_project, {"name": f"projects/{stack.project}"}
        )
    except (NotFound, Denied):
        return {}
    number = project.name.rpartition("/")[2]
    roles = {}
    if "tpu" in stack.apis and not stack.is_node:
        roles[f"serviceAccount:service-{number}@gcp-sa-tpu.iam.gserviceaccount.com"] = (
            "roles/tpu.xpnAgent"
        )
    if "compute" in stack.apis:
        roles[f"serviceAccount:{number}@cloudservices.gserviceaccount.com"] = NETWORK_USER
        if stack.has_recovery:
            roles[f"serviceAccount:{stack.service_account}"] = NETWORK_USER
    return roles


async def _bindings(stack: Stack, cloud: Cloud) -> list[Any] | None:
    """The bindings of the host project and of the subnetwork; None if one cannot be read."""
    resource = {"resource": f"projects/{stack.network_project}"}
    try:
        policies = await gather_all(
            [
                cloud.call("host project", cloud.client("projects").get_iam_policy, resource),
                cloud.call(
                    f"subnetwork {stack.subnetwork_name}",
                    cloud.client("subnetworks").get_iam_policy,
                    project=stack.network_project,
                    region=stack.region,
                    resource=stack.subnetwork_name,
                ),
            ]
        )
    except (NotFound, Denied):
        return None
    return [binding for policy in policies for binding in policy.bindings]


def _has_network_role(member: str, bindings: list[Any]) -> bool:
    """Whether a role that may contain the use of subnetworks is granted to it, or to a group."""
    return any(
        binding.role in NETWORK_ROLES or not binding.role.startswith("roles/")
        for binding in bindings
        if any(
            each == member or each.startswith(("group:", "principalSet:"))
            for each in binding.members
        )
    )
