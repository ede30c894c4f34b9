"""The table of required permissions is complete and consistent with IAM data."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from tpuctl.emulator.compute.disks.snapshots import Snapshots
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
    """The full names of all served methods."""
    registry = cloud.server.registry
    methods = {method.full_name for method, is_emulated in Router(registry).tables() if is_emulated}
    return methods | registry.service("storage").names()


def without_rows(cloud: Any) -> list[str]:
    """Served methods without a row, with the file to add it to."""
    guard = cloud.server.registry.guard
    return [
        f"{method}: give it a row in {guard.api_of(method).package}'s permissions.toml"
        for method in sorted(served(cloud) - {*guard.permissions.methods()})
    ]


async def test_every_served_method_has_permission_row(cloud: Any) -> None:
    assert len(served(cloud)) > 200
    assert without_rows(cloud) == []


async def test_new_method_without_row_is_reported(
    cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adding a handler is enough to serve it; the missing row is reported with its file."""

    async def update_kms_key(self: Snapshots, request: Any, caller: Caller) -> Any:
        return self.begin("patch", self.name_of(request), caller, {"row": {}})

    monkeypatch.setattr(Snapshots, "update_kms_key", update_kms_key, raising=False)
    method = "google.cloud.compute.v1.Snapshots/UpdateKmsKey"
    file = "tpuctl.emulator.compute's permissions.toml"
    assert without_rows(cloud) == [f"{method}: give it a row in {file}"]
    # Without a row, not even a project editor may call it.
    request = compute_v1.UpdateDiskRequest.pb()(project="local-project", disk="d")
    with pytest.raises(ApiError, match="The caller does not have permission"):
        cloud.server.registry.guard.check(method, request, Caller("ann@example.com"))


async def test_every_row_has_served_method(cloud: Any) -> None:
    """Except those that return "not implemented" so far, and those served as JSON only."""
    there = served(cloud)
    unknown = {
        method
        for method in cloud.server.registry.guard.permissions.methods()
        if method not in there and not method.startswith(_QUOTA)
    }
    unserved = unknown - {
        "google.cloud.compute.v1.Instances/Resume",
        "google.cloud.tpu.v2alpha1.Tpu/GetMaintenanceInfo",
        "google.cloud.tpu.v2alpha1.Tpu/PerformMaintenance",
        "google.cloud.tpu.v2alpha1.Tpu/PerformMaintenanceQueuedResource",
        "google.cloud.resourcemanager.v3.Projects/MoveProject",
        "google.longrunning.Operations/CancelOperation",
    }
    assert not unserved, (
        f"{sorted(unserved)} in permissions.toml: no handler of this name, or its service is not "
        "among the surfaces of its API's api.py (of Compute Engine: COLLECTIONS)"
    )


async def test_rows_use_known_permissions_and_rules(cloud: Any) -> None:
    permissions = {*known_permissions(), "compute.imageFamilyViews.get"}
    guard = cloud.server.registry.guard
    for method in guard.permissions.methods():
        row = guard.permissions.row_of(method)
        location = f"{method} in {guard.api_of(method).package}'s permissions.toml"
        assert permissions.issuperset(row.permissions), location
        assert guard.rules.keys() >= {*row.rules}, location


# In no predefined role except the basic ones, as far as public listings show.
IN_NO_ROLE = {
    "compute.imageFamilyViews.get",
    "orgpolicy.policies.create",
    "orgpolicy.policies.delete",
    "orgpolicy.policies.update",
    "resourcemanager.projects.undelete",
}


async def test_every_required_permission_is_in_a_predefined_role(cloud: Any) -> None:
    basic = ("roles/owner", "roles/editor", "roles/viewer")
    roles = [role for name, role in predefined_roles().items() if name not in basic]
    granted = {permission for role in roles for permission in role.permissions}
    permissions = cloud.server.registry.guard.permissions
    for method in permissions.methods():
        missing = {*permissions.row_of(method).permissions} - granted - IN_NO_ROLE
        assert not missing, f"{method}: no role in predefined_roles.toml has {missing}"


def test_service_agent_roles_exist() -> None:
    for api in APIS:
        for role, _ in api.access.agents:
            assert role in predefined_roles(), f"{api.access.package}.api: {role}"


def test_rows_belong_to_their_api(cloud: Any) -> None:
    for api in APIS:
        assert all(map(api.access.has, MethodPermissions([api.access.package]).methods()))


def discovered(api: str, version: str) -> dict[str, list[str]]:
    """Scopes by method ID, from Google's discovery document."""
    discovery = pytest.importorskip("googleapiclient.discovery_cache")
    import json

    document = json.loads(discovery.get_static_doc(api, version))
    scopes_by_method: dict[str, list[str]] = {}

    def walk(node: dict[str, Any]) -> None:
        for method in node.get("methods", {}).values():
            scopes_by_method[method["id"]] = method.get("scopes", [])
        for resource in node.get("resources", {}).values():
            walk(resource)

    walk(document)
    return scopes_by_method


@pytest.mark.parametrize(
    ("api", "version", "start"),
    [("storage", "v1", "storage."), ("compute", "v1", "google.cloud.compute.v1.")],
)
def test_scopes_match_discovery_documents(api: str, version: str, start: str) -> None:
    described = discovered(api, version)
    checked = 0
    access = next(api_config.access for api_config in APIS if api_config.access.has(start))
    for method in MethodPermissions([access.package]).methods():
        if not method.startswith(start):
            continue
        rest = method.removeprefix(start).replace("/", ".")
        identity = f"{api}.{_lowered(rest)}"
        if identity not in described:
            continue
        for scope in {scope_name for scopes in described.values() for scope_name in scopes}:
            allowed = scopes_allow({scope}, access, method, mutating=is_mutating(method))
            assert allowed == (scope in described[identity]), (method, scope)
        checked += 1
    assert checked > 20


def _lowered(name: str) -> str:
    return ".".join(part[:1].lower() + part[1:] for part in name.split("."))
