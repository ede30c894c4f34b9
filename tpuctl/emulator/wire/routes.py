"""Routes REST and gRPC requests to the handlers of their APIs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from tpuctl.emulator.state.errors import ApiError, unimplemented, unsupported_field
from tpuctl.emulator.state.projects import consumer_of
from tpuctl.emulator.wire.discovery.described_fields import is_described
from tpuctl.emulator.wire.discovery.method_list import method_name
from tpuctl.emulator.wire.google_api import Surface
from tpuctl.emulator.wire.messages import (
    MIXINS,
    Method,
    Rule,
    UnknownField,
    camel,
    decode,
    encode,
    methods_of,
    parse_wire,
    shared_methods,
)
from tpuctl.emulator.wire.registry import Caller, Registry
from tpuctl.emulator.wire.request_attributes import request_attributes


class NoSuchPath(Exception):
    """No API serves this path."""


class Router:
    """Finds and calls handlers. Method tables are loaded lazily."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._methods: dict[str, list[Method]] = {}
        apis = registry.apis
        self._surfaces = [surface for api in apis for surface in api.surfaces]
        self._shared = {surface.service: surface for api in apis for surface in api.shared_surfaces}
        self._with_paths = [surface for surface in self._surfaces if surface.paths]
        # Compute Engine's surfaces have no paths; it does not support gRPC.
        self._by_service = {surface.service: surface for surface in self._with_paths}
        self._legacy = [re.compile(api.legacy_paths) for api in apis if api.legacy_paths]
        self._json = [item for api in apis for item in api.json_services.items()]
        self._aliases = [
            (re.compile(pattern), path) for api in apis for pattern, path in api.aliases
        ]

    def family(self, path: str, style: str = "") -> str:
        """The error format of the API that serves a path, for requests with this `alt`."""
        if any(pattern.match(path) for pattern in self._legacy):
            return "legacy"
        families = (
            [candidate.family for candidate in self._candidates(path)] if style == "json" else []
        )
        return "both" if "both" in families else "platform"

    async def call_rest(
        self,
        verb: str,
        path: str,
        query: Mapping[str, Sequence[str]],
        body: bytes,
        caller: Caller,
    ) -> bytes:
        """Answer a REST request with JSON, or raise ApiError or NoSuchPath."""
        for service in self._json_services(path):
            if service.method_of(verb, path) is not None:
                answer: bytes = await service.answer(verb, path, query, caller)
                return answer
        requested, path = path, self._canonical(path)
        matches = (
            (surface, *match)
            for surface in self._candidates(path)
            for match in self._methods_at(surface, verb, path)
        )
        for surface, method, rule, captured in matches:
            read = partial(decode, method, rule, captured, query, body)
            try:
                message = await self._call(surface, method, caller, read)
            except UnknownField as error:
                if is_described(verb, requested, error.field, is_in_body=error.is_in_body):
                    root = "resource." if error.is_in_body and surface.family == "legacy" else ""
                    raise unsupported_field(root + ".".join(error.field)) from error
                raise
            content = encode(
                message,
                query,
                includes_defaults=surface.includes_defaults,
                has_explicit_operations=surface.has_explicit_operations,
            )
            return _with_links_of_version(content, requested, path)
        name = method_name(verb, path) or method_name(verb, f"/compute/v1{path}")
        if name is not None:
            raise unimplemented(name)
        raise NoSuchPath(path)

    def serves(self, verb: str, path: str) -> bool:
        """Whether a path belongs to an emulated method."""
        for service in self._json_services(path):
            return service.method_of(verb, path) is not None
        path = self._canonical(path)
        for surface in self._candidates(path):
            if self._handlers(surface.key, surface.service) is not None:
                for method, _, _ in self._methods_at(surface, verb, path):
                    return self._find_handler(surface, method) is not None
        return False

    def _json_services(self, path: str) -> Iterator[Any]:
        for start, key in self._json:
            if path.startswith(start):
                yield self._registry.service(key)

    def _methods_at(
        self, surface: Surface, verb: str, path: str
    ) -> Iterator[tuple[Method, Rule, Sequence[str]]]:
        if surface.family == "legacy" and not path.startswith("/compute/v1"):
            path = "/compute/v1" + path  # every API is served at the root
        for method in self._table(surface):
            for rule in method.rules:
                if rule.verb == verb and (match := rule.pattern.fullmatch(path)):
                    yield method, rule, match.groups()

    async def call_grpc(self, path: str, data: bytes, caller: Caller) -> bytes:
        """Answer a gRPC call, `/package.Service/Method`, with the serialized response."""
        service, _, name = path.removeprefix("/").partition("/")
        surface = self._by_service.get(service) or self._shared.get(service)
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
        """Every method of every API, and whether it is emulated. Takes seconds.

        For Compute Engine only methods of emulated collections.
        """
        for surface in self._all_surfaces():
            for method in self._table(surface):
                if (method.service in self._shared) == (surface.service in self._shared):
                    yield method, self._find_handler(surface, method) is not None

    @cached_property
    def names(self) -> frozenset[str]:
        """Full names of methods, including all emulated ones. Fast: loads no tables."""
        names = set()
        for surface in self._all_surfaces():
            handlers = self._handlers(surface.key, surface.service)
            for attribute in dir(handlers):
                if _is_handler(getattr(handlers, attribute, None)):
                    is_shared = attribute in MIXINS and not surface.definition
                    service = MIXINS[attribute] if is_shared else surface.service
                    names.add(f"{service}/{camel(attribute)}")
        return frozenset(names)

    def emulates(self, full_name: str) -> bool:
        """Whether the method exists and is emulated."""
        service = full_name.partition("/")[0]
        for surface in self._all_surfaces():
            if surface.service == service:
                for method in self._table(surface):
                    if method.full_name == full_name:
                        return self._find_handler(surface, method) is not None
        return False

    def _all_surfaces(self) -> Iterator[Surface]:
        yield from self._surfaces
        yield from self._shared.values()

    async def _call(
        self, surface: Surface, method: Method, caller: Caller, read: Callable[[], Any]
    ) -> Any:
        async with self._registry.traffic.track(method.full_name, caller) as call:
            handler = self._handler(surface, method)
            request = read()
            _check_refused(self._shared.get(method.service, surface), request)
            project = consumer_of(request)
            call.project = project or ""
            await call.arrive(partial(request_attributes, request))
            if surface.api and method.service not in self._shared and project is not None:
                self._registry.projects.require(project, surface.api)
            self._registry.guard.check(method.full_name, request, caller)
            answer = await handler(request, caller)
        return method.response() if answer is None else answer

    def _handler(self, surface: Surface, method: Method) -> Any:
        handler = self._find_handler(surface, method)
        if handler is None:
            raise unimplemented(method.full_name)
        return handler

    def _find_handler(self, surface: Surface, method: Method) -> Any | None:
        key = self._shared.get(method.service, surface).key
        handler = getattr(self._handlers(key, method.service), method.attribute, None)
        return handler if _is_handler(handler) else None

    def _handlers(self, key: str, service: str) -> Any | None:
        return self._registry.service(key).handler(service) if key else None

    def _candidates(self, path: str) -> list[Surface]:
        surfaces = [surface for surface in self._with_paths if re.match(surface.paths, path)]
        others = (api.surface_at(path) for api in self._registry.apis)
        return surfaces + [surface for surface in others if surface is not None]

    def _canonical(self, path: str) -> str:
        """The path in the served version, for versions that are aliases."""
        for pattern, served in self._aliases:
            path = pattern.sub(served, path)
        return path

    def _table(self, surface: Surface) -> list[Method]:
        if surface.service not in self._methods:
            self._methods[surface.service] = self._load_table(surface)
        return self._methods[surface.service]

    def _load_table(self, surface: Surface) -> list[Method]:
        if surface.service in self._shared:
            return shared_methods()
        if surface.definition:
            return list(importlib.import_module(surface.definition).methods(surface.service))
        self._registry.service(surface.key)  # its module may patch the client's imports
        base = importlib.import_module(f"{surface.package}.transports.base")
        rest_base = None
        try:
            rest = importlib.import_module(f"{surface.package}.transports.rest_base")
            rest_base = getattr(rest, f"_Base{surface.client}RestTransport")
        except ModuleNotFoundError:
            pass  # a client that supports only gRPC
        table = getattr(base, f"{surface.client}Transport", None)
        if table is None:
            return []
        methods = methods_of(surface.service, table, rest_base, surface.rest_rules)
        if surface.messages:
            extended = importlib.import_module(surface.messages).extended
            methods = [replace(method, request=extended(method.request)) for method in methods]
        return methods


def _with_links_of_version(content: bytes, requested: str, served: str) -> bytes:
    """The response with links in the version that the request was made to, such as beta."""
    if requested == served:
        return content
    old, new = (path.partition("/projects/")[0] + "/projects/" for path in (served, requested))
    return content.replace(old.encode(), new.encode())


def _check_refused(surface: Surface, request: Any) -> None:
    for name in surface.refused:
        descriptor = request.DESCRIPTOR.fields_by_name.get(name)
        if descriptor is not None and getattr(request, name):
            raise unsupported_field(descriptor.json_name)


def _is_handler(handler: Any) -> bool:
    """Whether this is a request handler, and not another method with the same name."""
    code = getattr(handler, "__code__", None)
    return code is not None and code.co_varnames[1:3] == ("request", "caller")
