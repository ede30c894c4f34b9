"""Which API a request belongs to, and the one way to its handler for REST and gRPC alike."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tpuctl.emulator.state.errors import ApiError, unimplemented
from tpuctl.emulator.state.projects import consumer_of
from tpuctl.emulator.wire.discovery.method_list import name_of
from tpuctl.emulator.wire.messages import (
    MIXINS,
    Method,
    Rule,
    camel,
    decode,
    encode,
    methods_of,
    parse_wire,
    shared_methods,
)
from tpuctl.emulator.wire.registry import Caller, World
from tpuctl.emulator.wire.request_attributes import facts_of

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
    # The shape of its errors: "legacy" with a list of them, "both" with `alt=json` alone.
    family: str = "platform"
    api: str = ""  # must be enabled in the project that a request names
    messages: str = ""  # whose `extended` adds to the client's messages what it lacks
    tells_defaults: bool = False  # whether its JSON has what is false or empty
    # Whether operations say `done` and `cancelRequested` also while these are false, as those of
    # Cloud TPU do (SkyPilot reads `operation["done"]` of every answer); Resource Manager's do not:
    # a created project answers {"name": "operations/cp.N"}.
    has_explicit_operations: bool = False
    definition: str = ""  # whose `methods` has the table, where no client does


_SURFACES = (
    Surface(
        "google.cloud.tpu.v2.Tpu",
        "google.cloud.tpu_v2.services.tpu",
        "Tpu",
        "tpu",
        r"/v2/projects/",
        api="tpu.googleapis.com",
        has_explicit_operations=True,
    ),
    Surface(
        "google.cloud.resourcemanager.v3.Projects",
        "google.cloud.resourcemanager_v3.services.projects",
        "Projects",
        "projects",
        r"/v3/(?:projects|operations)",
    ),
    *(
        Surface(
            f"google.cloudresourcemanager.v1.{client}",
            "",
            client,
            "resources_v1",
            paths,
            family="both",
            definition="tpuctl.emulator.resource_manager.v1_messages",
        )
        for client, paths in (
            ("Projects", r"/v1/projects(?:/[^/]+)?$"),
            ("Organizations", r"/v1/organizations(?:/[^/]+|:search)$"),
            ("Folders", r"/v1/folders/[^/]+$"),
            ("Liens", r"/v1/liens(?:/|$)"),
            ("Operations", r"/v1/operations/(?:cp|pc)\."),
        )
    ),
    Surface(
        "google.cloud.resourcemanager.v2.Folders",
        "",
        "Folders",
        "resources_v1",
        r"/v2/folders",
        definition="tpuctl.emulator.resource_manager.v1_messages",
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
        r"/v1/(?:projects/[^/]+/(?:serviceAccounts|roles)"
        r"|organizations/[^/]+/roles|roles|permissions)",
        family="both",
        api="iam.googleapis.com",
    ),
    Surface(
        "google.cloud.tpu.v1.Tpu",
        "google.cloud.tpu_v1.services.tpu",
        "Tpu",
        "tpu_v1",
        r"/v1/projects/[^/]+/locations",
        api="tpu.googleapis.com",
        has_explicit_operations=True,
    ),
    Surface(
        "google.cloud.tpu.v2alpha1.Tpu",
        "google.cloud.tpu_v2alpha1.services.tpu",
        "Tpu",
        "tpu_alpha",
        r"/v2alpha1/",
        api="tpu.googleapis.com",
        has_explicit_operations=True,
        messages="tpuctl.emulator.tpu.v2alpha1_messages",
    ),
    *(
        Surface(
            f"google.cloud.resourcemanager.v3.{kind.capitalize()}",
            f"google.cloud.resourcemanager_v3.services.{kind}",
            kind.capitalize(),
            "containers",
            f"/v3/{kind}",
        )
        for kind in ("folders", "organizations")
    ),
    Surface(
        "google.cloud.billing.v1.CloudBilling",
        "google.cloud.billing_v1.services.cloud_billing",
        "CloudBilling",
        "billing",
        r"/v1/(?:billingAccounts|projects/[^/]+/billingInfo)",
        # Seen in a recorded run of `gcloud billing projects describe`: "billingEnabled": false.
        tells_defaults=True,
    ),
    Surface(
        "google.cloud.secretmanager.v1.SecretManagerService",
        "",
        "SecretManagerService",
        "secrets",
        r"/v1/projects/[^/]+/secrets",
        api="secretmanager.googleapis.com",
        definition="tpuctl.emulator.secret_manager.messages",
    ),
    Surface(
        "google.cloud.orgpolicy.v2.OrgPolicy",
        "",
        "OrgPolicy",
        "org_policies",
        r"/v2/(?:projects|folders|organizations)/[^/]+/(?:policies|constraints)",
        api="orgpolicy.googleapis.com",
        definition="tpuctl.emulator.org_policy.messages",
    ),
    Surface(
        "google.cloud.billing.v1.CloudCatalog",
        "google.cloud.billing_v1.services.cloud_catalog",
        "CloudCatalog",
        "price_list",
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
_COMPUTE = re.compile(r"(?:/compute/(?:v1|beta|alpha))?/projects/[^/]+(?:/|$)")
_EARLIER = re.compile(r"/compute/(?:beta|alpha)(?=/projects/)")  # gcloud beta and gcloud alpha
# Cloud TPU's first version, the same as v1 in all that clients use: `gcloud alpha compute tpus
# execution-groups` speaks it (SDK 528, generated_clients/apis/tpu/v1alpha1), and early TensorFlow.
_TPU_V1ALPHA1 = re.compile(r"/v1alpha1(?=/projects/[^/]+/locations)")
# Ray's name for v2alpha1 (ray/autoscaler/_private/gcp/config.py).
_TPU_V2ALPHA = re.compile(r"/v2alpha(?=/projects/[^/]+/locations)")


class Router:
    """Finds and calls handlers. Tables are loaded when the first request needs them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._methods: dict[str, list[Method]] = {}
        self._by_service = {surface.service: surface for surface in _SURFACES}

    def family(self, path: str, style: str = "") -> str:
        """The error shape of the API that a path belongs to, for requests with `alt` of a style."""
        if _COMPUTE.match(path) or path.startswith("/compute/"):
            return "legacy"
        families = [each.family for each in self._candidates(path)] if style == "json" else []
        return "both" if "both" in families else "platform"

    async def call_rest(
        self,
        verb: str,
        path: str,
        query: Mapping[str, Sequence[str]],
        body: bytes,
        caller: Caller,
    ) -> bytes:
        """Answer a REST request with JSON; ApiError or NoSuchPath when there is no answer."""
        if path.startswith("/v1beta1/"):  # Service Usage's, of which no client has a table
            quota: Any = self._world.service("quota")
            if quota.method_of(verb, path) is not None:
                answer: bytes = await quota.answer(verb, path, query, caller)
                return answer
        path = _canonical(path)
        for surface, method, rule, captured in self._find(verb, path):
            read = partial(decode, method, rule, captured, query, body)
            message = await self._call(surface, method, caller, read)
            return encode(
                message,
                query,
                tells_defaults=surface.tells_defaults,
                has_explicit_operations=surface.has_explicit_operations,
            )
        name = name_of(verb, path) or name_of(verb, f"/compute/v1{path}")
        if name is not None:
            raise unimplemented(name)
        raise NoSuchPath(path)

    def serves(self, verb: str, path: str) -> bool:
        """Whether a path leads to a method that is imitated."""
        if path.startswith("/v1beta1/"):
            quota: Any = self._world.service("quota")
            return quota.method_of(verb, path) is not None
        path = _canonical(path)
        for surface in self._candidates(path):
            if self._handlers(surface.key, surface.service) is not None:
                for method, _, _ in self._methods_at(surface, verb, path):
                    return self._find_handler(surface, method) is not None
        return False

    def _find(self, verb: str, path: str) -> Iterator[tuple[Surface, Method, Rule, Sequence[str]]]:
        for surface in self._candidates(path):
            for method, rule, captured in self._methods_at(surface, verb, path):
                yield surface, method, rule, captured

    def _methods_at(
        self, surface: Surface, verb: str, path: str
    ) -> Iterator[tuple[Method, Rule, Sequence[str]]]:
        if surface.family == "legacy" and not path.startswith("/compute/v1"):
            path = "/compute/v1" + path  # one origin serves every API at its root
        for method in self._table(surface):
            for rule in method.rules:
                if rule.verb == verb and (match := rule.pattern.fullmatch(path)):
                    yield method, rule, match.groups()

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
        answer = await self._call(surface, method, caller, partial(parse_wire, method, data))
        serialized: bytes = answer.SerializeToString()
        return serialized

    def tables(self) -> Iterator[tuple[Method, bool]]:
        """Every method of every API, and whether it is imitated.

        Of Compute Engine those of the collections of which something is. Takes seconds.
        """
        for surface in self._all_surfaces():
            for method in self._table(surface):
                if (method.service in _SHARED) == (surface.service in _SHARED):
                    yield method, self._find_handler(surface, method) is not None

    def names(self) -> set[str]:
        """Full names of methods, all of those that are imitated among them. Takes no time."""
        names = set()
        for surface in self._all_surfaces():
            handlers = self._handlers(surface.key, surface.service)
            for attribute in dir(handlers):
                if _takes_calls(getattr(handlers, attribute, None)):
                    is_shared = attribute in MIXINS and not surface.definition
                    service = MIXINS[attribute] if is_shared else surface.service
                    names.add(f"{service}/{camel(attribute)}")
        return names

    def imitates(self, full_name: str) -> bool:
        """Whether there is such a method, and an answer for it."""
        service = full_name.partition("/")[0]
        for surface in self._all_surfaces():
            if surface.service == service:
                for method in self._table(surface):
                    if method.full_name == full_name:
                        return self._find_handler(surface, method) is not None
        return False

    def _all_surfaces(self) -> Iterator[Surface]:
        compute: Any = self._world.service("compute")
        yield from _SURFACES
        yield from map(_compute_surface, compute.collections)
        yield from _SHARED.values()

    async def _call(
        self, surface: Surface, method: Method, caller: Caller, read: Callable[[], Any]
    ) -> Any:
        async with self._world.traffic.carry(method.full_name, caller) as call:
            handler = self._handler(surface, method)
            request = read()
            project = consumer_of(request)
            call.project = project or ""
            await call.arrive(partial(facts_of, request))
            if surface.api and method.service not in _SHARED and project is not None:
                self._world.projects.require(project, surface.api)
            self._world.guard.check(method.full_name, request, caller)
            answer = await handler(request, caller)
        return method.response() if answer is None else answer

    def _handler(self, surface: Surface, method: Method) -> Any:
        handler = self._find_handler(surface, method)
        if handler is None:
            raise unimplemented(method.full_name)
        return handler

    def _find_handler(self, surface: Surface, method: Method) -> Any | None:
        key = _SHARED.get(method.service, surface).key
        handler = getattr(self._handlers(key, method.service), method.attribute, None)
        return handler if _takes_calls(handler) else None

    def _handlers(self, key: str, service: str) -> Any | None:
        return self._world.service(key).handler(service) if key else None

    def _candidates(self, path: str) -> list[Surface]:
        found = [each for each in _SURFACES if each.paths and re.match(each.paths, path)]
        if _COMPUTE.match(path):
            surface = _surface_of_compute_path(path)
            if surface is not None:
                found.append(surface)
        return found

    def _table(self, surface: Surface) -> list[Method]:
        found = self._methods.get(surface.service)
        if found is None and surface.service in _SHARED:
            found = shared_methods()
            self._methods[surface.service] = found
        if found is None and surface.definition:
            found = list(importlib.import_module(surface.definition).methods(surface.service))
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
            if surface.messages:
                extended = importlib.import_module(surface.messages).extended
                found = [replace(method, request=extended(method.request)) for method in found]
            self._methods[surface.service] = found
        return found


