"""Check the caller's permissions before making changes, and report all missing ones at once.

The permissions that a resource needs are declared with its kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tpuctl.catalog import apis_of
from tpuctl.cloud.caller_identity import granted_on_project
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied, NotFound, Scope, TpuctlError
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import GROUPS
from tpuctl.resources.base import CloudKind
from tpuctl.resources.composition import KINDS, kind_of
from tpuctl.resources.machines.controller import Controller
from tpuctl.resources.network.host_project import granted_on_subnetwork
from tpuctl.resources.network.network import Network

VIEW = "read"  # the action for permissions that planning needs
CREATE, UPDATE = Action.CREATE.value, Action.UPDATE.value
ACT_AS = "iam.serviceAccounts.actAs"
ON_PROJECT = {"storage.buckets.create", "storage.buckets.list"}
SEE_SUBNETWORK = "compute.subnetworks.get"
USE_SUBNETWORK = ("compute.subnetworks.use", "compute.subnetworks.useExternalIp")
BILLING = "billing.resourceAssociations.create"

# Roles that are included in a broader one: only the latter is suggested if both are missing.
BROADER_ROLES = {
    "roles/compute.viewer": "roles/compute.instanceAdmin.v1",
    "roles/secretmanager.viewer": "roles/secretmanager.admin",
    "roles/serviceusage.serviceUsageConsumer": "roles/serviceusage.serviceUsageAdmin",
    "roles/tpu.viewer": "roles/tpu.admin",
}


@dataclass(frozen=True)
class Permission:
    """A permission, the change that needs it, and the predefined role that contains it."""

    kind: str
    action: str
    fields: frozenset[str]  # of an update: needed if any of these change; empty: for every update
    role: str
    name: str

    def is_for(self, plan: Plan) -> bool:
        """Whether a plan makes a change that needs it. A complete plan needs no view permission."""
        return any(
            change.address.partition("/")[0] == self.kind
            and change.action.value == self.action
            and (not self.fields or not self.fields.isdisjoint(change.fields))
            for change in plan
        )


@dataclass(frozen=True)
class Missing:
    """A permission that the caller lacks on the resource `on`."""

    permission: Permission
    on: str


class HasPlan(Protocol):
    """Any object with a plan."""

    @property
    def plan(self) -> Plan: ...


P = TypeVar("P", bound=HasPlan)


def required_permissions(kinds: Iterable[type[CloudKind]]) -> list[Permission]:
    """All permissions that creating and updating resources of these kinds may need."""
    return [
        Permission(kind.kind, *_action(verb), f"roles/{role}", name)
        for kind in sorted(kinds, key=lambda kind: (GROUPS.index(kind.group), KINDS.index(kind)))
        for verb, role, *names in map(str.split, kind.permissions.strip().splitlines())
        for name in names
    ]


def _action(text: str) -> tuple[str, frozenset[str]]:
    action, _, fields = text.partition(":")
    return action, frozenset(fields.split(",")) - {""}


async def require_permissions(stack: Stack, cloud: Cloud, work: Awaitable[P]) -> P:
    """Await `work`, a plan, and check concurrently that the caller may apply it.

    Raises Denied with all permissions that the plan needs and the caller lacks or, if planning
    itself was denied, with all that the stack may need.
    """
    prepared, missing = await asyncio.gather(
        work, missing_permissions(stack, cloud), return_exceptions=True
    )
    needed = () if isinstance(missing, BaseException) else missing
    if isinstance(prepared, BaseException):
        if isinstance(prepared, Denied) and any(item.permission.action == VIEW for item in needed):
            raise _denied(needed) from prepared
        raise prepared
    if isinstance(missing, BaseException) and not isinstance(missing, TpuctlError):
        raise missing
    needed = [item for item in needed if _is_needed(item.permission, prepared.plan)]
    if needed:
        raise _denied(needed)
    return prepared


def _is_needed(permission: Permission, plan: Plan) -> bool:
    if permission.kind == "network" and any(
        "compute.googleapis.com" in change.fields for change in plan
    ):
        return False  # enabling Compute Engine creates the network `default`
    if permission.name.startswith("storage.objects."):  # the record of what is created, and jobs
        is_created = any(
            change.action is Action.CREATE and kind_of(change.address).is_machine for change in plan
        )
        return is_created or permission.is_for(plan)
    return permission.is_for(plan)


def kinds_of(stack: Stack) -> set[type[CloudKind]]:
    """The kinds that a stack needs permissions for, for each alternative and each API that may sell
    it."""
    stacks = {
        (candidate.alternative, candidate.api): stack.at(candidate)
        for candidate in stack.candidates
    }
    return {
        kind
        for stack_at in stacks.values()
        if stack_at.api in apis_of(stack_at.accelerator)  # not if it is a placeholder
        for kind in KINDS
        if kind.applies(stack_at)
    }


async def missing_permissions(stack: Stack, cloud: Cloud) -> Sequence[Missing]:
    """The permissions for this stack that the caller lacks. Usually a single request."""
    required = required_permissions(kinds_of(stack))
    on = f"project {stack.project}"
    names = sorted({permission.name for permission in required})
    try:
        granted = await granted_on_project(cloud, stack.project, names, subject=on)
    except (NotFound, Denied):  # missing, or not visible to the caller
        if stack.file.project.create:
            return [
                *await _to_create_project(stack, cloud),
                *await _to_link_billing(stack, cloud, "create"),
            ]
        return []
    # The plan asks the key itself, which may be another project's, and goes on without a grant.
    granted |= {item.name for item in required if item.name.startswith("cloudkms.")}
    if any(permission.name == ACT_AS for permission in required) and ACT_AS not in granted:
        granted |= await _on_account(stack, cloud)
    on_buckets = {
        permission.name for permission in required if permission.name.startswith("storage.")
    }
    on_named_bucket: set[str] = set()  # what only that bucket grants: it may be in another project
    if stack.file.bucket.name != "auto":
        tested = await _on_bucket(stack, cloud, sorted(on_buckets - ON_PROJECT))
        if tested is not None:
            on_named_bucket = on_buckets - ON_PROJECT
            granted = (granted - on_named_bucket) | tested
    elif on_buckets - granted:
        granted |= await _on_bucket(stack, cloud, sorted(on_buckets - granted)) or set()
    on_secrets = {
        permission.name for permission in required if permission.name.startswith("secretmanager.")
    }
    if on_secrets and (on_secrets - granted or not stack.has_only_project_secrets):
        granted = (granted - on_secrets) | await _on_secrets(stack, cloud, sorted(on_secrets))
    missing = [
        Missing(permission, f"buckets/{stack.bucket}" if permission.name in on_named_bucket else on)
        for permission in required
        if permission.name not in granted
    ]
    if stack.has_shared_network:
        used = [item for item in missing if item.permission.name not in USE_SUBNETWORK]
        missing = [*used, *await _on_subnetwork(stack, cloud)]
    return [*missing, *await _to_link_billing(stack, cloud, "update")]


async def _on_subnetwork(stack: Stack, cloud: Cloud) -> list[Missing]:
    """Permissions to use the subnetwork of a host project, which may be granted on it alone."""
    kinds = [kind for kind in kinds_of(stack) if kind.is_tpu or kind is Controller]
    names = list(USE_SUBNETWORK if stack.file.network.ssh == "external" else USE_SUBNETWORK[:1])
    granted = await granted_on_subnetwork(stack, cloud, [*names, SEE_SUBNETWORK])
    needed = [(kind.kind, CREATE, name) for kind in kinds for name in names]
    return [
        Missing(
            Permission(kind, action, frozenset(), "roles/compute.networkUser", name),
            stack.subnetwork_path or "",
        )
        for kind, action, name in [(Network.kind, VIEW, SEE_SUBNETWORK), *needed]
        if name not in granted
    ]


async def _on_account(stack: Stack, cloud: Cloud) -> set[str]:
    """Permissions to act as the service account, which may be granted on the account itself."""
    request = {
        "resource": f"projects/-/serviceAccounts/{stack.service_account}",
        "permissions": [ACT_AS],
    }
    client = cloud.client("iam")
    try:
        answer = await cloud.call(stack.service_account, client.test_iam_permissions, request)
    except TpuctlError:  # does not exist yet
        return set()
    return {*answer.permissions}


async def _on_bucket(stack: Stack, cloud: Cloud, names: Sequence[str]) -> set[str] | None:
    """Permissions granted on the bucket itself; None if it does not exist or cannot be asked."""
    bucket = cloud.client("storage").bucket(stack.bucket)
    try:
        answer = await cloud.call(bucket.name, bucket.test_iam_permissions, list(names))
    except TpuctlError:  # does not exist yet
        return None
    return {*answer}


async def _on_secrets(stack: Stack, cloud: Cloud, names: Sequence[str]) -> set[str]:
    """Permissions held on every one of the stack's secrets, which may be in other projects."""

    async def test_secret(secret: str) -> set[str]:
        request = {"resource": secret, "permissions": list(names)}
        client = cloud.client("secrets")
        try:
            answer = await cloud.call(secret, client.test_iam_permissions, request)
        except NotFound:  # reported by the plan
            return {*names}
        except TpuctlError:
            return set()
        return {*answer.permissions}

    return set.intersection(*await asyncio.gather(*map(test_secret, stack.secret_names)))


