"""What Cloud TPU offers where, from the catalog, and its refusals of what it does not offer."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.projects import Directory
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller

__all__ = [
    "NODE_ID",
    "Offer",
    "already_exists",
    "bad_request",
    "check_offer",
    "check_type",
    "describe",
    "error_id",
    "no_capacity",
    "parse_location",
]

# A name with an underscore was accepted in a public report (2021); the rest is Compute's rule.
NODE_ID = re.compile(r"[a-z](?:[a-z0-9_-]{0,61}[a-z0-9])?")

# AcceleratorConfig.Type as the v2 API numbers it.
_GENERATIONS = {"v2": 2, "v3": 4, "v4": 7, "v5e": 9, "v5p": 10, "v6e": 11}


def error_id() -> str:
    """The tag that ends Cloud TPU's messages."""
    return f"[EID: 0x{secrets.token_hex(8)}]"


def bad_request(what: str) -> ApiError:
    return invalid(f"Cloud TPU received a bad request. {what} {error_id()}")


def already_exists(name: str) -> ApiError:
    info = {"@type": "type.googleapis.com/google.rpc.ResourceInfo", "resourceName": name}
    return ApiError("ALREADY_EXISTS", f"Resource '{name}' already exists", details=[info])


def no_capacity(zone: str) -> str:
    """What an operation fails with, as RESOURCE_EXHAUSTED, when a zone has no more TPUs.

    As skypilot 0.14.1 (cloud_vm_ray_backend.py) and thevasudevgupta/gsoc-wav2vec2 issue 11 have it.
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


def check_zone(zone: str) -> None:
    if zone not in catalog.zones():
        raise bad_request(f'The requested zone "{zone}" is not supported.')


def check_type(
    zone: str, name: str, generations: Collection[str] | None = None
) -> catalog.AcceleratorType:
    """The type of that name, of one of the generations if given; refuses zones without it.

    The texts were seen in public reports (2025, 2026).
    """
    check_zone(zone)
    accelerator = catalog.accelerator_type(name)
    if (
        accelerator is None
        or not accelerator.in_tpu_api
        or zone not in accelerator.zones
        or (generations is not None and accelerator.generation not in generations)
    ):
        raise bad_request(
            f'The requested accelerator configuration for accelerator type, "{name}", could not '
            f'be found in the zonal accelerator configurations for "{zone}".; the accelerator '
            f"{name} was not found in zone {zone}"
        )
    return accelerator


def check_offer(zone: str, node: Any) -> catalog.AcceleratorType:
    """The type that a node asks for; refuses types, zones and runtimes that do not fit.

    The texts about runtime versions and topologies are ours: no report of Google's was found.
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
    runtime = catalog.runtime(node.runtime_version)
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
    """The name of the type that `acceleratorConfig` describes."""
    if not node.HasField("accelerator_config"):
        raise bad_request('One of "accelerator_type" and "accelerator_config" is required.')
    config = node.accelerator_config
    for name, known in catalog.accelerator_types().items():
        if (
            _GENERATIONS.get(known.generation) == config.type_
            and known.topology == config.topology
            and config.topology
        ):
            return name
    raise bad_request(f'No accelerator type has topology "{config.topology}".')


def describe(accelerator: catalog.AcceleratorType) -> dict[str, Any]:
    """The `accelerator_config` of a type; empty for generations that the v2 API cannot name."""
    number = _GENERATIONS.get(accelerator.generation)
    if number is None:
        return {}
    return {"type_": number, "topology": accelerator.topology}


class Offer:
    """The reading methods about types, runtimes and zones."""

    def __init__(self, projects: Directory) -> None:
        self._projects = projects

    async def list_accelerator_types(self, request: Any, caller: Caller) -> Any:
        from google.cloud.tpu_v2.types import cloud_tpu

        _, zone = parse_location(request.parent)
        names = [
            name
            for name, known in catalog.accelerator_types().items()
            if known.in_tpu_api and zone in known.zones
        ]
        rows, token = page(sorted(names), request.page_size, request.page_token, str)
        answer = cloud_tpu.ListAcceleratorTypesResponse.pb()(next_page_token=token)
        for name in rows:
            answer.accelerator_types.append(self._accelerator_type(request.parent, name))
        return answer

    async def get_accelerator_type(self, request: Any, caller: Caller) -> Any:
        _, zone = parse_location(request.name)
        parent, _, name = request.name.partition("/acceleratorTypes/")
        known = catalog.accelerator_type(name)
        if known is None or not known.in_tpu_api or zone not in known.zones:
            raise missing(f"Resource '{request.name}' was not found")
        return self._accelerator_type(parent, name)

    @staticmethod
    def _accelerator_type(parent: str, name: str) -> Any:
        from google.cloud.tpu_v2.types import cloud_tpu

        known = catalog.accelerator_type(name)
        assert known is not None
        answer = cloud_tpu.AcceleratorType.pb()(
            name=f"{parent}/acceleratorTypes/{name}", type_=name
        )
        config = describe(known)
        if config.get("topology"):  # of some large types nobody published it
            answer.accelerator_configs.add(**config)
        return answer

    async def list_runtime_versions(self, request: Any, caller: Caller) -> Any:
        from google.cloud.tpu_v2.types import cloud_tpu

        _, zone = parse_location(request.parent)
        versions = (
            [known.version for known in catalog.runtimes()] if zone in catalog.zones() else []
        )
        rows, token = page(sorted(versions), request.page_size, request.page_token, str)
        answer = cloud_tpu.ListRuntimeVersionsResponse.pb()(next_page_token=token)
        for version in rows:
            answer.runtime_versions.add(
                name=f"{request.parent}/runtimeVersions/{version}", version=version
            )
        return answer

    async def get_runtime_version(self, request: Any, caller: Caller) -> Any:
        from google.cloud.tpu_v2.types import cloud_tpu

        _, zone = parse_location(request.name)
        version = request.name.partition("/runtimeVersions/")[2]
        if catalog.runtime(version) is None or zone not in catalog.zones():
            raise missing(f"Resource '{request.name}' was not found")
        return cloud_tpu.RuntimeVersion.pb()(name=request.name, version=version)

    async def list_locations(self, request: Any, caller: Caller) -> Any:
        from google.cloud.location import locations_pb2

        self._require_project(request.name)
        zones = list(catalog.zones())
        rows, token = page(zones, request.page_size, request.page_token, str)
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
        self._projects.require(name.partition("/")[2].partition("/")[0], "tpu.googleapis.com")


def _location(name: str) -> Any:
    from google.cloud.location import locations_pb2

    zone = name.rpartition("/")[2]
    return locations_pb2.Location(
        name=name, location_id=zone, labels={"cloud.googleapis.com/region": catalog.region_of(zone)}
    )
