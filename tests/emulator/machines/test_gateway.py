"""The gateway: Google's hosts lead to the local API server, other hosts are tunneled."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import strategies as st

from tests.support.machine_folder import machine_folder
from tests.support.properties import given
from tpuctl.emulator.machines.network.certificate_authority import Authority
from tpuctl.emulator.machines.network.framing import RequestFraming
from tpuctl.emulator.machines.network.gateway import Gateway
from tpuctl.local_cloud.certificate_authority import authority_files
from tpuctl.local_cloud.gateway_address import GatewayAddress, shell_user

# Prints the number of connections after each request; the last one comes after a pause.
CONSECUTIVE_REQUESTS = """
import sys
import storage
connects = []
sys.addaudithook(lambda event, _: connects.append(event) if event == "socket.connect" else None)
bucket = storage.Bucket("b")
bucket.token, bucket.expires = "token", float("inf")
for storage.MAX_IDLE_SECONDS in (60.0, 60.0, 60.0, 0.0):
    with bucket.open("GET", bucket.object("a b/c"), alt="media") as response:
        assert response.read() == b"api_server"
    print(len(connects))
"""

FOLDER_OF_CERTIFICATES = """
import sys
import storage
assert storage.TLS.cert_store_stats()["x509"] == 0
assert not {"tempfile", "urllib.error", "urllib.request"} & sys.modules.keys()
bucket = storage.Bucket("b")
bucket.token, bucket.expires = "token", float("inf")
with bucket.open("GET", bucket.object("a"), alt="media") as response:
    print(response.read().decode(), end="")
"""


@pytest.fixture
async def gateway(tmp_path: Path, api_server: Any) -> AsyncIterator[Gateway]:
    one = Gateway(lambda: Authority(tmp_path), api_server.address)
    await one.open()
    yield one
    await one.close()


class TlsServer:
    """A host on the internet, with a different certificate authority; answers "tls_server"."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self.authority.context_for("127.0.0.1")
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\ntls_server"
            )
            await writer.drain()
            writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()


@pytest.fixture
async def tls_server(tmp_path: Path) -> AsyncIterator[TlsServer]:
    server = TlsServer(tmp_path / "tls_server")
    await server.open()
    yield server
    await server.close()


async def curl(*arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--show-error", "--max-time", "20", *arguments),
        env={"PATH": os.environ["PATH"]} | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


@pytest.mark.parametrize(
    "host", ["storage.googleapis.com", "oauth2.googleapis.com", "a.b.googleapis.com"]
)
async def test_google_hosts_lead_to_local_api_server(
    make_lab: Any, api_server: Any, host: str
) -> None:
    lab = await make_lab(api_address=api_server.address)
    await lab.boot()
    url = f"https://{host}/storage/v1/b?project=lab"
    assert (await lab.run(f"curl -sS -H 'Authorization: Bearer x' '{url}'")).out == "api_server"
    program = f"import urllib.request as u; print(u.urlopen('{url}', data=b'body').read())"
    assert (await lab.run(f'python3 -c "{program}"')).out == "b'api_server'\n"
    by_curl, by_python = api_server.requests
    assert (by_curl.host, by_curl.path) == (host, "/storage/v1/b?project=lab")
    assert by_curl.headers["authorization"] == "Bearer x"
    assert by_curl.headers["x-forwarded-proto"] == "https"
    assert (by_python.method, by_python.body) == ("POST", b"body")


async def test_consecutive_requests_of_job_share_connection(
    gateway: Gateway, api_server: Any, tmp_path: Path
) -> None:
    certificates = authority_files(tmp_path).certificate
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CONSECUTIVE_REQUESTS),
        cwd=machine_folder(),
        env={"https_proxy": gateway.url, "SSL_CERT_FILE": str(certificates)},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert out.decode().split() == ["1", "1", "1", "2"]
    assert [request.host for request in api_server.requests] == ["storage.googleapis.com"] * 4


async def test_job_looks_authority_up_in_folder(
    gateway: Gateway, api_server: Any, tmp_path: Path
) -> None:
    """Without reading a certificate until one is needed, nor what takes long to import."""
    (await gateway.authority()).write_folder(tmp_path / "certificates")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", FOLDER_OF_CERTIFICATES),
        cwd=machine_folder(),
        env={
            "https_proxy": gateway.url,
            "no_proxy": "localhost,127.0.0.0/8,.example.com",
            "SSL_CERT_DIR": str(tmp_path / "certificates"),
            "SSL_CERT_FILE": str(tmp_path / "missing"),
        },
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert out == b"api_server"
    assert [request.host for request in api_server.requests] == ["storage.googleapis.com"]


async def test_client_without_authority_rejects_certificate(gateway: Gateway) -> None:
    status, _, error = await curl("https://storage.googleapis.com/", https_proxy=gateway.url)
    assert status == 60, error  # curl: the peer's certificate is not trusted


async def test_credentials_are_required(gateway: Gateway, api_server: Any) -> None:
    parts = urlsplit(gateway.url)
    for proxy in (f"http://127.0.0.1:{parts.port}", f"http://machine:no@127.0.0.1:{parts.port}"):
        status, _, error = await curl("https://storage.googleapis.com/", https_proxy=proxy)
        assert status != 0
        assert "407" in error
    assert api_server.requests == []


