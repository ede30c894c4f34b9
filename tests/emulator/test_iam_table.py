"""The table of what each method needs is whole, and agrees with what is known of IAM."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tpuctl.emulator.faults.fault import is_mutating
from tpuctl.emulator.iam import method_permissions
from tpuctl.emulator.iam.access_scopes import suffices
from tpuctl.emulator.iam.additional_permissions import Rules
from tpuctl.emulator.iam.predefined_roles import known_permissions
from tpuctl.emulator.iam.required_permissions import Places
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.storage.service import StorageService
from tpuctl.emulator.storage.xml import METHODS as XML_METHODS
from tpuctl.emulator.wire.routes import _SHARED, _SURFACES, Router, Surface

_QUOTA = "google.api.serviceusage.v1beta1.ServiceUsage"


def served(cloud: Any) -> set[str]:
    """Every method that a handler answers."""
    world = cloud.server.world
    router = Router(world)
    surfaces = [*_SURFACES, *_SHARED.values()]
    for client in world.service("compute")._handlers:
        module = re.sub(r"(?<!^)([A-Z])", r"_\1", client).lower()
        package = f"google.cloud.compute_v1.services.{module}"
        surfaces.append(Surface(f"google.cloud.compute.v1.{client}", package, client, "compute"))
    found = set()
    for surface in surfaces:
        for method in router._table(surface) if surface.key else ():
            try:
                router._handler(surface, method)
            except ApiError:
                continue
            found.add(method.full_name)
    found |= {f"storage.{name}" for name, _ in StorageService(world)._table.values()}
    found |= {"storage.objects.insert", "storage.objects.cancelUpload"}
    found |= {f"storage.{name}" for name in XML_METHODS}
    return found


async def test_every_method_that_is_served_has_a_row(cloud: Any) -> None:
    there = served(cloud)
    assert len(there) > 200
    assert sorted(there - {*method_permissions.methods()}) == []


async def test_no_row_is_of_a_method_that_nobody_serves(cloud: Any) -> None:
    """But for those that answer "not implemented" so far, and what is served in JSON alone."""
    there = served(cloud)
    unknown = {
        one
        for one in method_permissions.methods()
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
    world = cloud.server.world
    rules = Rules(world.store, Places(world.store, world.projects))
    for method in method_permissions.methods():
        row = method_permissions.row_of(method)
        assert row is not None
        assert known.issuperset(row.permissions), method
        assert all(rule in rules._rules for rule in row.rules), method


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
    for method in method_permissions.methods():
        if not method.startswith(start):
            continue
        rest = method.removeprefix(start).replace("/", ".")
        identity = f"{api}.{_lowered(rest)}"
        if identity not in described:
            continue
        for scope in {one for scopes in described.values() for one in scopes}:
            allowed = suffices({scope}, method, mutating=is_mutating(method))
            assert allowed == (scope in described[identity]), (method, scope)
        checked += 1
    assert checked > 20


def _lowered(name: str) -> str:
    return ".".join(part[:1].lower() + part[1:] for part in name.split("."))
