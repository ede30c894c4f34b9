"""The custom role of whoever brings a stack up, runs jobs on it and takes it down, and no more.

Made of what each kind of resource needs: what a plan is checked for is what the role has.
"""

from __future__ import annotations

from tpuctl.cloud.clients import Cloud
from tpuctl.flows.permissions import ACT_AS, BILLING, Permission, kinds_of, needs
from tpuctl.model.role import CustomRole, Grant, RoleGroup
from tpuctl.model.stack import Stack
from tpuctl.resources.composition import kind_of

__all__ = ["custom_role", "path_of"]

ACTING = "making machines that act as an account: of this project, any one"
SHOWN = ("compute.regions.get", "orgpolicy.policy.get", "serviceusage.quotas.get")


def path_of(permission: Permission) -> str:
    """The optional path that a permission is for; "" where every first `up` needs it."""
    action, path = kind_of(permission.kind).optional
    return path if permission.action == action else ""


def custom_role(stack: Stack, cloud: Cloud) -> CustomRole:
    """The role for this stack. Asks nothing: `cloud` only says which one is meant."""
    wanted = [
        one
        for one in needs(kinds_of(stack, cloud))
        if kind_of(one.kind).may_need(one.action, stack)
    ]
    always = {one.name for one in wanted if not path_of(one)}
    groups: dict[tuple[str, str], dict[str, None]] = {}
    seen: set[str] = set()
    for one in sorted(wanted, key=lambda one: bool(path_of(one))):
        path = "" if one.name in always else path_of(one)
        if one.name in seen or (one.name == ACT_AS and not stack.makes_service_account):
            continue
        seen.add(one.name)
        purpose = ACTING if one.name == ACT_AS else kind_of(one.kind).label
        groups.setdefault((purpose, path), {})[one.name] = None
    name = f"tpuctl_{stack.name.replace('-', '_')}"
    return CustomRole(
        name,
        f"tpuctl {stack.name}",
        f"Lets its holder bring tpuctl stack {stack.name} up, run jobs on it and take it down.",
        stack.project,
        tuple(
            RoleGroup(purpose, tuple(sorted(names)), path)
            for (purpose, path), names in (groups.items())
        ),
        tuple(_grants(stack, name)),
        SHOWN,
    )


def _grants(stack: Stack, role: str) -> list[Grant]:
    project, member = stack.project, "--member=serviceAccount:CI_ACCOUNT"
    found = [
        Grant("make the role", f"gcloud iam roles create {role} --project={project} --file=FILE"),
        Grant(
            "give it",
            f"gcloud projects add-iam-policy-binding {project} {member} "
            f"--role=projects/{project}/roles/{role}",
        ),
    ]
    if not stack.makes_service_account:
        found.append(
            Grant(
                "let it make machines that act as the stack's account, and no other",
                f"gcloud iam service-accounts add-iam-policy-binding {stack.service_account} "
                f"{member} --role=roles/iam.serviceAccountUser",
            )
        )
    billing = stack.file.project.billing_account
    if billing is not None:
        found.append(
            Grant(
                f"link the billing account ({BILLING}); not needed where it is linked already",
                f"gcloud billing accounts add-iam-policy-binding {billing} {member} "
                "--role=roles/billing.user",
            )
        )
    for secret in stack.secret_names:
        owner, _, name = secret.removeprefix("projects/").partition("/secrets/")
        if owner != project:
            found.append(
                Grant(
                    "see and change who may read a secret of another project",
                    f"gcloud secrets add-iam-policy-binding {name} --project={owner} {member} "
                    "--role=roles/secretmanager.admin",
                )
            )
    return found
