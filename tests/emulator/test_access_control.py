"""Access control: other computers, and callers without a token, are rejected."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.memory import process_tree
from tpuctl.emulator.server import APIS
from tpuctl.local_cloud import server_process
from tpuctl.local_cloud.server_process import LocalCloud

P = "projects/local-project"
L = f"{P}/locations/europe-west4-a"
REQUESTS = (
    ("GET", f"/v2/{L}/nodes"),
    ("POST", f"/v2/{L}/nodes?nodeId=n"),
    ("DELETE", f"/v2/{L}/nodes/n"),
    ("GET", f"/v2alpha1/{L}/reservations"),
    ("GET", f"/v1/{L}/nodes"),
    ("GET", "/v3/projects:search"),
    ("POST", f"/v3/{P}:setIamPolicy"),
    ("GET", "/v1/projects/local-project"),
    ("GET", f"/v1/{P}/services"),
    ("GET", f"/v1beta1/{P}/services/tpu.googleapis.com/consumerQuotaMetrics"),
    ("POST", f"/v1/{P}/serviceAccounts"),
    ("GET", f"/v1/{P}/billingInfo"),
    ("GET", "/v1/billingAccounts"),
    ("GET", f"/compute/v1/{P}/zones/europe-west4-a/instances"),
    ("GET", f"/{P}/global/networks"),
    ("POST", "/batch/compute/v1"),
    ("GET", "/storage/v1/b?project=local-project"),
    ("GET", "/b/there/o"),
    ("POST", "/batch/storage/v1"),
    ("GET", "/storage/v1/b/there/o/secret?alt=media"),
    ("GET", "/download/storage/v1/b/there/o/secret?alt=media"),
    ("POST", "/upload/storage/v1/b/there/o?uploadType=media&name=new"),
    ("POST", "/upload/storage/v1/b/there/o?uploadType=multipart"),
    ("POST", "/upload/storage/v1/b/there/o?uploadType=resumable&name=new"),
    ("GET", "/there/secret"),
    ("PUT", "/there/new"),
    ("DELETE", "/there/secret"),
    ("GET", "/_local/status"),
    ("POST", "/_local/shutdown"),
    ("GET", "/_local/faults"),
    ("GET", "/"),
    ("GET", "/nothing/of/any/api"),
    ("OPTIONS", "/storage/v1/b"),
)


def statuses_of(
    cloud: Any, verb: str, path: str, source: str = "", **headers: str
) -> http.client.HTTPResponse:
    """A raw request from an address of this computer."""
    near = (source, 0) if source else None
    connection = http.client.HTTPConnection("127.0.0.1", cloud.server.port, 10, near)
    connection.request(verb, path, b"{}" if verb != "GET" else None, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


@pytest.fixture
async def guarded(cloud: Any) -> Any:
    """A cloud with data to protect."""

    def fill() -> None:
        bucket = cloud.storage().create_bucket("there")
        bucket.blob("secret").upload_from_string("treasure")

    await asyncio.to_thread(fill)
    return cloud


@pytest.mark.parametrize(("verb", "path"), REQUESTS)
def test_every_endpoint_requires_a_token(guarded: Any, verb: str, path: str) -> None:
    token = guarded.token
    ways: list[tuple[str, dict[str, str]]] = [
        (path, {}),
        (path, {"Authorization": ""}),
        (path, {"Authorization": "Bearer "}),
        (path, {"Authorization": "Bearer wrong"}),
        (path, {"Authorization": f"Bearer {token[:-1]}"}),
        (path, {"Authorization": f"Basic {token}"}),
        (path, {"Cookie": f"token={token}"}),
        (path, {"Host": "storage.googleapis.com"}),
        (path, {"Host": "there.storage.googleapis.com"}),
        (f"/t/wrong{path}", {}),
        (f"/t/{path}", {}),
        (f"/t//{path}", {"Authorization": "Bearer wrong"}),
        (f"/t/{token[:-1]}{path}", {"Authorization": f"Bearer {token[:-1]}"}),
        (f"/x/t/{token}{path}", {}),
    ]
    statuses = {statuses_of(guarded, verb, target, **headers).status for target, headers in ways}
    assert statuses == {401}
    intact(guarded)


@pytest.mark.parametrize(("verb", "path"), [request for request in REQUESTS if request[0] == "GET"])
def test_token_in_header_or_path_is_accepted(guarded: Any, verb: str, path: str) -> None:
    bearer = statuses_of(guarded, verb, path, Authorization=f"Bearer {guarded.token}").status
    prefix = statuses_of(guarded, verb, f"/t/{guarded.token}{path}").status
    assert bearer == prefix
    assert bearer in {200, 404}


def intact(cloud: Any) -> None:
    bucket = cloud.storage().bucket("there")
    assert bucket.blob("secret").download_as_bytes() == b"treasure"
    assert [blob.name for blob in bucket.list_blobs()] == ["secret"]


@pytest.mark.parametrize(
    "service",
    [
        surface.service
        for api in APIS
        for surface in (*api.surfaces, *api.shared_surfaces)
        if surface.family != "legacy"  # Compute Engine does not support gRPC
    ],
)
@pytest.mark.parametrize("token", ["", "wrong"])
def test_every_grpc_service_requires_a_token(cloud: Any, service: str, token: str) -> None:
    call = cloud.channel(token).unary_unary(f"/{service}/Anything")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=60)
    code: grpc.StatusCode = caught.value.code()
    assert code is grpc.StatusCode.UNAUTHENTICATED


def test_no_cors_headers(guarded: Any) -> None:
    """Requests of another site's page have no token, and it cannot read any response."""

    def headers() -> Iterator[str]:
        for verb in ("GET", "OPTIONS", "POST"):
            for token in ("", guarded.token):
                metadata = {
                    "Origin": "http://evil.example",
                    "Host": f"evil.example:{guarded.server.port}",
                    "Access-Control-Request-Method": "GET",
                    "Access-Control-Request-Headers": "authorization",
                }
                metadata |= {"Authorization": f"Bearer {token}"} if token else {}
                yield from statuses_of(
                    guarded, verb, "/storage/v1/b/there/o/secret", **metadata
                ).headers

    names = {name.lower() for name in headers()}
    assert "content-type" in names
    assert not {name for name in names if name.startswith("access-control")}


