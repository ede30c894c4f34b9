"""A custom role with exactly the permissions to bring a stack up, run jobs and take it down.

Built from the permissions declared for each kind of resource, like the check of a plan.
"""

from __future__ import annotations

from tpuctl.flows.machines.os_login import LOGIN, SUDO
from tpuctl.flows.stack.permissions import (
    ACT_AS,
    BILLING,
    Permission,
    kinds_of,
    required_permissions,
)
from tpuctl.model.stack.stack import Stack
from tpuctl.model.troubleshooting.role import CustomRole, Grant, RoleGroup
from tpuctl.resources.composition import kind_of

ACT_AS_PURPOSE = "creating machines that run as any service account of the project"
READ_PERMISSIONS = (
    "compute.projects.get",
    "compute.regions.get",
    "orgpolicy.policy.get",
    "serviceusage.quotas.get",
)


def path_of(permission: Permission) -> str:
    """The optional feature that a permission is for; "" if every first `up` needs it."""
    return kind_of(permission.kind).optional.get(permission.action, "")


def custom_role(stack: Stack) -> CustomRole:
    """The role for this stack."""
    required = [
        permission
        for permission in required_permissions(kinds_of(stack))
        if kind_of(permission.kind).may_need(permission.action, stack)
    ]
    always = {permission.name for permission in required if not path_of(permission)}
    groups: dict[tuple[str, str], dict[str, None]] = {}
    seen: set[str] = set()
    for entry in sorted(required, key=lambda item: bool(path_of(item))):
        path = "" if entry.name in always else path_of(entry)
        if entry.name in seen or (entry.name == ACT_AS and not stack.creates_service_account):
            continue
        seen.add(entry.name)
        purpose = ACT_AS_PURPOSE if entry.name == ACT_AS else kind_of(entry.kind).label
        groups.setdefault((purpose, path), {})[entry.name] = None
    if stack.has_os_login:
        groups["logging in with OS Login", ""] = dict.fromkeys((LOGIN, SUDO))
    name = f"tpuctl_{stack.name.replace('-', '_')}"
    return CustomRole(
        name,
        f"tpuctl {stack.name}",
        f"Bring tpuctl stack {stack.name} up, run jobs on it and take it down.",
        stack.project,
        tuple(
            RoleGroup(purpose, tuple(sorted(names)), path)
            for (purpose, path), names in (groups.items())
        ),
        tuple(_grants(stack, name)),
        READ_PERMISSIONS,
    )


def _grants(stack: Stack, role: str) -> list[Grant]:
    project, member = stack.project, "--member=serviceAccount:CI_ACCOUNT"
    grants = [
        Grant("create the role", f"gcloud iam roles create {role} --project={project} --file=FILE"),
        Grant(
            "grant the role",
            f"gcloud projects add-iam-policy-binding {project} {member} "
            f"--role=projects/{project}/roles/{role}",
        ),
    ]
    if not stack.creates_service_account:
        grants.append(
            Grant(
                "allow creating machines that run as the stack's service account only",
                f"gcloud iam service-accounts add-iam-policy-binding {stack.service_account} "
                f"{member} --role=roles/iam.serviceAccountUser",
            )
        )
    billing = stack.file.project.billing_account
    if billing is not None:
        grants.append(
            Grant(
                f"link the billing account ({BILLING}); not needed if it is already linked",
                f"gcloud billing accounts add-iam-policy-binding {billing} {member} "
                "--role=roles/billing.user",
            )
        )
    for secret in stack.secret_names:
        owner, _, name = secret.removeprefix("projects/").partition("/secrets/")
        if owner != project:
            grants.append(
                Grant(
                    "read and change the IAM policy of a secret in another project",
                    f"gcloud secrets add-iam-policy-binding {name} --project={owner} {member} "
                    "--role=roles/secretmanager.admin",
                )
            )
    return grants
