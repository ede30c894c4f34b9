"""Storage pools, and the Hyperdisks in them."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.locations import PROJECT, ZONE

POOL = f"projects/{PROJECT}/zones/{ZONE}/storagePools/pool"
TYPE = f"projects/{PROJECT}/zones/{ZONE}/storagePoolTypes/hyperdisk-balanced"


def insert(engine: Any, name: str = "pool", **more: Any) -> Any:
    resource = {"name": name, "storage_pool_type": TYPE, "pool_provisioned_capacity_gb": 10240}
    resource |= {"pool_provisioned_iops": 10000, "pool_provisioned_throughput": 1024, **more}
    request = {**engine.in_zone, "storage_pool_resource": resource}
    return engine.storage_pools.insert_unary(request, timeout=60)


def get(engine: Any, name: str = "pool") -> Any:
    return engine.storage_pools.get({**engine.in_zone, "storage_pool": name}, timeout=60)


def insert_disk(engine: Any, name: str = "data", **more: Any) -> Any:
    kind = f"zones/{ZONE}/diskTypes/hyperdisk-balanced"
    disk = {"name": name, "size_gb": 100, "type_": kind, "storage_pool": POOL, **more}
    return engine.disks.insert_unary({**engine.in_zone, "disk_resource": disk}, timeout=60)


def test_disks_are_made_in_a_pool(engine: Any) -> None:
    engine.wait_ok(insert(engine, capacity_provisioning_type="ADVANCED", labels={"a": "b"}))
    pool = get(engine)
    assert (pool.self_link, pool.storage_pool_type) == (engine.link + POOL, engine.link + TYPE)
    assert (pool.state, pool.performance_provisioning_type) == ("READY", "STANDARD")
    assert (pool.pool_provisioned_iops, pool.labels) == (10000, {"a": "b"})
    assert pool.resource_status.max_total_provisioned_disk_capacity_gb == 5 * 10240
    engine.wait_ok(insert_disk(engine))
    disk = engine.disks.get({**engine.in_zone, "disk": "data"}, timeout=60)
    assert disk.storage_pool == pool.self_link
    status = get(engine).resource_status
    assert (status.disk_count, status.total_provisioned_disk_capacity_gb) == (1, 100)
    which = {**engine.in_zone, "storage_pool": "pool"}
    (listed,) = engine.storage_pools.list_disks(which)
    assert (listed.disk, listed.size_gb) == (disk.self_link, 100)
    with pytest.raises(exceptions.BadRequest, match="already being used"):
        engine.storage_pools.delete_unary(which, timeout=60)
    engine.wait_ok(engine.disks.delete_unary({**engine.in_zone, "disk": "data"}, timeout=60))
    engine.wait_ok(engine.storage_pools.delete_unary(which, timeout=60))
    assert list(engine.storage_pools.list(engine.in_zone)) == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"type_": f"zones/{ZONE}/diskTypes/pd-ssd"}, "for disks of the type"),
        ({"storage_pool": POOL + "x"}, "storagePool resource cannot be found"),
        ({"size_gb": 20000}, "capacity of the pool is exceeded"),
    ],
)
def test_disks_that_do_not_fit_are_refused(engine: Any, more: dict[str, Any], text: str) -> None:
    engine.wait_ok(insert(engine))
    with pytest.raises(exceptions.BadRequest, match=text):
        insert_disk(engine, **more)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"storage_pool_type": "x"}, "storagePoolType resource cannot be found"),
        ({"pool_provisioned_capacity_gb": 100}, "at least 10240 GB"),
        ({"pool_provisioned_capacity_gb": None}, "Required field"),
    ],
)
def test_wrong_pools_are_refused(engine: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=text):
        insert(engine, **more)


def test_pool_grows(engine: Any) -> None:
    engine.wait_ok(insert(engine))
    which = {**engine.in_zone, "storage_pool": "pool"}

    def update(mask: str = "", **changes: Any) -> Any:
        request = {**which, "storage_pool_resource": changes, "update_mask": mask}
        return engine.storage_pools.update_unary(request, timeout=60)

    sizes = {"pool_provisioned_capacity_gb": 20480, "pool_provisioned_iops": 20000}
    engine.wait_ok(update("pool_provisioned_capacity_gb", **sizes))
    pool = get(engine)
    assert (pool.pool_provisioned_capacity_gb, pool.pool_provisioned_iops) == (20480, 10000)
    engine.wait_ok(update(**sizes))
    assert get(engine).pool_provisioned_iops == 20000
    engine.wait_ok(insert_disk(engine, size_gb=15000))
    with pytest.raises(exceptions.BadRequest, match="too small"):
        update(pool_provisioned_capacity_gb=10240)
    with pytest.raises(exceptions.MethodNotImplemented, match="storagePoolType"):
        update(storage_pool_type=TYPE)


def test_instance_gets_a_disk_of_a_pool(engine: Any) -> None:
    engine.wait_ok(insert(engine))
    body = engine.controller()
    params = {"disk_type": f"zones/{ZONE}/diskTypes/hyperdisk-balanced", "storage_pool": POOL}
    body["disks"].append({"initialize_params": {"disk_size_gb": 20, **params}})
    engine.wait_ok(engine.insert(body))
    (listed,) = engine.storage_pools.list_disks({**engine.in_zone, "storage_pool": "pool"})
    assert [link.rpartition("/")[2] for link in listed.attached_instances] == ["controller"]
