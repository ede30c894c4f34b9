"""The request body of a TPU VM, created directly or by a queued resource."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpuctl.model.scripts.framework import is_tensorflow
from tpuctl.model.stack.schema import DataDisk
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.machines.disk import disk_name, disk_path
from tpuctl.resources.machines.instance_metadata import SCOPE, metadata_differs, metadata_of
from tpuctl.resources.network.network import network_differences

# Generations in `acceleratorConfig.type` (tpu_v2.AcceleratorConfig.Type).
CONFIG_TYPES = {
    "v2": "V2",
    "v3": "V3",
    "v4": "V4",
    "v5e": "V5LITE_POD",
    "v5p": "V5P",
    "v6e": "V6E",
}


def node_body(stack: Stack, network: str, key_line: str, *, startup: bool) -> dict[str, Any]:
    """The fields of the v2 node for the stack, in the named network.

    `startup`: whether machines run startup scripts.
    """
    section = stack.file.network
    network_config: dict[str, Any] = {
        "network": stack.network_path(network),
        "enable_external_ips": section.ssh == "external",
    }
    if stack.subnetwork_path is not None:
        network_config["subnetwork"] = stack.subnetwork_path
    return {
        **_accelerator(stack),
        "runtime_version": stack.runtime.version,
        "description": stack.names.ownership,
        "network_config": network_config,
        "service_account": {"email": stack.service_account, "scope": [SCOPE]},
        "scheduling_config": _scheduling(stack),
        **_shielded(stack),
        "labels": stack.new_labels,
        "tags": stack.tags,
        "metadata": metadata_of(stack, key_line, startup=startup),
        "data_disks": [
            {
                "source_disk": disk_path(stack, index),
                "mode": _mode(disk),
            }
            for index, disk in enumerate(stack.file.tpu.data_disks)
        ],
    }


def encrypted(stack: Stack, node: dict[str, Any]) -> dict[str, Any]:
    """A node in JSON whose boot disk the stack's key encrypts: docs.cloud.google.com/tpu/docs/
    cmek-tpu, and `bootDiskConfig` of the API's description, which the Python client lacks."""
    key = stack.crypto_key
    assert key is not None, "the client's node is enough for others"
    return {**node, "bootDiskConfig": {"customerEncryptionKey": {"kmsKeyName": key.name}}}


def boot_key_of(node: dict[str, Any]) -> str:
    """The key that encrypts the boot disk of a node in JSON; empty: Google's."""
    config = node.get("bootDiskConfig", {})
    return str(config.get("customerEncryptionKey", {}).get("kmsKeyName", ""))


def boot_key_differences(stack: Stack, boot_key: str | None) -> Iterator[tuple[str, str, str]]:
    """Like node_differences, for the key of the boot disk; None if it was not read."""
    key = stack.crypto_key
    if key is not None and boot_key is not None and not key.is_of(boot_key):
        yield "boot disk key", boot_key or "of Google", key.name


def runtime_reason(stack: Stack) -> str:
    """Which runtime `auto` chose for a framework other than TensorFlow, to append to a reason."""
    choice = stack.framework
    if stack.has_fixed_runtime or is_tensorflow(choice):
        return ""
    return f" with {stack.runtime.version} for {choice}"


def disk_addresses(stack: Stack) -> set[str]:
    """Addresses of the stack's data disks, which must exist before the machine."""
    return {f"disk/{disk_name(stack, i)}" for i in range(len(stack.file.tpu.data_disks))}


def _accelerator(stack: Stack) -> dict[str, Any]:
    """The type by name or, with a topology, by generation and topology."""
    topology = stack.file.tpu.topology
    if topology is None:
        return {"accelerator_type": stack.accelerator.name}
    kind = CONFIG_TYPES[stack.accelerator.generation]
    return {"accelerator_config": {"type_": kind, "topology": topology}}


def _scheduling(stack: Stack) -> dict[str, bool]:
    capacity = stack.file.tpu.capacity
    return {capacity: True} if capacity in ("spot", "preemptible", "reserved") else {}


def _shielded(stack: Stack) -> dict[str, Any]:
    if not stack.file.tpu.secure_boot:
        return {}
    return {"shielded_instance_config": {"enable_secure_boot": True}}


def node_differences(stack: Stack, observed: Any) -> Iterator[tuple[str, str, str]]:
    """Differences that cannot be updated, as (field, actual, desired).

    A node requested by generation and topology is returned with these, with the name of its type,
    or with both.
    """
    name, config = observed.accelerator_type, observed.accelerator_config
    kind, shape = config.type_.name, config.topology
    accelerator, desired_topology = stack.accelerator, stack.file.tpu.topology
    if name and name != accelerator.name:
        yield "type", name, accelerator.name
    elif not name and shape and kind != CONFIG_TYPES[accelerator.generation]:
        yield "type", kind, accelerator.name
    elif shape and shape != (desired_topology or (shape if name else accelerator.topology)):
        yield "topology", shape, desired_topology or accelerator.topology
    runtime = stack.on_runtime(observed.runtime_version).runtime
    if observed.runtime_version != runtime.version:
        yield "runtime", observed.runtime_version, runtime.version

    connection = observed.network_config
    yield from network_differences(stack, connection.network, connection.subnetwork)

    if stack.file.tpu.secure_boot and not observed.shielded_instance_config.enable_secure_boot:
        yield "Secure Boot", "off", "on"

    attached = {disk.source_disk.rpartition("/")[2]: disk.mode.name for disk in observed.data_disks}
    disks = {disk_name(stack, i): _mode(disk) for i, disk in enumerate(stack.file.tpu.data_disks)}
    if {*disks.items()} - {*attached.items()}:
        yield "data disks", _listed(attached), _listed(disks)


def capacity_differences(stack: Stack, is_spot: bool) -> Iterator[tuple[str, str, str]]:
    """Like node_differences, for preemptible against other capacity, which have other prices."""
    if is_spot != stack.is_spot:
        yield "capacity", "spot" if is_spot else "on-demand", stack.file.tpu.capacity


def _mode(disk: DataDisk) -> str:
    return disk.mode.upper().replace("-", "_")


def _listed(disks: Mapping[str, str]) -> str:
    parts = [f"{name} {mode.lower().replace('_', '-')}" for name, mode in disks.items()]
    return ", ".join(parts) or "none"


def stale_fields(
    stack: Stack,
    labels: Mapping[str, str],
    tags: Iterable[str],
    metadata: Mapping[str, str],
    desired_metadata: Mapping[str, str],
) -> list[str]:
    """What an update must change on an existing node: `labels`, `tags`, and parts of its metadata.

    Additions by others are kept; `ssh-keys` may hold others' keys.
    """
    fields = []
    if any(labels.get(key) != value for key, value in stack.labels.items()):
        fields.append("labels")
    if not {*stack.tags} <= {*tags}:
        fields.append("tags")
    return [*fields, *metadata_differs(metadata, desired_metadata)]


def stale_because(fields: Sequence[str]) -> str:
    """Why a node is updated."""
    if fields == ["ssh-keys"]:
        return "adding this machine's SSH key"
    return f"{' and '.join(fields)} changed in the stack file"
