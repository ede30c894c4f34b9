"""The metadata tree of a TPU VM or an instance.

Names and formats are those that its readers expect: worker addresses are the third field of each
comma-separated entry (JAX, `jax/_src/clusters/cloud_tpu_cluster.py`), `tpu-env` has lines
`KEY: 'value'` (PyTorch/XLA, `torch_xla/_internal/tpu.py`), `instance/service-accounts` is as
google-auth's `compute_engine` reads it. The values of every instance are listed at
cloud.google.com/compute/docs/metadata/predefined-metadata-keys.

Instances of Compute Engine with chips have `worker-id` besides, and the type of TPU7x without its
"tpu": a slice of a managed instance group, as a public guide to TPU7x prints it (2026). Whether all
of it is there on an instance that is a slice of its own is unknown.

The keys of `tpu-env` are those of a v4-256 whose attribute is quoted in full in test_tpu.py of
penghao-wu/cambrian, without those that only Google's agents on the machine read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from tpuctl.catalog import AcceleratorType, accelerator_type
from tpuctl.emulator.machines.interface import MachineSpec

Tree: TypeAlias = "dict[str, Tree | str | int | list[str]]"

# Machine types of hosts, by number of chips: AI-Hypercomputer/xpk,
# src/xpk/core/system_characteristics.py. TPU VM hosts of v2 and v3 have 96 cores; their type is a
# guess.
HOST_TYPES = {
    "v2": "n1-standard-96",
    "v3": "n1-standard-96",
    "v4": "ct4p-hightpu-{}t",
    "v5e": "ct5lp-hightpu-{}t",
    "v5p": "ct5p-hightpu-{}t",
    "v6e": "ct6e-standard-{}t",
    "tpu7x": "tpu7x-standard-{}t",
}
CHIPS_PER_HOST = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
# As in the API's enum google.cloud.tpu.v2.AcceleratorConfig.Type.
GENERATION_TYPES = {"v5e": "V5LITE_POD"}
METRICS_PORT = 8431  # of the first chip; one per chip


def metadata_tree(
    spec: MachineSpec,
    hostname: str,
    events: Mapping[str, str],
    guest: Mapping[str, Mapping[str, str]],
) -> Tree:
    """Everything below `computeMetadata/v1` except tokens. Keys are path segments."""
    number = spec.project_number
    account: Tree = {
        "aliases": ["default"],
        "email": spec.service_account,
        "scopes": list(spec.scopes),
    }
    accounts: Tree = {}  # an instance may have none
    if spec.service_account:
        accounts = {"default": account, spec.service_account: dict(account)}
    attributes: Tree = dict(spec.metadata)
    if spec.kind != "instance" or spec.has_chips:
        attributes.update(_attributes(spec))
    networks: Tree = {
        "0": {
            "ip": spec.endpoint.address,
            "mac": "42:01:7f:00:00:01",
            "network": f"projects/{number}/networks/default",
        }
    }
    instance: Tree = {
        "attributes": attributes,
        "guest-attributes": {space: dict(values) for space, values in guest.items()},
        "hostname": spec.hostname or f"{hostname}.{spec.zone}.c.{spec.project}.internal",
        "id": numeric_id(spec.name),
        "machine-type": f"projects/{number}/machineTypes/{spec.machine_type or host_type(spec)}",
        "maintenance-event": "NONE",
        "name": spec.node_id if spec.hostname else hostname,
        "network-interfaces": networks,
        "preempted": "FALSE",
        "service-accounts": accounts,
        "zone": f"projects/{number}/zones/{spec.zone}",
        **events,
    }
    project: Tree = {
        "attributes": dict(spec.project_metadata),
        "numeric-project-id": number,
        "project-id": spec.project,
    }
    universe: Tree = {"universe-domain": "googleapis.com"}  # google-auth and gcloud ask for it
    return {"instance": instance, "project": project, "universe": universe}


def numeric_id(name: str) -> int:
    """A stable numeric id for this name."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)


def identity_claims(
    spec: MachineSpec, hostname: str, audience: str, created: int, is_full: bool
) -> dict[str, Any]:
    """The claims of a machine's identity token.

    cloud.google.com/compute/docs/instances/verifying-instance-identity (its payload). The account's
    number is not that of IAM, which machines do not know.
    """
    number = str(numeric_id(spec.service_account))
    claims: dict[str, Any] = {"aud": audience, "azp": number, "sub": number}
    if is_full:
        engine = {
            "instance_creation_timestamp": created,
            "instance_id": str(numeric_id(spec.name)),
            "instance_name": spec.node_id if spec.hostname else hostname,
            "project_id": spec.project,
            "project_number": spec.project_number,
            "zone": spec.zone,
        }
        claims |= {"email": spec.service_account, "email_verified": True}
        claims["google"] = {"compute_engine": engine}
    return claims


