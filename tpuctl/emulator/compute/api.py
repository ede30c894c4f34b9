"""Compute Engine, as the core knows it: its surfaces, who may call it, and its paces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tpuctl.catalog import region_of
from tpuctl.emulator.faults.google_messages import fault_error
from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.required_permissions import Need, Places, text_at
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API", "COLLECTIONS"]

_METHODS = "google.cloud.compute.v1."
_INSTANCES = "compute.instances"  # the kind of the store


def _need(places: Places, method: str, permission: str, request: Any) -> Need | None:
    """Public images are everybody's."""
    if not request.project or not places.is_ours(request.project):
        return None
    project = places.project(request.project)
    return Need(permission, project, _name(method, project, request))


def _name(method: str, project: str, request: Any) -> str:
    """As refusals name it: the resource, or for lists the project."""
    collection = method.removeprefix(_METHODS).partition("/")[0]
    words = re.findall("[A-Z][a-z]+", collection)
    plain = [word.lower() for word in words if word not in ("Global", "Zone", "Region")]
    singular = re.sub(r"(?<=s)es$|s$", "", "_".join(plain))
    if singular == "project":
        return project
    own = text_at(request, singular) or text_at(request, "resource")
    own = own or text_at(request, "family") or text_at(request, f"{singular}_resource.name")
    if not own:
        return project
    place = "global"
    for kind in ("zone", "region"):
        if text_at(request, kind):
            place = f"{kind}s/{text_at(request, kind)}"
    first, *rest = plain
    return f"{project}/{place}/{first}{''.join(word.capitalize() for word in rest)}/{own}"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """As in hundreds of public issues."""
    if need.kind == "actas":
        return fault_error(
            {"kind": "error", "like": "actas"}, {"account": need.told, "caller": email}
        )
    text = f"Required '{need.permission}' permission for '{need.told}'"
    return ApiError("PERMISSION_DENIED", text, reason="forbidden")


def _acts_as_before(places: Places, request: Any) -> Iterator[Need]:
    """Metadata runs programs and lets people in: whoever changes them acts as the machine.

    cloud.google.com/compute/docs/access/service-accounts#user, and many public issues.
    """
    project = places.project(request.project)
    row = places.store.get_json(
        _INSTANCES, f"{project}/zones/{request.zone}/instances/{request.instance}"
    )
    for account in (row or {}).get("serviceAccounts", ()):
        yield places.acting_as(account["email"])


def _acts_as_next(places: Places, request: Any) -> Iterator[Need]:
    """Of a machine that is given another account (the same page)."""
    email = request.instances_set_service_account_request_resource.email
    if email:
        yield places.acting_as(email, request.project)


def _instance(places: Places, request: Any) -> Iterator[Need]:
    """cloud.google.com/compute/docs/instances/create-start-instance, "Required permissions"."""
    yield from _machine(places, request, request.instance_resource.name, request.instance_resource)


def _instances(places: Places, request: Any) -> Iterator[Need]:
    """The same of each. Names to be numbered stand as their pattern."""
    wanted = request.bulk_insert_instance_resource_resource
    for name in sorted(wanted.per_instance_properties) or [wanted.name_pattern]:
        yield from _machine(places, request, name, wanted.instance_properties)


def _machine(places: Places, request: Any, name: str, wanted: Any) -> Iterator[Need]:
    project = places.project(request.project)
    zone = f"{project}/zones/{request.zone}"
    machine = f"{zone}/instances/{name}"
    if wanted.metadata.items:
        yield Need("compute.instances.setMetadata", project, machine)
    if wanted.tags.items:
        yield Need("compute.instances.setTags", project, machine)
    if wanted.labels:
        yield Need("compute.instances.setLabels", project, machine)
    for number, disk in enumerate(wanted.disks):
        if disk.source:
            yield _use(places, disk)
        elif disk.type_ != "SCRATCH":
            base = disk.initialize_params.disk_name
            own = base or (name if disk.boot else f"{name}-{number}")
            yield Need("compute.disks.create", project, f"{zone}/disks/{own}")
            if disk.initialize_params.labels:
                yield Need("compute.disks.setLabels", project, f"{zone}/disks/{own}")
    for interface in wanted.network_interfaces:
        network = interface.network.rpartition("/")[2] or "default"
        subnetwork = interface.subnetwork.rpartition("/")[2] or network
        used = f"{project}/regions/{region_of(request.zone)}/subnetworks/{subnetwork}"
        yield Need("compute.subnetworks.use", project, used)
        if interface.access_configs:
            yield Need("compute.subnetworks.useExternalIp", project, used)
    for account in wanted.service_accounts:
        yield Need("compute.instances.setServiceAccount", project, machine)
        yield places.acting_as(account.email, request.project)


def _use(places: Places, disk: Any) -> Need:
    match = re.search(r"projects/[^/]+/.+$", disk.source)
    name = match[0] if match else disk.source
    verb = "useReadOnly" if disk.mode == "READ_ONLY" else "use"
    return Need(f"compute.disks.{verb}", places.of(name), name)


def _disk(places: Places, request: Any) -> Iterator[Need]:
    """cloud.google.com/compute/docs/disks/attach-disks, "Required permissions"."""
    yield _use(places, request.attached_disk_resource)


