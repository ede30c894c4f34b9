"""Looking through a whole project for what stacks made, in every zone and of every kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tpuctl.catalog import Capacity
from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied, NotFound, TpuctlError, Usage
from tpuctl.flows.controller import remote_node_status
from tpuctl.model.inventory import TPU_KINDS, Found, stack_of_description
from tpuctl.model.names import RECOVERY_ROLE, STACK_LABEL, WATCH_ROLE, stack_of_account
from tpuctl.model.status import NodeStatus

__all__ = ["look", "look_for_nodes", "node_status"]

FREE = ("account", "firewall", "network", "project-grants")


async def look(
    cloud: Cloud,
    project: str,
    *,
    stack: str | None = None,
    kinds: Iterable[str] | None = None,
    others: bool = False,
    must_exist: bool = False,
    unseen: Callable[[TpuctlError], None] | None = None,
) -> list[Found]:
    """Everything of one stack, or of all; of all kinds, or of these. One round of calls, at once.

    With `others` also the project's further nodes and requests, whoever made them: they count
    against the same quota. What belongs to an API that is not enabled is not there; nor is what
    belongs to a project that is not there, unless it `must_exist`: NotFound then. Raises Denied
    where something may not be looked at; `unseen` is told instead if it costs nothing anyway.
    """
    wanted = LISTINGS if kinds is None else {kind: LISTINGS[kind] for kind in kinds}
    answers = await _listed_at_once(cloud, project, stack, wanted)
    if any(isinstance(answer, list) for answer in answers.values()):  # the project is there
        # One that was being created was denied to the listings that came too early.
        denied = [kind for kind, answer in answers.items() if isinstance(answer, Denied)]
        answers |= await _listed_at_once(
            cloud, project, stack, {kind: wanted[kind] for kind in denied}
        )
        for kind, answer in answers.items():
            if isinstance(answer, Denied):
                if unseen is None or kind not in FREE:
                    raise answer
                unseen(answer)
    elif must_exist and any(isinstance(answer, Denied | Usage) for answer in answers.values()):
        raise NotFound(
            "No such project",
            f"there is no project {project}, or nothing of it may be seen",
            hint="See which there are with\n    gcloud projects list",
        )
    return [
        one
        for found in answers.values()
        if isinstance(found, list)
        for one in found
        if (others and one.kind in TPU_KINDS) or (one.stack and stack in (None, one.stack))
    ]


async def look_for_nodes(cloud: Cloud, project: str, stack: str) -> list[NodeStatus]:
    """The stack's nodes in every zone, by label."""
    found = await look(cloud, project, stack=stack, kinds=("node", "tpu"))
    return [one.node for one in found if one.node is not None]


async def _listed_at_once(
    cloud: Cloud, project: str, stack: str | None, listings: Mapping[str, _Listing]
) -> dict[str, list[Found] | TpuctlError]:
    answers = await asyncio.gather(
        *(_listed(cloud, project, stack, kind, listing) for kind, listing in listings.items())
    )
    return dict(zip(listings, answers, strict=True))


async def _listed(
    cloud: Cloud, project: str, stack: str | None, kind: str, listing: _Listing
) -> list[Found] | TpuctlError:
    """What there is of a kind. An error for a refusal, of which the other kinds tell whether it
    means that the project is absent: Google denies what is not there in the same words."""

    def ask(**options: Any) -> list[Found]:
        return list(listing(cloud, project, stack, options))

    try:
        return await cloud.call(f"the list of every {kind}", ask)
    except NotFound as error:
        return error
    except ApiDisabled:
        return []
    except Usage as error:
        if f"Unknown project id: {project}" in str(error):  # in the words of Cloud Storage
            return error
        raise
    except Denied as error:
        if "or it may not exist" in str(error) or f"resource project {project}" in str(error):
            return error
        if kind in FREE:
            return error
        raise


_Listing = Callable[[Cloud, str, str | None, dict[str, Any]], Iterable[Found]]


