"""Connections of real machines, as the firewall rules and addresses of their networks allow.

Expected behavior: cloud.google.com/firewall/docs/firewalls (implied rules, priority, source tags),
cloud.google.com/vpc/docs/vpc (machines without external addresses, networks without peering),
cloud.google.com/vpc/docs/private-google-access.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncssh
import pytest
import requests

from tests.support.locations import PROJECT, ZONE
from tpuctl.emulator.machines.host import LocalHost
from tpuctl.emulator.machines.images import ImageStore
from tpuctl.emulator.server import Server

COMPUTE = f"/compute/v1/projects/{PROJECT}"
INSTANCES = f"{COMPUTE}/zones/{ZONE}/instances"
NODES = f"/v2/projects/{PROJECT}/locations/{ZONE}/nodes"
UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
PORT = 8482
SECONDS = 0.5  # until a dropped connection counts as such

# Listens as JAX's coordinator does, and confirms connections.
SERVER = f"""
import socket
server = socket.create_server(("", {PORT}))
print("ready", flush=True)
while True:
    connection, (address, _) = server.accept()
    connection.sendall(address.encode())
    connection.close()
"""
CLIENT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])) as peer:
        print("connected", peer.recv(100).decode())
except OSError as problem:
    print(type(problem).__name__)
"""


class Networks:
    """A local cloud with machines, and its owner."""

    def __init__(self, server: Server, key: asyncssh.SSHKey) -> None:
        self.server = server
        self.key = key
        self.addresses: dict[str, str] = {}
        self.ports: dict[str, int] = {}

    async def call(self, verb: str, path: str, body: Any = None) -> Any:
        def send() -> Any:
            with requests.Session() as session:
                session.trust_env = False
                headers = {"Authorization": f"Bearer {self.server.token}"}
                url = self.server.url + path
                return session.request(verb, url, json=body, headers=headers, timeout=60)

        answer = await asyncio.to_thread(send)
        assert answer.status_code < 300, (path, answer.text)
        body = answer.json()
        if body.get("kind") != "compute#operation" or body["status"] == "DONE":
            return body
        return await self.call("POST", f"{urlsplit(body['selfLink']).path}/wait")

    async def boot(
        self, name: str, *, network: str = "default", external: bool = True, **more: Any
    ) -> None:
        """Create an instance and wait until it runs."""
        interface = {"network": f"global/networks/{network}"}
        body = {
            "name": name,
            "machineType": f"zones/{ZONE}/machineTypes/n1-standard-1",
            "disks": [{"boot": True, "initializeParams": {"sourceImage": UBUNTU}}],
            "networkInterfaces": [interface | ({"accessConfigs": [{}]} if external else {})],
            "metadata": {"items": [{"key": "ssh-keys", "value": self.key_line}]},
            **more,
        }
        await self.call("POST", INSTANCES, body)
        await self._wait_for(f"{INSTANCES}/{name}")
        row = await self.call("GET", f"{INSTANCES}/{name}")
        self._learn(name, row["networkInterfaces"][0]["networkIP"], row["metadata"]["items"])

    def _learn(self, name: str, address: str, items: list[dict[str, str]]) -> None:
        self.addresses[name] = address
        entries = {item["key"]: item["value"] for item in items}
        self.ports[name] = int(entries.get("tpuctl-ssh-port", 22))

    async def _wait_for(self, path: str) -> None:
        for _ in range(600):
            row = await self.call("GET", path)
            if "RUNNING" in (row.get("status"), row.get("state")) or row.get("state") == "READY":
                return
            await asyncio.sleep(0.05)
        raise AssertionError(row)

    @property
    def key_line(self) -> str:
        return f"anna:{self.key.export_public_key().decode().strip()}"

    async def add_network(self, name: str) -> None:
        body = {"name": name, "autoCreateSubnetworks": True}
        await self.call("POST", f"{COMPUTE}/global/networks", body)

    async def add_rule(self, name: str, *, network: str = "default", **fields: Any) -> None:
        body = {"name": name, "network": f"global/networks/{network}", **fields}
        if "denied" not in fields:
            body.setdefault("allowed", [{"IPProtocol": "tcp", "ports": [str(PORT)]}])
        await self.call("POST", f"{COMPUTE}/global/firewalls", body)

    async def delete_rule(self, name: str) -> None:
        await self.call("DELETE", f"{COMPUTE}/global/firewalls/{name}")

    async def login(self, name: str) -> asyncssh.SSHClientConnection:
        """Log in through Identity-Aware Proxy's relay, which needs no external address."""
        machine = f"projects/{PROJECT}/zones/{ZONE}/instances/{name}"
        _, writer = await self.server.host.connect_relay(machine)
        copied = writer.get_extra_info("socket").dup()
        writer.transport.abort()
        return await asyncssh.connect(
            sock=copied, username="anna", client_keys=[self.key], known_hosts=None, config=None
        )

    async def run(self, name: str, program: str, *arguments: object) -> str:
        async with await self.login(name) as connection:
            words = " ".join(map(str, ("python3", "-", *arguments)))
            done = await asyncio.wait_for(connection.run(words, input=program), 30)
            assert done.exit_status == 0, done.stderr
            return str(done.stdout).strip()

    async def connect(self, source: str, target: str, port: int = PORT) -> str:
        """The result of a connection between two machines."""
        address = self.addresses.get(target, target)
        return await self.run(source, CLIENT, address, port, SECONDS)

    async def can_log_in(self, name: str) -> bool:
        """From this computer, at the machine's address."""
        try:
            async with asyncssh.connect(
                *(self.addresses[name], self.ports[name]),
                username="anna",
                client_keys=[self.key],
                known_hosts=None,
                config=None,
                connect_timeout=SECONDS,
            ) as connection:
                return (await connection.run("true")).exit_status == 0
        except TimeoutError:
            return False


