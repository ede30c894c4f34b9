"""Connections of real machines, as the firewall rules and addresses of their networks allow.

Expected behavior: cloud.google.com/firewall/docs/firewalls (implied rules, priority, source tags),
cloud.google.com/vpc/docs/vpc (machines without external addresses, networks without peering),
cloud.google.com/vpc/docs/private-google-access.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncssh
import pytest
import requests

from tests.support.locations import PROJECT, REGION, ZONE
from tpuctl.emulator.machines.host import LocalHost
from tpuctl.emulator.machines.network.addresses import Addresses
from tpuctl.emulator.server import Server
from tpuctl.errors import Unreachable
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.remote.ssh import Address, SshTransport

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
# Blocking, in threads, with sockets of both versions of IP, as gRPC and JAX connect. The limit
# applies when the first packet is repeated, after a second (tcp(7), TCP_USER_TIMEOUT).
BLOCKING_CLIENT = """
import errno, socket, sys, threading
def connect(family, address):
    peer = socket.socket(family)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)
    with peer:
        number = peer.connect_ex((address, int(sys.argv[2])))
    print(errno.errorcode.get(number, "connected"), flush=True)
for family, address in (
    (socket.AF_INET, sys.argv[1]), (socket.AF_INET6, "::ffff:" + sys.argv[1])
):
    threading.Thread(target=connect, args=(family, address)).start()
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
        await self.wait_for(f"{INSTANCES}/{name}")
        row = await self.call("GET", f"{INSTANCES}/{name}")
        self._learn(name, row["networkInterfaces"][0]["networkIP"], row["metadata"]["items"])

    def _learn(self, name: str, address: str, items: list[dict[str, str]]) -> None:
        self.addresses[name] = address
        entries = {item["key"]: item["value"] for item in items}
        self.ports[name] = int(entries.get("tpuctl-ssh-port", 22))

    async def wait_for(self, path: str) -> None:
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

    async def set(self, **settings: Any) -> None:
        await self.call("PATCH", "/_local/settings", settings)

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
async def make_networks(
    tmp_path: Path, images: ImageStore, key: asyncssh.SSHKey
) -> AsyncIterator[Callable[[], Awaitable[Networks]]]:
    servers = []

    def make_host(home: Path, api_address: tuple[str, int]) -> LocalHost:
        return LocalHost(home, api_address=api_address, images=images)

    async def make() -> Networks:
        server = Server(tmp_path / "cloud", make_host, pace="instant")
        await server.start()
        servers.append(server)
        cloud = Networks(server, key)
        for api in ("compute", "tpu"):
            path = f"/v1/projects/{PROJECT}/services/{api}.googleapis.com:enable"
            await cloud.call("POST", path, {})
        return cloud

    yield make
    for server in servers:
        await server.close()


@pytest.fixture
async def networks(make_networks: Callable[[], Awaitable[Networks]]) -> Networks:
    cloud = await make_networks()
    if cloud.server.report()["network"] != "enforced":
        pytest.skip(cloud.server.report()["network"])
    return cloud


async def serve(cloud: Networks, name: str, program: str = SERVER) -> asyncssh.SSHClientConnection:
    """Start the server on a machine; it ends with the connection."""
    connection = await cloud.login(name)
    process = await connection.create_process("python3 -u -")
    process.stdin.write(program)
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


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
async def test_coordinators_of_several_slices_have_the_same_port(
    networks: Networks, family: str
) -> None:
    """gRPC listens at all addresses, and shares its port with other programs."""
    program = f"""
import socket
server = socket.socket(socket.{family})
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
if server.family == socket.AF_INET6:
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("", {PORT}))
server.listen()
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(socket.gethostname().encode())
    connection.close()
"""
    for name in ("one", "two"):
        await networks.boot(name)
    async with await serve(networks, "one", program), await serve(networks, "two", program):
        for source, target in (("one", "two"), ("two", "one"), ("one", "one")):
            for _ in range(3):
                assert await networks.connect(source, target) == f"connected {target}"
        assert await networks.connect("two", "localhost") == "connected two"
        assert await networks.connect("one", "127.0.0.1") == "connected one"
        blocking = await networks.run("one", BLOCKING_CLIENT, "127.0.0.1", PORT)
        assert blocking.split() == ["connected", "connected"]