async def _to_create_project(stack: Stack, cloud: Cloud) -> list[Missing]:
    """The permission to create the project, whose creator then owns it. Without a parent it cannot
    be tested."""
    parent = stack.file.project.parent
    if parent is None:
        return []
    name = "resourcemanager.projects.create"
    client = cloud.client(parent.partition("/")[0])
    answer = await cloud.call(
        parent, client.test_iam_permissions, {"resource": parent, "permissions": [name]}
    )
    if name in answer.permissions:
        return []
    role = "roles/resourcemanager.projectCreator"
    return [Missing(Permission("project", CREATE, frozenset(), role, name), parent)]


async def _to_link_billing(stack: Stack, cloud: Cloud, action: str) -> list[Missing]:
    account = stack.file.project.billing_account
    if account is None:
        return []
    resource = f"billingAccounts/{account}"
    client = cloud.client("billing")
    answer = await cloud.call(
        resource, client.test_iam_permissions, {"resource": resource, "permissions": [BILLING]}
    )
    if BILLING in answer.permissions:
        return []
    return [
        Missing(Permission("project", action, frozenset(), "roles/billing.user", BILLING), resource)
    ]


def _denied(missing: Sequence[Missing]) -> Denied:
    """One error for all missing permissions, grouped by resource and role."""
    lines, commands = describe_missing(missing)
    error = Denied(
        "Permissions missing",
        "\n".join(["this stack needs permissions that you lack; they are in these roles", *lines]),
        hint="Ask an administrator to run\n" + "\n".join(f"    {command}" for command in commands),
    )
    error.scope = Scope.PROJECT
    return error