def host_type(spec: MachineSpec) -> str:
    """The machine type of a TPU's worker."""
    accelerator = accelerator_type(spec.accelerator_type)
    if accelerator is None:
        return HOST_TYPES["v3"]
    return HOST_TYPES[accelerator.generation].format(accelerator.chips // accelerator.workers)


def _attributes(spec: MachineSpec) -> dict[str, str]:
    endpoints = [f"unknown:unknown:{endpoint.address}" for endpoint in spec.endpoints]
    if spec.members:  # a list of hosts since 2026: JAX, as above
        endpoints = [name.rpartition("/")[2] for name in spec.members]
    is_instance = spec.kind == "instance"
    accelerator_type_name = spec.accelerator_type
    if is_instance:
        accelerator_type_name = accelerator_type_name.replace("tpu7x", "v7x")
    variables = {
        "ACCELERATOR_TYPE": accelerator_type_name,
        "CONSUMER_PROJECT_ID": spec.project,
        "CONSUMER_PROJECT_NUMBER": str(spec.project_number),
        "NODE_ID": spec.node_id,
        "WORKER_ID": str(spec.worker),
        "ZONE": spec.zone,
        **spec.megascale,
    }
    if is_instance:
        variables["TPU_ACCELERATOR_TYPE"] = accelerator_type_name
        variables["TPU_WORKER_ID"] = str(spec.worker)
    else:
        variables["RUNTIME_VERSION"] = spec.runtime_version
    accelerator = accelerator_type(spec.accelerator_type)
    if accelerator is not None:
        topology = spec.topology or accelerator.topology
        workers = len(spec.members) or accelerator.workers
        accelerator = replace(accelerator, topology=topology, workers=workers)
        variables |= _slice_variables(accelerator)
    lines = "".join(f"{name}: '{value}'\n" for name, value in sorted(variables.items()))
    return {
        "accelerator-type": accelerator_type_name,
        "agent-worker-number": str(spec.worker),
        **({"worker-id": str(spec.worker)} if is_instance else {"instance-id": spec.node_id}),
        "tpu-env": lines,
        "worker-network-endpoints": ",".join(endpoints),
    }


def _slice_variables(accelerator: AcceleratorType) -> dict[str, str]:
    """The topology of a slice: of its chips, of its hosts, and of the chips on a host."""
    on_host = accelerator.chips // accelerator.workers
    ports = range(METRICS_PORT, METRICS_PORT + on_host)
    variables = {
        "TYPE": GENERATION_TYPES.get(accelerator.generation, accelerator.generation.upper()),
        "TPU_RUNTIME_METRICS_PORTS": ",".join(map(str, ports)),
    }
    if accelerator.topology:
        variables["TOPOLOGY"] = accelerator.topology
        variables["WRAP"] = variables["TPU_TOPOLOGY_WRAP"] = _topology_wrap(accelerator)
        variables["ALT"] = variables["TPU_TOPOLOGY_ALT"] = "false"
    bounds = CHIPS_PER_HOST.get(on_host)
    if bounds is None:
        return variables
    text = ",".join(map(str, bounds))
    variables["CHIPS_PER_HOST_BOUNDS"] = variables["TPU_CHIPS_PER_PROCESS_BOUNDS"] = text
    if accelerator.topology:
        hosts = [
            size // host_size
            for size, host_size in zip(_topology_sizes(accelerator), bounds, strict=True)
        ]
        text = ",".join(map(str, hosts))
        variables["HOST_BOUNDS"] = variables["TPU_PROCESS_BOUNDS"] = text
    return variables


def _topology_sizes(accelerator: AcceleratorType) -> list[int]:
    sizes = [int(size) for size in accelerator.topology.split("x")]
    return [*sizes, *[1] * (3 - len(sizes))]


def _topology_wrap(accelerator: AcceleratorType) -> str:
    """Slices of whole 4x4x4 cubes wrap around in all dimensions, others in none.

    docs.cloud.google.com/tpu/docs/v4 and v5p; unknown for the 2D generations.
    """
    is_joined = accelerator.topology.count("x") == 2 and all(
        size % 4 == 0 for size in _topology_sizes(accelerator)
    )
    return ",".join(["true" if is_joined else "false"] * 3)
