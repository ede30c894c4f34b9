"""The table of permissions agrees with what IAM knows of them, and tells all that is missing."""

from __future__ import annotations

import pytest

from tpuctl.emulator.iam.predefined_roles import known_permissions, predefined_roles
from tpuctl.flows.permissions import required_permissions
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.resources import composition
from tpuctl.resources.base import CloudKind, StackResource
from tpuctl.resources.iap_tunnel import IapTunnel

KINDS = [kind for kind in composition.KINDS if issubclass(kind, StackResource) or kind is IapTunnel]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_each_role_has_the_permissions_that_it_is_named_for(kind: type[CloudKind]) -> None:
    found = required_permissions([kind])
    assert found
    roles = predefined_roles()
    for one in found:
        assert one.name in known_permissions(for_projects=True)
        assert one.name in roles[one.role].permissions, (one.role, one.name)


def test_no_more_is_asked_than_one_call_may_ask() -> None:
    assert len({one.name for one in required_permissions(KINDS)}) <= 100  # as its reference says


def test_only_what_a_plan_does_is_needed() -> None:
    plan = Plan(
        (
            Change("apis/needed", Action.NOTHING, "-"),
            Change("node/a", Action.UPDATE, "-", ("limits",)),
            Change("role/r", Action.UPDATE, "-", ("tpu.nodes.get",)),
            Change("disk/d", Action.CREATE, "-"),
        )
    )
    needed = {one.name for one in required_permissions(KINDS) if one.is_for(plan)}
    assert needed == {
        "tpu.nodes.update",
        "tpu.operations.get",
        "iam.roles.update",
        "compute.disks.create",
        "compute.disks.delete",
        "compute.disks.setLabels",
        "compute.zoneOperations.get",
    }


def test_waiting_for_a_node_needs_nothing() -> None:
    plan = Plan((Change("node/a", Action.UPDATE, "-", ("wait",)),))
    assert [one for one in required_permissions(KINDS) if one.is_for(plan)] == []
