"""Machines with TPU chips: their properties as Compute Engine takes them, and what can be read from
an existing one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from tpuctl.catalog import Capacity, accelerator_type, accelerator_types, tpu_machine
from tpuctl.model.stack.schema import QueueSection
from tpuctl.model.stack.stack import Stack
from tpuctl.model.stack.stack_rules import MAX_WAIT_SECONDS, MIN_WAIT_SECONDS
from tpuctl.model.status.status import NodeStatus
from tpuctl.model.text.duration import DURATION, seconds_of
from tpuctl.model.text.os_login import os_login_in
from tpuctl.resources.base import time_of
from tpuctl.resources.machines.compute_instance import (
    boot_differences,
    boot_disk,
    metadata_items,
    network_interface,
    shielded,
)
from tpuctl.resources.machines.disk_key import key_differences
from tpuctl.resources.machines.instance_metadata import SCOPE, metadata_of
from tpuctl.resources.network.network import network_differences

PROVISIONING_MODELS: Mapping[str, str] = {
    "on-demand": "STANDARD",
    "spot": "SPOT",
    "preemptible": "SPOT",
    "reserved": "RESERVATION_BOUND",
    "flex-start": "FLEX_START",
}
CAPACITIES: Mapping[str, Capacity] = {
    "STANDARD": "on-demand",
    "SPOT": "spot",
    "RESERVATION_BOUND": "reserved",
    "FLEX_START": "flex-start",
}
# Compute Engine's states (compute/docs/instances/instance-lifecycle) in the words of the TPU API.
# TERMINATED means stopped: the instance can be started again.
STATES: Mapping[str, str] = {
    "PROVISIONING": "CREATING",
    "STAGING": "CREATING",
    "RUNNING": "READY",
    "PENDING_STOP": "STOPPING",
    "TERMINATED": "STOPPED",
    "DEPROVISIONING": "DELETING",
}


def machine_state(status: str) -> str:
    """The state of an instance in the words of the TPU API."""
    return STATES.get(status, status)


def machine_properties(
    stack: Stack, network: str, key_line: str, *, startup: bool
) -> dict[str, Any]:
    """The properties of the stack's TPU machines, in the form of an instance template.

    `startup`: whether machines run startup scripts.
    """
    machine = stack.machine
    project, _, family = machine.image.partition("/")
    disk = stack.file.tpu.boot_disk
    properties: dict[str, Any] = {
        "description": stack.names.ownership,
        "machine_type": machine.machine_type,
        "disks": [
            boot_disk(
                stack,
                f"projects/{project}/global/images/family/{family}",
                disk.size_gb,
                stack.boot_disk_type,
            )
        ],
        "network_interfaces": [network_interface(stack, network)],
        "service_accounts": [{"email": stack.service_account, "scopes": [SCOPE]}],
        **shielded(stack.file.tpu.secure_boot),
        "labels": stack.new_labels,
        "tags": {"items": stack.tags},
        "metadata": {"items": metadata_items(metadata_of(stack, key_line, startup=startup))},
        "scheduling": _scheduling(stack),
    }
    affinity = _reservation_affinity(stack)
    return properties if affinity is None else {**properties, "reservation_affinity": affinity}


def _scheduling(stack: Stack) -> dict[str, Any]:
    """Machines with TPUs cannot migrate. What is preempted, or has run its time, is deleted."""
    model = PROVISIONING_MODELS[stack.file.tpu.capacity]
    scheduling: dict[str, Any] = {
        "provisioning_model": model,
        "on_host_maintenance": "TERMINATE",
        "automatic_restart": model == "STANDARD",
    }
    if model != "STANDARD":
        scheduling["instance_termination_action"] = "DELETE"
    if model == "FLEX_START":
        queue = stack.file.tpu.queue
        assert queue is not None and queue.run_for is not None, "required by the stack file's rules"
        scheduling["max_run_duration"] = {"seconds": int(seconds_of(queue.run_for))}
    return scheduling


def _reservation_affinity(stack: Stack) -> dict[str, Any] | None:
    tpu = stack.file.tpu
    if tpu.capacity == "flex-start":
        return {"consume_reservation_type": "NO_RESERVATION"}
    if tpu.reservation is None:
        return None
    return {
        "consume_reservation_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [tpu.reservation],
    }


def wait_seconds(queue: QueueSection, now: datetime | None = None) -> int:
    """How long a flex-start instance may wait, from now."""
    until = queue.valid_until
    if until is None:
        return MAX_WAIT_SECONDS
    if re.fullmatch(DURATION, until):
        return int(seconds_of(until))
    left = datetime.fromisoformat(until) - (now or datetime.now(UTC))
    return max(MIN_WAIT_SECONDS, min(MAX_WAIT_SECONDS, int(left.total_seconds())))


def machine_differences(stack: Stack, observed: Any) -> Iterator[tuple[str, str, str]]:
    """Differences that cannot be updated, as (field, actual, desired), of an instance or of a
    template's properties."""
    machine_type = observed.machine_type.rpartition("/")[2]
    if machine_type != stack.machine.machine_type:
        yield "type", machine_type, stack.machine.machine_type
    model = observed.scheduling.provisioning_model or "STANDARD"
    desired_model = PROVISIONING_MODELS[stack.file.tpu.capacity]
    if model != desired_model:
        yield "capacity", CAPACITIES.get(model, model), stack.file.tpu.capacity
    yield from boot_differences(observed, stack.file.tpu.secure_boot)
    size_gb = stack.file.tpu.boot_disk.size_gb
    for disk in observed.disks:
        if disk.boot and disk.disk_size_gb not in (0, size_gb):
            yield "boot disk", f"{disk.disk_size_gb} GB", f"{size_gb} GB"
        if disk.boot:
            yield from key_differences(stack, disk, "boot disk")
    for interface in observed.network_interfaces:
        yield from network_differences(stack, interface.network, interface.subnetwork)


