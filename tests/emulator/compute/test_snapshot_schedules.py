"""Snapshot schedules: resource policies that are attached to disks."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.callers import Member, grant
from tests.support.locations import PROJECT, PROJECT_NAME, REGION, ZONE

DAILY = {"schedule": {"daily_schedule": {"days_in_cycle": 1, "start_time": "00:00"}}}
POLICY = f"projects/{PROJECT}/regions/{REGION}/resourcePolicies"


def prepare(engine: Any) -> None:
    """Create a disk, and two schedules."""
    disk = {"name": "data", "size_gb": 10}
    engine.wait_ok(engine.disks.insert_unary({**engine.in_zone, "disk_resource": disk}, timeout=10))
    for name in ("nightly", "other"):
        insert(engine, {"name": name, "snapshot_schedule_policy": DAILY})


def insert(engine: Any, policy: dict[str, Any]) -> None:
    request = {**engine.in_region, "resource_policy_resource": policy}
    engine.wait_ok(engine.resource_policies.insert_unary(request, timeout=10))


def change(engine: Any, verb: str, *policies: str) -> Any:
    body = {f"disks_{verb}_resource_policies_request_resource": {"resource_policies": policies}}
    method = getattr(engine.disks, f"{verb}_resource_policies_unary")
    return method({**engine.in_zone, "disk": "data", **body}, timeout=10)


def attached(engine: Any) -> list[str]:
    disk = engine.disks.get({**engine.in_zone, "disk": "data"}, timeout=10)
    return [policy.removeprefix(engine.link) for policy in disk.resource_policies]


def test_schedules_are_attached_and_detached(engine: Any) -> None:
    prepare(engine)
    engine.wait_ok(change(engine, "add", f"regions/{REGION}/resourcePolicies/nightly"))
    engine.wait_ok(change(engine, "add", f"{engine.link}{POLICY}/other", f"{POLICY}/nightly"))
    assert attached(engine) == [f"{POLICY}/nightly", f"{POLICY}/other"]
    which = {**engine.in_region, "resource_policy": "nightly"}
    operation = engine.resource_policies.delete_unary(which, timeout=10)
    assert engine.wait_error(operation)[0] == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    engine.wait_ok(change(engine, "remove", f"{POLICY}/nightly"))
    assert attached(engine) == [f"{POLICY}/other"]
    engine.wait_ok(engine.resource_policies.delete_unary(which, timeout=10))
    with pytest.raises(exceptions.BadRequest, match="not attached"):
        change(engine, "remove", f"{POLICY}/nightly")
    with pytest.raises(exceptions.BadRequest, match="cannot be found"):
        change(engine, "add", f"{POLICY}/nightly")


def test_only_schedules_of_its_region_are_attached_to_a_disk(engine: Any) -> None:
    prepare(engine)
    insert(engine, {"name": "shape", "workload_policy": {"type_": "HIGH_THROUGHPUT"}})
    with pytest.raises(exceptions.BadRequest, match="of the disk's region"):
        change(engine, "add", f"{POLICY}/shape")
    elsewhere = {"project": PROJECT, "region": "europe-west1"}
    policy = {"name": "far", "snapshot_schedule_policy": DAILY}
    request = {**elsewhere, "resource_policy_resource": policy}
    engine.wait_ok(engine.resource_policies.insert_unary(request, timeout=10))
    with pytest.raises(exceptions.BadRequest, match="of the disk's region"):
        change(engine, "add", "regions/europe-west1/resourcePolicies/far")


def test_schedule_is_changed(engine: Any) -> None:
    prepare(engine)
    labels = {"snapshot_properties": {"labels": {"env": "test"}}}
    request = {
        **engine.in_region,
        "resource_policy": "nightly",
        "resource_policy_resource": {"snapshot_schedule_policy": {**DAILY, **labels}},
    }
    engine.wait_ok(engine.resource_policies.patch_unary(request, timeout=10))
    which = {**engine.in_region, "resource_policy": "nightly"}
    policy = engine.resource_policies.get(which, timeout=10).snapshot_schedule_policy
    assert policy.snapshot_properties.labels == {"env": "test"}
    assert policy.schedule.daily_schedule.start_time == "00:00"


def test_schedule_has_exactly_one_cycle(engine: Any) -> None:
    hourly = {"hourly_schedule": {"hours_in_cycle": 4, "start_time": "00:00"}}
    for schedule in ({}, DAILY["schedule"] | hourly):
        with pytest.raises(exceptions.BadRequest, match="Exactly one of dailySchedule"):
            insert(engine, {"name": "x", "snapshot_schedule_policy": {"schedule": schedule}})


@pytest.mark.parametrize("verb", ["add", "remove"])
def test_attaching_requires_use_of_the_policy(engine: Any, cloud: Any, verb: str) -> None:
    prepare(engine)
    ann = Member(cloud, "ann")
    disk = f"projects/{PROJECT}/zones/{ZONE}/disks/data"
    path, body = (
        f"/compute/v1/{disk}/{verb}ResourcePolicies",
        {"resourcePolicies": [f"{POLICY}/other"]},
    )
    status, text = ann.status_and_message("POST", path, json=body)
    assert (status, f"compute.disks.{verb}ResourcePolicies" in text) == (403, True)
    grant(cloud, PROJECT_NAME, "roles/compute.storageAdmin", ann.name)
    change(engine, "add", f"{POLICY}/other")
    assert ann.send("POST", path, json=body).ok


def test_other_kinds_of_policies_are_refused_by_name(engine: Any) -> None:
    policy = {"name": "near", "group_placement_policy": {"collocation": "COLLOCATED"}}
    with pytest.raises(exceptions.MethodNotImplemented, match=r"resource\.groupPlacementPolicy"):
        insert(engine, policy)
