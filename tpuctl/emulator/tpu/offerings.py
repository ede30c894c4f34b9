"""Cloud TPU's offerings by location, from the catalog, and errors for unsupported requests."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from typing import Any

from google.cloud.location import locations_pb2
from google.cloud.tpu_v2.types import cloud_tpu

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError, error_detail, invalid, missing
from tpuctl.emulator.state.projects import Directory, Project
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Caller, Service

# A name with an underscore was accepted in a public report (2021); otherwise Compute's rule.
NODE_ID = re.compile(r"[a-z](?:[a-z0-9_-]{0,61}[a-z0-9])?")

# AcceleratorConfig.Type numbers of the v2 API.
_GENERATIONS = {"v2": 2, "v3": 4, "v4": 7, "v5e": 9, "v5p": 10, "v6e": 11}


def error_id() -> str:
    """The tag at the end of Cloud TPU's messages."""
    return f"[EID: 0x{secrets.token_hex(8)}]"


def bad_request(detail: str) -> ApiError:
    return invalid(f"Cloud TPU received a bad request. {detail} {error_id()}")


def already_exists(name: str) -> ApiError:
    details = [error_detail("ResourceInfo", resourceName=name)]
    return ApiError("ALREADY_EXISTS", f"Resource '{name}' already exists", details=details)


def not_found(name: str) -> ApiError:
    """From marin-community/marin#3404."""
    details = [error_detail("ResourceInfo", resourceName=name)]
    return missing(f"Resource '{name}' was not found", details=details)


def no_capacity(zone: str) -> str:
    """The RESOURCE_EXHAUSTED message of an operation in a zone without capacity.

    From skypilot 0.14.1 (cloud_vm_ray_backend.py) and thevasudevgupta/gsoc-wav2vec2 issue 11.
    """
    return (
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud '
        f"TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) {error_id()}"
    )


def parse_location(name: str) -> tuple[str, str]:
    """Project and zone of `projects/P/locations/Z[/…]`."""
    parts = name.split("/")
    if len(parts) < 4 or parts[0] != "projects" or parts[2] != "locations":
        raise invalid(f'Invalid resource name "{name}".')
    if not parts[1] or not parts[3]:
        raise invalid(f'Invalid resource name "{name}".')
    return parts[1], parts[3]


def project_and_zone(projects: Directory, name: str) -> tuple[Project, str]:
    """The same, of a project that exists and has the API enabled."""
    project, zone = parse_location(name)
    return projects.require(project, "tpu.googleapis.com"), zone


def name_prefix(project: Project, zone: str) -> str:
    """The prefix of the names in a zone, or in all zones for `-`."""
    prefix = f"projects/{project['id']}/locations/"
    return prefix if zone == "-" else f"{prefix}{zone}/"


def check_zone(zone: str) -> None:
    if zone not in catalog.zones():
        raise bad_request(f'The requested zone "{zone}" is not supported.')


def type_names(zone: str, generations: Collection[str] | None = None) -> list[str]:
    """The accelerator types that a zone offers (of these generations), sorted."""
    return sorted(
        name
        for name, accelerator in catalog.accelerator_types().items()
        if accelerator.in_tpu_api
        and zone in accelerator.zones
        and (generations is None or accelerator.generation in generations)
    )


def check_type(
    zone: str, name: str, generations: Collection[str] | None = None
) -> catalog.AcceleratorType:
    """The accelerator type, if the zone offers it (and it is of one of `generations`).

    The wording is from public reports (2025, 2026).
    """
    check_zone(zone)
    accelerator = catalog.accelerator_type(name)
    if accelerator is None or name not in type_names(zone, generations):
        raise bad_request(
            f'The requested accelerator configuration for accelerator type, "{name}", could not '
            f'be found in the zonal accelerator configurations for "{zone}".; the accelerator '
            f"{name} was not found in zone {zone}"
        )
    return accelerator


def check_offering(zone: str, node: Any) -> catalog.AcceleratorType:
    """The accelerator type of a node; type, zone and runtime must fit together.

    The texts about runtime versions and topologies are our own: Google's are not known.
    """
    check_zone(zone)
    if node.accelerator_type and node.HasField("accelerator_config"):
        raise bad_request(
            'The fields "accelerator_type" and "accelerator_config" are mutually exclusive.'
        )
    name = node.accelerator_type or _type_of_config(node)
    accelerator = check_type(zone, name)
    if not node.runtime_version:
        raise bad_request('The field "runtime_version" is required.')
    # Google has more runtimes than are known here: an unlisted one boots the nearest image.
    version = node.runtime_version
    runtime = catalog.runtime(version) or catalog.unlisted_runtime(version)
    if runtime is None:
        raise bad_request(
            f'The runtime version "{node.runtime_version}" was not found in zone "{zone}".'
        )
    if not runtime.fits(accelerator):
        raise bad_request(
            f'The runtime version "{node.runtime_version}" does not support accelerator type '
            f'"{name}".'
        )
    return accelerator


