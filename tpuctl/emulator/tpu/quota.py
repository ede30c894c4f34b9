"""TPU quota: usage of nodes and queued resources against the configured limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu

from tpuctl import catalog
from tpuctl.catalog.quota import quota_limits
from tpuctl.emulator.state.errors import ApiError, error_detail
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.tpu.nodes import KIND
from tpuctl.emulator.tpu.queued_resource_store import QUEUED, is_spot, node_of
from tpuctl.emulator.tpu.v1_view import KIND as KIND_V1
from tpuctl.emulator.tpu.v1_view import NodeV1
from tpuctl.emulator.wire.registry import Registry


@dataclass(frozen=True)
class Demand:
    """An existing or requested node."""

    zone: str
    accelerator: catalog.AcceleratorType
    spot: bool


def wants_spot(node: Any) -> bool:
    """Whether a node of any API version is preemptible."""
    scheduling = node.scheduling_config
    return bool(scheduling.preemptible or getattr(scheduling, "spot", False))


class Quota:
    """Enforces limits. A limit that is not configured is unlimited."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store = registry.store

    def require(self, project: Project, demands: Iterable[Demand]) -> None:
        """Raise an error with all limits that would be exceeded; the message has the first."""
        limits: dict[str, dict[str, int]] = self._registry.settings.get("quota")
        if not limits:
            return
        requested = _sums(demands)
        used = _sums(self._existing_demands(project["id"]))
        exceeded = []
        for (name, location), amount in requested.items():
            limit = limits.get(name, {}).get(location)
            if limit is not None and used[name, location] + amount > limit:
                exceeded.append((name, location, limit))
        if exceeded:
            raise _refusal(project, exceeded)

    def usage(self, project_id: str) -> dict[str, dict[str, int]]:
        """By limit and location, like the setting."""
        usage: dict[str, dict[str, int]] = {}
        for (name, location), amount in _sums(self._existing_demands(project_id)).items():
            usage.setdefault(name, {})[location] = amount
        return usage

    def _existing_demands(self, project_id: str) -> Iterator[Demand]:
        """Nodes count until deleted, in any state (skypilot#1483: preempted ones too), and so do
        queued resources, including FAILED and SUSPENDED ones (marin#87)."""
        prefix = f"projects/{project_id}/"
        kinds = ((KIND, cloud_tpu.Node.pb()), (KIND_V1, NodeV1))
        for kind, message in kinds:
            for name, body in self._store.items(kind, prefix):
                node = message.FromString(body)
                if not getattr(node, "queued_resource", ""):
                    yield from _demand(name, node.accelerator_type, wants_spot(node))
        for document in self._store.list_json(QUEUED, prefix):
            for spec in document["tpu"]["nodeSpec"]:
                accelerator = node_of(spec).accelerator_type
                yield from _demand(document["name"], accelerator, is_spot(document, spec))


def _demand(name: str, accelerator_type: str, spot: bool) -> Iterator[Demand]:
    accelerator = catalog.accelerator_type(accelerator_type)
    if accelerator is not None:
        yield Demand(name.split("/")[3], accelerator, spot)


def _sums(demands: Iterable[Demand]) -> Counter[tuple[str, str]]:
    sums: Counter[tuple[str, str]] = Counter()
    for demand in demands:
        for limit in quota_limits(demand.accelerator, demand.spot):
            location = demand.zone if limit.scope == "zone" else catalog.region_of(demand.zone)
            sums[limit.id, location] += limit.amount(demand.accelerator)
    return sums


def _refusal(project: Project, exceeded: list[tuple[str, str, int]]) -> ApiError:
    """Wording from public reports of 2025, including two limits in one error."""
    violations = []
    for name, location, limit in exceeded:
        scope = "zone" if location in catalog.zones() else "region"
        violations.append(
            {
                "subject": f"project:{project['number']}",
                "description": f"Quota '{name}' exhausted. Limit {limit} in {scope} {location}",
            }
        )
    name, location, limit = exceeded[0]
    scope = "zone" if location in catalog.zones() else "region"
    return ApiError(
        "RESOURCE_EXHAUSTED",
        f"Quota limit '{name}' has been exceeded. Limit: {limit} in {scope} {location}.",
        details=[error_detail("QuotaFailure", violations=violations)],
    )