async def test_token_file_is_private(make_cloud: Any, tmp_path: Path) -> None:
    """An empty file, left by a kill, does not disable authentication."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").touch()
    cloud = await make_cloud("home")
    assert len(cloud.token) >= 32
    assert (home / "token").stat().st_mode & 0o777 == 0o600
    path = "/_local/status"
    answer = await asyncio.to_thread(statuses_of, cloud, "GET", path, "", Authorization="Bearer ")
    assert answer.status == 401


def address_on_a_network() -> str:
    """An address at which others can reach this computer; skips if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only looks up a route
        except OSError:
            pytest.skip("this computer is on no network")
        address: str = probe.getsockname()[0]
    if ipaddress.ip_address(address).is_loopback:
        pytest.skip("this computer is on no network")
    return address


def test_server_does_not_listen_on_other_interfaces(cloud: Any) -> None:
    address = address_on_a_network()

    def knock() -> None:
        socket.create_connection((address, cloud.server.port), 5).close()

    with pytest.raises(ConnectionRefusedError):
        knock()


@pytest.mark.skipif(sys.platform != "linux", reason="requires Linux")
def test_connection_from_another_address_is_closed(cloud: Any) -> None:
    """As forwarded by a router or a container: even with the right token."""
    source = address_on_a_network()
    bearer = {"Authorization": f"Bearer {cloud.token}"}

    def call() -> None:
        statuses_of(cloud, "GET", "/_local/status", source, **bearer)

    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        call()


@pytest.fixture
def whole_cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """A cloud with one running machine."""
    home = tmp_path / "cloud"
    cloud = server_process.start(home, pace="instant")
    server_process.request(
        cloud,
        "POST",
        f"/v1/{P}/services:batchEnable",
        {"serviceIds": ["tpu.googleapis.com", "compute.googleapis.com"]},
    )
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    server_process.request(cloud, "POST", f"/v2/{L}/nodes?nodeId=n", body)
    until = time.monotonic() + 30
    while server_process.request(cloud, "GET", f"/v2/{L}/nodes/n")["state"] != "READY":
        assert time.monotonic() < until
        time.sleep(0.02)
    yield cloud
    server_process.stop(home)


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are listed in /proc")
def test_everything_listens_only_on_loopback(whole_cloud: LocalCloud) -> None:
    addresses = listening(whole_cloud.pid)
    # The APIs, the gateway, and the machine's SSH and metadata servers.
    assert len(addresses) >= 4
    assert all(address.is_loopback for address in addresses), addresses


def listening(pid: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses on which a process and its descendants listen."""
    own = set()
    for member in process_tree(pid):
        for link in Path(f"/proc/{member}/fd").iterdir():
            match = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
            own |= {match[1]} if match else set()
    addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text("ascii").splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:
                addresses.append(_address(fields[1].partition(":")[0]))
    return addresses


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse the kernel's hexadecimal words, each in native byte order."""
    words = [bytes.fromhex(text[at : at + 8]) for at in range(0, len(text), 8)]
    data = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return ipaddress.ip_address(data)
