"""Idempotency by request ID: a repeated request returns the same operation."""

from __future__ import annotations

from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Record
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.tpu.offerings import bad_request
from tpuctl.emulator.wire.registry import Registry

_KIND = "tpu.request"


class RequestIds:
    """Operations by project and request ID. An empty ID disables the check."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def find(self, project: Project, request_id: str, action: str) -> Record | None:
        """The operation that the same request began; reuse by another request is an error."""
        if not request_id:
            return None
        stored = self._registry.store.get_json(_KIND, f"{project['id']}/{request_id}")
        if stored is None:
            return None
        if stored["request"] != action:  # the wording is our own
            raise bad_request(f'The request id "{request_id}" was used for another request.')
        try:
            return self._registry.operations.get(stored["operation"])
        except ApiError:
            return None  # finished long ago and deleted

    def save(self, project: Project, request_id: str, action: str, record: Record) -> None:
        if request_id:
            stored = {"request": action, "operation": record.name}
            self._registry.store.put_json(_KIND, f"{project['id']}/{request_id}", stored)
