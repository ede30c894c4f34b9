"""`orphans`: list everything in a project that was created by any stack."""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import TpuctlError
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.status.inventory import InventoryItem, ResourceKind, with_requests


async def orphans(
    cloud: Cloud,
    emit: Emit,
    on_unlisted: Callable[[type[ResourceKind], TpuctlError], None] | None = None,
) -> list[InventoryItem]:
    """List everything that any stack created in the cloud's project, in every zone.

    The error of a kind that cannot be listed is passed to `on_unlisted`. Without it, the error is
    raised if the kind is billable, otherwise emitted as a warning.
    """

    def raise_or_warn(kind: type[ResourceKind], error: TpuctlError) -> None:
        if kind.is_billable:
            raise error
        emit(WarningIssued(error.diagnostics[0]))

    return with_requests(
        await list_resources(
            cloud, cloud.project, must_exist=True, on_error=on_unlisted or raise_or_warn
        )
    )