OWN_ADDRESS = """
import socket, subprocess, sys
ways = {}
for target in (("8.8.8.8", 80), ("8.8.8.8", 53), ("10.255.255.255", 1), (sys.argv[1], 6379)):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
        question.connect(target)
        ways[target] = question.getsockname()[0]
ways["name"] = socket.gethostbyname(socket.gethostname())
assert set(ways.values()) == {sys.argv[2]}, ways
listed = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
for address in [sys.argv[2], *(each for each in listed if ":" not in each)]:
    for host in ("", address):
        server = socket.socket()
        server.bind((host, 0))
        server.listen()
        socket.create_connection((address, server.getsockname()[1]), 5).close()
        server.close()
print("reached")
"""


async def test_machine_reaches_itself_at_the_address_that_it_sees(networks: Networks) -> None:
    """As Ray's head node does, at 8.8.8.8:53 first, and workers with the address of the head."""
    await networks.boot("head")
    await networks.boot("worker")
    head = networks.addresses["head"]
    for name in ("head", "worker"):
        assert await networks.run(name, OWN_ADDRESS, head, networks.addresses[name]) == "reached"


async def test_machines_reach_each_other_at_the_address_in_hostname_i(networks: Networks) -> None:
    """All of them have this computer's interfaces."""
    await networks.boot("head")
    await networks.boot("worker")
    listed = (await networks.run("head", _FIRST_ADDRESS)).strip()
    if not listed:
        pytest.skip("this computer has no network")
    async with await serve(networks, "head"):
        answer = await networks.run("worker", CLIENT, listed, PORT, SECONDS)
        assert answer == f"connected {networks.addresses['worker']}"


_FIRST_ADDRESS = """
import subprocess
listed = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
print(next((each for each in listed if ":" not in each), ""))
"""


async def test_every_kind_of_socket_is_watched(networks: Networks) -> None:
    await networks.add_network("own")
    await networks.boot("server", network="own")
    await networks.boot("worker", network="own")
    target = networks.addresses["server"]
    async with await serve(networks, "server"):
        dropped = await networks.run("worker", BLOCKING_CLIENT, target, PORT)
        assert dropped.split() == ["ETIMEDOUT", "ETIMEDOUT"]
        await networks.add_rule("internal", network="own", sourceRanges=["10.128.0.0/9"])
        allowed = await networks.run("worker", BLOCKING_CLIENT, target, PORT)
        assert allowed.split() == ["connected", "connected"]


