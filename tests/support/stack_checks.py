"""Checks of a stack on any cloud: run on the local cloud, and optionally on Google's.

Every check uses the official clients of the given stack, and assumes nothing that holds on one
cloud only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpuctl.api import Down, Tpuctl
from tpuctl.errors import NotFound
from tpuctl.model.events import Event, StepStarted
from tpuctl.model.plan import Action

APIS = {"tpu.googleapis.com"} | {
    f"{name}.googleapis.com"
    for name in ("cloudresourcemanager", "compute", "iam", "logging", "monitoring", "storage")
}
BUCKET_ROLES = {"roles/storage.objectAdmin", "roles/storage.legacyBucketReader"}
DAYS_IN_BUCKET = 30


async def call(stack: Tpuctl, client: str, method: str, *arguments: Any, **fields: Any) -> Any:
    """Call a method of one of the official clients."""
    return await stack.cloud.call(
        method, getattr(stack.cloud.client(client), method), *arguments, **fields
    )


async def policy_of(stack: Tpuctl, bucket: Any) -> Any:
    return await stack.cloud.call("policy", bucket.get_iam_policy, requested_policy_version=3)


async def check_made(
    stack: Tpuctl,
    *,
    type_name: str,
    spot: bool = False,
    tags: Sequence[str] = (),
    ports: Sequence[str] = ("22",),
) -> Any:
    """Check a TPU VM and all its resources after `up`. Returns the node as in the API."""
    name, project = stack.stack.name, stack.stack.project
    parent = f"projects/{project}"
    enabled = await call(
        stack, "services", "list_services", {"parent": parent, "filter": "state:ENABLED"}
    )
    assert {entry.name.rsplit("/", 1)[1] for entry in enabled} >= APIS

    tpu_node = await stack.node()
    node = await call(
        stack, "tpu", "get_node", {"name": f"{parent}/locations/{tpu_node.zone}/nodes/{name}-tpu"}
    )
    assert (node.state.name, node.accelerator_type) == ("READY", type_name)
    assert node.labels["tpuctl-stack"] == name
    assert set(node.tags) == {f"{name}-tpu", *tags}
    account = f"{name}-tpu@{project}.iam.gserviceaccount.com"
    assert node.service_account.email == account
    assert node.network_config.enable_external_ips
    assert node.scheduling_config.spot == spot
    assert all(entry.access_config.external_ip for entry in node.network_endpoints)

    rule = await call(stack, "firewalls", "get", project=project, firewall=f"{name}-ssh")
    assert list(rule.target_tags) == [f"{name}-tpu"]
    assert {port for allowed in rule.allowed for port in allowed.ports} == {*ports}
    assert "0.0.0.0/0" not in rule.source_ranges
    assert rule.network.rpartition("/")[2] == node.network_config.network.rpartition("/")[2]

    await check_bucket(stack, account)
    return node


async def check_bucket(stack: Tpuctl, account: str) -> None:
    name = bucket_name(stack)
    bucket = await call(stack, "storage", "get_bucket", name)
    assert bucket.location == stack.stack.zones[0].rpartition("-")[0].upper()
    assert bucket.labels["tpuctl-stack"] == stack.stack.name
    assert bucket.iam_configuration.uniform_bucket_level_access_enabled
    assert bucket.iam_configuration.public_access_prevention == "enforced"
    assert bucket.soft_delete_policy.retention_duration_seconds == 0
    (rule,) = bucket.lifecycle_rules
    assert rule["action"] == {"type": "Delete"}
    assert rule["condition"]["age"] == DAYS_IN_BUCKET
    temporary = ["tpuctl/bundles/", "tpuctl/cache/"]
    assert rule["condition"]["matchesPrefix"] == temporary, "jobs and output stay"
    policy = await policy_of(stack, bucket)
    roles = {
        entry["role"]
        for entry in policy.bindings
        if f"serviceAccount:{account}" in entry["members"]
    }
    assert roles == BUCKET_ROLES


def bucket_name(stack: Tpuctl) -> str:
    """As documented: the names of stack and project, without words forbidden in bucket names."""
    return f"{stack.stack.name}-{stack.stack.project}".translate(str.maketrans(":.", "--"))


async def check_second_up(stack: Tpuctl, events: list[Event]) -> None:
    """`up` of a running stack. `events` receives the stack's events."""
    events.clear()
    prepared = await stack.up()
    assert prepared.plan.is_empty
    assert {change.action for change in prepared.plan} == {Action.NOTHING}
    begun = {event.address for event in events if isinstance(event, StepStarted)}
    assert "ssh/workers" in begun  # the connection is checked each time
    assert {address.partition("/")[0] for address in begun} == {"ssh"}


async def check_nothing_left(stack: Tpuctl, down: Down) -> None:
    """After `down --delete-bucket`: by its own verification, and again with the clients."""
    assert down.leaks == ()
    states = {entry.address.partition("/")[0]: entry.state for entry in down.remaining}
    for kind in ("node", "bucket", "grants", "project-grants", "account", "firewall"):
        assert states[kind] == "deleted", (kind, states)
    status = await stack.status()
    assert (status.nodes, status.bucket, status.others) == ((), None, ())
    name, project = stack.stack.name, stack.stack.project
    try:
        await call(stack, "storage", "get_bucket", bucket_name(stack))
    except NotFound:
        pass
    else:
        raise AssertionError("the bucket still exists")
    policy = await call(stack, "projects", "get_iam_policy", {"resource": f"projects/{project}"})
    account = f"serviceAccount:{name}-tpu@"
    assert not [
        member for entry in policy.bindings for member in entry.members if account in member
    ]