def describe_missing(
    missing: Sequence[Missing], member: str = "user:YOU"
) -> tuple[list[str], list[str]]:
    """The missing permissions, a line per resource and role, and the commands that grant them."""
    roles = {(entry.on, entry.permission.role) for entry in missing}
    grouped: dict[tuple[str, str], set[str]] = {}
    for item in missing:
        broader = BROADER_ROLES.get(item.permission.role, "")
        role = broader if (item.on, broader) in roles else item.permission.role
        grouped.setdefault((item.on, role), set()).add(item.permission.name)
    lines = [
        f"{role} on {on}: {', '.join(sorted(names))}"
        for (on, role), names in sorted(grouped.items())
    ]
    return lines, [_command(on, role, member) for on, role in sorted(grouped)]


def _command(on: str, role: str, member: str) -> str:
    if "/subnetworks/" in on:
        _, project, _, region, _, name = on.split("/")
        return (
            f"gcloud compute networks subnets add-iam-policy-binding {name} --project={project} "
            f"--region={region} --member={member} --role={role}"
        )
    kind, _, name = on.replace("project ", "projects/").partition("/")
    if kind == "buckets":
        name = f"gs://{name}"
    group = {
        "buckets": "storage buckets",
        "projects": "projects",
        "folders": "resource-manager folders",
        "organizations": "organizations",
        "billingAccounts": "billing accounts",
    }[kind]
    return f"gcloud {group} add-iam-policy-binding {name} --member={member} --role={role}"