def _canonical(path: str) -> str:
    """The path in the version that is served, for versions that know the same names."""
    path = _TPU_V2ALPHA.sub("/v2alpha1", _EARLIER.sub("/compute/v1", path))
    return _TPU_V1ALPHA1.sub("/v1", path)


def _surface_of_compute_path(path: str) -> Surface | None:
    """The collection of Compute Engine that a path is about, by the client's module names."""
    from tpuctl.emulator.compute.messages import collection_of

    found = collection_of(path)
    return None if found is None else _compute_surface(found[1])


def _compute_surface(client: str) -> Surface:
    """Of the collection that this client is for, as `GlobalAddresses`."""
    module = re.sub(r"(?<!^)([A-Z])", r"_\1", client).lower()
    return Surface(
        f"google.cloud.compute.v1.{client}",
        f"google.cloud.compute_v1.services.{module}",
        client,
        "compute",
        family="legacy",
        # Images are read in Google's public projects too: their handler looks who is asked.
        api="" if client in ("Images", "ImageFamilyViews") else "compute.googleapis.com",
    )


def _takes_calls(handler: Any) -> bool:
    """Whether this answers requests, and is no other method of the same name."""
    code = getattr(handler, "__code__", None)
    return code is not None and code.co_varnames[1:3] == ("request", "caller")