@cache
def accelerator_name(machine_type: str, hosts: int = 1) -> str:
    """The accelerator type of a slice of these machines; the machine type if it is unknown."""
    names = [
        accelerator.name
        for accelerator in accelerator_types().values()
        if (machine := tpu_machine(accelerator)) is not None
        and (machine.machine_type, machine.hosts) == (machine_type, hosts)
    ]
    return next(iter(names), machine_type)


def group_of(metadata: Mapping[str, str]) -> str:
    """The managed instance group that created an instance, by its metadata; empty for none."""
    return metadata.get("created-by", "").partition("/instanceGroupManagers/")[2]


# Instances as JSON, from lists --------------------------------------------------------------


def owning_group(instance: Mapping[str, Any]) -> str:
    """The managed instance group that created an instance; empty for none."""
    return group_of(_metadata(instance))


def in_worker_order(instances: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The instances of a group as workers 0 and up."""
    return sorted(instances, key=lambda instance: instance["name"])


def capacity_of(instance: Mapping[str, Any]) -> Capacity:
    """The capacity type of an instance."""
    model = instance.get("scheduling", {}).get("provisioningModel", "STANDARD")
    return CAPACITIES.get(model, "on-demand")


def external_addresses(instance: Mapping[str, Any]) -> list[str]:
    """The external addresses of an instance."""
    interfaces = instance.get("networkInterfaces", ())
    accesses = [access for face in interfaces for access in face.get("accessConfigs", ())]
    return [access["natIP"] for access in accesses if access.get("natIP")]


def slice_status(
    name: str, id: str, zone: str, state: str, workers: Sequence[Mapping[str, Any]]
) -> NodeStatus:
    """The status of a slice: its instances in worker order."""
    machine_type = workers[0].get("machineType", "").rpartition("/")[2] if workers else ""
    type_name = accelerator_name(machine_type, len(workers))
    accelerator = accelerator_type(type_name)
    machine = tpu_machine(accelerator) if accelerator is not None else None
    inner = [_inner_address(worker) for worker in workers]
    outer = [next(iter(external_addresses(worker)), "") for worker in workers]
    return NodeStatus(
        name=name,
        id=id,
        zone=zone,
        state=state,
        health="",
        accelerator_type=type_name,
        runtime=machine.image if machine is not None else "",
        created=min(
            (
                created
                for worker in workers
                if (created := time_of(worker.get("creationTimestamp")))
            ),
            default=None,
        ),
        addresses=tuple(address or other for address, other in zip(outer, inner, strict=True)),
        ssh_ports=tuple(int(_metadata(worker).get("tpuctl-ssh-port", "22")) for worker in workers),
        inner_addresses=tuple(inner),
        instances=tuple(worker["name"] for worker in workers),
        os_login=os_login_in(_metadata(workers[0])) if workers else None,
    )


def _inner_address(instance: Mapping[str, Any]) -> str:
    interfaces = instance.get("networkInterfaces", ())
    return next((str(face["networkIP"]) for face in interfaces if face.get("networkIP")), "")


def _metadata(instance: Mapping[str, Any]) -> dict[str, str]:
    items = instance.get("metadata", {}).get("items", ())
    return {item["key"]: item.get("value", "") for item in items}