async def test_unknown_shell_users_are_rejected(api_server: Any, tmp_path: Path) -> None:
    one = Gateway(lambda: Authority(tmp_path), api_server.address, tmp_path)
    await one.open()
    way = GatewayAddress.read(tmp_path)
    assert way is not None
    authority = authority_files(tmp_path).certificate
    shell = shell_user(tmp_path, "http://proxy.company.com:3128")
    for user, code in ((shell, 0), ("shell", 0), ("shell-0123", 1), ("shell-../token", 1)):
        proxy = way.url(user.replace("/", "%2F"))
        ca = ("--cacert", str(authority))
        status, _, error = await curl(*ca, "https://storage.googleapis.com/", https_proxy=proxy)
        assert (status != 0) == code, error
    await one.close()
    # The next one listens on the same port.
    again = Gateway(lambda: Authority(tmp_path), api_server.address, tmp_path)
    await again.open()
    assert GatewayAddress.read(tmp_path) == way
    await again.close()


async def test_other_hosts_are_tunneled(
    gateway: Gateway, tls_server: TlsServer, api_server: Any, tmp_path: Path
) -> None:
    trusted = tmp_path / "tls_server.pem"
    trusted.write_bytes(tls_server.authority.certificate_pem)
    url = f"https://127.0.0.1:{tls_server.port}/"
    answer = await curl("--cacert", str(trusted), "--noproxy", "", "--proxy", gateway.url, url)
    assert answer[:2] == (0, "tls_server"), answer
    assert api_server.requests == []


async def test_computer_proxy_is_used_only_for_other_hosts(
    gateway: Gateway,
    tls_server: TlsServer,
    api_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", tls_server.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("https_proxy", f"http://me:p%40ss@127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    bundle = tmp_path / "bundle.pem"
    pems = tls_server.authority.certificate_pem + (await gateway.authority()).certificate_pem
    bundle.write_bytes(pems)
    common = ("--cacert", str(bundle), "--noproxy", "", "--proxy", gateway.url)
    # The name cannot be resolved: only that proxy can reach it.
    status, _, error = await curl(*common, "--insecure", "https://far.invalid:444/")
    assert status == 0, error
    head = asked[0].decode()
    assert head.startswith("CONNECT far.invalid:444 HTTP/1.1\r\n")
    assert base64.b64encode(b"me:p@ss").decode() in head
    assert (await curl(*common, "https://storage.googleapis.com/x"))[1] == "api_server"
    assert len(asked) == 1
    server.close()


async def test_unreachable_host_is_reported(gateway: Gateway) -> None:
    _, _, error = await curl("--noproxy", "", "--proxy", gateway.url, "https://127.0.0.1:9/")
    assert "502" in error


async def test_large_bodies_pass_in_both_directions(gateway: Gateway, tmp_path: Path) -> None:
    payload = os.urandom(20_000_000)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"X-Forwarded-Proto: https" in head
        body = await reader.readexactly(len(payload))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    authority = await gateway.authority()
    other = Gateway(lambda: authority, server.sockets[0].getsockname())
    await other.open()
    certificate, source, copy = (tmp_path / name for name in ("ca.pem", "source", "copy"))
    certificate.write_bytes(authority.certificate_pem)
    source.write_bytes(payload)
    status, _, error = await curl(
        *("--cacert", str(certificate), "--proxy", other.url, "-H", "Expect:"),
        *("--data-binary", f"@{source}", "-o", str(copy), "https://storage.googleapis.com/o"),
    )
    assert status == 0, error
    assert copy.read_bytes() == payload
    await other.close()
    server.close()


def test_authority_is_persistent_and_its_key_private(tmp_path: Path) -> None:
    first = Authority(tmp_path)
    assert Authority(tmp_path).certificate_pem == first.certificate_pem
    assert (tmp_path / "authority" / "authority.key").stat().st_mode & 0o777 == 0o600
    trusting = ssl.create_default_context(cadata=first.certificate_pem.decode())
    assert trusting.cert_store_stats()["x509_ca"] == 1


PLAIN = b"GET /a HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: http\r\n\r\n"
SIZED = b"PUT /b HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n\r\nGET / \r\n\r\nxx"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;ext=1\r\nab\r\nc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
)
MARK = b"X-Forwarded-Proto: https\r\n\r\n"
CHANGED = {
    PLAIN: b"GET /a HTTP/1.1\r\nHost: h\r\n" + MARK,
    SIZED: SIZED.replace(b"12\r\n\r\n", b"12\r\n" + MARK),
    # A Content-Length next to chunked is dropped (RFC 9112, 6.3).
    CHUNKED: CHUNKED.replace(b"Content-Length: 3\r\n", b"").replace(
        b"chunked\r\n\r\n", b"chunked\r\n" + MARK
    ),
}


@given(
    st.lists(st.sampled_from([PLAIN, SIZED, CHUNKED]), min_size=1, max_size=5),
    st.lists(st.integers(1, 40), max_size=60),
)
def test_requests_are_framed_in_any_chunks(requests: list[bytes], cuts: list[int]) -> None:
    stream, framing, out = b"".join(requests), RequestFraming(), []
    for cut in cuts:
        out += framing.feed(stream[:cut])
        stream = stream[cut:]
    out += framing.feed(stream)
    assert b"".join(out) == b"".join(CHANGED[request] for request in requests)


@pytest.mark.parametrize(
    "stream",
    [
        b"PRI * HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"x" * 70_000,
    ],
)
def test_invalid_http_is_rejected(stream: bytes) -> None:
    with pytest.raises(ValueError, match=r"HTTP|head|invalid literal"):
        RequestFraming().feed(stream)
