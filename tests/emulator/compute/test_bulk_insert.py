"""instances.bulkInsert: several machines by one call, as SkyPilot creates them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.polling import async_until

BASE = "projects/local-project/zones/europe-west4-a/instances"
NAMES = ("head", "worker-1", "worker-2")


def resource_of(engine: Any, names: Any = NAMES, **more: Any) -> dict[str, Any]:
    """The body that SkyPilot sends: common properties and names."""
    properties = engine.controller()
    del properties["name"]
    properties["machine_type"] = "n1-standard-2"
    properties["disks"][0]["initialize_params"]["disk_type"] = "pd-ssd"
    names_spec = {"per_instance_properties": {name: {} for name in names}, "count": len(names)}
    return {"instance_properties": properties, **(names_spec if names else {}), **more}


def begin(engine: Any, resource: dict[str, Any], **more: Any) -> Any:
    request = {**engine.in_zone, "bulk_insert_instance_resource_resource": resource, **more}
    return engine.instances.bulk_insert_unary(request, timeout=60)


def names_of(engine: Any) -> list[str]:
    return [instance.name for instance in engine.instances.list(engine.in_zone)]


def test_bulk_insert_creates_named_instances(engine: Any) -> None:
    operation = engine.wait_ok(begin(engine, resource_of(engine)))
    assert operation.operation_type == "bulkInsert"
    assert names_of(engine) == list(NAMES)
    assert engine.cloud.host.running == {f"{BASE}/{name}" for name in NAMES}
    instance = engine.get("worker-1")
    assert instance.status == "RUNNING"
    assert instance.disks[0].source.endswith("/disks/worker-1")
    # gcloud and others find the parts of the operation by its group.
    listed = engine.zone_operations.list(
        {**engine.in_zone, "filter": f"operationGroupId={operation.operation_group_id}"}
    )
    parts = [item for item in listed if item.operation_type == "insert"]
    assert sorted(part.target_link.rpartition("/")[2] for part in parts) == list(NAMES)


async def test_bulk_operation_ends_when_all_machines_run(engine: Any) -> None:
    engine.cloud.host.gate.clear()
    operation = await asyncio.to_thread(begin, engine, resource_of(engine))
    await async_until(lambda: engine.cloud.host.called.count("boot") >= len(NAMES), "all boots")
    request = {**engine.in_zone, "operation": operation.name}
    assert (await asyncio.to_thread(engine.zone_operations.get, request)).status.name == "RUNNING"
    engine.cloud.host.gate.set()
    await asyncio.to_thread(engine.wait_ok, operation)


def test_name_pattern_continues_after_largest_number(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller("w-07")))
    engine.wait_ok(begin(engine, resource_of(engine, (), name_pattern="w-##", count=2)))
    assert names_of(engine) == ["w-07", "w-08", "w-09"]
    with pytest.raises(exceptions.BadRequest, match="digits"):
        begin(engine, resource_of(engine, (), name_pattern="w-##", count=91))


def test_bulk_insert_is_idempotent_by_request_id(engine: Any) -> None:
    more = {"request_id": "6b1bb6a1-3d33-4a53-a2cf-1d4d58e1d3a4"}
    first = begin(engine, resource_of(engine), **more)
    assert begin(engine, resource_of(engine), **more).name == first.name
    engine.wait_ok(first)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"name_pattern": "w-#"}, "Exactly one of"),
        ({"count": 2}, "number of names"),
        ({"min_count": 4}, "between 1 and the count"),
        ({"per_instance_properties": {"No_Name": {}}, "count": 1}, "regex"),
        ({"source_instance_template": "global/instanceTemplates/t"}, "cannot be found"),
    ],
)
def test_invalid_bulk_requests_are_rejected(engine: Any, more: Any, complaint: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=complaint):
        begin(engine, {**resource_of(engine), **more})
    assert names_of(engine) == []


def test_properties_are_merged_into_those_of_the_template(engine: Any) -> None:
    """BulkInsertInstanceResource.sourceInstanceTemplate: JSON Merge Patch, RFC 7396."""
    template = engine.create_template(labels={"a": "template", "b": "template"})
    properties = {"labels": {"a": "own"}, "machine_type": "n1-standard-2"}
    resource = {
        "source_instance_template": template,
        "name_pattern": "w-#",
        "count": 2,
        "instance_properties": properties,
    }
    engine.wait_ok(begin(engine, resource))
    assert names_of(engine) == ["w-1", "w-2"]
    instance = engine.get("w-2")
    assert instance.labels == {"a": "own", "b": "template"}
    assert instance.machine_type.endswith("/n1-standard-2")
    assert instance.disks[0].disk_size_gb == 50
    del resource["instance_properties"]
    engine.wait_ok(begin(engine, resource))
    assert engine.get("w-3").machine_type.endswith("/n1-standard-1")


def test_existing_name_rejects_whole_bulk_insert(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller("worker-2")))
    with pytest.raises(exceptions.Conflict):
        begin(engine, resource_of(engine))
    assert names_of(engine) == ["worker-2"]


def test_bulk_insert_counts_quota_for_all_instances(engine: Any) -> None:
    engine.cloud.put_setting("quota", {"INSTANCES": {"europe-west4": 2}})

    code, _ = engine.wait_error(begin(engine, resource_of(engine)))
    assert code == "QUOTA_EXCEEDED"
    assert names_of(engine) == []
    # Two are enough with minCount.
    engine.wait_ok(begin(engine, resource_of(engine, min_count=2)))
    assert names_of(engine) == ["head", "worker-1"]


def test_bulk_insert_stockout_creates_nothing(engine: Any) -> None:
    engine.cloud.request("POST", "/_local/faults", json={"kind": "stockout", "type": "n1-*"})
    code, _ = engine.wait_error(begin(engine, resource_of(engine)))
    assert code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert names_of(engine) == []


async def test_bulk_insert_below_min_count_is_rolled_back(engine: Any) -> None:
    """One of three fails to boot: all are deleted, or with minCount the others stay."""
    host = engine.cloud.host

    def run() -> None:
        boot = host.boot

        async def failing(spec: Any, progress: Any) -> None:
            if spec.name.endswith("worker-2"):
                host.broken = "no more memory"
            try:
                await boot(spec, progress)
            finally:
                host.broken = ""

        host.boot = failing
        code, text = engine.wait_error(begin(engine, resource_of(engine)))
        assert (code, "no more memory" in text) == ("INTERNAL_ERROR", True)
        assert names_of(engine) == []
        assert list(engine.disks.list(engine.in_zone)) == []
        engine.wait_ok(begin(engine, resource_of(engine, min_count=2)))
        assert names_of(engine) == ["head", "worker-1"]

    await asyncio.to_thread(run)


def test_bulk_insert_requires_permissions_of_insert(engine: Any) -> None:
    from google.cloud import compute_v1
    from google.oauth2.credentials import Credentials

    cloud = engine.cloud
    cloud.enable("iam", "cloudresourcemanager")

    answer = cloud.request("POST", "/_local/tokens", json={"member": "user:ann@example.com"})
    credentials = Credentials(token=answer.json()["token"])
    options = {**cloud.options(), "credentials": credentials}
    client = cloud.keep(compute_v1.InstancesClient(**options))
    request = {**engine.in_zone, "bulk_insert_instance_resource_resource": resource_of(engine)}
    with pytest.raises(exceptions.Forbidden, match=r"compute\.instances\.create"):
        client.bulk_insert_unary(request, timeout=60)
