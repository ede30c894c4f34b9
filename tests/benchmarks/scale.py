"""`status` and `orphans` in a project with three hundred stacks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure, goal, sized, stack_in
from tests.support.locations import PROJECT
from tpuctl.api import Tpuctl
from tpuctl.catalog import accelerator_type
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

STACKS = sized(300, 3)  # a multiple of three: there are three kinds
AT_ONCE = 8
TIMES = sized(5, 1)
ROUND_TRIP = sized(0.2, 0.01)
GOAL = 2.0
# A server without real machines: three hundred of them would distort the figures.
SERVE = Path(__file__).resolve().parents[1] / "support" / "serve_null.py"
WATCHDOG_ROLE = "tpuctl.watchdog"


@contextmanager
def cloud_without_machines() -> Iterator[tuple[Path, Endpoint]]:
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        os.environ["TPUCTL_CONFIG_HOME"] = str(Path(folder, "config"))
        command = [sys.executable, str(SERVE), str(Path(folder, "cloud")), "instant"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port, token = server.stdout.readline().split()
            try:
                yield Path(folder), Endpoint("local", f"http://127.0.0.1:{port}", token)
            finally:
                server.terminate()


class Seed:
    """Creates the resources of many stacks, labeled and named as by `up`, without waiting."""

    def __init__(self, first: Tpuctl) -> None:
        self.first = first
        accelerator = accelerator_type("v2-8")
        assert accelerator is not None
        self.zones = accelerator.zones
        self.members: list[str] = []

    async def call(self, client: str, method: str, *arguments: Any, **fields: Any) -> Any:
        cloud = self.first.cloud
        return await cloud.call(method, getattr(cloud.client(client), method), *arguments, **fields)

    async def stack(self, number: int) -> None:
        name, zone = f"stack-{number:03}", self.zones[number % len(self.zones)]
        labels = {"tpuctl-stack": name}
        owned = f"Created by tpuctl for stack {name}"
        account = {"description": owned}
        request = {"account_id": f"{name}-tpu", "service_account": account}
        await self.call("iam", "create_service_account", {"name": f"projects/{PROJECT}", **request})
        self.members.append(f"serviceAccount:{name}-tpu@{PROJECT}.iam.gserviceaccount.com")
        bucket = self.first.cloud.client("storage").bucket(f"{name}-{PROJECT}")
        bucket.labels = labels
        await self.first.cloud.call("bucket", bucket.create, location=zone.rpartition("-")[0])
        rule = {
            "name": f"{name}-ssh",
            "description": owned,
            "network": f"projects/{PROJECT}/global/networks/default",
            "source_ranges": ["127.0.0.1/32"],
            "target_tags": [f"{name}-tpu"],
            "allowed": [{"I_p_protocol": "tcp", "ports": ["22"]}],
        }
        await self.call("firewalls", "insert_unary", project=PROJECT, firewall_resource=rule)
        node = {
            "accelerator_type": "v2-8",
            "runtime_version": "tpu-ubuntu2204-base",
            "labels": labels,
        }
        parent = f"projects/{PROJECT}/locations/{zone}"
        if number % 3 == 1:
            spec = {"parent": parent, "node_id": f"{name}-tpu", "node": node}
            await self.call(
                "tpu",
                "create_queued_resource",
                {
                    "parent": parent,
                    "queued_resource_id": f"{name}-queue",
                    "queued_resource": {"tpu": {"node_spec": [spec]}},
                },
            )
        else:
            node_request = {"parent": parent, "node_id": f"{name}-tpu", "node": node}
            await self.call("tpu", "create_node", node_request)
        if number % 3 == 2:
            await self.machine(name, zone, labels)

    async def machine(self, name: str, zone: str, labels: dict[str, str]) -> None:
        where = {"project": PROJECT, "zone": zone}
        disk = {
            "name": f"{name}-data-0",
            "labels": labels,
            "size_gb": 20,
            "type_": f"zones/{zone}/diskTypes/pd-balanced",
        }
        await self.call("disks", "insert_unary", **where, disk_resource=disk)
        image = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
        instance = {
            "name": f"{name}-controller",
            "labels": labels,
            "machine_type": f"zones/{zone}/machineTypes/n1-standard-1",
            "disks": [{"boot": True, "initialize_params": {"source_image": image}}],
            "network_interfaces": [{"network": "global/networks/default"}],
        }
        await self.call("instances", "insert_unary", **where, instance_resource=instance)

    async def grants(self) -> None:
        """Allow every account to delete its machines, as each watchdog requires."""
        resource = {"resource": f"projects/{PROJECT}"}
        policy = await self.call("projects", "get_iam_policy", resource)
        policy.bindings.add(role=f"projects/{PROJECT}/roles/{WATCHDOG_ROLE}", members=self.members)
        await self.call("projects", "set_iam_policy", {**resource, "policy": policy})


async def seed_stacks(first: Tpuctl) -> None:
    prepared = await first.plan()
    await first.provision(prepared)  # enables the APIs and creates the role
    seed, limit = Seed(first), asyncio.Semaphore(AT_ONCE)

    async def create_stack(number: int) -> None:
        async with limit:
            await seed.stack(number)

    await asyncio.gather(*(create_stack(number) for number in range(STACKS)))
    await seed.grants()


@contextmanager
def slow_network(endpoint: Endpoint) -> Iterator[None]:
    """Delay each call like one across the ocean, which exposes sequential calls."""
    assert endpoint.url is not None and endpoint.token is not None
    port = int(endpoint.url.rpartition(":")[2])
    cloud = LocalCloud(endpoint.url, endpoint.token, port, 0, Path(), "instant")
    remote_control.add_fault(cloud, "slow", seconds=ROUND_TRIP, times="unlimited")
    yield
    remote_control.remove_all_faults(cloud)


def best(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """The fastest of several runs in this process, with the answer of the last one."""
    least, answer = float("inf"), None
    for _ in range(TIMES):
        started = time.perf_counter()
        answer = asyncio.run(_awaited(work))
        least = min(least, time.perf_counter() - started)
    return least, answer


async def _awaited(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


def scale_time() -> Iterator[Figure]:
    with cloud_without_machines() as (folder, endpoint):
        first = stack_in(folder, name="first")
        first.endpoint = endpoint
        asyncio.run(seed_stacks(first))
        started = time.perf_counter()
        fresh = Tpuctl(name="stack-001", project=PROJECT, cloud="local")
        fresh.endpoint = endpoint
        asyncio.run(fresh.status())
        with_clients = time.perf_counter() - started
        took, status = best(fresh.status)
        assert len(status.nodes) == 1, status
        yield figure(f"status among {STACKS} stacks", took, f"{with_clients:.2f} s the first time")
        took, everything = best(fresh.orphans)
        yield figure(f"orphans of {STACKS} stacks", took, f"{len(everything)} things")
        with slow_network(endpoint):
            for command, work in (("status", fresh.status), ("orphans", fresh.orphans)):
                took, _ = best(work)
                rounds = f"{took / ROUND_TRIP:.1f} × one call"
                yield figure(f"… {command}, each call {ROUND_TRIP:g} s away", took, rounds)


def figure(label: str, took: float, details: str) -> Figure:
    return Figure(label, f"{took:.2f} s", details, goal(f"{GOAL:g} s", took <= GOAL))
