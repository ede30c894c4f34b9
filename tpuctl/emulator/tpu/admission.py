"""Validates requests for TPU VMs and builds their nodes.

Error texts without a source are our own: no public report shows Cloud TPU's.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu

from tpuctl import catalog
from tpuctl.catalog.compute_tpu import flex_start_zones
from tpuctl.emulator.faults.google_messages import fault_error
from tpuctl.emulator.iam.crypto_keys import KEY, UnusableKey
from tpuctl.emulator.iam.policies import ACCOUNTS, is_visible
from tpuctl.emulator.machines.interface import Endpoint
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.state.shared_vpc import may_use
from tpuctl.emulator.tpu.nodes import PORT_KEY, Node, NodeState, set_create_time
from tpuctl.emulator.tpu.offerings import (
    NODE_ID,
    accelerator_config,
    bad_request,
    check_offering,
    no_capacity,
)
from tpuctl.emulator.wire.registry import Registry

# docs.cloud.google.com/resource-manager/docs/labels-overview#requirements
_LABEL_KEY = re.compile(r"[^\W\d_A-Z][\w-]{0,62}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")
_MAX_LABELS = 64
_TAG = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")  # Compute's rule for network tags
_DISK = re.compile(r"(?:(?:.*/)?projects/([^/]+)/)?zones/([^/]+)/disks/([^/]+)")
_ACCOUNT = re.compile(r"[^@]+@([^.@]+)\.iam\.gserviceaccount\.com")
_TPU_PORT = 8470
_ALL_APIS = "https://www.googleapis.com/auth/cloud-platform"
_DEFAULT_SCOPES = (  # tests/recorded/tpu/node-by-gcloud.toml
    "https://www.googleapis.com/auth/devstorage.read_write",
    "https://www.googleapis.com/auth/logging.write",
    "https://www.googleapis.com/auth/service.management",
    "https://www.googleapis.com/auth/servicecontrol",
    _ALL_APIS,
    "https://www.googleapis.com/auth/pubsub",
)
_MAX_DESCRIPTION_LENGTH = 512  # cloud_tpu.proto: "Maximum of 512 characters"
_EXTERNAL_IP_CONSTRAINT = "compute.vmExternalIpAccess"


def check_node_id(node_id: str) -> None:
    if not NODE_ID.fullmatch(node_id):
        raise bad_request(f'The node id "{node_id}" is invalid.')


def check_labels(labels: Mapping[str, str]) -> None:
    """Google's requirements for labels of all resources."""
    if len(labels) > _MAX_LABELS:
        raise bad_request(f"There are more than {_MAX_LABELS} labels.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or key != key.lower():
            raise bad_request(f'The label key "{key}" is invalid.')
        if not _LABEL_VALUE.fullmatch(value) or value != value.lower():
            raise bad_request(f'The value "{value}" of label "{key}" is invalid.')


@dataclass(frozen=True)
class AdmittedNode:
    """The result of validating a node: its accelerator type and network."""

    accelerator: catalog.AcceleratorType
    network: str  # full name


class Admission:
    """Validates requested nodes and fills in defaults."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store = registry.store

    def check(
        self, project: Project, zone: str, node: Any, extras: Mapping[str, Any]
    ) -> AdmittedNode:
        """Raise an error if the node is invalid; capacity and quota are checked elsewhere.

        `extras` are fields that the client's node lacks.
        """
        accelerator = check_offering(zone, node)
        self.check_location(project, zone)
        config = extras.get("bootDiskConfig", {})
        self._check_key(project, zone, config.get("customerEncryptionKey", {}).get("kmsKeyName"))
        check_labels(node.labels)
        for tag in node.tags:
            if not _TAG.fullmatch(tag):
                raise bad_request(f'The tag "{tag}" is invalid.')
        if len(node.description) > _MAX_DESCRIPTION_LENGTH:
            raise bad_request(
                f"The description is longer than {_MAX_DESCRIPTION_LENGTH} characters."
            )
        if sum(len(key) + len(value) for key, value in node.metadata.items()) > 512 * 1024:
            raise invalid("The metadata is larger than 512 KiB.")
        network = self._check_network(project, zone, node)
        configs = list(node.network_configs) or [node.network_config]
        self.check_external(project, zone, configs)
        self.check_disks(project, zone, accelerator.name, node.data_disks)
        self._check_account(node.service_account.email)
        return AdmittedNode(accelerator, network)

    def check_reservation(self, project_id: str, zone: str, name: str = "") -> None:
        """The reservation must exist; "" or `…/reservations/-` matches any in the zone."""
        prefix = f"projects/{project_id}/locations/{zone}/reservations/"
        reservations = [
            str(reservation) for reservation in self._registry.settings.get("reservations")
        ]
        wants_any = not name or name.endswith("/-")
        if wants_any and any(reservation.startswith(prefix) for reservation in reservations):
            return
        if not wants_any and name in reservations:
            return
        raise missing("Reservation not found")  # from a public issue, in the operation's error

    @staticmethod
    def offers_flex_start(zone: str, spec: Mapping[str, Any]) -> bool:
        """Whether flex-start is available for a queued resource's node spec in the zone."""
        accelerator = catalog.accelerator_type(spec["_type"])
        return accelerator is not None and zone in flex_start_zones(accelerator, "tpu")

    def creation_failure(self, project: Project, node: Any) -> list[str]:
        """Status and text of the error that creation will fail with; empty if none."""
        zone = node.name.split("/")[3]
        if node.scheduling_config.reserved:
            try:
                self.check_reservation(project["id"], zone)
            except ApiError as error:
                return [error.status, error.message]
        attributes = {"project": project["id"], "zone": zone, "type": node.accelerator_type}
        fault = self._registry.faults.take("stockout", **attributes)
        if fault is not None:
            return ["RESOURCE_EXHAUSTED", fault.get("text") or no_capacity(zone)]
        if not node.scheduling_config.reserved and self._registry.weather.refuses(attributes):
            return ["RESOURCE_EXHAUSTED", no_capacity(zone)]
        return []

    def build(
        self,
        name: str,
        requested: Any,
        project: Project,
        admitted: AdmittedNode,
        endpoints: Sequence[Endpoint],
    ) -> Any:
        """A node in state CREATING with that full name and all defaults filled in."""
        node = Node()
        node.CopyFrom(requested)
        # Output only: values from the client are ignored.
        for field in ("health", "health_description", "symptoms", "queued_resource"):
            node.ClearField(field)
        node.ClearField("network_endpoints")
        node.ClearField("multislice_node")
        node.name = name
        node.id = secrets.randbits(62)
        node.state = NodeState.CREATING
        node.api_version = cloud_tpu.Node.ApiVersion.V2
        node.accelerator_type = admitted.accelerator.name
        config = accelerator_config(admitted.accelerator)
        if config:
            node.accelerator_config.CopyFrom(cloud_tpu.AcceleratorConfig.pb()(**config))
        set_create_time(node)
        default_account = f"{project['number']}-compute@developer.gserviceaccount.com"
        if node.service_account.email in ("", "default"):
            node.service_account.email = default_account
        if not node.service_account.scope:
            # cloud_tpu.proto: "If empty, access to all Cloud APIs will be allowed."
            is_default = node.service_account.email == default_account
            node.service_account.scope.extend(_DEFAULT_SCOPES if is_default else [_ALL_APIS])
        self._complete_network(node, admitted.network)
        node.scheduling_config.SetInParent()
        node.shielded_instance_config.SetInParent()
        if not node.cidr_block:
            node.cidr_block = f"10.{128 + node.id % 64}.0.0/20"
        configs = list(node.network_configs) or [node.network_config]
        for endpoint in endpoints:
            entry = node.network_endpoints.add(ip_address=endpoint.address, port=_TPU_PORT)
            if configs[0].enable_external_ips:
                entry.access_config.external_ip = endpoint.address
        ports = [str(endpoint.ssh_port) for endpoint in endpoints]
        if set(ports) != {"22"}:
            node.metadata[PORT_KEY] = ports[0] if len(set(ports)) == 1 else ",".join(ports)
        return node

    @staticmethod
    def _complete_network(node: Any, network: str) -> None:
        if node.network_configs:
            return
        node.network_config.network = network
        if not node.network_config.subnetwork:
            region = catalog.region_of(node.name.split("/")[3])
            base = network.partition("/global/")[0]
            subnetwork = f"{base}/regions/{region}/subnetworks/{network.rpartition('/')[2]}"
            node.network_config.subnetwork = subnetwork

    def _check_network(self, project: Project, zone: str, node: Any) -> str:
        """The full name of the node's network, which must exist."""
        if node.HasField("network_config") and node.network_configs:
            raise bad_request("network_config and network_configs are mutually exclusive.")
        config = node.network_configs[0] if node.network_configs else node.network_config
        text = config.network or "default"
        match = re.search(r"projects/([^/]+)/global/networks/([^/]+)$", text)
        owner, name = (match[1], match[2]) if match else (project["id"], text.rpartition("/")[2])
        full = f"projects/{owner}/global/networks/{name}"
        if self._store.get("compute.networks", full) is None:
            raise missing(f"The resource '{full}' was not found")
        if owner not in (project["id"], str(project["number"])):
            self._check_shared(project, zone, full, config)
        return full

    def _check_shared(self, project: Project, zone: str, network: str, config: Any) -> None:
        """A host project's network: the project is attached, and the service agent may use it.

        cloud.google.com/tpu/docs/shared-vpc-networks. Cloud TPU's wording is not known, so these
        are Compute Engine's.
        """
        owner = network.split("/")[1]
        if not may_use(self._store, project["id"], owner):
            reason = "Cross-project references for this resource are not allowed."
            raise bad_request(f"Invalid value for field 'network': '{network}'. {reason}")
        name = config.subnetwork.rpartition("/")[2] or network.rpartition("/")[2]
        region = catalog.region_of(zone)
        subnetwork = f"projects/{owner}/regions/{region}/subnetworks/{name}"
        agent = f"service-{project['number']}@gcp-sa-tpu.iam.gserviceaccount.com"
        needed = ["compute.subnetworks.use"]
        if config.enable_external_ips:
            needed.append("compute.subnetworks.useExternalIp")
        for permission in needed:
            if not self._registry.authority.allows(agent, permission, subnetwork):
                text = f"Required '{permission}' permission for '{subnetwork}'"
                raise ApiError("PERMISSION_DENIED", text)

    def check_external(self, project: Project, zone: str, configs: Sequence[Any]) -> None:
        """Compute Engine's wording (many public issues); Cloud TPU's is not known."""
        machine = f"projects/{project['id']}/zones/{zone}/instances/t1v-n-00000000-w-0"
        if not any(config.enable_external_ips for config in configs):
            return
        if not OrgPolicies(self._store).allows(
            f"projects/{project['id']}", _EXTERNAL_IP_CONSTRAINT, machine
        ):
            raise ApiError(
                "FAILED_PRECONDITION",
                f"Constraint constraints/{_EXTERNAL_IP_CONSTRAINT} violated for project "
                f"{project['number']}. Add instance {machine} to the constraint to use external "
                "IP with it.",
            )

    def check_location(self, project: Project, zone: str) -> None:
        policies = OrgPolicies(self._store)
        is_closed = zone in catalog.ALLOWLIST_ZONES
        is_closed = is_closed and zone not in self._registry.settings.get("zones")
        if is_closed or not policies.allows(
            f"projects/{project['id']}", "gcp.resourceLocations", zone
        ):
            values = {"zone": zone, "project_number": project["number"]}
            raise fault_error({"kind": "error", "google_error": "location-policy"}, values)

    def _check_key(self, project: Project, zone: str, key: str | None) -> None:
        """The key's location, and that Compute Engine's agent needs it:
        docs.cloud.google.com/tpu/docs/cmek-tpu. The words are Compute Engine's."""
        keys = self._registry.keys
        constraint = keys.violation(project, "tpu.googleapis.com", key or "")
        if constraint:
            text = f"Constraint constraints/{constraint} violated for project {project['id']}."
            raise ApiError("FAILED_PRECONDITION", text)
        if not key:
            return
        match = KEY.fullmatch(key)
        if match is None or match["location"] != catalog.region_of(zone):
            raise bad_request(f'The key "{key}" is not in region "{catalog.region_of(zone)}".')
        agent = f"service-{project['number']}@compute-system.iam.gserviceaccount.com"
        try:
            keys.usable_version(key, agent)
        except UnusableKey as problem:
            raise bad_request(
                f"Cloud KMS error when using key {problem.name}: {problem.explanation}"
            ) from problem

    def check_disks(
        self, project: Project, zone: str, type_name: str, disks: Sequence[Any]
    ) -> None:
        """Also gives a partial link the project."""
        accelerator = catalog.accelerator_type(type_name)
        assert accelerator is not None, "admitted"
        for disk in disks:
            if disk.source_disk.startswith("zones/"):
                disk.source_disk = f"projects/{project['id']}/{disk.source_disk}"
            self._check_disk(zone, accelerator, disk)

    def _check_disk(self, zone: str, accelerator: catalog.AcceleratorType, disk: Any) -> None:
        """Multi-host slices can attach disks in read-only mode only:
        docs.cloud.google.com/tpu/docs/setup-persistent-disk."""
        match = _DISK.fullmatch(disk.source_disk)
        if match is None:
            raise bad_request(f'The source disk "{disk.source_disk}" is invalid.')
        name = f"projects/{match[1]}/zones/{match[2]}/disks/{match[3]}"
        if self._store.get("compute.disks", name) is None:
            raise missing(f"The resource '{name}' was not found")
        if match[2] != zone:
            raise bad_request(f'The disk "{name}" is not in zone "{zone}".')
        is_read_only = disk.mode == cloud_tpu.AttachedDisk.DiskMode.READ_ONLY
        if accelerator.workers > 1 and not is_read_only:
            raise bad_request(
                f'The disk "{name}" can be attached to a TPU of several hosts in read-only mode '
                "only."
            )

    def _check_account(self, email: str) -> None:
        """An account of this cloud must exist; others are not checked."""
        match = _ACCOUNT.fullmatch(email)
        if match is None or self._registry.projects.find(match[1]) is None:
            return
        name = f"projects/{match[1]}/serviceAccounts/{email}"
        if not is_visible(self._store.get_json(ACCOUNTS, name)):
            raise bad_request(f"Service account {email} does not exist.")
