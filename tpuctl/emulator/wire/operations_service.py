"""google.longrunning.Operations for every API, from one shared table."""

from __future__ import annotations

import re
from typing import Any

from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Caller, Registry, Service

_MAX_WAIT_SECONDS = 60.0


class OperationsService(Service):
    """get, list, delete and wait. cancel is not emulated and returns UNIMPLEMENTED."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._operations = registry.operations

    async def get_operation(self, request: Any, caller: Caller) -> Any:
        return self._operations.message(self._operations.get(_validate_name(request.name)))

    async def list_operations(self, request: Any, caller: Caller) -> Any:
        from google.longrunning import operations_pb2

        rows, token = requested_page(request, self._operations.list(request.name))
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
