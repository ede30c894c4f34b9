"""The default network that Google creates in a project."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.state.store import Store

# cloud.google.com/vpc/docs/firewalls: the rules of the default network.
_RULES: tuple[dict[str, Any], ...] = (
    {
        "name": "default-allow-icmp",
        "description": "Allow ICMP from anywhere",
        "sourceRanges": ["0.0.0.0/0"],
        "allowed": [{"IPProtocol": "icmp"}],
    },
    {
        "name": "default-allow-internal",
        "description": "Allow internal traffic on the default network",
        "sourceRanges": ["10.128.0.0/9"],
        "allowed": [
            {"IPProtocol": "tcp", "ports": ["0-65535"]},
            {"IPProtocol": "udp", "ports": ["0-65535"]},
            {"IPProtocol": "icmp"},
        ],
    },
    {
        "name": "default-allow-rdp",
        "description": "Allow RDP from anywhere",
        "sourceRanges": ["0.0.0.0/0"],
        "allowed": [{"IPProtocol": "tcp", "ports": ["3389"]}],
    },
    {
        "name": "default-allow-ssh",
        "description": "Allow SSH from anywhere",
        "sourceRanges": ["0.0.0.0/0"],
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
    },
)


def add_default_network(store: Store, project: Project) -> None:
    """The `default` network in auto mode, created when Compute Engine is first enabled.

    Created only once: a deleted default network is not recreated.
    """
    marker = f"projects/{project['id']}"
    if store.get("compute.defaulted", marker) is not None:
        return
    with store.transaction():
        store.put("compute.defaulted", marker, b"")
        network = f"{marker}/global/networks/default"
        store.put_json(
            "compute.networks",
            network,
            {
                "kind": "compute#network",
                "id": str(store.next("compute-id", 10**18)),
                "creationTimestamp": pacific_text(),
                "name": "default",
                "description": "Default network for the project",
                "autoCreateSubnetworks": True,
                "routingConfig": {"routingMode": "REGIONAL"},
            },
        )
        for rule in _RULES:
            name = f"{marker}/global/firewalls/{rule['name']}"
            store.put_json(
                "compute.firewalls",
                name,
                {
                    "kind": "compute#firewall",
                    "id": str(store.next("compute-id", 10**18)),
                    "creationTimestamp": pacific_text(),
                    "network": network,
                    "priority": 65534,
                    "direction": "INGRESS",
                    "disabled": False,
                    "logConfig": {"enable": False},
                    **rule,
                },
            )
