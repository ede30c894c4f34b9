"""Converts gRPC calls to equivalent HTTP requests, to validate them the same way."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

from google.api_core import path_template
from google.cloud.common import OperationMetadata
from google.protobuf import json_format

from tests.support.call_validation import Call
from tests.support.value_validation import Complaint
from tpuctl.emulator.server import APIS
from tpuctl.emulator.tpu.extended_messages import extended
from tpuctl.emulator.wire.messages import Method, camel, methods_of, shared_methods

assert OperationMetadata is not None  # registers the metadata of Cloud TPU's operations

# Modules of the services' official clients.
_CLIENTS: Mapping[str, tuple[str, str]] = {
    "google.cloud.tpu.v1.Tpu": ("tpu_v1.services.tpu", "Tpu"),
    "google.cloud.tpu.v2.Tpu": ("tpu_v2.services.tpu", "Tpu"),
    "google.cloud.tpu.v2alpha1.Tpu": ("tpu_v2alpha1.services.tpu", "Tpu"),
    "google.cloud.resourcemanager.v3.Projects": (
        "resourcemanager_v3.services.projects",
        "Projects",
    ),
    "google.cloud.resourcemanager.v3.Folders": ("resourcemanager_v3.services.folders", "Folders"),
    "google.cloud.resourcemanager.v3.Organizations": (
        "resourcemanager_v3.services.organizations",
        "Organizations",
    ),
    "google.api.serviceusage.v1.ServiceUsage": (
        "service_usage_v1.services.service_usage",
        "ServiceUsage",
    ),
    "google.iam.admin.v1.IAM": ("iam_admin_v1.services.iam", "IAM"),
    "google.cloud.billing.v1.CloudBilling": ("billing_v1.services.cloud_billing", "CloudBilling"),
}
# API versions of operations by name prefix, for services shared by all hosts.
REST_RULES = {
    surface.service: surface.rest_rules
    for api in APIS
    for surface in api.surfaces
    if surface.rest_rules
}
_SHARED: Mapping[str, str] = {"cp.": "v3", "acf.": "v1", "acat.": "v1"}


class UnconvertibleMessage(Exception):
    """A message without an equivalent HTTP request; `complaint` has the reason."""

    def __init__(self, complaint: Complaint) -> None:
        super().__init__(str(complaint))
        self.complaint = complaint


def services() -> Iterator[tuple[str, Mapping[str, Method]]]:
    """All gRPC services with their methods by name."""
    for service in (*_CLIENTS, "google.longrunning.Operations", "google.cloud.location.Locations"):
        yield service, _methods(service)


@cache
def is_known(method: str) -> bool:
    """Whether the method's service has a gRPC client."""
    service = method.removeprefix("/").partition("/")[0]
    return service in dict(services())


def as_call(method: str, body: str, answer: str) -> Call:
    """Convert a gRPC call with base64 messages to HTTP; raises UnconvertibleMessage."""
    service, _, name = method.removeprefix("/").partition("/")
    described = _methods(service)[name]
    request = _parse(described.request, base64.b64decode(body), "request")
    response = _parse(described.response, base64.b64decode(answer), "answer")
    options = _options(service, described, request)
    try:
        http_request = path_template.transcode(options, message=request)
    except ValueError as error:
        raise UnconvertibleMessage(
            Complaint("", "no path matches the message", str(error)[:300])
        ) from error
    body_message = http_request.get("body")
    return Call(
        verb=http_request["method"].upper(),
        path=http_request["uri"],
        query=urlencode(list(_flat(json_format.MessageToDict(http_request["query_params"])))),
        body="" if body_message is None else json.dumps(json_format.MessageToDict(body_message)),
        answer=json.dumps(json_format.MessageToDict(response)),
        is_rpc=True,
    )


def _parse(message: Any, data: bytes, side: str) -> Any:
    parsed = message.FromString(data)
    size = parsed.ByteSize()
    parsed.DiscardUnknownFields()
    if parsed.ByteSize() != size:
        raise UnconvertibleMessage(Complaint("", f"unknown fields in the {side}", repr(data)[:200]))
    return parsed


@cache
def _methods(service: str) -> Mapping[str, Method]:
    if service not in _CLIENTS:
        # Operations contain messages of any client, which must be registered.
        for package, _ in _CLIENTS.values():
            importlib.import_module(f"google.cloud.{package}.transports.base")
        return {
            camel(method.attribute): method
            for method in shared_methods()
            if method.service == service
        }
    package, client = _CLIENTS[service]
    base = importlib.import_module(f"google.cloud.{package}.transports.base")
    methods = methods_of(service, getattr(base, f"{client}Transport"), None, {})
    names = {camel(method.attribute): method for method in methods}
    if service in ("google.cloud.tpu.v2.Tpu", "google.cloud.tpu.v2alpha1.Tpu"):
        import dataclasses

        return {
            name: dataclasses.replace(
                method, request=extended(method.request), response=extended(method.response)
            )
            for name, method in names.items()
        }
    return names


def _options(service: str, method: Method, request: Any) -> list[Any]:
    if service not in _CLIENTS:
        return _shared_options(method.attribute, request)
    if service in REST_RULES:  # its client has no paths
        return [dict(option) for option in REST_RULES[service][method.attribute]]
    package, client = _CLIENTS[service]
    rest = importlib.import_module(f"google.cloud.{package}.transports.rest_base")
    holder = getattr(rest, f"_Base{client}RestTransport")
    options: list[Any] = getattr(holder, f"_Base{camel(method.attribute)}")._get_http_options()
    return options


def _shared_options(attribute: str, request: Any) -> list[Any]:
    if attribute == "list_operations" and request.name in ("", "operations"):
        return [{"method": "get", "uri": "/v1/operations"}]
    last = request.name.removeprefix("operations/")
    version = next((its for start, its in _SHARED.items() if last.startswith(start)), "v2")
    if attribute in ("get_operation", "wait_operation", "get_location"):
        return [{"method": "get", "uri": f"/{version}/{{name=**}}"}]
    if attribute == "delete_operation":
        return [{"method": "delete", "uri": f"/{version}/{{name=**}}"}]
    if attribute == "cancel_operation":
        return [{"method": "post", "uri": f"/{version}/{{name=**}}:cancel"}]
    return [{"method": "get", "uri": f"/{version}/{{name=**}}/{attribute.partition('_')[2]}"}]


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, f"{prefix}{key}.")
        elif isinstance(item, list):
            yield from ((prefix + key, str(element)) for element in item)
        elif isinstance(item, bool):
            yield prefix + key, "true" if item else "false"
        else:
            yield prefix + key, str(item)
