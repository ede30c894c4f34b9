"""Requests for instances with TPU chips, as Google's documentation creates them."""

from __future__ import annotations

from typing import Any

from tests.support.locations import PROJECT, V5P_ZONE

NAME = f"projects/{PROJECT}/zones/{V5P_ZONE}/instances/bert-tpu"
WHICH = {"project": PROJECT, "zone": V5P_ZONE, "instance": "bert-tpu"}
V6E = "ct6e-standard-4t"
_IMAGES = "projects/ubuntu-os-accelerator-images/global/images/family"
V6E_IMAGE = f"{_IMAGES}/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
TPU7X_IMAGE = f"{_IMAGES}/ubuntu-accel-2404-amd64-tpu-tpu7x"


def tpu_instance(
    machine_type: str = V6E,
    name: str = "bert-tpu",
    *,
    zone: str = V5P_ZONE,
    image: str = V6E_IMAGE,
    disk: str = "",
    scheduling: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The request for an instance that maintenance terminates; `disk` is the type of its disk."""
    boot = {"source_image": image}
    if disk:
        boot["disk_type"] = f"zones/{zone}/diskTypes/{disk}"
    resource = {
        "name": name,
        "machine_type": f"zones/{zone}/machineTypes/{machine_type}",
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": boot}],
        "network_interfaces": [{"network": "global/networks/default"}],
        "scheduling": {"on_host_maintenance": "TERMINATE", **(scheduling or {})},
        **more,
    }
    return {"project": PROJECT, "zone": zone, "instance_resource": resource}
