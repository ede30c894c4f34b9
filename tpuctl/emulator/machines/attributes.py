"""What a machine's metadata server knows: the tree of values that a TPU VM sees.

Names and formats as their readers take them: worker addresses are the third field of each
comma-separated entry (JAX, `jax/_src/clusters/cloud_tpu_cluster.py`), `tpu-env` has lines
`KEY: 'value'` (PyTorch/XLA, `torch_xla/_internal/tpu.py`), `instance/service-accounts` is as
google-auth's `compute_engine` reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeAlias

from tpuctl.catalog import accelerator_type
from tpuctl.emulator.machine import MachineSpec

__all__ = ["SCOPES", "Tree", "tree_of"]

Tree: TypeAlias = "dict[str, Tree | str | int | list[str]]"

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
CHIPS_PER_HOST = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}


def tree_of(
    spec: MachineSpec,
    hostname: str,
    events: Mapping[str, str],
    guest: Mapping[str, Mapping[str, str]],
) -> Tree:
    """Everything below `computeMetadata/v1`, but for tokens. Names are as in its paths."""
    number = spec.project_number
    account: Tree = {"aliases": ["default"], "email": spec.service_account, "scopes": SCOPES}
    accounts: Tree = {"default": account, spec.service_account: dict(account)}
    networks: Tree = {
        "0": {
            "ip": spec.endpoint.address,
            "mac": "42:01:7f:00:00:01",
            "network": f"projects/{number}/networks/default",
        }
    }
    instance: Tree = {
        "attributes": dict(_attributes(spec)),
        "guest-attributes": {space: dict(values) for space, values in guest.items()},
        "hostname": f"{hostname}.{spec.zone}.c.{spec.project}.internal",
        "id": int(hashlib.sha256(spec.name.encode()).hexdigest()[:15], 16),
        "machine-type": f"projects/{number}/machineTypes/n1-standard-96",
        "maintenance-event": "NONE",
        "name": hostname,
        "network-interfaces": networks,
        "preempted": "FALSE",
        "service-accounts": accounts,
        "zone": f"projects/{number}/zones/{spec.zone}",
        **events,
    }
    project: Tree = {
        "attributes": {},
        "numeric-project-id": number,
        "project-id": spec.project,
    }
    return {"instance": instance, "project": project}


def _attributes(spec: MachineSpec) -> dict[str, str]:
    addresses = [endpoint.address for endpoint in spec.endpoints]
    variables = {
        "ACCELERATOR_TYPE": spec.accelerator_type,
        "CONSUMER_PROJECT_ID": spec.project,
        "CONSUMER_PROJECT_NUMBER": str(spec.project_number),
        "NODE_ID": spec.node_id,
        "RUNTIME_VERSION": spec.runtime_version,
        "WORKER_ID": str(spec.worker),
        "ZONE": spec.zone,
    }
    known = accelerator_type(spec.accelerator_type)
    if known is not None:
        if known.topology:
            variables["TOPOLOGY"] = known.topology
        bounds = CHIPS_PER_HOST.get(known.chips // known.workers)
        if bounds is not None:
            variables["CHIPS_PER_HOST_BOUNDS"] = bounds
    lines = "".join(f"{name}: '{value}'\n" for name, value in sorted(variables.items()))
    return {
        **spec.metadata,
        "accelerator-type": spec.accelerator_type,
        "agent-worker-number": str(spec.worker),
        "instance-id": spec.node_id,
        "tpu-env": lines,
        "worker-network-endpoints": ",".join(f"unknown:unknown:{one}" for one in addresses),
    }