def _nodes(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    request = {"parent": f"projects/{project}/locations/-"}
    for node in cloud.client("tpu").list_nodes(request, **options):
        if not node.api_version.name.startswith("V1"):
            status = node_status(node)
            yield Found(
                "node",
                status.name,
                node.labels.get(STACK_LABEL, ""),
                status.zone,
                status.state,
                status.accelerator_type,
                status.created,
                is_billable=True,
                capacity=_capacity(node.scheduling_config),
                request=node.queued_resource.rpartition("/")[2],
                external_addresses=sum(
                    1 for one in node.network_endpoints if one.access_config.external_ip
                ),
                node=status,
            )


def _v1_nodes(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    request = {"parent": f"projects/{project}/locations/-"}
    for node in cloud.client("tpu_v1").list_nodes(request, **options):
        if not node.api_version.name.startswith("V2"):
            parts = node.name.split("/")
            yield Found(
                "tpu",
                parts[-1],
                node.labels.get(STACK_LABEL, ""),
                parts[3],
                node.state.name,
                node.accelerator_type,
                _time(node.create_time),
                is_billable=True,
                capacity=_capacity(node.scheduling_config),
                node=remote_node_status(node),
            )


def _queued(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    request = {"parent": f"projects/{project}/locations/-"}
    for one in cloud.client("tpu").list_queued_resources(request, **options):
        specs = list(one.tpu.node_spec)
        if specs:
            parts = one.name.split("/")
            yield Found(
                "queued",
                parts[-1],
                specs[0].node.labels.get(STACK_LABEL, ""),
                parts[3],
                one.state.state.name,
                specs[0].node.accelerator_type,
                _time(one.create_time),
                capacity=_request_capacity(one),
                count=sum(spec.multislice_params.node_count or 1 for spec in specs),
            )


def _instances(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    for zone, one in _aggregated(cloud, "instances", project, stack, options):
        machine_type = one.machine_type.rpartition("/")[2]
        accesses = [each for face in one.network_interfaces for each in face.access_configs]
        yield Found(
            "controller",
            one.name,
            one.labels[STACK_LABEL],
            zone,
            one.status,
            machine_type,
            _text_time(one.creation_timestamp),
            is_billable=True,
            capacity="spot" if one.scheduling.preemptible else "on-demand",
            external_addresses=sum(1 for each in accesses if each.nat_i_p),
        )


def _disks(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    for zone, one in _aggregated(cloud, "disks", project, stack, options):
        created = _text_time(one.creation_timestamp)
        yield Found(
            "disk",
            one.name,
            one.labels[STACK_LABEL],
            zone,
            "in use" if one.users else one.status,
            one.type_.rpartition("/")[2],
            created,
            is_billable=True,
            size_gb=one.size_gb,
        )


def _addresses(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    for region, one in _aggregated(cloud, "addresses", project, stack, options):
        yield Found(
            "address",
            one.name,
            one.labels[STACK_LABEL],
            region,
            one.status,
            one.address,
            _text_time(one.creation_timestamp),
            is_billable=True,
        )


def _aggregated(
    cloud: Cloud, service: str, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[tuple[str, Any]]:
    """Each labelled resource of a collection, with the zone or region it is in.

    An answer has every scope there is: those with nothing are passed over before they are wrapped.
    """
    request = {
        "project": project,
        "filter": f"labels.{STACK_LABEL}{f'={stack}' if stack else ':*'}",
    }
    for page in cloud.client(service).aggregated_list(request, **options).pages:
        for scope, bare in type(page).pb(page).items.items():
            if getattr(bare, service):
                for one in getattr(page.items[scope], service):
                    yield scope.rpartition("/")[2], one


def _firewalls(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    for one in cloud.client("firewalls").list(request={"project": project}, **options):
        if owner := stack_of_description(one.description):
            yield Found("firewall", one.name, owner)


def _networks(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    for one in cloud.client("networks").list(request={"project": project}, **options):
        if owner := stack_of_description(one.description):
            yield Found("network", one.name, owner)


def _accounts(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    request = {"name": f"projects/{project}", "page_size": 100}
    for one in cloud.client("iam").list_service_accounts(request, **options):
        if owner := stack_of_description(one.description):
            yield Found("account", one.email.partition("@")[0], owner)


def _buckets(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    for one in cloud.client("storage").list_buckets(project=project, **options):
        if owner := one.labels.get(STACK_LABEL):
            yield Found(
                "bucket",
                one.name,
                owner,
                detail=str(one.location).lower(),
                created=one.time_created,
                is_billable=True,
            )


def _grants(
    cloud: Cloud, project: str, stack: str | None, options: dict[str, Any]
) -> Iterable[Found]:
    """Who may delete or make machines by our roles, though their account may be gone."""
    policy = cloud.client("projects").get_iam_policy(
        request={"resource": f"projects/{project}"}, **options
    )
    account = re.compile(rf"(?:deleted:)?serviceAccount:([^@]+)@{re.escape(project)}\.iam\.g")
    ours = {f"projects/{project}/roles/{name}" for name in (WATCH_ROLE, RECOVERY_ROLE)}
    members = (one for each in policy.bindings if each.role in ours for one in each.members)
    matches = (match for member in members if (match := account.match(member)))
    for owner in sorted({stack for match in matches if (stack := stack_of_account(match[1]))}):
        yield Found("project-grants", project, owner)


LISTINGS: dict[str, _Listing] = {
    "node": _nodes,
    "tpu": _v1_nodes,
    "queued": _queued,
    "controller": _instances,
    "disk": _disks,
    "address": _addresses,
    "bucket": _buckets,
    "account": _accounts,
    "firewall": _firewalls,
    "network": _networks,
    "project-grants": _grants,
}


def _capacity(scheduling: Any) -> Capacity:
    """How a node was asked for. API v1 knows no spot nodes."""
    if getattr(scheduling, "spot", False):
        return "spot"
    if scheduling.preemptible:
        return "preemptible"
    return "reserved" if scheduling.reserved else "on-demand"


def _request_capacity(queued: Any) -> Capacity:
    if "spot" in queued:
        return "spot"
    return "reserved" if queued.reservation_name else "on-demand"


def node_status(node: Any) -> NodeStatus:
    """Our view of an API node."""
    parts = node.name.split("/")
    endpoints = list(node.network_endpoints)
    ports = [one for one in node.metadata.get("tpuctl-ssh-port", "").split(",") if one]
    if len(ports) < len(endpoints):
        ports = [ports[0] if ports else "22"] * len(endpoints)
    return NodeStatus(
        name=parts[-1],
        id=str(node.id),
        zone=parts[3],
        state=node.state.name,
        health=node.health.name,
        accelerator_type=node.accelerator_type,
        runtime=node.runtime_version,
        created=_time(node.create_time),
        addresses=tuple(one.access_config.external_ip or one.ip_address for one in endpoints),
        ssh_ports=tuple(int(port) for port in ports),
        inner_addresses=tuple(one.ip_address for one in endpoints),
    )


def _time(value: Any) -> datetime | None:
    return datetime.fromtimestamp(value.timestamp(), UTC) if value else None


def _text_time(value: str) -> datetime | None:
    return datetime.fromisoformat(value) if value else None
