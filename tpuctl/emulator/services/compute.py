"""Compute Engine v1, as far as a TPU stack needs it: its service object and its operations."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
import sys
import types
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format

from tpuctl.emulator.operations import Arguments, Effect, Record
from tpuctl.emulator.services.compute_lists import listed
from tpuctl.emulator.status import ApiError, missing
from tpuctl.emulator.world import Caller, World

__all__ = ["LINK", "ComputeService", "GlobalOperations", "collection_of", "message_of"]

LINK = "https://www.googleapis.com/compute/v1/"  # what Google's links begin with
_LONGEST_WAIT = 110.0  # a wait may last "up to 2 minutes" before it answers unfinished
_PACKAGE = "google.cloud.compute_v1"


def _load_types() -> Any:
    """The messages of Compute Engine, without the package's own import of every service.

    The package as a whole takes 1.3 s to import; this way it is a third of that.
    """
    if _PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(_PACKAGE)
        assert spec is not None and spec.submodule_search_locations is not None
        bare = types.ModuleType(_PACKAGE)
        bare.__path__ = list(spec.submodule_search_locations)
        bare.__spec__ = spec
        bare.__file__ = spec.origin
        sys.modules[_PACKAGE] = bare
    return importlib.import_module(f"{_PACKAGE}.types.compute")


def message_of(name: str, value: Mapping[str, Any]) -> Any:
    """A message of Compute Engine from its JSON form."""
    return json_format.ParseDict(dict(value), getattr(_load_types(), name).pb()())


def collection_of(path: str) -> tuple[str, str] | None:
    """The module and class of the client that is about a path; None where there is none.

    `…/zones/Z/instances/I/stop` is about `instances`; operations have a client for each scope.
    """
    _load_types()
    parts = [part for part in path.removeprefix("/compute/v1").split("/")[3:] if part]
    folders = importlib.import_module(f"{_PACKAGE}.services").__path__
    for module in _candidates(parts):
        if importlib.machinery.PathFinder.find_spec(module, list(folders)) is not None:
            return module, "".join(part.capitalize() for part in module.split("_"))
    return None


def _candidates(parts: list[str]) -> list[str]:
    """Module names that may be about what follows the project in a path, best first."""
    first, rest = (parts[0], parts[1:]) if parts else ("", [])
    if first == "aggregated":
        named, scopes = rest, ["", "global_"]
    elif first == "global":
        named, scopes = rest, ["global_", ""]
    elif first in ("zones", "regions"):
        scope = first.removesuffix("s") + "_"
        named, scopes = (rest[1:], [scope, ""]) if len(rest) > 1 else ([first], [""])
    else:
        return ["projects"] if len(parts) < 2 else []
    if not named or not re.fullmatch(r"[a-z][A-Za-z0-9]*", named[0]):
        return []
    name = re.sub(r"([A-Z])", r"_\1", named[0]).lower()
    return [scope + name for scope in scopes]


class ComputeService:
    """Its collections answer requests; here is what they share: operations and their effects."""

    def __init__(self, world: World) -> None:
        from tpuctl.emulator.services.compute_network import Firewalls, Networks, Subnetworks
        from tpuctl.emulator.services.compute_project import Projects

        self.world = world
        _load_types()
        networks, firewalls, projects = Networks(self), Firewalls(self), Projects(self)
        self._handlers: Mapping[str, Any] = {
            "Networks": networks,
            "Firewalls": firewalls,
            "Subnetworks": Subnetworks(self),
            "Projects": projects,
            "GlobalOperations": GlobalOperations(self),
        }
        self.effects: Mapping[str, Effect] = {
            **networks.effects,
            **firewalls.effects,
            **projects.effects,
        }

    def handler(self, service: str) -> Any:
        return self._handlers.get(service.rpartition(".")[2])

    async def resume(self) -> None:
        return None

    def begin(
        self,
        effect: str,
        verb: str,
        target: str,
        step: str,
        caller: Caller,
        arguments: Arguments,
        request_id: str = "",
    ) -> Any:
        """Start a global operation; a request id seen before gives the operation of then."""
        project = target.split("/")[1]
        store = self.world.store
        if request_id:
            known = store.get("compute.request", f"{project}/{request_id}")
            if known is not None:
                return self.show(self.world.operations.get(known.decode()))
        number = store.next("compute-id", 10**18)
        stamp = int(datetime.now(UTC).timestamp() * 1000)
        name = f"projects/{project}/global/operations/operation-{stamp}-{number:x}"
        with store.transaction():
            if request_id:
                store.put("compute.request", f"{project}/{request_id}", name.encode())
            record = self.world.operations.begin(
                f"projects/{project}/global",
                effect,
                {
                    **arguments,
                    "target": target,
                    "verb": verb,
                    "id": str(number),
                    "user": caller.email,
                },
                self.world.pace.seconds(step),
                name=name,
            )
        return self.show(record)

    def refuse_pending(self, effect: str, target: str) -> None:
        """An insertion under way holds the name already."""
        for record in self.world.operations.pending(effect):
            if record.arguments["target"] == target:
                raise already_exists(target)

    def show(self, record: Record) -> Any:
        """The Operation message of Compute Engine."""
        value: dict[str, Any] = {
            "kind": "compute#operation",
            "id": record.arguments["id"],
            "name": record.name.rpartition("/")[2],
            "operationType": record.arguments["verb"],
            "targetLink": LINK + record.arguments["target"],
            "status": "DONE" if record.is_done else "RUNNING",
            "progress": 100 if record.is_done else 0,
            "user": record.arguments["user"],
            "insertTime": _time_text(record.started),
            "startTime": _time_text(record.started),
            "selfLink": LINK + record.name,
        }
        if record.ended is not None:
            value["endTime"] = _time_text(record.ended)
        if record.error is not None:
            value.update(_error_fields(record.error))
        return message_of("Operation", value)

    def project(self, name: str) -> str:
        """The id of a project, given by id or number."""
        return str(self.world.projects.require(name, "compute.googleapis.com")["id"])


class GlobalOperations:
    """Operations of global resources."""

    def __init__(self, service: ComputeService) -> None:
        self._service = service
        self._operations = service.world.operations

    def _name(self, request: Any) -> str:
        project = self._service.project(request.project)
        return f"projects/{project}/global/operations/{request.operation}"

    def _get(self, request: Any) -> Record:
        name = self._name(request)
        try:
            return self._operations.get(name)
        except ApiError:
            raise not_found(name) from None

    async def get(self, request: Any, caller: Caller) -> Any:
        return self._service.show(self._get(request))

    async def wait(self, request: Any, caller: Caller) -> Any:
        record = self._get(request)
        return self._service.show(await self._operations.wait(record.name, _LONGEST_WAIT))

    async def delete(self, request: Any, caller: Caller) -> Any:
        self._operations.forget(self._get(request).name)

    async def list(self, request: Any, caller: Caller) -> Any:
        parent = f"projects/{self._service.project(request.project)}/global"
        rows = [
            json_format.MessageToDict(self._service.show(record))
            for record in self._operations.list(parent)
        ]
        return listed(request, "OperationList", "compute#operationList", rows, parent)


def not_found(name: str) -> ApiError:
    return missing(f"The resource '{name}' was not found")


def already_exists(name: str) -> ApiError:
    return ApiError("ALREADY_EXISTS", f"The resource '{name}' already exists")


def bad_field(field: str, value: str, why: str) -> ApiError:
    text = f"Invalid value for field '{field}': '{value}'. {why}"
    return ApiError("INVALID_ARGUMENT", text, reason="invalid")


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _error_fields(serialized: bytes) -> dict[str, Any]:
    from google.rpc import error_details_pb2, status_pb2

    status = status_pb2.Status.FromString(serialized)
    code, http = "INTERNAL_ERROR", 500
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            code, http = info.reason, int(info.metadata.get("http", "400"))
    return {
        "error": {"errors": [{"code": code, "message": status.message}]},
        "httpErrorStatusCode": http,
        "httpErrorMessage": {400: "BAD REQUEST", 404: "NOT FOUND", 409: "CONFLICT"}.get(
            http, "INTERNAL SERVER ERROR"
        ),
    }


def failed(code: str, message: str, http: int = 400) -> ApiError:
    """An error that a Compute operation ends with, under Compute's own code."""
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": code,
        "domain": "compute.googleapis.com",
        "metadata": {"http": str(http)},
    }
    return ApiError("FAILED_PRECONDITION", message, details=[info])
