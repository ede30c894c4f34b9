"""Shared VPC: host projects and the service projects attached to them.

cloud.google.com/vpc/docs/provisioning-shared-vpc. The texts of refusals are those in public issues
("is not a shared VPC host project") or, where marked, guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.compute.core.context import ComputeContext
from tpuctl.emulator.compute.core.messages import as_row, message_of
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.shared_vpc import ATTACHED, HOSTS, host_of
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller

Row = dict[str, Any]


class SharedVpcMethods:
    """The methods of Compute Engine's projects that share networks."""

    def __init__(self, context: ComputeContext) -> None:
        self._context = context
        self._store = context.registry.store
        self.effects: Mapping[str, Effect] = {"compute.projects.xpn": Effect(self._finish_xpn)}

    def resource_of(self, project: str) -> Row:
        """A project as Compute Engine returns it."""
        raise NotImplementedError

    async def enable_xpn_host(self, request: Any, caller: Caller) -> Any:
        project = self._context.project(request.project)
        if host_of(self._store, project):
            raise _refused(f"'projects/{project}' is a service project already.")  # a guess
        return self._begin_xpn("enableXpnHost", request, caller, host=project, is_on=True)

    async def disable_xpn_host(self, request: Any, caller: Caller) -> Any:
        project = self._context.project(request.project)
        if self._attached(project):
            raise _refused(f"'projects/{project}' has service projects.")  # a guess
        return self._begin_xpn("disableXpnHost", request, caller, host=project, is_on=False)

    async def enable_xpn_resource(self, request: Any, caller: Caller) -> Any:
        host = self._context.project(request.project)
        self._require_host(host)
        project = self._project_of(request.projects_enable_xpn_resource_request_resource)
        if host_of(self._store, project) not in ("", host):
            raise _refused(f"'projects/{project}' is attached to another host.")  # a guess
        return self._begin_xpn(
            "enableXpnResource", request, caller, host=host, project=project, is_on=True
        )

    async def disable_xpn_resource(self, request: Any, caller: Caller) -> Any:
        host = self._context.project(request.project)
        project = self._project_of(request.projects_disable_xpn_resource_request_resource)
        return self._begin_xpn(
            "disableXpnResource", request, caller, host=host, project=project, is_on=False
        )

    async def get_xpn_host(self, request: Any, caller: Caller) -> Any:
        """Empty if the project has no host."""
        host = host_of(self._store, self._context.project(request.project))
        return message_of("Project", self.resource_of(host) if host else {})

    async def get_xpn_resources(self, request: Any, caller: Caller) -> Any:
        host = self._context.project(request.project)
        self._require_host(host)
        names, token = page(
            self._attached(host), request.max_results, request.page_token, str, max_size=500
        )
        resources = [{"id": name, "type": "PROJECT"} for name in names]
        kind = "compute#projectsGetXpnResources"
        answer = {"kind": kind, "resources": resources}
        return message_of("ProjectsGetXpnResources", answer | _next_page(token))

    async def list_xpn_hosts(self, request: Any, caller: Caller) -> Any:
        names, token = page(
            [name for name, _ in self._store.items(HOSTS)],
            *(request.max_results, request.page_token, str),
            max_size=500,
        )
        answer = {
            "kind": "compute#xpnHostList",
            "id": f"projects/{request.project}",
            "items": [self.resource_of(name) for name in names],
        }
        return message_of("XpnHostList", answer | _next_page(token))

    def _require_host(self, project: str) -> None:
        if self._store.get(HOSTS, project) is None:
            raise _refused(f"'projects/{project}' is not a shared VPC host project.")

    def _attached(self, host: str) -> list[str]:
        return [name for name, body in self._store.items(ATTACHED) if body.decode() == host]

    def _project_of(self, body: Any) -> str:
        resource = as_row(body).get("xpnResource", {})
        if resource.get("type") != "PROJECT":
            raise invalid("Invalid value for field 'resource.xpnResource.type'.")  # a guess
        return self._context.project(resource.get("id", ""))

    def _begin_xpn(self, verb: str, request: Any, caller: Caller, **arguments: Any) -> Any:
        target = f"projects/{arguments['host']}"
        return self._context.begin(
            *("compute.projects.xpn", verb, target, "compute.projects", caller, arguments),
            request.request_id,
        )

    def _finish_xpn(self, arguments: Arguments) -> None:
        host, project = arguments["host"], arguments.get("project", "")
        kind, name, body = (ATTACHED, project, host) if project else (HOSTS, host, "")
        if arguments["is_on"]:
            self._store.put(kind, name, body.encode())
        else:
            self._store.delete(kind, name)


def _refused(text: str) -> ApiError:
    return invalid(f"Invalid resource usage: '{text}'.", reason="invalidResourceUsage")


def _next_page(token: str) -> Row:
    return {"nextPageToken": token} if token else {}
