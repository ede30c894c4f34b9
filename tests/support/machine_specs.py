"""Machine specs as the API server passes them to the local cloud's host."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.machines.interface import Endpoint, MachineSpec


def worker_spec(*endpoints: Endpoint, **fields: Any) -> MachineSpec:
    """The first worker of a TPU VM called `bert`, overridden by `fields`."""
    zone = fields.get("zone", "europe-west4-a")
    defaults = {
        "name": f"projects/lab/locations/{zone}/nodes/bert/workers/{fields.get('worker', 0)}",
        "node_id": "bert",
        "worker": 0,
        "endpoints": endpoints,
        "project": "lab",
        "project_number": 4711,
        "zone": zone,
        "accelerator_type": "v3-8",
        "runtime_version": "tpu-ubuntu2204-base",
        "service_account": "job@lab.iam.gserviceaccount.com",
        "access_token": "token-of-the-job",
    }
    return MachineSpec(**(defaults | fields))
