"""Instances of Compute Engine with TPU chips: metadata, environment, and when they are ready."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.machine_specs import worker_spec
from tests.support.polling import async_until
from tpuctl.emulator.machines.interface import Endpoint, MachineSpec
from tpuctl.emulator.machines.servers.metadata_tree import metadata_tree

NAME = "projects/lab/zones/us-east5-a/instances/bert-tpu"


async def boot(lab: Any, **fields: Any) -> MachineSpec:
    """Boot an instance that the lab's user can log in to."""
    spec = instance_spec(*await lab.host.reserve([NAME]))
    spec = replace(spec, **{"metadata": {"ssh-keys": lab.key_line}, **fields})
    lab.specs = [spec]
    await lab.host.boot(spec, lambda _: None)
    return spec


def instance_spec(*endpoints: Endpoint, **fields: Any) -> MachineSpec:
    settings = {
        "name": NAME,
        "node_id": "bert-tpu",
        "zone": "us-east5-a",
        "accelerator_type": "v6e-4",
        "runtime_version": "",
        "kind": "instance",
        "machine_type": "ct6e-standard-4t",
        **fields,
    }
    return worker_spec(*endpoints, **settings)


async def test_instance_is_worker_0_of_1(lab: Any) -> None:
    spec = await boot(lab)
    command = "echo $JAX_FORCE_TPU_INIT $JAX_PLATFORMS $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES"
    assert (await lab.run(command)).out.split() == ["1", "cpu", "0", spec.endpoint.address]
    if lab.host.isolation == "user namespaces":
        assert (await lab.run("hostname")).out == "bert-tpu\n"


def test_metadata_describes_the_slice() -> None:
    """As a public guide to a slice of two TPU7x machines prints it (2026)."""
    members = (f"{NAME}-x1", f"{NAME}-x2")
    spec = instance_spec(
        *(Endpoint("127.0.9.1"), Endpoint("127.0.9.2")),
        name=members[1],
        members=members,
        worker=1,
        accelerator_type="tpu7x-16",
        machine_type="tpu7x-standard-4t",
        metadata={"mine": "m"},
    )
    tree: Any = metadata_tree(spec, "bert-tpu-x2", {}, {})
    attributes = tree["instance"]["attributes"]
    assert attributes["accelerator-type"] == "v7x-16"
    assert (attributes["worker-id"], attributes["mine"]) == ("1", "m")
    assert "TOPOLOGY: '2x2x2'" in attributes["tpu-env"].splitlines()
    # JAX reads these two.
    assert attributes["agent-worker-number"] == "1"
    assert attributes["worker-network-endpoints"] == "bert-tpu-x1,bert-tpu-x2"


def test_metadata_describes_a_slice_of_smaller_machines() -> None:
    """As a public report of two ct6e-standard-4t prints it (2026-07)."""
    members = (f"{NAME}-1wjb", f"{NAME}-1z9d")
    spec = instance_spec(
        *(Endpoint("127.0.9.1"), Endpoint("127.0.9.2")),
        name=members[0],
        members=members,
        accelerator_type="v6e-8",
        topology="2x4",
    )
    tree: Any = metadata_tree(spec, "bert-tpu-1wjb", {}, {})
    lines = tree["instance"]["attributes"]["tpu-env"].splitlines()
    assert {
        "TPU_ACCELERATOR_TYPE: 'v6e-8'",
        "TOPOLOGY: '2x4'",
        "TPU_WORKER_ID: '0'",
        "HOST_BOUNDS: '1,2,1'",
    } <= set(lines)


def test_metadata_has_the_topology_of_the_group() -> None:
    spec = instance_spec(Endpoint("127.0.9.1"), accelerator_type="v5p-256", topology="4x4x8")
    tree: Any = metadata_tree(spec, "bert-tpu", {}, {})
    lines = tree["instance"]["attributes"]["tpu-env"].splitlines()
    assert {"TOPOLOGY: '4x4x8'", "HOST_BOUNDS: '2,2,8'"} <= set(lines)


async def test_logins_are_possible_only_after_the_boot(isolated: Any) -> None:
    """Until then connections are refused, no host key is published, and no script runs."""
    lab = isolated
    metadata = {"ssh-keys": lab.key_line, "startup-script": "echo started"}
    spec = await boot(lab, metadata=metadata, boot_seconds=3600.0)
    endpoint = spec.endpoint
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(endpoint.address, endpoint.ssh_port)
    assert "hostkeys" not in lab.host.guest_attributes(NAME)
    assert lab.host.console(NAME) == b""
    await lab.host.shut_down(NAME)
    assert lab.host.console(NAME) == b""
    await boot(lab, metadata=metadata, boot_seconds=0.05)
    await async_until(lambda: "hostkeys" in lab.host.guest_attributes(NAME), "a host key")
    assert (await lab.run("echo in")).out == "in\n"
    await async_until(lambda: lab.host.console(NAME) == b"started\n", "the startup script")
