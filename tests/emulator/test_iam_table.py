"""The table of what each method needs is whole, and agrees with what is known of IAM."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from tpuctl.emulator.compute.disks import Disks
from tpuctl.emulator.faults.fault import is_mutating
from tpuctl.emulator.faults.traffic import Caller
from tpuctl.emulator.iam.api_access import scopes_allow
from tpuctl.emulator.iam.method_permissions import MethodPermissions
from tpuctl.emulator.iam.predefined_roles import known_permissions, predefined_roles
from tpuctl.emulator.server import APIS
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.routes import Router

_QUOTA = "google.api.serviceusage.v1beta1.ServiceUsage"


def served(cloud: Any) -> set[str]:
    """Every method that a handler answers, by the API that it is of."""
    world = cloud.server.world
    found = {method.full_name for method, is_imitated in Router(world).tables() if is_imitated}
    return found | world.service("storage").names()


def without_rows(cloud: Any) -> list[str]:
    """Methods that are served and have no row, with the place for it."""
    guard = cloud.server.world.guard
    return [
        f"{method}: give it a row in {guard.api_of(method).package}'s permissions.toml"
        for method in sorted(served(cloud) - {*guard.permissions.methods()})
    ]


async def test_every_method_that_is_served_has_a_row(cloud: Any) -> None:
    assert len(served(cloud)) > 200
    assert without_rows(cloud) == []


async def test_a_new_method_is_served_and_its_row_asked_for(
    cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler is all that it takes; the place of the rest is named."""

    async def update(self: Disks, request: Any, caller: Caller) -> Any:
        return self.begin("patch", self.name_of(request), caller, {"row": {}})

    monkeypatch.setattr(Disks, "update", update, raising=False)
    method = "google.cloud.compute.v1.Disks/Update"
    place = "tpuctl.emulator.compute's permissions.toml"
    assert without_rows(cloud) == [f"{method}: give it a row in {place}"]
    # Not even the editor of a project may call what nobody has thought about.
    request = compute_v1.UpdateDiskRequest.pb()(project="local-project", disk="d")
    with pytest.raises(ApiError, match="The caller does not have permission"):
        cloud.server.world.guard.check(method, request, Caller("ann@example.com"))


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


# Those of no predefined role but the basic ones, as far as the record of these goes.
IN_NO_ROLE = {
    "compute.imageFamilyViews.get",
    "orgpolicy.policies.create",
    "orgpolicy.policies.delete",
    "orgpolicy.policies.update",
    "resourcemanager.projects.undelete",
}


async def test_some_predefined_role_has_each_permission_that_a_method_needs(cloud: Any) -> None:
    basic = ("roles/owner", "roles/editor", "roles/viewer")
    roles = [role for name, role in predefined_roles().items() if name not in basic]
    held = {permission for role in roles for permission in role.permissions}
    permissions = cloud.server.world.guard.permissions
    for method in permissions.methods():
        missing = {*permissions.row_of(method).permissions} - held - IN_NO_ROLE
        assert not missing, f"{method}: no role in predefined_roles.toml has {missing}"


def test_agents_of_an_api_get_roles_that_there_are() -> None:
    for api in APIS:
        for role, _ in api.access.agents:
            assert role in predefined_roles(), f"{api.access.package}.api: {role}"


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
            allowed = scopes_allow({scope}, access, method, mutating=is_mutating(method))
            assert allowed == (scope in described[identity]), (method, scope)
        checked += 1
    assert checked > 20


def _lowered(name: str) -> str:
    return ".".join(part[:1].lower() + part[1:] for part in name.split("."))
