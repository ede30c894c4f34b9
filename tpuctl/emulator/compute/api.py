"""Registration of Compute Engine: surfaces, permissions and paces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tpuctl.catalog import region_of
from tpuctl.emulator.faults.google_messages import fault_error
from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources, text_at
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.resource_names import relative_name
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_METHODS = "google.cloud.compute.v1."
# Kinds in the store.
_INSTANCE_TEMPLATES = "compute.instanceTemplates"
_REGION_INSTANCE_TEMPLATES = "compute.regionInstanceTemplates"
_INSTANCES = "compute.instances"


def _need(resources: PolicyResources, method: str, permission: str, request: Any) -> Need | None:
    """None for public images, which anyone may read."""
    if not request.project or not resources.is_local(request.project):
        return None
    project = resources.project(request.project)
    name = _name(method, project, request)
    # Of these alone the policies are emulated.
    has_policy = method.startswith(f"{_METHODS}Subnetworks/") and "/subnetworks/" in name
    return Need(permission, name if has_policy else project, name)


def _name(method: str, project: str, request: Any) -> str:
    """The resource name used in errors; for lists, the project."""
    collection = method.removeprefix(_METHODS).partition("/")[0]
    words = re.findall("[A-Z][a-z]+", collection)
    plain = [word.lower() for word in words if word not in ("Global", "Zone", "Region")]
    singular = re.sub(r"(?<=s)es$|s$", "", "_".join(plain))
    if singular == "project":
        return project
    resource_id = text_at(request, singular) or text_at(request, "resource")
    resource_id = (
        resource_id or text_at(request, "family") or text_at(request, f"{singular}_resource.name")
    )
    if not resource_id:
        return project
    location = "global"
    for kind in ("zone", "region"):
        if text_at(request, kind):
            location = f"{kind}s/{text_at(request, kind)}"
    first, *rest = plain
    return (
        f"{project}/{location}/{first}{''.join(word.capitalize() for word in rest)}/{resource_id}"
    )


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """Wording from many public issues."""
    if need.kind == "act-as":
        return fault_error(
            {"kind": "error", "google_error": "act-as"},
            {"account": need.resource_name, "caller": email},
        )
    text = f"Required '{need.permission}' permission for '{need.resource_name}'"
    return ApiError("PERMISSION_DENIED", text, reason="forbidden")


def _act_as_current_account(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """Changing metadata runs programs and adds SSH keys, so it requires actAs on the account.

    cloud.google.com/compute/docs/access/service-accounts#user, and many public issues.
    """
    project = resources.project(request.project)
    row = resources.store.get_json(
        _INSTANCES, f"{project}/zones/{request.zone}/instances/{request.instance}"
    )
    for account in (row or {}).get("serviceAccounts", ()):
        yield resources.act_as(account["email"])


def _act_as_new_account(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """actAs on the new account of an instance (same page)."""
    email = request.instances_set_service_account_request_resource.email
    if email:
        yield resources.act_as(email, request.project)


def _instance(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """cloud.google.com/compute/docs/instances/create-start-instance, "Required permissions"."""
    yield from _machine(
        resources, request, request.instance_resource.name, request.instance_resource
    )


def _instances(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """The requirements of each instance. Names to be numbered are given as their pattern."""
    bulk = request.bulk_insert_instance_resource_resource
    if bulk.source_instance_template:
        project = resources.project(request.project)
        permission = "compute.instanceTemplates.useReadOnly"
        yield Need(permission, project, bulk.source_instance_template)
    for name in sorted(bulk.per_instance_properties) or [bulk.name_pattern]:
        yield from _machine(resources, request, name, bulk.instance_properties)


def _machine(resources: PolicyResources, request: Any, name: str, instance: Any) -> Iterator[Need]:
    project = resources.project(request.project)
    zone = f"{project}/zones/{request.zone}"
    machine = f"{zone}/instances/{name}"
    if instance.metadata.items:
        yield Need("compute.instances.setMetadata", project, machine)
    if instance.tags.items:
        yield Need("compute.instances.setTags", project, machine)
    if instance.labels:
        yield Need("compute.instances.setLabels", project, machine)
    for number, disk in enumerate(instance.disks):
        if disk.source:
            yield _use(resources, disk)
        elif disk.type_ != "SCRATCH":
            base = disk.initialize_params.disk_name
            disk_name = base or (name if disk.boot else f"{name}-{number}")
            yield Need("compute.disks.create", project, f"{zone}/disks/{disk_name}")
            image = disk.initialize_params.source_image
            yield from _image_use(resources, request.project, image)
            if disk.initialize_params.labels:
                yield Need("compute.disks.setLabels", project, f"{zone}/disks/{disk_name}")
    for interface in instance.network_interfaces:
        used = _subnetwork(resources, project, request.zone, interface)
        yield Need("compute.subnetworks.use", used, used)
        if interface.access_configs:
            yield Need("compute.subnetworks.useExternalIp", used, used)
    for account in instance.service_accounts:
        yield Need("compute.instances.setServiceAccount", project, machine)
        yield resources.act_as(account.email, request.project)


def _subnetwork(resources: PolicyResources, project: str, zone: str, interface: Any) -> str:
    """The subnetwork of an interface, which may be in a host project."""
    network = interface.network.rpartition("/")[2] or "default"
    path = interface.subnetwork or interface.network
    owner = re.search(r"projects/([^/]+)/", path)
    project = resources.project(owner[1]) if owner else project
    subnetwork = interface.subnetwork.rpartition("/")[2] or network
    return f"{project}/regions/{region_of(zone)}/subnetworks/{subnetwork}"


def _image_use(resources: PolicyResources, project: str, reference: str) -> Iterator[Need]:
    """docs.cloud.google.com/compute/docs/instances/create-vm-from-custom-image, "Required
    permissions". Anyone may use images of Google's public projects."""
    match = re.search(r"(?:projects/([^/]+)/)?(global/images/(?:family/)?[^/]+)$", reference)
    if match and resources.is_local(match[1] or project):
        owner = resources.project(match[1] or project)
        yield Need("compute.images.useReadOnly", owner, f"{owner}/{match[2]}")


