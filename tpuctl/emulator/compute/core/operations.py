"""Compute Engine operations: global, regional and zonal."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.compute.core.context import ComputeContext
from tpuctl.emulator.compute.core.errors import not_found
from tpuctl.emulator.compute.core.lists import aggregated, listed
from tpuctl.emulator.compute.core.messages import message_of
from tpuctl.emulator.compute.core.operation_resource import show
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Record
from tpuctl.emulator.wire.registry import Caller

_MAX_WAIT_SECONDS = 110.0  # Google's wait returns after up to 2 minutes, finished or not


class Operations:
    """Operations of global resources, or of those in zones or regions; and the aggregated list."""

    def __init__(self, context: ComputeContext, scope: str) -> None:
        self._context = context
        self._scope = scope
        self._operations = context.registry.operations

    def _get(self, request: Any) -> Record:
        scope = self._context.scope(request, self._scope)
        name = f"{scope}/operations/{request.operation}"
        try:
            return self._operations.get(name)
        except ApiError:
            raise not_found(name) from None

    async def get(self, request: Any, caller: Caller) -> Any:
        return message_of("Operation", show(self._get(request)))

    async def wait(self, request: Any, caller: Caller) -> Any:
        record = self._get(request)
        finished = await self._operations.wait(record.name, _MAX_WAIT_SECONDS)
        return message_of("Operation", show(finished))

    async def delete(self, request: Any, caller: Caller) -> Any:
        self._operations.forget(self._get(request).name)

    async def list(self, request: Any, caller: Caller) -> Any:
        scope = self._context.scope(request, self._scope)
        rows = [show(record) for record in self._operations.list(scope)]
        base = f"{scope}/operations"
        return listed(request, "OperationList", "compute#operationList", rows, base)

    async def aggregated_list(self, request: Any, caller: Caller) -> Any:
        project = self._context.project(request.project)
        records = {
            record.name: record
            for pattern in ("global", "zones/*", "regions/*")
            for record in self._operations.list(f"projects/{project}/{pattern}")
        }
        return aggregated(
            request,
            "OperationAggregatedList",
            "compute#operationAggregatedList",
            sorted(records, key=lambda name: records[name].parent),
            sorted({record.parent.split("/", 2)[2] for record in records.values()}),
            "operations",
            f"projects/{project}/aggregated/operations",
            lambda names: [show(records[name]) for name in names],
        )
