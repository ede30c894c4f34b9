"""google.longrunning.Operations for every API, from one shared table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Effect
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller, Registry

_MAX_WAIT_SECONDS = 60.0


class OperationsService:
    """get, list, delete and wait. cancel is not emulated and returns UNIMPLEMENTED."""

    effects: Mapping[str, Effect] = {}

    def __init__(self, registry: Registry) -> None:
        self._operations = registry.operations

    def handler(self, service: str) -> OperationsService:
        return self

    async def get_operation(self, request: Any, caller: Caller) -> Any:
        return self._operations.message(self._operations.get(_validate_name(request.name)))

    async def list_operations(self, request: Any, caller: Caller) -> Any:
        from google.longrunning import operations_pb2

        records = self._operations.list(request.name)
        rows, token = page(records, request.page_size, request.page_token, lambda r: r.name)
        return operations_pb2.ListOperationsResponse(
            operations=[self._operations.message(record) for record in rows],
            next_page_token=token,
        )

    async def delete_operation(self, request: Any, caller: Caller) -> None:
        self._operations.forget(_validate_name(request.name))

    async def wait_operation(self, request: Any, caller: Caller) -> Any:
        seconds = _MAX_WAIT_SECONDS
        if request.HasField("timeout"):
            seconds = min(seconds, request.timeout.ToTimedelta().total_seconds())
        record = await self._operations.wait(_validate_name(request.name), seconds)
        return self._operations.message(record)


def _validate_name(name: str) -> str:
    if not re.search(r"(?:^|/)operations/[^/]+$", name):
        raise ApiError("INVALID_ARGUMENT", f"Malformed operation name: {name!r}.")
    return name
