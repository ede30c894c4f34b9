"""The table of required permissions is consistent with IAM data and reports what is missing."""

from __future__ import annotations

import pytest

from tpuctl.emulator.iam.predefined_roles import known_permissions, predefined_roles
from tpuctl.flows.stack.permissions import required_permissions
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.resources import composition
from tpuctl.resources.base import CloudKind, StackResource
from tpuctl.resources.network.host_project import NETWORK_ROLES
from tpuctl.resources.network.iap_tunnel import IapTunnel

KINDS = [kind for kind in composition.KINDS if issubclass(kind, StackResource) or kind is IapTunnel]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_each_role_has_its_listed_permissions(kind: type[CloudKind]) -> None:
    permissions = required_permissions([kind])
    assert permissions
    roles = predefined_roles()
    for permission in permissions:
        assert permission.name in known_permissions(for_projects=True)
        assert permission.name in roles[permission.role].permissions, (
            permission.role,
            permission.name,
        )


def test_roles_for_the_network_of_a_host_project_let_use_it() -> None:
    basic = {"roles/owner", "roles/editor"}
    for role in NETWORK_ROLES - basic:
        assert "compute.subnetworks.use" in predefined_roles()[role].permissions, role


def test_permissions_fit_in_one_test_call() -> None:
    assert (
        len({permission.name for permission in required_permissions(KINDS)}) <= 100
    )  # according to its reference


def test_plan_determines_required_permissions() -> None:
    plan = Plan(
        (
            Change("apis/needed", Action.NOTHING, "-"),
            Change("node/a", Action.UPDATE, "-", ("limits",)),
            Change("role/r", Action.UPDATE, "-", ("tpu.nodes.get",)),
            Change("disk/d", Action.CREATE, "-"),
        )
    )
    needed = {
        permission.name for permission in required_permissions(KINDS) if permission.is_for(plan)
    }
    assert needed == {
        *("tpu.nodes.update", "tpu.operations.get", "iam.roles.update", "compute.disks.create"),
        *("compute.disks.delete", "compute.disks.setLabels", "compute.zoneOperations.get"),
    }


def test_waiting_for_node_requires_no_permissions() -> None:
    plan = Plan((Change("node/a", Action.UPDATE, "-", ("readiness",)),))
    assert [
        permission for permission in required_permissions(KINDS) if permission.is_for(plan)
    ] == []
