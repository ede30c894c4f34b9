"""`orphans`: list everything in a project that was created by any stack."""

from __future__ import annotations

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import TpuctlError
from tpuctl.flows.inventory import list_resources
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.inventory import InventoryItem, with_requests

__all__ = ["orphans"]


async def orphans(cloud: Cloud, emit: Emit) -> list[InventoryItem]:
    """List everything that any stack created in the cloud's project, in every zone.

    Emits a warning for kinds that may not be listed and are not billable.
    """

    def warn(error: TpuctlError) -> None:
        emit(WarningIssued(error.diagnostics[0]))

    return with_requests(
        await list_resources(cloud, cloud.project, must_exist=True, on_denied=warn)
    )
