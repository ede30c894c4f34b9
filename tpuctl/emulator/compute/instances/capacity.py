"""Whether Google can serve an instance: quota, reservations, and stockouts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tpuctl.emulator.compute.core.context import ComputeContext
from tpuctl.emulator.compute.core.errors import failed
from tpuctl.emulator.compute.instances.instance_spec import Draft
from tpuctl.emulator.compute.offerings.quota import Quota, disk_usage, instance_usage
from tpuctl.emulator.state.locations import region_of

Row = dict[str, Any]
_POLL_SECONDS = 0.1


class Capacity:
    """Whether instances can be created, and when."""

    def __init__(self, context: ComputeContext, quota: Quota) -> None:
        self._faults = context.registry.faults
        self._weather = context.registry.weather
        self._quota = quota

    def refusal(self, name: str, drafts: Sequence[Draft]) -> Row | None:
        """Why these instances of one kind cannot be created, as arguments of `failed`.

        `name` is one of the instances. A matching stockout counts as used.
        """
        project, zone = name.split("/")[1], name.split("/")[3]
        self._quota.choose_pool(project, region_of(zone), [draft.row for draft in drafts])
        needs: Counter[str] = Counter()
        for draft in drafts:
            needs.update(instance_usage(draft.row))
            for disk in draft.disks.values():
                needs.update(disk_usage(disk))
        refusal = self._quota.refusal(project, region_of(zone), needs)
        if refusal is not None or "reservation" in drafts[0].row:
            return refusal
        attributes = _attributes(name, drafts[0].row)
        fault = self._faults.take("stockout", **attributes)
        if fault is None and not self._weather.refuses(attributes, len(drafts)):
            return None
        return stockout(attributes, str((fault or {}).get("text") or ""))

    async def wait(self, name: str, row: Row, until: float) -> Row:
        """Wait until quota and stocks allow an instance, and return the changes of its row.

        Raises the reason for waiting as ApiError after `until`. A stockout delays it for as long as
        the fault exists: docs.cloud.google.com/compute/docs/instances/instance-lifecycle, PENDING.
        """
        attributes = _attributes(name, row)
        stock = self._faults.take("stockout", **attributes)
        project, region = name.split("/")[1], region_of(name.split("/")[3])
        while True:
            admitted = {**row, "status": "PROVISIONING"}
            self._quota.choose_pool(project, region, [admitted])
            needs = Counter(instance_usage(admitted))
            needs.subtract(instance_usage(row))
            refusal = self._quota.refusal(project, region, needs)
            is_sold_out = stock is not None and any(
                fault.kind == "stockout" and not fault.is_exhausted() and fault.matches(attributes)
                for fault in self._faults.all()
            )
            is_sold_out |= "reservation" not in row and not self._weather.has_room(attributes)
            if refusal is None and not is_sold_out:
                return {field: admitted[field] for field in ("status", "pool") if field in admitted}
            if time.time() >= until:
                text = str(stock.get("text") or "") if stock else ""
                raise failed(**(refusal or stockout(attributes, text)))
            await asyncio.sleep(_POLL_SECONDS)


def _attributes(name: str, row: Row) -> dict[str, str]:
    """What faults are matched against."""
    kind = row["machineType"].rpartition("/")[2]
    return {"project": name.split("/")[1], "zone": name.split("/")[3], "type": kind}


def stockout(attributes: Row, text: str) -> Row:
    """Wording from CCExtractor/sample-platform#901 (2024) and GoogleCloudPlatform/ai-on-gke#849."""
    project, zone, kind = attributes["project"], attributes["zone"], attributes["type"]
    default_text = (
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request.  Try a different zone, or try again later."
    )
    localized = (
        f"A {kind} VM instance is currently unavailable in the {zone} zone. Alternatively, you can "
        "try your request again with a different VM hardware configuration or at a later time. "
        "For more information, see the troubleshooting documentation."
    )
    link = "https://cloud.google.com/compute/docs/resource-error"
    metadata = {"vmType": kind, "attachment": "", "zone": zone, "zonesAvailable": ""}
    info = {
        "reason": "resource_availability",
        "domain": "compute.googleapis.com",
        "metadatas": metadata,
    }
    return {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
        "message": text or default_text,
        "http": 503,
        "more": [
            {"help": {"links": [{"description": "Troubleshooting documentation", "url": link}]}},
            {"localizedMessage": {"locale": "en-US", "message": localized}},
            {"errorInfo": info},
        ],
    }
