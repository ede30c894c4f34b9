"""From where a stack's machines are reached, and what that takes."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.cloud.address import own_address_range
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Diagnostic, TpuctlError
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack import Stack
from tpuctl.remote.iap import RANGE
from tpuctl.resources.composition import kind_of

__all__ = ["access_warnings", "sources_of"]

TUNNEL = "iap.tunnelInstances.accessViaIAP"
ROLE = "roles/iap.tunnelResourceAccessor"


async def sources_of(stack: Stack, cloud: Cloud) -> tuple[str, ...]:
    """The address ranges that the stack's firewall rule lets in.

    The ranges that the file names, else this machine's own address; with IAP its relay's alone.
    """
    wanted = stack.file.network
    if wanted.ssh == "iap":
        return (RANGE,)
    return wanted.allow_from or (await own_address_range(cloud.endpoint),)


async def access_warnings(stack: Stack, cloud: Cloud, plan: Plan) -> Sequence[Diagnostic]:
    """What a plan that makes machines without external addresses should be known to mean."""
    makes = any(one.action is Action.CREATE and kind_of(one.address).has_ssh for one in plan)
    if stack.file.network.ssh == "external" or not makes:
        return ()
    found = [_without_addresses(stack)]
    if stack.file.network.ssh == "iap" and not await _may_tunnel(stack, cloud):
        found.append(_without_role(stack))
    return found


def _without_addresses(stack: Stack) -> Diagnostic:
    network = "default" if stack.file.network.name == "auto" else stack.file.network.name
    return Diagnostic(
        "Machines without external addresses",
        "they reach the bucket and Google's APIs, and nothing else unless the network has "
        "Cloud NAT: no PyPI, no downloads of data",
        "Bring packages along (job: {wheels: wheels}), or make Cloud NAT, which costs by the hour:"
        f"\n    gcloud compute routers create nat --project={stack.project} "
        f"--network={network} --region={stack.region}"
        f"\n    gcloud compute routers nats create nat --project={stack.project} --router=nat "
        f"--region={stack.region} --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges",
    )


async def _may_tunnel(stack: Stack, cloud: Cloud) -> bool:
    """Whether the project grants it. Where that cannot be asked, nothing is claimed."""
    request = {"resource": f"projects/{stack.project}", "permissions": [TUNNEL]}
    client = cloud.client("projects")
    try:
        answer = await cloud.call("permissions", client.test_iam_permissions, request)
    except TpuctlError:
        return True
    return TUNNEL in answer.permissions


def _without_role(stack: Stack) -> Diagnostic:
    return Diagnostic(
        "IAP may not let you through",
        f"project {stack.project} does not grant you {TUNNEL}; "
        "it may be granted on machines, or under a condition",
        f"Somebody who may grants it with\n    gcloud projects add-iam-policy-binding "
        f"{stack.project} --member=user:YOU --role={ROLE}",
    )
