"""Requests that carry an id of their own: sent twice, they are carried out once."""

from __future__ import annotations

from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Record
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.tpu.offerings import bad_request
from tpuctl.emulator.wire.registry import World

__all__ = ["Requests"]

_KIND = "tpu.request"


class Requests:
    """By project and `request_id`. An empty id is none."""

    def __init__(self, world: World) -> None:
        self._world = world

    def find(self, project: Project, request_id: str, what: str) -> Record | None:
        """The operation that the same request began. The id of another one is refused."""
        if not request_id:
            return None
        kept = self._world.store.get_json(_KIND, f"{project['id']}/{request_id}")
        if kept is None:
            return None
        if kept["what"] != what:  # the text is ours
            raise bad_request(f'The request id "{request_id}" was used for another request.')
        try:
            return self._world.operations.get(kept["operation"])
        except ApiError:
            return None  # ended long ago and forgotten

    def keep(self, project: Project, request_id: str, what: str, record: Record) -> None:
        if request_id:
            kept = {"what": what, "operation": record.name}
            self._world.store.put_json(_KIND, f"{project['id']}/{request_id}", kept)