@pytest.fixture
async def networks(
    tmp_path: Path, images: ImageStore, key: asyncssh.SSHKey
) -> AsyncIterator[Networks]:
    def make_host(home: Path, api_address: tuple[str, int]) -> LocalHost:
        return LocalHost(home, api_address=api_address, images=images)

    server = Server(tmp_path / "cloud", make_host, pace="instant")
    await server.start()
    if server.report()["network"] != "enforced":
        await server.close()
        pytest.skip(server.report()["network"])
    cloud = Networks(server, key)
    for api in ("compute", "tpu"):
        path = f"/v1/projects/{PROJECT}/services/{api}.googleapis.com:enable"
        await cloud.call("POST", path, {})
    yield cloud
    await server.close()


async def serve(cloud: Networks, name: str) -> asyncssh.SSHClientConnection:
    """Start the server on a machine; it ends with the connection."""
    connection = await cloud.login(name)
    process = await connection.create_process("python3 -u -")
    process.stdin.write(SERVER)
    process.stdin.write_eof()
    assert await asyncio.wait_for(process.stdout.readline(), 30) == "ready\n"
    return connection


async def test_machines_connect_as_rules_of_their_network_allow(networks: Networks) -> None:
    await networks.add_network("own")
    await networks.boot("server", network="own", tags={"items": ["coordinators"]})
    await networks.boot("worker", network="own", tags={"items": ["workers"]})
    await networks.boot("stranger")
    async with await serve(networks, "server"):
        assert await networks.connect("worker", "server") == "TimeoutError", "implied deny"
        assert (await networks.connect("server", "localhost")).startswith("connected")
        assert (await networks.connect("server", "server")).startswith("connected")

        await networks.add_rule(
            *("workers",), network="own", sourceTags=["workers"], targetTags=["coordinators"]
        )
        source = networks.addresses["worker"]
        assert await networks.connect("worker", "server") == f"connected {source}"
        assert await networks.connect("worker", "server", PORT + 1) == "TimeoutError"
        assert await networks.connect("stranger", "server") == "TimeoutError", "not peered"

        deny: dict[str, Any] = {"denied": [{"IPProtocol": "tcp"}], "network": "own"}
        await networks.add_rule("later", priority=1001, **deny)
        assert (await networks.connect("worker", "server")).startswith("connected")
        await networks.add_rule("equal", priority=1000, **deny)
        assert await networks.connect("worker", "server") == "TimeoutError"
        await networks.delete_rule("equal")
        assert (await networks.connect("worker", "server")).startswith("connected")

        target = networks.addresses["server"]
        await networks.add_rule("out", direction="EGRESS", targetTags=["workers"], **deny)
        assert await networks.connect("worker", "server") == "TimeoutError"
        assert (await networks.connect("server", "server")).startswith("connected")
        refused = " ".join(networks.server.report()["refused_connections"])
        assert f"worker to server tcp:{PORT}: firewall rule out denies tcp:{PORT}" in refused
        assert target not in refused