def _type_of_config(node: Any) -> str:
    """The accelerator type that `acceleratorConfig` describes."""
    if not node.HasField("accelerator_config"):
        raise bad_request('One of "accelerator_type" and "accelerator_config" is required.')
    config = node.accelerator_config
    for name, accelerator in catalog.accelerator_types().items():
        if (
            _GENERATIONS.get(accelerator.generation) == config.type_
            and accelerator.topology == config.topology
            and config.topology
        ):
            return name
    raise bad_request(f'No accelerator type has topology "{config.topology}".')


def accelerator_config(accelerator: catalog.AcceleratorType) -> dict[str, Any]:
    """The `accelerator_config` of a type; empty for generations that API v2 lacks."""
    number = _GENERATIONS.get(accelerator.generation)
    if number is None:
        return {}
    return {"type_": number, "topology": accelerator.topology}


class OfferingHandlers(Service):
    """Read-only methods for accelerator types, runtimes and locations."""

    async def list_accelerator_types(self, request: Any, caller: Caller) -> Any:
        _, zone = parse_location(request.parent)
        rows, token = requested_page(request, type_names(zone))
        answer = cloud_tpu.ListAcceleratorTypesResponse.pb()(next_page_token=token)
        for name in rows:
            answer.accelerator_types.append(self._accelerator_type(request.parent, name))
        return answer

    async def get_accelerator_type(self, request: Any, caller: Caller) -> Any:
        _, zone = parse_location(request.name)
        parent, _, name = request.name.partition("/acceleratorTypes/")
        if name not in type_names(zone):
            raise not_found(request.name)
        return self._accelerator_type(parent, name)

    @staticmethod
    def _accelerator_type(parent: str, name: str) -> Any:
        accelerator = catalog.accelerator_type(name)
        assert accelerator is not None
        answer = cloud_tpu.AcceleratorType.pb()(
            name=f"{parent}/acceleratorTypes/{name}", type_=name
        )
        config = accelerator_config(accelerator)
        if config.get("topology"):  # not published for some large types
            answer.accelerator_configs.add(**config)
        return answer

    async def list_runtime_versions(self, request: Any, caller: Caller) -> Any:
        _, zone = parse_location(request.parent)
        versions = (
            [runtime.version for runtime in catalog.runtimes()] if zone in catalog.zones() else []
        )
        rows, token = requested_page(request, sorted(versions))
        answer = cloud_tpu.ListRuntimeVersionsResponse.pb()(next_page_token=token)
        for version in rows:
            answer.runtime_versions.add(
                name=f"{request.parent}/runtimeVersions/{version}", version=version
            )
        return answer

    async def get_runtime_version(self, request: Any, caller: Caller) -> Any:
        _, zone = parse_location(request.name)
        version = request.name.partition("/runtimeVersions/")[2]
        if catalog.runtime(version) is None or zone not in catalog.zones():
            raise not_found(request.name)
        return cloud_tpu.RuntimeVersion.pb()(name=request.name, version=version)

    async def list_locations(self, request: Any, caller: Caller) -> Any:
        self._require_project(request.name)
        rows, token = requested_page(request, list(catalog.zones()))
        return locations_pb2.ListLocationsResponse(
            locations=[_location(f"{request.name}/locations/{zone}") for zone in rows],
            next_page_token=token,
        )

    async def get_location(self, request: Any, caller: Caller) -> Any:
        _, zone = parse_location(request.name)
        self._require_project(request.name)
        if zone not in catalog.zones():
            raise missing(f"Location '{request.name}' was not found")
        return _location(request.name)

    def _require_project(self, name: str) -> None:
        self._registry.projects.require(
            name.partition("/")[2].partition("/")[0], "tpu.googleapis.com"
        )


def _location(name: str) -> Any:
    zone = name.rpartition("/")[2]
    return locations_pb2.Location(
        name=name, location_id=zone, labels={"cloud.googleapis.com/region": catalog.region_of(zone)}
    )
