"""Compute Engine quotas: usage and limits by project and region."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tpuctl.catalog.quota import QuotaLimit, quota_limits
from tpuctl.emulator.compute.core.collection import FixedCollection, Row
from tpuctl.emulator.compute.core.context import (
    ADDRESSES,
    DISKS,
    FIREWALLS,
    GLOBAL_ADDRESSES,
    INSTANCES,
    NETWORKS,
    ComputeContext,
)
from tpuctl.emulator.compute.core.messages import LINK
from tpuctl.emulator.compute.disks.disk_types import TYPES
from tpuctl.emulator.compute.networks.subnetworks import Subnetworks
from tpuctl.emulator.compute.offerings.machine_types import machine_type
from tpuctl.emulator.compute.offerings.scheduling import FLEX_START
from tpuctl.emulator.compute.offerings.tpu_machine_types import tpu_shapes
from tpuctl.emulator.state.locations import region_of, region_of_name, regions, zones

# Defaults by metric of regions.get, high on purpose: the setting `quota` lowers them.
_LIMITS: Mapping[str, float] = {
    "CPUS": 5000.0,
    "N2_CPUS": 5000.0,
    "N2D_CPUS": 5000.0,
    "C2_CPUS": 5000.0,
    "C2D_CPUS": 5000.0,
    "INSTANCES": 6000.0,
    "IN_USE_ADDRESSES": 2300.0,
    "STATIC_ADDRESSES": 700.0,
    "DISKS_TOTAL_GB": 500000.0,
    "SSD_TOTAL_GB": 500000.0,
}
_PROJECT_LIMITS: Mapping[str, float] = {
    "NETWORKS": 1000.0,
    "FIREWALLS": 2000.0,
    "SUBNETWORKS": 50000.0,
    "STATIC_ADDRESSES": 700.0,
    "CPUS_ALL_REGIONS": 20000.0,
}


class Quota:
    """Usage is counted from existing resources, so it cannot drift."""

    def __init__(self, context: ComputeContext, subnetworks: Subnetworks) -> None:
        self._context = context
        self._subnetworks = subnetworks

    def limits(self, region: str) -> dict[str, float]:
        """Limits of a region by metric."""
        configured = self._context.registry.settings.get("quota")
        return {
            metric: float(configured.get(metric, {}).get(region, limit))
            for metric, limit in _LIMITS.items()
        }

    def usage(self, project: str, region: str) -> Counter[str]:
        """A project's usage in a region by metric, with that of pools of chips."""
        usage = Counter(dict.fromkeys(_LIMITS, 0.0))
        prefix = f"projects/{project}/zones/{region}-"
        for _, row in self._context.items(INSTANCES, prefix):
            usage.update(instance_usage(row))
        regional = f"projects/{project}/regions/{region}/"
        for place in (prefix, regional):
            for _, row in self._context.items(DISKS, place):
                usage.update(disk_usage(row))
        addresses = self._context.names(ADDRESSES, regional)
        usage["STATIC_ADDRESSES"] += len(addresses)
        return usage

    def project_metrics(self, project: str) -> list[dict[str, Any]]:
        """Project-wide metrics; they are reported, not enforced."""
        context, prefix = self._context, f"projects/{project}/"
        usage = {
            "NETWORKS": len(context.names(NETWORKS, prefix)),
            "FIREWALLS": len(context.names(FIREWALLS, prefix)),
            "SUBNETWORKS": len(self._subnetworks.names(prefix)),
            "STATIC_ADDRESSES": len(context.names(GLOBAL_ADDRESSES, prefix)),
            "CPUS_ALL_REGIONS": sum(
                amount
                for _, row in context.items(INSTANCES, prefix)
                for metric, amount in instance_usage(row).items()
                if metric.endswith("CPUS")
            ),
        }
        return [
            {"metric": metric, "limit": _PROJECT_LIMITS[metric], "usage": float(used)}
            for metric, used in usage.items()
        ]

    def refusal(self, project: str, region: str, needs: Mapping[str, float]) -> Any | None:
        """The QUOTA_EXCEEDED error for additional usage, as arguments of `failed`; None if it fits.

        Wording and code from mesosphere-backup/terraform-dcos#61 and scylla-cluster-tests#3649; the
        details from google.cloud.compute.v1.QuotaExceededInfo.
        """
        usage, limits = self.usage(project, region), self.limits(region)
        for key, amount in needs.items():
            pool = _tpu_pools().get(key)
            limit = limits[key] if pool is None else self._pool_limit(pool, region)
            if amount and usage[key] + amount > limit:
                metric = key if pool is None else pool.metric
                info = {
                    "metricName": f"compute.googleapis.com/{metric.lower()}",
                    "limitName": f"{metric.replace('_', '-')}-per-project-region",
                    "dimensions": pool.dimensions(region) if pool else {"region": region},
                    "limit": limit,
                }
                return {
                    "code": "QUOTA_EXCEEDED",
                    "message": f"Quota '{metric}' exceeded.  Limit: {limit:.1f} in region "
                    f"{region}.",
                    "http": 403,
                    "more": [{"quotaInfo": info}],
                }
        return None

    def choose_pool(self, project: str, region: str, rows: Sequence[dict[str, Any]]) -> None:
        """Set the pool of chips that new instances of one kind take from.

        Flex-start takes from the standard pool where the preemptible one has no room
        (docs.cloud.google.com/compute/docs/instances/provisioning-models).
        """
        pools = _pools_of(rows[0])
        if not pools:
            return
        usage, chips = self.usage(project, region), len(rows) * _chips(rows[0])
        with_room = (
            key
            for key in pools
            if usage[key] + chips <= self._pool_limit(_tpu_pools()[key], region)
        )
        pool = next(with_room, pools[-1])
        for row in rows:
            row["pool"] = pool

    def _pool_limit(self, pool: QuotaLimit, region: str) -> float:
        """The setting, which holds for each TPU family; without one, chips are unlimited."""
        configured = self._context.registry.settings.get("quota")
        return float(configured.get(pool.id, {}).get(region, math.inf))

    def disk_refusal(self, name: str, row: Row) -> Any | None:
        return self.refusal(name.split("/")[1], region_of_name(name), disk_usage(row))


