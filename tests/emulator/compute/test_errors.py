"""Errors for instances, immediate or by the operation."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

NAME = "projects/local-project/zones/europe-west4-a/instances/controller"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("name", "Controller", "Invalid value for field 'resource.name': 'Controller'."),
        ("machine_type", "zones/europe-west4-a/machineTypes/n1-giant-9", "does not exist in zone"),
        ("disks", [], "No disks are specified."),
        ("network_interfaces", [], "At least one network interface is required."),
        ("network_interfaces", [{"network": "global/networks/none"}], "network resource cannot"),
        ("labels", {"Bad": "x"}, "Label key must match"),
        ("labels", {"good": "BAD"}, "Label value must match"),
        ("metadata", {"items": [{"key": "a"}, {"key": "a"}]}, "keys must be present and unique"),
    ],
)
def test_invalid_instances_are_rejected(engine: Any, field: str, value: Any, text: str) -> None:
    controller = engine.controller(**{field: value})
    with pytest.raises((exceptions.BadRequest, exceptions.NotFound)) as caught:
        engine.insert(controller)
    assert text in caught.value.message
    assert not engine.cloud.host.called


@pytest.mark.parametrize(
    ("image", "error"),
    [
        ("projects/ubuntu-os-cloud/global/images/family/ubuntu-1204", exceptions.NotFound),
        ("projects/ubuntu-os-cloud/global/images/ubuntu-1204-v20120101", exceptions.BadRequest),
        ("ubuntu", exceptions.BadRequest),
    ],
)
def test_unknown_images_are_rejected(engine: Any, image: str, error: type[Exception]) -> None:
    controller = engine.controller()
    controller["disks"][0]["initialize_params"]["source_image"] = image
    with pytest.raises(error):
        engine.insert(controller)


def test_boot_disk_smaller_than_image_is_rejected(engine: Any) -> None:
    controller = engine.controller()
    controller["disks"][0]["initialize_params"]["disk_size_gb"] = 5
    with pytest.raises(exceptions.BadRequest) as caught:
        engine.insert(controller)
    assert "cannot be smaller than the image size (10 GB)" in caught.value.message


def test_unknown_zone_is_rejected(engine: Any) -> None:
    request = {"project": "local-project", "zone": "europe-west4-z", "instance": "controller"}
    with pytest.raises(exceptions.BadRequest) as caught:
        engine.instances.get(request)
    assert "Invalid value for field 'zone': 'europe-west4-z'. Unknown zone." in caught.value.message


def test_org_policy_denies_external_address(engine: Any) -> None:
    engine.cloud.put_setting("policies", ["compute.vmExternalIpAccess"])
    with pytest.raises(exceptions.PreconditionFailed) as caught:
        engine.insert(engine.controller())
    number = engine.cloud.project_number
    assert caught.value.message.endswith(
        f"Constraint constraints/compute.vmExternalIpAccess violated for project {number}. "
        f"Add instance {NAME} to the constraint to use external IP with it."
    )
    assert caught.value.errors[0]["reason"] == "conditionNotMet"
    inside = engine.controller(network_interfaces=[{"network": "global/networks/default"}])
    engine.wait_ok(engine.insert(inside))


def test_unknown_service_account_fails_operation(engine: Any) -> None:
    email = "missing@local-project.iam.gserviceaccount.com"
    controller = engine.controller(
        service_accounts=[{"email": email, "scopes": ["cloud-platform"]}]
    )
    code, text = engine.wait_error(engine.insert(controller))
    assert code == "EXTERNAL_RESOURCE_NOT_FOUND"
    assert text == f"The resource '{email}' of type 'serviceAccount' was not found."
    with pytest.raises(exceptions.NotFound):
        engine.get()


def test_stockout_fails_operation(engine: Any) -> None:
    fault = {"kind": "stockout", "zone": "europe-west4-a", "type": "n1-standard-2"}
    engine.cloud.in_loop(engine.cloud.server.registry.faults.add, fault)

    done = engine.wait(engine.insert(engine.controller()))
    (error,) = done.error.errors
    assert error.code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert error.message == (
        "The zone 'projects/local-project/zones/europe-west4-a' does not have enough "
        "resources available to fulfill the request.  Try a different zone, or try again later."
    )
    assert done.http_error_status_code == 503
    (info,) = [detail.error_info for detail in error.error_details if detail.error_info.reason]
    assert (info.reason, info.metadatas["vmType"]) == (
        "resource_availability",
        "n1-standard-2",
    )
    assert not list(engine.instances.list(engine.in_zone))
    assert not list(engine.disks.list(engine.in_zone))
    engine.wait_ok(engine.insert(engine.controller()))  # the fault fires once


def test_regional_quota(engine: Any) -> None:
    engine.cloud.put_setting("quota", {"CPUS": {"europe-west4": 4}})

    def quotas() -> dict[str, tuple[float, float]]:
        region = engine.regions.get(engine.in_region, timeout=60)
        return {quota.metric: (quota.usage, quota.limit) for quota in region.quotas}

    assert quotas()["CPUS"] == (0, 4)
    for name in ("first", "second"):
        engine.wait_ok(engine.insert(engine.controller(name)))
    assert quotas()["CPUS"] == (4, 4)
    assert quotas()["INSTANCES"][0] == 2
    assert quotas()["IN_USE_ADDRESSES"][0] == 2
    assert quotas()["SSD_TOTAL_GB"][0] == 100
    done = engine.wait(engine.insert(engine.controller("third")))
    (error,) = done.error.errors
    assert (error.code, done.http_error_status_code) == ("QUOTA_EXCEEDED", 403)
    assert error.message == "Quota 'CPUS' exceeded.  Limit: 4.0 in region europe-west4."
    (info,) = [detail.quota_info for detail in error.error_details]
    assert (info.limit, dict(info.dimensions)) == (4, {"region": "europe-west4"})
    # A stopped machine keeps its disk, but uses neither CPUs nor an address.
    which = {**engine.in_zone, "instance": "first"}
    engine.wait_ok(engine.instances.stop_unary(which, timeout=60))
    assert quotas()["CPUS"][0] == 2
    assert quotas()["IN_USE_ADDRESSES"][0] == 1
    assert quotas()["SSD_TOTAL_GB"][0] == 100
    engine.wait_ok(engine.insert(engine.controller("third")))
    other_zone = {"project": "local-project", "zone": "us-central1-b"}
    far = engine.controller("far", "us-central1-b")
    request = {**other_zone, "instance_resource": far}
    engine.wait_ok(engine.instances.insert_unary(request, timeout=60))


def test_disk_quota(engine: Any) -> None:
    engine.cloud.put_setting("quota", {"DISKS_TOTAL_GB": {"europe-west4": 100}})

    request = {**engine.in_zone, "disk_resource": {"name": "d", "size_gb": 101}}
    code, text = engine.wait_error(engine.disks.insert_unary(request, timeout=60))
    assert code == "QUOTA_EXCEEDED"
    assert text.startswith("Quota 'DISKS_TOTAL_GB' exceeded.  Limit: 100.0 in region")
    request["disk_resource"]["size_gb"] = 100
    engine.wait_ok(engine.disks.insert_unary(request, timeout=60))


def test_protected_instance_cannot_be_deleted(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller(deletion_protection=True)))
    with pytest.raises(exceptions.BadRequest) as caught:
        engine.instances.delete_unary({**engine.in_zone, "instance": "controller"}, timeout=60)
    assert "protected against deletion" in caught.value.message


def test_compute_requires_enabled_api(new_cloud: Any, make_engine: Any) -> None:
    engine = make_engine(new_cloud)
    with pytest.raises(exceptions.Forbidden) as caught:
        engine.insert(engine.controller())
    assert "Compute Engine API has not been used in project" in caught.value.message
    with pytest.raises(exceptions.Forbidden):
        request = {"project": "local-project", "family": "mine"}
        engine.images.get_from_family(request)
