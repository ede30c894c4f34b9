"""The table of what each method needs is whole, and agrees with what is known of IAM."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.emulator.faults.fault import is_mutating
from tpuctl.emulator.iam.api_access import suffices
from tpuctl.emulator.iam.method_permissions import MethodPermissions
from tpuctl.emulator.iam.predefined_roles import known_permissions
from tpuctl.emulator.server import APIS
from tpuctl.emulator.wire.routes import Router

_QUOTA = "google.api.serviceusage.v1beta1.ServiceUsage"


def served(cloud: Any) -> set[str]:
    """Every method that a handler answers, by the API that it is of."""
    world = cloud.server.world
    found = {method.full_name for method, is_imitated in Router(world).tables() if is_imitated}
    return found | world.service("storage").names()


async def test_every_method_that_is_served_has_a_row(cloud: Any) -> None:
    there = served(cloud)
    assert len(there) > 200
    guard = cloud.server.world.guard
    without = [
        f"{method}: give it a row in {guard.api_of(method).package}'s permissions.toml"
        for method in sorted(there - {*guard.permissions.methods()})
    ]
    assert without == []


async def test_no_row_is_of_a_method_that_nobody_serves(cloud: Any) -> None:
    """But for those that answer "not implemented" so far, and what is served in JSON alone."""
    there = served(cloud)
    unknown = {
        one
        for one in cloud.server.world.guard.permissions.methods()
        if one not in there and not one.startswith(_QUOTA)
    }
    assert unknown <= {
        "google.cloud.compute.v1.Instances/Resume",
        "google.cloud.tpu.v2alpha1.Tpu/GetMaintenanceInfo",
        "google.cloud.tpu.v2alpha1.Tpu/PerformMaintenance",
        "google.cloud.tpu.v2alpha1.Tpu/PerformMaintenanceQueuedResource",
        "google.cloud.resourcemanager.v3.Projects/MoveProject",
        "google.longrunning.Operations/CancelOperation",
    }


async def test_rows_name_permissions_and_rules_that_there_are(cloud: Any) -> None:
    known = {*known_permissions(), "compute.imageFamilyViews.get"}
    guard = cloud.server.world.guard
    for method in guard.permissions.methods():
        row = guard.permissions.row_of(method)
        place = f"{method} in {guard.api_of(method).package}'s permissions.toml"
        assert known.issuperset(row.permissions), place
        assert guard.rules.keys() >= {*row.rules}, place


async def test_every_row_stands_with_the_api_that_it_is_of(cloud: Any) -> None:
    for api in APIS:
        assert all(map(api.access.has, MethodPermissions([api.access.package]).methods()))


def discovered(api: str, version: str) -> dict[str, list[str]]:
    """The scopes that each method takes, by its id in Google's own description."""
    discovery = pytest.importorskip("googleapiclient.discovery_cache")
    import json

    document = json.loads(discovery.get_static_doc(api, version))
    found: dict[str, list[str]] = {}

    def walk(node: dict[str, Any]) -> None:
        for method in node.get("methods", {}).values():
            found[method["id"]] = method.get("scopes", [])
        for resource in node.get("resources", {}).values():
            walk(resource)

    walk(document)
    return found


@pytest.mark.parametrize(
    ("api", "version", "start"),
    [("storage", "v1", "storage."), ("compute", "v1", "google.cloud.compute.v1.")],
)
def test_scopes_suffice_where_google_says_so(api: str, version: str, start: str) -> None:
    described = discovered(api, version)
    checked = 0
    access = next(one.access for one in APIS if one.access.has(start))
    for method in MethodPermissions([access.package]).methods():
        if not method.startswith(start):
            continue
        rest = method.removeprefix(start).replace("/", ".")
        identity = f"{api}.{_lowered(rest)}"
        if identity not in described:
            continue
        for scope in {one for scopes in described.values() for one in scopes}:
            allowed = suffices({scope}, access, method, mutating=is_mutating(method))
            assert allowed == (scope in described[identity]), (method, scope)
        checked += 1
    assert checked > 20


def _lowered(name: str) -> str:
    return ".".join(part[:1].lower() + part[1:] for part in name.split("."))
