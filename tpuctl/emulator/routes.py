"""Which API a request belongs to, and the one way to its handler for REST and gRPC alike."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.projects import consumer_of
from tpuctl.emulator.status import ApiError, unimplemented
from tpuctl.emulator.wire import Method, decode, encode, methods_of, parse_wire, shared_methods
from tpuctl.emulator.world import Caller, World

__all__ = ["NoSuchPath", "Router", "Surface"]


class NoSuchPath(Exception):
    """No API has this path."""


@dataclass(frozen=True)
class Surface:
    """One gRPC service of one API, and where its official client keeps the tables of it."""

    service: str  # "google.cloud.tpu.v2.Tpu"
    package: str  # "google.cloud.tpu_v2.services.tpu"
    client: str  # "Tpu", as in TpuTransport
    key: str  # which of our services answers; "" for none
    paths: str = ""  # a pattern of the REST paths that may be its
    family: str = "platform"  # the shape of its errors
    api: str = ""  # must be enabled in the project that a request names


_SURFACES = (
    Surface(
        "google.cloud.tpu.v2.Tpu",
        "google.cloud.tpu_v2.services.tpu",
        "Tpu",
        "tpu",
        r"/v2/projects/",
        api="tpu.googleapis.com",
    ),
    Surface(
        "google.cloud.resourcemanager.v3.Projects",
        "google.cloud.resourcemanager_v3.services.projects",
        "Projects",
        "projects",
        r"/v3/(?:projects|operations)",
    ),
    Surface(
        "google.api.serviceusage.v1.ServiceUsage",
        "google.cloud.service_usage_v1.services.service_usage",
        "ServiceUsage",
        "services",
        r"/v1/(?:operations|[a-z]+/[^/]+/services)",
    ),
    Surface(
        "google.iam.admin.v1.IAM",
        "google.cloud.iam_admin_v1.services.iam",
        "IAM",
        "identity",
        api="iam.googleapis.com",
    ),
    # APIs known by name whose methods are all not imitated yet.
    Surface(
        "google.cloud.tpu.v1.Tpu",
        "google.cloud.tpu_v1.services.tpu",
        "Tpu",
        "",
        r"/v1/projects/[^/]+/locations/",
    ),
    Surface(
        "google.cloud.tpu.v2alpha1.Tpu",
        "google.cloud.tpu_v2alpha1.services.tpu",
        "Tpu",
        "",
        r"/v2alpha1/",
    ),
    Surface(
        "google.cloud.billing.v1.CloudBilling",
        "google.cloud.billing_v1.services.cloud_billing",
        "CloudBilling",
        "",
        r"/v1/(?:billingAccounts|projects/[^/]+/billingInfo)",
    ),
    Surface(
        "google.cloud.billing.v1.CloudCatalog",
        "google.cloud.billing_v1.services.cloud_catalog",
        "CloudCatalog",
        "",
        r"/v1/services",
    ),
)
# Services that every API's host serves; which of our services answers them.
_SHARED = {
    "google.longrunning.Operations": Surface(
        "google.longrunning.Operations", "", "Operations", "operations"
    ),
    "google.cloud.location.Locations": Surface(
        "google.cloud.location.Locations", "", "Locations", "tpu"
    ),
}
_COMPUTE = re.compile(r"(?:/compute/v1)?/projects/[^/]+(?:/|$)")


class Router:
    """Finds and calls handlers. Tables are loaded when the first request needs them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._methods: dict[str, list[Method]] = {}
        self._by_service = {surface.service: surface for surface in _SURFACES}

    def family(self, path: str) -> str:
        """The error shape of the API that a path belongs to."""
        return "legacy" if _COMPUTE.match(path) else "platform"

    async def call_rest(
        self,
        verb: str,
        path: str,
        query: Mapping[str, Sequence[str]],
        body: bytes,
        caller: Caller,
    ) -> bytes:
        """Answer a REST request with JSON; ApiError or NoSuchPath when there is no answer."""
        candidates = self._candidates(path)
        for surface in candidates:
            target = path
            if surface.family == "legacy" and not path.startswith("/compute/v1"):
                target = "/compute/v1" + path  # one origin serves every API at its root
            for method in self._table(surface):
                for rule in method.rules:
                    if rule.verb == verb and (match := rule.pattern.fullmatch(target)):
                        handler = self._handler(surface, method)
                        request = decode(method, rule, match.groups(), query, body)
                        answer = await self._call(surface, handler, method, request, caller)
                        return encode(answer, query)
        for surface in candidates:
            if not surface.key:  # its client may speak gRPC only, and so have no table of paths
                raise unimplemented(f"{surface.service} ({verb} {path})")
        raise NoSuchPath(path)

    async def call_grpc(self, path: str, data: bytes, caller: Caller) -> bytes:
        """Answer a gRPC call, `/package.Service/Method`, with the serialized response."""
        service, _, name = path.removeprefix("/").partition("/")
        surface = self._by_service.get(service) or _SHARED.get(service)
        if surface is None:
            raise ApiError("UNIMPLEMENTED", f"unknown service {service} (method {name})")
        full_name = f"{service}/{name}"
        method = next((m for m in self._table(surface) if m.full_name == full_name), None)
        if method is None:
            raise ApiError("UNIMPLEMENTED", f"unknown method {name} of service {service}")
        handler = self._handler(surface, method)
        request = parse_wire(method, data)
        answer = await self._call(surface, handler, method, request, caller)
        serialized: bytes = answer.SerializeToString()
        return serialized

    async def _call(
        self, surface: Surface, handler: Any, method: Method, request: Any, caller: Caller
    ) -> Any:
        if surface.api and method.service not in _SHARED:
            project = consumer_of(request)
            if project is not None:
                self._world.projects.require(project, surface.api)
        answer = await handler(request, caller)
        return method.response() if answer is None else answer

    def _handler(self, surface: Surface, method: Method) -> Any:
        key = _SHARED.get(method.service, surface).key
        if not key:
            raise unimplemented(method.full_name)
        handlers = self._world.service(key).handler(method.service)
        handler = getattr(handlers, method.attribute, None)
        if handler is None:
            raise unimplemented(method.full_name)
        return handler

    def _candidates(self, path: str) -> list[Surface]:
        found = [each for each in _SURFACES if each.paths and re.match(each.paths, path)]
        if _COMPUTE.match(path):
            surface = _compute_surface(path)
            if surface is not None:
                found.append(surface)
        return found

    def _table(self, surface: Surface) -> list[Method]:
        found = self._methods.get(surface.service)
        if found is None and surface.service in _SHARED:
            found = shared_methods()
            self._methods[surface.service] = found
        if found is None:
            if surface.key == "compute":
                self._world.service("compute")  # makes the package cheap to import
            base = importlib.import_module(f"{surface.package}.transports.base")
            rest_base = None
            try:
                rest = importlib.import_module(f"{surface.package}.transports.rest_base")
                rest_base = getattr(rest, f"_Base{surface.client}RestTransport")
            except ModuleNotFoundError:
                pass  # a client that speaks gRPC only
            table = getattr(base, f"{surface.client}Transport", None)
            if table is None:
                return []
            found = methods_of(surface.service, table, rest_base)
            self._methods[surface.service] = found
        return found


def _compute_surface(path: str) -> Surface | None:
    """The collection of Compute Engine that a path is about, by the client's module names."""
    from tpuctl.emulator.services.compute import collection_of

    found = collection_of(path)
    if found is None:
        return None
    module, client = found
    return Surface(
        f"google.cloud.compute.v1.{client}",
        f"google.cloud.compute_v1.services.{module}",
        client,
        "compute",
        family="legacy",
        api="compute.googleapis.com",
    )
