"""Quota limits and flex-start zones of the catalog, compared with public reports."""

from __future__ import annotations

import pytest

from tpuctl.catalog import (
    AcceleratorType,
    accelerator_type,
    accelerator_types,
    flex_start_zones,
    quota_limit,
    quota_limits,
)


def known_type(name: str) -> AcceleratorType:
    accelerator = accelerator_type(name)
    assert accelerator is not None
    return accelerator


@pytest.mark.parametrize(
    ("name", "spot", "limit", "amount"),
    [
        # skypilot 0.14.1, cloud_vm_ray_backend.py, for region and zone
        ("v2-32", True, "TPUV2sPreemptiblePodPerProjectPerRegionForTPUAPI", 32),
        ("v2-32", True, "TPUV2sPreemptiblePodPerProjectPerZoneForTPUAPI", 32),
        # marin-community/marin#87; a report of 2026-01 has the same for a single v4-8
        ("v4-64", True, "TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI", 64),
        ("v4-8", True, "TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI", 8),
        ("v5litepod-16", True, "TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI", 16),
        ("v5litepod-16", False, "TPUV5sLitepodPerProjectPerZoneForTPUAPI", 16),
        # notes of 2025-08 and 2026: a v5litepod-8 was refused at 4, a v5litepod-4 fitted
        ("v5litepod-8", False, "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI", 8),
        ("v5litepod-4", True, "TPUV5sPreemptibleLitepodServingPerProjectPerZoneForTPUAPI", 4),
        # a node of 8 TensorCores had used up "Limit 8" of both (2026-02)
        ("v5p-8", False, "TPUV5PPerProjectPerRegionForTPUAPI", 8),
        ("v5p-8", False, "TPUV5PPerProjectPerZoneForTPUAPI", 8),
        ("v5p-8", True, "TPUV5PPreemptiblePerProjectPerZoneForTPUAPI", 8),
        # marin-community/marin#1612
        ("v6e-4", True, "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI", 4),
        ("v6e-16", False, "TPUV6EPerProjectPerZoneForTPUAPI", 16),
    ],
)
def test_quota_limits_match_public_reports(name: str, spot: bool, limit: str, amount: int) -> None:
    limits = {each.id: each for each in quota_limits(known_type(name), spot)}
    assert limits[limit].amount(known_type(name)) == amount
    assert limits[limit].scope == ("zone" if "PerZone" in limit else "region")


def test_every_type_has_zonal_and_regional_limit() -> None:
    for accelerator in accelerator_types().values():
        for spot in (False, True):
            scopes = [limit.scope for limit in quota_limits(accelerator, spot)]
            if accelerator.in_tpu_api:
                assert scopes == ["zone", "region"], accelerator.name
                assert quota_limit(accelerator, spot).scope == "zone"
            else:
                assert scopes == []
    assert quota_limits(known_type("v5litepod-8"), False, "compute") == ()
    assert quota_limits(known_type("v4-8"), True, "compute") == ()


@pytest.mark.parametrize(
    ("name", "spot", "metric", "dimensions", "chips"),
    [
        # "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region us-east5." and the ids of a
        # project's quota, 2026-08 (xbill9/gemma4-dev)
        ("v6e-8", False, "TPUS_PER_TPU_FAMILY", {"region": "R", "tpu_family": "CT6E"}, 8),
        ("v6e-16", True, "PREEMPTIBLE_TPU_V6E", {"region": "R"}, 16),
        ("v5p-2", False, "TPU_V5P", {"region": "R"}, 1),
        ("v5p-8", False, "TPU_V5P", {"region": "R"}, 4),
        ("v5p-8", True, "PREEMPTIBLE_TPU_V5P", {"region": "R"}, 4),
        # GKE's plan-tpus
        ("tpu7x-16", False, "TPUS_PER_TPU_FAMILY", {"region": "R", "tpu_family": "TPU7X"}, 8),
    ],
)
def test_compute_engine_counts_chips_in_pools_of_a_region(
    name: str, spot: bool, metric: str, dimensions: dict[str, str], chips: int
) -> None:
    (limit,) = quota_limits(known_type(name), spot, "compute")
    assert (limit.metric, limit.dimensions("R")) == (metric, dimensions)
    assert limit.id == f"{metric.replace('_', '-')}-per-project-region"
    assert limit.amount(known_type(name)) == chips


def test_flex_start_zones_match_public_reports() -> None:
    # Zone tables of 2026-08; of the zones tried, only us-west4-a accepted a v5litepod-1.
    assert "us-west4-a" in flex_start_zones(known_type("v5litepod-1"))
    assert "europe-west4-b" not in flex_start_zones(known_type("v5litepod-1"))
    assert {"us-east5-a", "us-east5-b", "europe-west4-a"} <= set(
        flex_start_zones(known_type("v6e-1"))
    )
    refused = {"asia-east1-c", "us-central1-b", "us-south1-a"}
    assert not refused & set(flex_start_zones(known_type("v6e-1")))
    assert flex_start_zones(known_type("v3-8")) == ()
    for accelerator in accelerator_types().values():
        assert set(flex_start_zones(accelerator)) <= set(accelerator.zones)
