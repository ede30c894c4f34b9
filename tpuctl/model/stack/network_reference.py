"""The networks and subnetworks that a stack file names: by name, or by path.

A path may be another project's, whose network is shared with the stack's (Shared VPC).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tpuctl.catalog import region_of
from tpuctl.errors import Diagnostic
from tpuctl.model.stack.schema import StackFile

PATH = re.compile(r"projects/([^/]+)/(?:global|regions/([^/]+))/(?:sub)?networks/([^/]+)")


@dataclass(frozen=True)
class Reference:
    """A network or subnetwork. A name alone has neither project nor region."""

    name: str
    project: str = ""
    region: str = ""


def reference(text: str) -> Reference:
    match = PATH.fullmatch(text)
    return Reference(text) if match is None else Reference(match[3], match[1], match[2] or "")


def host_project(file: StackFile) -> str:
    """The other project that the stack's network belongs to, or ""."""
    project = reference(file.network.name).project
    return "" if project == file.project.id else project


def nat_commands(project: str, network: str, region: str) -> str:
    """How an administrator creates Cloud NAT for all subnetworks of a network in a region."""
    where = f"--project={project} --region={region}"
    return (
        f"    gcloud compute routers create nat {where} --network={network}\n"
        f"    gcloud compute routers nats create nat {where} --router=nat "
        "--auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"
    )


def reference_problems(
    file: StackFile, zones: Collection[str], where: Callable[[str], str]
) -> Iterator[Diagnostic]:
    """Paths that do not fit the stack, its zones, or each other."""
    network, host = file.network, host_project(file)
    subnetwork = reference(network.subnetwork or "")
    if subnetwork.project and subnetwork.project != (host or file.project.id):
        yield Diagnostic(
            "Network of another project",
            f"network.subnetwork belongs to project {subnetwork.project}, and network.name "
            "does not",
            "Set its network, too:\n"
            f"    network: {{name: projects/{subnetwork.project}/global/networks/NETWORK}}",
            where("network.subnetwork"),
        )
    elsewhere = [zone for zone in zones if region_of(zone) != subnetwork.region]
    if subnetwork.region and elsewhere:
        yield Diagnostic(
            "Subnetwork of another region",
            f"network.subnetwork is in {subnetwork.region}, and the TPU may be in "
            f"{', '.join(elsewhere)}",
            f"Set tpu.zones to zones of {subnetwork.region}, or name a subnetwork that exists in "
            f"each region:\n    network: {{subnetwork: {subnetwork.name}}}",
            where("network.subnetwork"),
        )
    if not host:
        return
    if network.subnetwork is None:
        yield Diagnostic(
            "Missing key",
            "network.subnetwork is required with the network of a host project (Shared VPC)",
            "To list those that you may use:\n"
            f"    gcloud compute networks subnets list-usable --project={host}",
            where("network.name"),
        )
    if network.nat:
        yield Diagnostic(
            "Cloud NAT in a host project",
            f"network.nat would create a router in project {host}, whose network is its "
            "administrator's (Shared VPC)",
            "Remove nat. Unless the network has a NAT, ask the administrator to run\n"
            + nat_commands(host, reference(network.name).name, "REGION"),
            where("network.nat"),
        )
    if file.tpu.kind == "node" and network.node_range != "service-networking":
        yield Diagnostic(
            "Address range in a host project",
            "a TPU node reaches the network of a host project (Shared VPC) only through Service "
            "Networking",
            "Ask its administrator for a private connection, then use\n"
            "    network: {node_range: service-networking}",
            where("network.node_range"),
        )