def _source_image(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """Of a new disk, which may have it as a parameter too, or of a new image."""
    for path in ("disk_resource.source_image", "image_resource.source_image", "source_image"):
        yield from _image_use(resources, request.project, text_at(request, path))


def _use(resources: PolicyResources, disk: Any) -> Need:
    match = re.search(r"projects/[^/]+/.+$", disk.source)
    name = match[0] if match else disk.source
    verb = "useReadOnly" if disk.mode == "READ_ONLY" else "use"
    return Need(f"compute.disks.{verb}", resources.resolve(name), name)


def _instance_group(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """What the caller needs for the group's instances, which Google's service agent creates.

    The permissions of the method's reference; that of the template, and of the policy, by its name.
    actAs on the instances' account is checked when the template is created.
    """
    project = resources.project(request.project)
    group = request.instance_group_manager_resource
    zone = f"{project}/zones/{request.zone}"
    machine = group.base_instance_name or group.name
    yield Need("compute.instances.create", project, f"{zone}/instances/{machine}")
    yield Need("compute.instances.setMetadata", project, f"{zone}/instances/{machine}")
    yield Need("compute.disks.create", project, f"{zone}/disks/{machine}")
    subnetwork = _subnetwork_of_template(resources, group.instance_template)
    used = subnetwork or f"{project}/regions/{region_of(request.zone)}"
    yield Need("compute.subnetworks.use", subnetwork or project, used)
    yield Need("compute.instanceTemplates.useReadOnly", project, group.instance_template)
    policy = group.resource_policies.workload_policy
    if policy:
        yield Need("compute.resourcePolicies.use", project, policy)


def _subnetwork_of_template(resources: PolicyResources, template: str) -> str:
    """The subnetwork that a template names by its path, which may be in a host project."""
    for kind in (_INSTANCE_TEMPLATES, _REGION_INSTANCE_TEMPLATES):
        row = resources.store.get_json(kind, relative_name(template))
        if row is not None:
            path = relative_name(row["properties"]["networkInterfaces"][0].get("subnetwork", ""))
            return path if path.startswith("projects/") else ""
    return ""


def _act_as_accounts_of_template(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """actAs on the accounts in the template's properties (the methods' references)."""
    for account in request.instance_template_resource.properties.service_accounts:
        yield resources.act_as(account.email, request.project)


def _disk(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """cloud.google.com/compute/docs/disks/attach-disks, "Required permissions"."""
    yield _use(resources, request.attached_disk_resource)


def _added_policies(resources: PolicyResources, request: Any) -> Iterator[Need]:
    return _policies(resources, request, "add")


def _removed_policies(resources: PolicyResources, request: Any) -> Iterator[Need]:
    return _policies(resources, request, "remove")


def _policies(resources: PolicyResources, request: Any, verb: str) -> Iterator[Need]:
    """docs.cloud.google.com/compute/docs/disks/scheduled-snapshots, "Required permissions"."""
    prefix = "region_disks" if "region" in request.DESCRIPTOR.fields_by_name else "disks"
    body = getattr(request, f"{prefix}_{verb}_resource_policies_request_resource")
    for policy in body.resource_policies:
        yield Need("compute.resourcePolicies.use", resources.project(request.project), policy)


def _labels(resources: PolicyResources, request: Any) -> Iterator[Need]:
    is_regional = "region" in request.DESCRIPTOR.fields_by_name
    place = f"regions/{request.region}" if is_regional else f"zones/{request.zone}"
    return _labels_of(resources, request, request.disk_resource, f"{place}/disks")


def _image_labels(resources: PolicyResources, request: Any) -> Iterator[Need]:
    return _labels_of(resources, request, request.image_resource, "global/images")


def _snapshot_labels(resources: PolicyResources, request: Any) -> Iterator[Need]:
    return _labels_of(resources, request, request.snapshot_resource, "global/snapshots")


def _labels_of(
    resources: PolicyResources, request: Any, resource: Any, collection: str
) -> Iterator[Need]:
    """Setting labels at creation."""
    if resource.labels:
        project = resources.project(request.project)
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
        "added_policies": _added_policies,
        "removed_policies": _removed_policies,
        "act_as_accounts_of_template": _act_as_accounts_of_template,
        "act_as_current_account": _act_as_current_account,
        "act_as_new_account": _act_as_new_account,
        "disk": _disk,
        "image_labels": _image_labels,
        "instance": _instance,
        "instance_group": _instance_group,
        "instances": _instances,
        "labels": _labels,
        "source_image": _source_image,
        "snapshot_labels": _snapshot_labels,
    },
    scopes=("compute",),
    read_scopes=("compute.readonly",),
    method_scopes={
        **{
            f"{_METHODS}Projects/{name}": ("compute",)
            for name in ("GetXpnHost", "GetXpnResources", "ListXpnHosts")
        },
        f"{_METHODS}Projects/SetUsageExportBucket": (
            *("compute", "devstorage.full_control", "devstorage.read_only"),
            "devstorage.read_write",
        ),
    },
    # cloud.google.com/iam/docs/service-agents, and of Compute Engine's default account
    # cloud.google.com/compute/docs/access/service-accounts
    agents=(
        ("roles/compute.serviceAgent", "service-{}@compute-system.iam.gserviceaccount.com"),
        ("roles/editor", "{}@cloudservices.gserviceaccount.com"),
        ("roles/editor", "{}-compute@developer.gserviceaccount.com"),
    ),
)

# The emulated collections.
COLLECTIONS = (
    "AcceleratorTypes",
    "Addresses",
    "Autoscalers",
    "DiskTypes",
    "Disks",
    "Firewalls",
    "FutureReservations",
    "GlobalAddresses",
    "GlobalOperations",
    "ImageFamilyViews",
    "Images",
    "InstanceGroupManagerResizeRequests",
    "InstanceGroupManagers",
    "InstanceGroups",
    "InstanceTemplates",
    "Instances",
    "MachineTypes",
    "Networks",
    "Projects",
    "RegionDisks",
    "RegionInstanceTemplates",
    "RegionOperations",
    "Regions",
    "Reservations",
    "ResourcePolicies",
    "Routers",
    "Routes",
    "Snapshots",
    "StoragePools",
    "Subnetworks",
    "ZoneOperations",
    "Zones",
)
_PATH = re.compile(r"(?:/compute/(?:v1|beta|alpha))?/projects/[^/]+(?:/|$)")


def _surface(client: str) -> Surface:
    """The surface of a client's collection, for example `GlobalAddresses`."""
    module = re.sub(r"(?<!^)([A-Z])", r"_\1", client).lower()
    return Surface(
        f"google.cloud.compute.v1.{client}",
        f"google.cloud.compute_v1.services.{module}",
        "compute",
        family="legacy",
        # Google's public projects have images too: the handler checks the project.
        api="" if client in ("Images", "ImageFamilyViews") else _ACCESS.host,
        refused=("guest_flush", "service_project", "service_project_number", "views"),
    )


def _surface_at(path: str) -> Surface | None:
    """The surface of a path, found by the client's module names."""
    if not _PATH.match(path):
        return None
    from tpuctl.emulator.compute.core.messages import client_of

    collection = client_of(path)
    return None if collection is None else _surface(collection[1])


_PACES = {
    "compute.networks": (0.6, 30.0),  # guess
    "compute.firewalls": (0.3, 10.0),  # guess
    "compute.metadata": (0.3, 8.0),  # guess
    "compute.subnetworks": (0.4, 15.0),  # guess
    "compute.routers": (0.3, 8.0),  # guess
    "compute.routes": (0.3, 8.0),  # guess
    "compute.projects": (0.3, 8.0),  # guess
    "compute.addresses": (0.3, 8.0),  # guess
    "compute.globalAddresses": (0.3, 8.0),  # guess
    # Done in the first response (GoogleCloudPlatform/k8s-config-connector, the cassettes of
    # dnsrecordset and servicenetworkingconnection); of regional addresses: guess.
    "compute.globalAddresses.setLabels": (0.0, 0.0),
    "compute.addresses.setLabels": (0.0, 0.0),
    "compute.disks": (0.3, 5.0),  # guess
    "compute.snapshots": (0.3, 8.0),  # guess
    "compute.images": (0.5, 30.0),  # guess
    "compute.storagePools": (0.5, 30.0),  # guess
    "compute.reservations": (0.3, 8.0),  # guess
    "compute.futureReservations": (0.3, 8.0),  # guess
    "compute.resourcePolicies": (0.2, 3.0),  # guess
    "compute.instanceTemplates": (0.2, 3.0),  # guess
    "compute.regionInstanceTemplates": (0.2, 3.0),  # guess
    "compute.instanceGroupManagers": (0.3, 6.0),  # guess
    "compute.instanceGroupManagerResizeRequests": (0.3, 6.0),  # guess
    "compute.instanceGroupManagers.retry": (1.0, 60.0),  # between attempts to create: guess
    "compute.instances": (0.2, 4.0),  # labels and such: guess
    "compute.instances.insert": (1.0, 45.0),  # "Compute VM 30-60 s" in public reports
    "compute.instances.bulkInsert": (0.0, 0.0),  # as long as its insertions take
    "compute.instances.timeUp": (0.6, 60.0),  # as of stopping
    "compute.instances.refused": (0.4, 20.0),  # 7 s and 96 s in two public reports
    # From RUNNING to SSH on instances with TPUs, which on others is part of the insertion:
    # "boot ~1 min" in public reports.
    "compute.boot": (0.5, 40.0),
    "compute.instances.delete": (0.6, 60.0),  # guess
    "compute.instances.stop": (0.6, 60.0),  # guess
    "compute.instances.start": (0.8, 30.0),  # guess
    "compute.instances.reset": (0.6, 10.0),  # guess
    "compute.instances.preempted": (0.0, 0.0),  # the preemption notice is the delay
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
    },
    surfaces=tuple(map(_surface, COLLECTIONS)),
    surface_at=_surface_at,
    legacy_paths=rf"/compute/|{_PATH.pattern}",
    aliases=((r"/compute/(?:beta|alpha)(?=/projects/)", "/compute/v1"),),  # gcloud beta and alpha
    with_machines={_INSTANCES: "compute", "compute.instanceGroupManagers": "compute"},
    paces=_PACES,
)