def _labels(places: Places, request: Any) -> Iterator[Need]:
    return _labels_of(places, request, request.disk_resource, f"zones/{request.zone}/disks")


def _snapshot_labels(places: Places, request: Any) -> Iterator[Need]:
    return _labels_of(places, request, request.snapshot_resource, "global/snapshots")


def _labels_of(places: Places, request: Any, resource: Any, collection: str) -> Iterator[Need]:
    """Of what is created with labels."""
    if resource.labels:
        project = places.project(request.project)
        kind = collection.rpartition("/")[2]
        name = f"{project}/{collection}/{resource.name}"
        yield Need(f"compute.{kind}.setLabels", project, name)


_ACCESS = ApiAccess(
    package=__package__,
    host="compute.googleapis.com",
    methods=(_METHODS,),
    refuse=_refuse,
    need=_need,
    rules={
        "acts_as_before": _acts_as_before,
        "acts_as_next": _acts_as_next,
        "disk": _disk,
        "instance": _instance,
        "instances": _instances,
        "labels": _labels,
        "snapshot_labels": _snapshot_labels,
    },
    scopes=("compute",),
    reading_scopes=("compute.readonly",),
    # cloud.google.com/iam/docs/service-agents, and of Compute Engine's default account
    # cloud.google.com/compute/docs/access/service-accounts
    agents=(
        ("roles/compute.serviceAgent", "service-{}@compute-system.iam.gserviceaccount.com"),
        ("roles/editor", "{}@cloudservices.gserviceaccount.com"),
        ("roles/editor", "{}-compute@developer.gserviceaccount.com"),
    ),
)

# Those of which there is something.
COLLECTIONS = (
    "Addresses",
    "DiskTypes",
    "Disks",
    "Firewalls",
    "GlobalAddresses",
    "GlobalOperations",
    "ImageFamilyViews",
    "Images",
    "Instances",
    "MachineTypes",
    "Networks",
    "Projects",
    "RegionOperations",
    "Regions",
    "Routes",
    "Snapshots",
    "Subnetworks",
    "ZoneOperations",
    "Zones",
)
_PATH = re.compile(r"(?:/compute/(?:v1|beta|alpha))?/projects/[^/]+(?:/|$)")


def _surface(client: str) -> Surface:
    """Of the collection that this client is for, as `GlobalAddresses`."""
    module = re.sub(r"(?<!^)([A-Z])", r"_\1", client).lower()
    return Surface(
        f"google.cloud.compute.v1.{client}",
        f"google.cloud.compute_v1.services.{module}",
        client,
        "compute",
        family="legacy",
        # Images are read in Google's public projects too: their handler looks who is asked.
        api="" if client in ("Images", "ImageFamilyViews") else _ACCESS.host,
    )


def _surface_at(path: str) -> Surface | None:
    """The collection that a path is about, by the client's module names."""
    if not _PATH.match(path):
        return None
    from tpuctl.emulator.compute.messages import collection_of

    found = collection_of(path)
    return None if found is None else _surface(found[1])


_PACES = {
    "compute.networks": (0.6, 30.0),  # guess
    "compute.firewalls": (0.3, 10.0),  # guess
    "compute.metadata": (0.3, 8.0),  # guess
    "compute.subnetworks": (0.4, 15.0),  # guess
    "compute.addresses": (0.3, 8.0),  # guess
    "compute.globalAddresses": (0.3, 8.0),  # guess
    "compute.disks": (0.3, 5.0),  # guess
    "compute.snapshots": (0.3, 8.0),  # guess
    "compute.instances": (0.2, 4.0),  # labels and such: guess
    "compute.instances.insert": (1.0, 45.0),  # "Compute VM 30-60 s" in public reports
    "compute.instances.bulkInsert": (0.0, 0.0),  # takes as long as its insertions
    "compute.instances.refused": (0.4, 20.0),  # 7 s and 96 s in two public reports
    "compute.instances.delete": (0.6, 60.0),  # guess
    "compute.instances.stop": (0.6, 60.0),  # guess
    "compute.instances.start": (0.8, 30.0),  # guess
    "compute.instances.reset": (0.6, 10.0),  # guess
    "compute.instances.preempted": (0.0, 0.0),  # its notice is the time it takes
    "compute.instances.nothing": (0.1, 2.0),  # guess
    "compute.instances.setMetadata": (0.2, 5.0),  # guess
    "compute.instances.setTags": (0.2, 5.0),  # guess
    "compute.instances.attachDisk": (0.3, 8.0),  # guess
    "compute.instances.detachDisk": (0.3, 8.0),  # guess
}

API = GoogleApi(
    access=_ACCESS,
    services={"compute": "tpuctl.emulator.compute.service:ComputeService"},
    documents={
        "compute.v1": "Compute Engine v1",
        "oslogin.v1": "OS Login v1",
    },
    surfaces=tuple(map(_surface, COLLECTIONS)),
    surface_at=_surface_at,
    legacy_paths=rf"/compute/|{_PATH.pattern}",
    aliases=((r"/compute/(?:beta|alpha)(?=/projects/)", "/compute/v1"),),  # gcloud beta and alpha
    with_machines={"compute.instances": "compute"},
    paces=_PACES,
)