async def test_ssh_from_this_computer_needs_rule_and_external_address(
    networks: Networks, private_key_file: Path
) -> None:
    """Of the default network, a rule allows SSH from everywhere."""
    await networks.boot("outside")
    await networks.boot("inside", external=False)
    assert await networks.can_log_in("outside")
    assert not await networks.can_log_in("inside"), "no external address"
    assert "inside tcp:22: inside has no external address" in str(
        networks.server.report()["refused_connections"]
    )

    await networks.delete_rule("default-allow-ssh")
    ssh = await asyncio.create_subprocess_exec(
        *("ssh", "-F", "none", "-i", private_key_file, "-p", str(networks.ports["outside"])),
        *("-o", "ConnectTimeout=1", "-o", "StrictHostKeyChecking=no"),
        *("-o", "UserKnownHostsFile=/dev/null", f"anna@{networks.addresses['outside']}", "true"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await ssh.communicate()
    assert (ssh.returncode, b"timed out" in error) == (255, True), error

    address = Address(networks.addresses["outside"], networks.ports["outside"], "anna", ())
    transport = SshTransport(0, address, private_key_file, connect_seconds=SECONDS)
    with pytest.raises(Unreachable, match="Cannot reach worker") as caught:
        await transport.connect()
    assert "firewall rule" in caught.value.diagnostics[0].hint

    ports = [{"IPProtocol": "tcp", "ports": ["22"]}]
    await networks.add_rule("office", sourceRanges=["203.0.113.0/24"], allowed=ports)
    assert not await networks.can_log_in("outside")
    await networks.set(address="203.0.113.7")
    assert await networks.can_log_in("outside")
    assert not await networks.can_log_in("inside")
    await networks.set(address="10.164.0.99")  # by `default-allow-internal`
    assert await networks.can_log_in("inside")


async def test_ports_of_programs_follow_rules(networks: Networks) -> None:
    """From this computer, also if the rule changes while the program listens."""
    await networks.boot("server")
    place = networks.addresses["server"], PORT

    def connects() -> bool:
        with contextlib.suppress(TimeoutError), socket.create_connection(place, SECONDS):
            return True
        return False

    async with await serve(networks, "server"):
        assert not await asyncio.to_thread(connects)
        await networks.add_rule("program", sourceRanges=["127.0.0.0/8"])
        assert await asyncio.to_thread(connects)
        await networks.delete_rule("program")
        assert not await asyncio.to_thread(connects)


async def test_internet_needs_external_address_and_google_private_access(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves this computer: its own proxy is closed."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    await networks.boot("outside")
    await networks.boot("inside", external=False)
    assert await networks.connect("inside", "192.0.2.1", 443) == "TimeoutError"
    metadata = "'http://'$GCE_METADATA_HOST/computeMetadata/v1/instance/name"

    async def curl(name: str, url: str) -> str:
        async with await networks.login(name) as connection:
            command = f"curl -sSv -m 20 -H 'Metadata-Flavor: Google' {url} 2>&1"
            return str((await connection.run(command)).stdout)

    assert "inside" in await curl("inside", metadata)
    package = "https://example.invalid/simple"
    assert "504 inside has no external address, and network default no Cloud NAT" in await curl(
        "inside", package
    )
    assert "502 Bad Gateway" in await curl("outside", package), "through this computer's proxy"

    bucket = "https://storage.googleapis.com/storage/v1/b/missing"
    assert '"code": 401' in await curl("outside", bucket)
    assert "no Private Google Access" in await curl("inside", bucket)
    routers = f"{COMPUTE}/regions/{REGION}/routers"
    nat = {
        "name": "nat",
        "natIpAllocateOption": "AUTO_ONLY",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
    }
    body = {"name": "way", "network": "global/networks/default", "nats": [nat]}
    await networks.call("POST", routers, body)
    assert "502 Bad Gateway" in await curl("inside", package), "through Cloud NAT"
    assert '"code": 401' in await curl("inside", bucket), "which enables Private Google Access"
    await networks.call("DELETE", f"{routers}/way")
    assert "no Private Google Access" in await curl("inside", bucket)
    subnetwork = f"{COMPUTE}/regions/{REGION}/subnetworks/default"
    access = {"privateIpGoogleAccess": True}
    await networks.call("POST", f"{subnetwork}/setPrivateIpGoogleAccess", access)
    assert '"code": 401' in await curl("inside", bucket)
    assert "no external address" in await curl("inside", package)

    deny: dict[str, Any] = {"direction": "EGRESS", "denied": [{"IPProtocol": "tcp"}]}
    await networks.add_rule("no-exit", destinationRanges=["0.0.0.0/0"], **deny)
    assert "504 firewall rule no-exit denies tcp:443" in await curl("outside", package)
    assert "inside" in await curl("inside", metadata), "always reachable"


async def test_workers_forward_ssh_only_where_rules_allow(networks: Networks) -> None:
    """`ssh -J` from a slice's worker to another one comes from the first."""
    await networks.add_network("own")
    ports = [{"IPProtocol": "tcp", "ports": ["22"]}]
    await networks.add_rule(
        *("own-ssh",), network="own", sourceRanges=["127.0.0.0/8"], allowed=ports
    )
    node = {
        "acceleratorType": "v3-32",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "metadata": {"ssh-keys": networks.key_line},
        "tags": ["workers"],
        "networkConfig": {"network": "own", "enableExternalIps": True},
    }
    await networks.call("POST", f"{NODES}?nodeId=slice", node)
    await networks.wait_for(f"{NODES}/slice")
    row = await networks.call("GET", f"{NODES}/slice")
    first, second = [endpoint["ipAddress"] for endpoint in row["networkEndpoints"][:2]]
    port = int(row["metadata"].get("tpuctl-ssh-port", 22))
    login: dict[str, Any] = {"username": "anna", "client_keys": [networks.key], "config": None}
    async with asyncssh.connect(first, port, known_hosts=None, **login) as connection:
        with pytest.raises(asyncssh.ChannelOpenError, match="timed out"):
            await connection.open_connection(second, port)
        await networks.add_rule(
            *("own-workers",),
            network="own",
            sourceTags=["workers"],
            targetTags=["workers"],
            allowed=ports,
        )
        async with connection.connect_ssh(second, port, known_hosts=None, **login) as inner:
            client = str((await inner.run("echo $SSH_CLIENT", check=True)).stdout)
    assert client.startswith(f"{first} ")


async def test_shared_address_is_reported_and_ssh_still_follows_rules(
    make_networks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, where machines have no loopback addresses of their own."""
    monkeypatch.setattr(Addresses, "_choose_network", lambda self: None)
    networks = await make_networks()
    assert "not enforced between machines" in networks.server.report()["network"]
    await networks.boot("server", network="default")
    assert await networks.can_log_in("server")
    for rule in ("default-allow-ssh", "default-allow-internal"):
        await networks.delete_rule(rule)
    with pytest.raises((OSError, asyncssh.Error)):
        await networks.can_log_in("server")
    assert "server tcp:22: no firewall rule of network default" in str(
        networks.server.report()["refused_connections"]
    )
