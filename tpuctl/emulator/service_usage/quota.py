"""Service Usage v1beta1, which has no official Python client: quota and service agents.

    GET  /v1beta1/projects/P/services/S/consumerQuotaMetrics[/METRIC[/limits/LIMIT]]
    POST /v1beta1/projects/P/services/S:generateServiceIdentity

Shapes are those of the API's reference. The forms of zero and "unlimited", and the metrics
`tpu-v5s-litepod-preemptible`, `tpu-v5s-litepod-serving-preemptible`, `tpu-v5p-preemptible` and
`tpu-v6e-preemptible`, were seen in public programs that read them. The names of other metrics
follow from the limit IDs by the same rule and are guesses.

Of Compute Engine there are the pools of TPU chips. Their metrics are named as in its errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from tpuctl.catalog import QuotaLimit, accelerator_types, quota_limits, region_of, zones
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.wire.paging import name_of, page
from tpuctl.emulator.wire.registry import Caller, Service

_SERVICE = "google.api.serviceusage.v1beta1.ServiceUsage"
_NAMES = (
    "GenerateServiceIdentity",
    "GetConsumerQuotaLimit",
    "GetConsumerQuotaMetric",
    "ListConsumerQuotaMetrics",
)
METHODS = tuple(f"{_SERVICE}/{name}" for name in _NAMES)
_METRICS = re.compile(
    r"/v1beta1/projects/([^/]+)/services/([^/:]+)/consumerQuotaMetrics"
    r"(?:/([^/:]+)(?:/limits/([^/:]+))?)?"
)
_IDENTITY = re.compile(r"/v1beta1/projects/([^/]+)/services/([^/:]+):generateServiceIdentity")
_TPU = "tpu.googleapis.com"
_COMPUTE = "compute.googleapis.com"
_LIMIT_ID = re.compile(r"TPU(\w+)PerProjectPer(Zone|Region)ForTPUAPI")
_WORD = re.compile(r"V\d+[a-zA-Z]|[A-Z][a-z]+")
_UNLIMITED = -1
# Default limits of a new project per zone, by the middle part of the limit ID; the serving limits
# are guesses. They are only shown: until a setting limits them, all are unlimited, as enforced.
_DEFAULTS = {
    "V2s": 40,
    "V2sPod": 32,
    "V2sPreemptible": 120,
    "V2sPreemptiblePod": 32,
    "V3s": 40,
    "V3sPod": 32,
    "V3sPreemptible": 120,
    "V3sPreemptiblePod": 32,
    "V4sPod": 0,
    "V4sPreemptiblePod": 0,
    "V5P": 128,
    "V5PPreemptible": 768,
    "V5sLitepod": 512,
    "V5sLitepodServing": 512,
    "V5sPreemptibleLitepod": 1536,
    "V5sPreemptibleLitepodServing": 1536,
    "V6E": 512,
    "V6EPreemptible": 1536,
}
# Service agents by API; those of most others are named after it, such as gcp-sa-pubsub.
_AGENTS = {
    "aiplatform.googleapis.com": "gcp-sa-aiplatform",
    "cloudbuild.googleapis.com": "gcp-sa-cloudbuild",
    "compute.googleapis.com": "compute-system",
    "storage.googleapis.com": "gs-project-accounts",
    "tpu.googleapis.com": "cloud-tpu",  # TPU's own generateServiceIdentity names gcp-sa-tpu
}

Json = dict[str, Any]


class QuotaService(Service):
    """Answers JSON requests; there is no gRPC."""

    def method_of(self, verb: str, path: str) -> str | None:
        """The method of a request, or None if it is not emulated."""
        metrics = _METRICS.fullmatch(path) if verb == "GET" else None
        if metrics is not None:
            if metrics[3]:
                return "GetConsumerQuotaLimit" if metrics[4] else "GetConsumerQuotaMetric"
            return "ListConsumerQuotaMetrics"
        if verb == "POST" and _IDENTITY.fullmatch(path):
            return "GenerateServiceIdentity"
        return None

    async def answer(
        self, verb: str, path: str, query: Mapping[str, Sequence[str]], caller: Caller
    ) -> bytes:
        """The response to a request that `method_of` recognizes; raises ApiError."""
        method, metrics = self.method_of(verb, path), _METRICS.fullmatch(path)
        match = metrics or _IDENTITY.fullmatch(path)
        assert method is not None and match is not None
        async with self._registry.traffic.track(f"{_SERVICE}/{method}", caller) as call:
            call.project = match[1]
            await call.arrive(dict)
            project = self._registry.projects.require(match[1])
            if metrics is None:
                return _encode(_identity(project, match[2]))
            is_full = (query.get("view") or ["BASIC"])[-1] in ("FULL", "2")
            rows = self._metrics(project, match[2], full=is_full)
            if metrics[3]:
                rows = _find_row(rows, metrics[3])
            if metrics[4]:
                rows = _find_row(rows[0]["consumerQuotaLimits"], metrics[4])
            return _encode(rows[0] if metrics[3] else _page(rows, query))

    def _metrics(self, project: Project, api: str, *, full: bool) -> list[Json]:
        """The metrics of TPUs at Cloud TPU and Compute Engine; other APIs have none here."""
        if not self._registry.projects.has_enabled(project, api):
            raise ApiError("FAILED_PRECONDITION", f"Service '{api}' is not enabled.")
        settings = self._registry.settings.get("quota")
        if api == _COMPUTE:
            pools = _compute_pools()
            return [_pool_metric(project, pools[id_], settings, full=full) for id_ in sorted(pools)]
        if api != _TPU:
            return []
        stems = {*_DEFAULTS, *(match[1] for key in settings if (match := _LIMIT_ID.fullmatch(key)))}
        return [_metric(project, stem, settings, full=full) for stem in sorted(stems)]


def _metric(
    project: Project, stem: str, settings: Mapping[str, Mapping[str, int]], *, full: bool
) -> Json:
    words = [word.lower() for word in _WORD.findall(stem)]
    words.sort(key="preemptible".__eq__)  # last in metrics, second in IDs
    row = _metric_row(project, _TPU, "-".join(["tpu", *words]))
    for kind, default in (("Zone", _DEFAULTS.get(stem, 0)), ("Region", _UNLIMITED)):
        locations = zones() if kind == "Zone" else sorted({region_of(zone) for zone in zones()})
        changed = settings.get(f"TPU{stem}PerProjectPer{kind}ForTPUAPI", {})
        dimension = kind.lower()
        buckets = [_bucket(_UNLIMITED, default, {})]
        for location in locations:
            if full or location in changed:
                buckets.append(
                    _bucket(changed.get(location, _UNLIMITED), default, {dimension: location})
                )
        row["consumerQuotaLimits"].append(_limit(row, [dimension], buckets, locations))
    return row


def _metric_row(project: Project, api: str, short_name: str) -> Json:
    """A metric that has no limits yet."""
    metric = f"{api}/{short_name}"
    parent = f"projects/{project['number']}/services/{api}"
    return {
        "name": f"{parent}/consumerQuotaMetrics/{quote(metric, safe='')}",
        "metric": metric,
        "displayName": short_name,
        "consumerQuotaLimits": [],
        "unit": "1",
    }


def _compute_pools() -> dict[str, list[QuotaLimit]]:
    """The pools of chips by limit ID, with one limit for each TPU family."""
    pools: dict[str, list[QuotaLimit]] = {}
    for accelerator in accelerator_types().values():
        for is_spot in (False, True):
            for limit in quota_limits(accelerator, is_spot, "compute"):
                if limit not in pools.setdefault(limit.id, []):
                    pools[limit.id].append(limit)
    return pools


def _pool_metric(
    project: Project,
    pools: Sequence[QuotaLimit],
    settings: Mapping[str, Mapping[str, int]],
    *,
    full: bool,
) -> Json:
    row = _metric_row(project, _COMPUTE, pools[0].metric.lower())
    locations = sorted({region_of(zone) for zone in zones()})
    changed = settings.get(pools[0].id, {})
    buckets = [_bucket(_UNLIMITED, _UNLIMITED, {})]
    for location in locations:
        if full or location in changed:
            amount = changed.get(location, _UNLIMITED)
            buckets += [_bucket(amount, _UNLIMITED, pool.dimensions(location)) for pool in pools]
    limit = _limit(row, list(pools[0].dimensions("")), buckets, locations)
    return {**row, "consumerQuotaLimits": [limit]}


def _limit(
    metric: Json, dimensions: Sequence[str], buckets: Sequence[Json], locations: Sequence[str]
) -> Json:
    path = quote("/".join(["", "project", *dimensions]), safe="")
    return {
        "name": f"{metric['name']}/limits/{path}",
        "metric": metric["metric"],
        "unit": "/".join(["1", "{project}", *(f"{{{dimension}}}" for dimension in dimensions)]),
        "quotaBuckets": list(buckets),
        "allowsAdminOverrides": True,
        "supportedLocations": list(locations),
    }


def _bucket(effective: int, default: int, dimensions: Mapping[str, str]) -> Json:
    """Zero limits are omitted, as in all JSON forms of protobuf messages."""
    bucket: Json = {}
    if effective:
        bucket["effectiveLimit"] = str(effective)
    if default:
        bucket["defaultLimit"] = str(default)
    if dimensions:
        bucket["dimensions"] = dict(dimensions)
    return bucket


def _identity(project: Project, api: str) -> Json:
    """A finished operation; agent names are from docs.cloud.google.com on service agents."""
    agent = _AGENTS.get(api) or f"gcp-sa-{api.partition('.')[0]}"
    response: Json = {
        "@type": "type.googleapis.com/google.api.serviceusage.v1beta1.ServiceIdentity",
        "email": f"service-{project['number']}@{agent}.iam.gserviceaccount.com",
        "uniqueId": f"1{project['number']:020d}",
    }
    return {"name": "operations/finished.DONE_OPERATION", "done": True, "response": response}


def _find_row(rows: list[Json], last: str) -> list[Json]:
    """The row whose name ends in this percent-encoded segment, as a list."""
    matching = [row for row in rows if unquote(row["name"].rpartition("/")[2]) == unquote(last)]
    if not matching:
        raise missing(f"Requested entity was not found: {unquote(last)}.")
    return matching


def _page(rows: list[Json], query: Mapping[str, Sequence[str]]) -> Json:
    size, token = (query.get("pageSize") or ["0"])[-1], (query.get("pageToken") or [""])[-1]
    if not re.fullmatch(r"\d{1,9}", size):
        raise invalid(f"Invalid value at 'page_size' (TYPE_INT32), \"{size}\"")
    items, next_token = page(rows, int(size), token, name_of)
    return {"metrics": items, **({"nextPageToken": next_token} if next_token else {})}


def _encode(value: Json) -> bytes:
    return json.dumps(value, indent=2).encode()