def disk_usage(row: Row) -> dict[str, float]:
    """What a disk counts against quota; a regional one, with each of its replicas."""
    is_ssd = TYPES[row["type"].rpartition("/")[2]][0]
    replicas = len(row.get("replicaZones", ())) or 1
    return {"SSD_TOTAL_GB" if is_ssd else "DISKS_TOTAL_GB": replicas * float(row["sizeGb"])}


def instance_usage(row: Row) -> dict[str, float]:
    """What an instance counts against quota: no CPUs, chips or addresses while it has none."""
    needs = {"INSTANCES": 1.0}
    if row["status"] in ("PENDING", "TERMINATED"):
        return needs
    kind = machine_type(row["machineType"].rpartition("/")[2])
    assert kind is not None, "only known types are stored"
    if kind.tpu is None:
        needs[kind.cpu_quota] = float(kind.cpus)
    elif pools := _pools_of(row):
        needs[row.get("pool", pools[0])] = float(_chips(row))
    needs["IN_USE_ADDRESSES"] = float(
        sum(len(interface.get("accessConfigs", ())) for interface in row["networkInterfaces"])
    )
    return needs


@cache
def _tpu_pools() -> Mapping[str, QuotaLimit]:
    """The pools of chips by metric and TPU family."""
    return {
        _key(limit): limit
        for shape in tpu_shapes().values()
        for is_spot in (False, True)
        for limit in quota_limits(shape.accelerator, is_spot, "compute")
    }


def _key(limit: QuotaLimit) -> str:
    return f"{limit.metric}/{limit.family}" if limit.family else limit.metric


def _pools_of(row: Row) -> list[str]:
    """The pools that an instance may take its chips from, the preferred one first.

    None for an instance in a reservation: its chips are reserved already.
    """
    kind = machine_type(row["machineType"].rpartition("/")[2])
    if kind is None or kind.tpu is None or "reservation" in row:
        return []
    preemptible_by_model = {"SPOT": (True,), FLEX_START: (True, False)}
    return [
        _key(limit)
        for is_spot in preemptible_by_model.get(row["scheduling"]["provisioningModel"], (False,))
        for limit in quota_limits(kind.tpu.accelerator, is_spot, "compute")
    ]


def _chips(row: Row) -> int:
    kind = machine_type(row["machineType"].rpartition("/")[2])
    return kind.tpu.accelerator.chips if kind is not None and kind.tpu is not None else 0


class _Locations(FixedCollection):
    """Locations of one kind, the same in every project."""

    def collection_name(self, request: Any) -> str:
        return f"projects/{self.context.project(request.project)}/{self.plural}"

    def names(self, prefix: str) -> Sequence[str]:
        return [prefix + name for name in self.locations()]

    def locations(self) -> Sequence[str]:
        raise NotImplementedError

    def find(self, name: str) -> Row | None:
        location = name.rpartition("/")[2]
        if location not in self.locations():
            return None
        digest = hashlib.sha256(json.dumps([self.field, location]).encode()).hexdigest()
        return {
            "kind": f"compute#{self.field}",
            "id": str(int(digest[:7], 16)),
            "creationTimestamp": "1969-12-31T16:00:00.000-08:00",  # Google's value for all of them
            "name": location,
            "description": location,
            "status": "UP",
        }


class Regions(_Locations):
    """Every region, with the project's quotas in it."""

    message, plural, field = "Region", "regions", "region"

    def __init__(self, context: ComputeContext, quota: Quota) -> None:
        super().__init__(context)
        self._quota = quota

    def locations(self) -> Sequence[str]:
        return regions()

    def show(self, name: str, row: Row) -> Row:
        _, project, _, region = name.split("/")
        usage = self._quota.usage(project, region)
        quotas = [
            {"metric": metric, "limit": limit, "usage": usage[metric]}
            for metric, limit in self._quota.limits(region).items()
        ]
        base = f"{LINK}projects/{project}/zones/"
        zone_links = [base + zone for zone in zones() if region_of(zone) == region]
        return {**super().show(name, row), "quotas": quotas, "zones": zone_links}


class Zones(_Locations):
    """Every zone."""

    message, plural, field = "Zone", "zones", "zone"

    def locations(self) -> Sequence[str]:
        return zones()

    def show(self, name: str, row: Row) -> Row:
        _, project, _, zone = name.split("/")
        return {
            **super().show(name, row),
            "region": f"{LINK}projects/{project}/regions/{region_of(zone)}",
            "availableCpuPlatforms": list(_CPU_PLATFORMS),
            "supportsPzs": False,
        }


# Of us-central1-a; other zones have fewer (k8s-config-connector, mockcompute's computezones).
_CPU_PLATFORMS = (
    *("Ampere Altra", "Intel Broadwell", "Intel Cascade Lake", "Intel Emerald Rapids"),
    *("AMD Genoa", "NVIDIA Grace", "Intel Granite Rapids", "Intel Haswell", "Intel Ice Lake"),
    *("Intel Ivy Bridge", "Google Axion", "AMD Milan", "AMD Rome", "Intel Sandy Bridge"),
    *("Intel Sapphire Rapids", "Intel Skylake", "AMD Turin"),
)
