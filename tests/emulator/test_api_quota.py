"""Quota and service agents of Service Usage v1beta1, which has no Python client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.locations import PROJECT
from tpuctl import catalog
from tpuctl.catalog.quota import quota_limits

SERVICES = f"/v1beta1/projects/{PROJECT}/services"
METRICS = f"{SERVICES}/tpu.googleapis.com/consumerQuotaMetrics"
SPOT_V5E = "tpu.googleapis.com/tpu-v5s-litepod-preemptible"

Json = dict[str, Any]


def get(cloud: Any, path: str) -> Json:
    answer = cloud.request("GET", path)
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    return response


def bucket_of(metric: Json, kind: str, location: str) -> Json | None:
    """Return the bucket of a location, or None if the default bucket applies."""
    (limit,) = [
        limit
        for limit in metric["consumerQuotaLimits"]
        if limit["unit"] == f"1/{{project}}/{{{kind}}}"
    ]
    assert location in limit["supportedLocations"]
    first, *others = limit["quotaBuckets"]
    assert "dimensions" not in first
    for bucket in others:
        if bucket["dimensions"] == {kind: location}:
            return dict(bucket)
    return None


def test_quota_metrics_show_defaults_and_overrides(cloud: Any) -> None:
    """A zero is omitted; -1 means unlimited."""
    quota = {
        "TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI": {
            "us-west4-a": 0,
            "europe-west4-b": 16,
        },
        "TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI": {"europe-west4": 32},
    }
    cloud.put_setting("quota", quota)
    for view, has_all in (("BASIC", False), ("FULL", True)):
        metrics = {row["metric"]: row for row in get(cloud, f"{METRICS}?view={view}")["metrics"]}
        spot = metrics[SPOT_V5E]
        closed = bucket_of(spot, "zone", "us-west4-a")
        assert closed == {"defaultLimit": "1536", "dimensions": {"zone": "us-west4-a"}}
        opened = bucket_of(spot, "zone", "europe-west4-b")
        assert opened is not None and opened["effectiveLimit"] == "16"
        region = bucket_of(spot, "region", "europe-west4")
        assert region is not None
        assert (region["effectiveLimit"], region["defaultLimit"]) == ("32", "-1")
        untouched = bucket_of(spot, "zone", "us-central1-a")
        assert (untouched is not None) == has_all
        if untouched is not None:  # as enforced
            assert (untouched["effectiveLimit"], untouched["defaultLimit"]) == ("-1", "1536")
        # Metrics that public programs read for newer spot nodes.
        for name in ("tpu-v5p-preemptible", "tpu-v6e-preemptible"):
            assert f"tpu.googleapis.com/{name}" in metrics
        assert "tpu.googleapis.com/tpu-v5s-litepod-serving-preemptible" in metrics


def test_pools_of_chips_of_compute_engine(cloud: Any) -> None:
    """One metric for each pool; that of families has a bucket for each family of a region."""
    quota = {
        "TPUS-PER-TPU-FAMILY-per-project-region": {"us-east5": 0},
        "PREEMPTIBLE-TPU-V6E-per-project-region": {"us-east5": 1536},
    }
    cloud.put_setting("quota", quota)
    path = f"{SERVICES}/compute.googleapis.com/consumerQuotaMetrics"
    names = {row["metric"] for row in get(cloud, path)["metrics"]}
    assert {"compute.googleapis.com/tpu_v5p", "compute.googleapis.com/preemptible_tpu_v5p"} < names
    name = "compute.googleapis.com%2Ftpus_per_tpu_family"
    (limit,) = get(cloud, f"{path}/{name}")["consumerQuotaLimits"]
    assert limit["unit"] == "1/{project}/{region}/{tpu_family}"
    general, *buckets = limit["quotaBuckets"]
    assert general == {"effectiveLimit": "-1", "defaultLimit": "-1"}
    assert [bucket["dimensions"] for bucket in buckets] == [
        {"region": "us-east5", "tpu_family": "CT6E"},
        {"region": "us-east5", "tpu_family": "TPU7X"},
    ]
    assert all("effectiveLimit" not in bucket for bucket in buckets)  # zero
    name = "compute.googleapis.com%2Fpreemptible_tpu_v6e"
    (limit,) = get(cloud, f"{path}/{name}")["consumerQuotaLimits"]
    assert limit["unit"] == "1/{project}/{region}"
    assert limit["quotaBuckets"][1]["effectiveLimit"] == "1536"


def test_every_catalog_limit_has_quota_metric(cloud: Any) -> None:
    """Every limit that a node counts against can be read, including overrides."""
    ids = {
        limit.id: limit.scope
        for accelerator in catalog.accelerator_types().values()
        for spot in (False, True)
        for limit in quota_limits(accelerator, spot)
    }
    assert ids
    places = {"zone": "us-central1-a", "region": "us-central1"}
    fresh = get(cloud, METRICS)["metrics"]
    for number, (name, scope) in enumerate(sorted(ids.items()), 1000):
        cloud.put_setting("quota", {name: {places[scope]: number}})
        metrics = get(cloud, METRICS)["metrics"]
        assert [row["name"] for row in metrics] == [row["name"] for row in fresh]
        buckets = [bucket_of(row, scope, places[scope]) for row in metrics]
        assert [bucket["effectiveLimit"] for bucket in buckets if bucket] == [str(number)], name


def test_get_quota_metric_and_limit_by_name(cloud: Any) -> None:
    listed = get(cloud, METRICS)["metrics"]
    number = cloud.project_number
    for metric in listed:
        assert metric["name"].startswith(f"projects/{number}/services/tpu.googleapis.com/")
        assert get(cloud, f"/v1beta1/{metric['name']}") == metric
    for limit in listed[0]["consumerQuotaLimits"]:
        assert get(cloud, f"/v1beta1/{limit['name']}") == limit
    absent = f"{METRICS}/tpu.googleapis.com%2Fnone"
    answer = cloud.request("GET", absent)
    assert (answer.status_code, answer.json()["error"]["status"]) == (404, "NOT_FOUND")


def test_quota_metrics_are_paginated(cloud: Any) -> None:
    everything = get(cloud, METRICS)["metrics"]
    metrics, token = [], ""
    for _ in range(len(everything)):
        page = get(cloud, f"{METRICS}?pageSize=5&pageToken={token}")
        assert len(page["metrics"]) <= 5
        metrics += page["metrics"]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert metrics == everything


def test_disabled_api_is_rejected(new_cloud: Any) -> None:
    answer = new_cloud.request("GET", METRICS)
    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "FAILED_PRECONDITION")
    answer = new_cloud.request("GET", METRICS.replace(PROJECT, "missing-project"))
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("api", "agent"),
    [
        ("tpu.googleapis.com", "cloud-tpu"),
        ("compute.googleapis.com", "compute-system"),
        ("pubsub.googleapis.com", "gcp-sa-pubsub"),
    ],
)
def test_generate_service_identity(cloud: Any, api: str, agent: str) -> None:
    number = cloud.project_number
    path = f"{SERVICES}/{api}:generateServiceIdentity"
    answers = [cloud.request("POST", path, json={}) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    operation = answers[0].json()
    assert operation["done"] is True
    kind = "type.googleapis.com/google.api.serviceusage.v1beta1.ServiceIdentity"
    assert operation["response"]["@type"] == kind
    expected = f"service-{number}@{agent}.iam.gserviceaccount.com"
    assert operation["response"]["email"] == expected
    assert operation["response"]["uniqueId"].isdigit()


def test_tpu_api_returns_its_own_service_agent(cloud: Any) -> None:
    path = f"{SERVICES}/tpu.googleapis.com:generateServiceIdentity"
    operation = cloud.request("POST", path, json={}).json()
    parent = f"projects/{PROJECT}/locations/europe-west4-a"
    answer = cloud.tpu().generate_service_identity(request={"parent": parent}, timeout=60)
    number = cloud.project_number
    email = operation["response"]["email"]
    assert email == f"service-{number}@cloud-tpu.iam.gserviceaccount.com"
    assert answer.identity.email == f"service-{number}@gcp-sa-tpu.iam.gserviceaccount.com"


def test_unimplemented_methods_return_501(cloud: Any) -> None:
    path = f"{METRICS}:importConsumerOverrides"
    answer = cloud.request("POST", path, json={})
    assert (answer.status_code, answer.json()["error"]["status"]) == (501, "UNIMPLEMENTED")
