"""Service Usage v1: enabled APIs of projects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.cloud.service_usage_v1.types import resources, serviceusage

from tpuctl.emulator.service_usage.default_network import add_default_network
from tpuctl.emulator.state.errors import ApiError, error_info, invalid, missing
from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.state.projects import Project, title_of
from tpuctl.emulator.wire.operations_service import OperationsService
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Caller, Registry

_HOST = "serviceusage.googleapis.com"
_MAX_BATCH_ENABLE = 20
_MAX_BATCH_GET = 30
_API = re.compile(r"[a-z][a-z0-9-]*\.googleapis\.com")
# Listed as disabled by default; any other Google API can be enabled too.
_LISTED = (
    "aiplatform",
    "bigquery",
    "billingbudgets",
    "cloudapis",
    "cloudbilling",
    "cloudbuild",
    "cloudkms",
    "cloudquotas",
    "cloudresourcemanager",
    "compute",
    "iam",
    "iamcredentials",
    "iap",
    "logging",
    "monitoring",
    "orgpolicy",
    "oslogin",
    "secretmanager",
    "serviceusage",
    "storage",
    "storage-api",
    "storage-component",
    "sts",
    "tpu",
)
# Enabling an API enables these too. From the APIs' console pages, not verified against Google.
_DEPENDENCIES = {"tpu.googleapis.com": (), "compute.googleapis.com": ("oslogin.googleapis.com",)}


class ServicesService(OperationsService):
    """Handlers of google.api.serviceusage.v1.ServiceUsage."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._projects = registry.projects
        self.effects: Mapping[str, Effect] = {
            "services.enable": Effect(self._finish_enable, metadata=_metadata),
            "services.batchEnable": Effect(self._finish_batch_enable, metadata=_metadata),
            "services.disable": Effect(self._finish_disable, metadata=_metadata),
        }

    async def get_service(self, request: Any, caller: Caller) -> Any:
        project, api = self._parse(request.name)
        return self._message(project, api)

    async def list_services(self, request: Any, caller: Caller) -> Any:
        project = self._project(request.parent)
        enabled = self._projects.enabled(project)
        names = {*enabled, *(f"{name}.googleapis.com" for name in _LISTED)}
        match = re.fullmatch(r"\s*(?:state:(ENABLED|DISABLED))?\s*", request.filter)
        if match is None:
            raise invalid(f"Invalid filter: {request.filter!r}.")
        if match[1]:
            names = {name for name in names if (name in enabled) == (match[1] == "ENABLED")}
        rows, token = requested_page(request, sorted(names), default_size=50, max_size=200)
        return serviceusage.ListServicesResponse.pb()(
            services=[self._message(project, api) for api in rows], next_page_token=token
        )

    async def batch_get_services(self, request: Any, caller: Caller) -> Any:
        self._project(request.parent)
        _check_batch(len(request.names), _MAX_BATCH_GET)
        services = [self._message(*self._parse(name)) for name in request.names]
        return serviceusage.BatchGetServicesResponse.pb()(services=services)

    async def enable_service(self, request: Any, caller: Caller) -> Any:
        project, api = self._parse(request.name)
        self._require_billing(project, [api])
        return self._begin("services.enable", project, [api])

    async def batch_enable_services(self, request: Any, caller: Caller) -> Any:
        project = self._project(request.parent)
        apis = list(request.service_ids)
        if not apis:
            raise invalid("At least one service must be named.")
        _check_batch(len(apis), _MAX_BATCH_ENABLE)
        for api in apis:
            _check_name(api)
        self._require_billing(project, apis)
        return self._begin("services.batchEnable", project, apis)

    async def disable_service(self, request: Any, caller: Caller) -> Any:
        project, api = self._parse(request.name)
        if not self._projects.has_enabled(project, api):
            raise ApiError("FAILED_PRECONDITION", f"Service '{api}' is not enabled.")
        return self._begin("services.disable", project, [api])

    def _project(self, name: str) -> Project:
        kind, _, project = name.partition("/")
        if kind != "projects":
            raise invalid(f"Invalid parent {name!r}: only projects are supported.")
        return self._projects.require(project)

    def _parse(self, name: str) -> tuple[Project, str]:
        parent, _, api = name.partition("/services/")
        _check_name(api)
        return self._project(parent), api

    @staticmethod
    def _require_billing(project: Project, apis: list[str]) -> None:
        """Compute Engine and Cloud TPU require a billing account."""
        paid = [api for api in apis if api in ("compute.googleapis.com", "tpu.googleapis.com")]
        if project["billing"] or not paid:
            return
        # The second reason, for a closed account, is from many public reports; its sentence was
        # seen only in part.
        state, reason = "found", "UREQ_PROJECT_BILLING_NOT_FOUND"
        if project.get("account"):
            state, reason = "open", "UREQ_PROJECT_BILLING_NOT_OPEN"
        raise ApiError(
            "FAILED_PRECONDITION",
            f"Billing account for project '{project['number']}' is not {state}. Billing must be "
            f"enabled for activation of service(s) '{','.join(paid)}' to proceed.",
            details=[error_info(reason, _HOST, services=",".join(paid))],
        )

    def _begin(self, effect: str, project: Project, apis: list[str]) -> Any:
        """Enabling an API that is already enabled returns a finished operation, as Google does."""
        changing = effect == "services.disable" or any(
            not self._projects.has_enabled(project, api) for api in apis
        )
        step = "services.disable" if effect == "services.disable" else "services.enable"
        number = self._registry.store.next("service-operation", 1)
        record = self._registry.operations.begin(
            "",
            effect,
            {"project": project["id"], "apis": apis},
            self._registry.pace.seconds(step) if changing else 0.0,
            name=f"operations/acf.p2-{project['number']}-{number:012d}",
        )
        return self._operations.message(record)

    def _message(self, project: Project, api: str) -> Any:
        state = "ENABLED" if self._projects.has_enabled(project, api) else "DISABLED"
        parent = f"projects/{project['number']}"
        return resources.Service.pb()(
            name=f"{parent}/services/{api}",
            parent=parent,
            state=getattr(resources.State, state),
            config={"name": api, "title": title_of(api)},
        )

    def _enable(self, arguments: Arguments) -> Project:
        project = self._projects.require(arguments["project"])
        for api in arguments["apis"]:
            for needed_api in (api, *_DEPENDENCIES.get(api, ())):
                self._projects.enable(project, needed_api)
            if api == "compute.googleapis.com":
                add_default_network(self._registry.store, project)
        return project

    def _finish_enable(self, arguments: Arguments) -> Any:
        project = self._enable(arguments)
        service = self._message(project, arguments["apis"][0])
        return serviceusage.EnableServiceResponse.pb()(service=service)

    def _finish_batch_enable(self, arguments: Arguments) -> Any:
        project = self._enable(arguments)
        services = [self._message(project, api) for api in arguments["apis"]]
        return serviceusage.BatchEnableServicesResponse.pb()(services=services)

    def _finish_disable(self, arguments: Arguments) -> Any:
        project = self._projects.require(arguments["project"])
        api = arguments["apis"][0]
        self._projects.disable(project, api)
        return serviceusage.DisableServiceResponse.pb()(service=self._message(project, api))


def _check_batch(count: int, max_count: int) -> None:
    # Wording: GoogleCloudPlatform/k8s-config-connector#6334; limits: the descriptions of
    # batchEnable and batchGet.
    if count > max_count:
        raise invalid(f"Number of services must not exceed the maximum batch size ({max_count}).")


def _check_name(api: str) -> None:
    if not _API.fullmatch(api):
        info = error_info("SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED", _HOST, services=api)
        text = f"Not found or permission denied for service(s): {api}."
        raise missing(text, details=[info])


def _metadata(record: Record) -> Any:
    names = [
        f"projects/{record.arguments['project']}/services/{api}" for api in record.arguments["apis"]
    ]
    return resources.OperationMetadata.pb()(resource_names=names)
