"""The programs that tests kill, and what a project contains afterwards."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.api_core.exceptions import PermissionDenied
from google.protobuf import json_format

from tpuctl.api import Tpuctl
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import TpuctlError

ACCOUNT = "010CA1-010CA1-010CA1"  # the local cloud's open billing account
LEAKS = 3
MACHINE = re.compile(r"STACK-tpu-[0-9a-z]{4}(?![0-9a-z])")  # of a group, with a random name


def open_stack(stack_file: str, url: str, token: str) -> Tpuctl:
    stack = Tpuctl(stack_file, cloud="local")
    stack.endpoint = Endpoint("local", url, token)  # type: ignore[misc]
    return stack


def bring_up(stack_file: str, url: str, token: str, options: dict[str, Any]) -> None:
    """`tpuctl up` until all resources exist, without connecting to machines."""

    async def work() -> None:
        stack = open_stack(stack_file, url, token)
        await stack.provision(await stack.plan())

    _run(work())


def take_down(stack_file: str, url: str, token: str, options: dict[str, Any]) -> None:
    """`tpuctl down`; exits with LEAKS if something billable is left."""

    async def work() -> None:
        done = await open_stack(stack_file, url, token).down(**options)
        if done.leaks:
            print(done.leaks, file=sys.stderr)
            sys.exit(LEAKS)

    _run(work())


def _run(work: Any) -> None:
    try:
        asyncio.run(work)
    except TpuctlError as error:
        traceback.print_exception(error)
        sys.exit(error.exit_code)


# Parts of the names of fields that differ between two equal runs.
VOLATILE = (
    "time",
    "created",
    "id",
    "uid",
    "etag",
    "fingerprint",
    "unique",
    "generation",
    "ip_address",
)
VOLATILE += (
    "external_ip",
    "nat_i_p",
    "network_i_p",
    "self_link",
    "updated",
    "last_",
    "port",
    "oauth2",
    "address",
)


def content(url: str, token: str, project: str, stack: str) -> dict[str, Any]:
    """What the official clients list in the project, without volatile fields.

    Empty if the project does not exist.
    """
    cloud = Cloud(Endpoint("local", url, token), project)
    try:
        number = cloud.client("projects").get_project(name=f"projects/{project}").name.split("/")[1]
    except PermissionDenied:  # Google's answer for projects that do not exist
        return {}
    resources: dict[str, Any] = {}
    for kind, listing in LISTINGS.items():
        try:
            resources[kind] = sorted(
                _plain(resource, {project: "PROJECT", number: "NUMBER", stack: "STACK"})
                for resource in listing(cloud, project)
            )
        except Exception as error:
            if "has not been used" not in str(error):
                raise
            resources[kind] = ["the API is not enabled"]
    return resources


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Unexpected (+) and missing (-) resources as lines of a diff."""
    texts = [
        json.dumps(
            {kind: [_read(row) for row in rows] for kind, rows in resources.items()}, indent=1
        )
        for resources in (expected, actual)
    ]
    lines = difflib.unified_diff(*(text.splitlines() for text in texts), n=2, lineterm="")
    return list(lines)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _plain(value: Any, names: dict[str, str]) -> str:
    if hasattr(type(value), "pb"):
        value = json_format.MessageToDict(type(value).pb(value), preserving_proto_field_name=True)
    text = json.dumps(_without_volatile(value), sort_keys=True, default=str)
    for name, word in names.items():
        text = re.sub(rf"(?<![a-z0-9]){re.escape(name)}(?![0-9])", word, text)
    return MACHINE.sub("STACK-tpu-NAME", text)


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_volatile(item)
            for key, item in value.items()
            if not any(part in key for part in VOLATILE)
        }
    if isinstance(value, list | tuple | set | frozenset):
        return sorted((_without_volatile(item) for item in value), key=repr)
    return value


def _tpu(client: str, method: str) -> Any:
    def listing(cloud: Cloud, project: str) -> Iterable[Any]:
        call = getattr(cloud.client(client), method)
        return call(parent=f"projects/{project}/locations/-", timeout=60)

    return listing


def _compute(service: str) -> Any:
    def listing(cloud: Cloud, project: str) -> Iterable[Any]:
        for page in cloud.client(service).aggregated_list(project=project, timeout=60).pages:
            for scope, scoped_list in type(page).pb(page).items.items():
                for resource in getattr(scoped_list, service):
                    yield {"scope": scope, **_as_dict(resource)}

    return listing


def _global(service: str) -> Any:
    def listing(cloud: Cloud, project: str) -> Iterable[Any]:
        return map(_message_dict, cloud.client(service).list(project=project, timeout=60))

    return listing


def _message_dict(message: Any) -> dict[str, Any]:
    return _as_dict(type(message).pb(message))


def _as_dict(message: Any) -> dict[str, Any]:
    return dict(json_format.MessageToDict(message, preserving_proto_field_name=True))


def _buckets(cloud: Cloud, project: str) -> Iterable[Any]:
    client = cloud.client("storage")
    for bucket in client.list_buckets(project=project):
        policy = bucket.get_iam_policy(requested_policy_version=3)
        record = {
            blob.name: json.loads(blob.download_as_bytes())
            for blob in client.list_blobs(bucket.name)
        }
        for content in record.values():
            content["grants"] = sorted(content["grants"], key=repr)
            for key in ("capacity", "down_at", "down_count", "write_id"):
                content.pop(key, None)
        yield {
            "name": bucket.name,
            "labels": bucket.labels,
            "location": bucket.location,
            "rules": [dict(rule) for rule in bucket.lifecycle_rules],
            "policy": [
                {**binding, "members": sorted(binding["members"])} for binding in policy.bindings
            ],
            "objects": record,
        }


def _policy(cloud: Cloud, project: str) -> Iterable[Any]:
    policy = cloud.client("projects").get_iam_policy(resource=f"projects/{project}")
    return [
        {"role": binding.role, "members": sorted(binding.members)} for binding in policy.bindings
    ]


def _apis(cloud: Cloud, project: str) -> Iterable[Any]:
    request = {"parent": f"projects/{project}", "filter": "state:ENABLED"}
    return [{"api": service.name} for service in cloud.client("services").list_services(request)]


def _accounts(cloud: Cloud, project: str) -> Iterable[Any]:
    return cloud.client("iam").list_service_accounts(name=f"projects/{project}")


def _roles(cloud: Cloud, project: str) -> Iterable[Any]:
    request = {"parent": f"projects/{project}", "view": 1, "show_deleted": True}
    return cloud.client("iam").list_roles(request)


LISTINGS = {
    "nodes": _tpu("tpu", "list_nodes"),
    "queued": _tpu("tpu", "list_queued_resources"),
    "v1 nodes": _tpu("tpu_v1", "list_nodes"),
    "instances": _compute("instances"),
    "groups": _compute("instance_group_managers"),
    "templates": _compute("instance_templates"),
    "policies": _compute("resource_policies"),
    "disks": _compute("disks"),
    "addresses": _compute("addresses"),
    "networks": _global("networks"),
    "firewalls": _global("firewalls"),
    "buckets": _buckets,
    "policy": _policy,
    "apis": _apis,
    "accounts": _accounts,
    "roles": _roles,
}


def main(arguments: list[str]) -> None:
    """For manual debugging: STACK_FILE URL TOKEN."""
    bring_up(*arguments[:3], {})


if __name__ == "__main__":
    main([str(Path(sys.argv[1])), *sys.argv[2:]])
