"""Slices of many workers: every machine serves SSH concurrently, in a laptop's memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from google.api_core.client_options import ClientOptions
from google.cloud import service_usage_v1, tpu_v2
from google.cloud.common.types import operation_metadata  # noqa: F401  what REST operations carry
from google.oauth2.credentials import Credentials

from tests.support.locations import PROJECT
from tests.support.memory import proportional_memory
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.local_cloud.server_process import LocalCloud

PARENT_OF_V4 = f"projects/{PROJECT}/locations/us-central2-b"
GB = 1 << 30
# Each machine's program waits until all have answered, so that all run concurrently.
COMMAND = "hostname; python3 -c 'print(1, flush=True); input()'"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    home = tmp_path / "cloud"
    cloud = server_process.start(home, pace="instant")
    remote_control.change_settings(cloud, zones={"us-central2-b": True})
    yield cloud
    server_process.stop(home)


def make_slice(cloud: LocalCloud, type_name: str, key: asyncssh.SSHKey) -> Any:
    """A node that accepts the SSH key for user anna, created by the official client."""
    options: dict[str, Any] = {
        "transport": "rest",
        "credentials": Credentials(token=cloud.token),
        "client_options": ClientOptions(api_endpoint=cloud.url),
    }
    with service_usage_v1.ServiceUsageClient(**options) as services:
        request = {
            "parent": f"projects/{PROJECT}",
            "service_ids": ["tpu.googleapis.com", "compute.googleapis.com"],
        }
        services.batch_enable_services(request=request, timeout=60).result(timeout=60)
    with tpu_v2.TpuClient(**options) as client:
        public = key.export_public_key().decode().strip()
        node = tpu_v2.Node(
            accelerator_type=type_name,
            runtime_version="tpu-ubuntu2204-base",
            network_config={"enable_external_ips": True},
            metadata={"ssh-keys": f"anna:{public}"},
        )
        operation = client.create_node(parent=PARENT_OF_V4, node_id="slice", node=node, timeout=60)
        return operation.result(timeout=300)


async def ask_all(node: Any, key: asyncssh.SSHKey, cloud: LocalCloud) -> tuple[list[str], int]:
    """The workers' hostnames, in order, and the total memory while all of them ran."""
    port = int(node.metadata.get("tpuctl-ssh-port", "22"))

    async def connect(address: str) -> asyncssh.SSHClientConnection:
        return await asyncssh.connect(
            address,
            port,
            username="anna",
            client_keys=[key],
            known_hosts=None,
            config=None,
            agent_path=None,
            login_timeout=120,
        )

    async def begin(connection: asyncssh.SSHClientConnection) -> tuple[Any, str]:
        process = await connection.create_process(COMMAND)
        host = (await process.stdout.readline()).strip()
        assert await process.stdout.readline() == "1\n"
        return process, host

    async with asyncio.timeout(280):
        connections = await asyncio.gather(
            *(connect(endpoint.ip_address) for endpoint in node.network_endpoints)
        )
        begun = await asyncio.gather(*map(begin, connections))
        memory = await asyncio.to_thread(proportional_memory, cloud.pid)
        for process, _ in begun:
            process.stdin.write("\n")
        ended = await asyncio.gather(*(process.wait() for process, _ in begun))
        assert {process.exit_status for process in ended} == {0}
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))
    return [host for _, host in begun], memory


def make_stack(
    cloud: LocalCloud, folder: Path, monkeypatch: pytest.MonkeyPatch, type_name: str
) -> Tpuctl:
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(cloud.home))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(folder / "config"))
    file = folder / "tpuctl.yaml"
    file.write_text(
        f"stack: large\nproject: {{id: {PROJECT}}}\n"
        f"tpu: {{type: {type_name}, runtime: tpu-ubuntu2204-base, zones: [us-central2-b]}}\n"
    )
    return Tpuctl(file, cloud="local")


async def all_answer(cloud: LocalCloud, type_name: str, workers: int, max_memory: float) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    node = await asyncio.to_thread(make_slice, cloud, type_name, key)
    assert len(node.network_endpoints) == workers
    assert server_process.report(cloud)["machines"] == workers
    hosts, memory = await ask_all(node, key, cloud)
    prefix = hosts[0].rpartition("-w-")[0]
    if "none" not in cloud.isolation:
        assert hosts == [f"{prefix}-w-{worker}" for worker in range(workers)]
    assert memory < max_memory, f"{memory / GB:.2f} GB for {workers} machines"


@pytest.mark.soak
async def test_slice_of_256_workers(cloud: LocalCloud) -> None:
    await all_answer(cloud, "v4-2048", 256, 4 * GB)


@pytest.mark.soak
async def test_job_on_32_workers(
    cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on 256: the workers' programs take more than a second each of a shared processor.

    After `up`, with a watchdog on each machine: 256 take 4 GB with what is shared.
    """
    stack = make_stack(cloud, tmp_path, monkeypatch, "v4-256")
    await stack.up()
    assert server_process.report(cloud)["machines"] == 32
    memory = await asyncio.to_thread(proportional_memory, cloud.pid)
    assert memory < (0.25 + 32 * 3.75 / 256) * GB, f"{memory / GB:.2f} GB"
    (tmp_path / "job").mkdir()
    script = tmp_path / "job" / "hello.py"
    script.write_text("import os\nprint('worker', os.environ['TPUCTL_WORKER'])\n")
    assert await stack.run(script) == 0
    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    names = [blob.name for blob in await asyncio.to_thread(lambda: list(bucket.list_blobs()))]
    logs = {name.rpartition("/")[2] for name in names if name.endswith(".log")}
    assert logs == {f"worker-{worker}.log" for worker in range(32)}
    await stack.down(delete_bucket=True)
