"""The caller's public address, for which SSH is allowed, from public services."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.http_server import QuietHandler, serving_http
from tpuctl.cloud import address
from tpuctl.cloud.endpoints import GOOGLE, Endpoint
from tpuctl.errors import Unreachable


@contextmanager
def serving(*answers: str) -> Iterator[tuple[str, ...]]:
    """A service for each of the answers; an empty one fails."""
    with ExitStack() as stack:
        servers = []
        for answer in answers:

            class Service(QuietHandler):
                body = answer.encode()

                def do_GET(self) -> None:
                    self.send_response(200 if self.body else 503)
                    self.send_header("Content-Length", str(len(self.body)))
                    self.end_headers()
                    self.wfile.write(self.body)

            servers.append(stack.enter_context(serving_http(Service)))
        yield tuple(f"http://127.0.0.1:{server.server_port}" for server in servers)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (("8.8.4.4\n",), "8.8.4.4/32"),
        (("", "8.8.4.4"), "8.8.4.4/32"),
        (("<html>log in to this network</html>", "8.8.4.4"), "8.8.4.4/32"),
        (("2001:4860:4860::8888", "8.8.4.4"), "8.8.4.4/32"),
        (("10.0.0.7", "8.8.4.4"), "8.8.4.4/32"),
        (("0.0.0.0", "8.8.4.4"), "8.8.4.4/32"),
    ],
)
async def test_first_public_ipv4_address_is_used(
    answers: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(address, "TIMEOUT_SECONDS", 60)
    with serving(*answers) as services:
        monkeypatch.setattr(address, "SERVICES", services)
        assert await address.caller_address_range(GOOGLE) == expected


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (("2001:4860:4860::8888",), "2001:4860:4860::8888"),
        (("192.168.1.2", "192.168.1.2"), "192.168.1.2"),
        (("", ""), "no public service reported"),
    ],
)
async def test_no_public_address_raises(
    answers: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(address, "TIMEOUT_SECONDS", 60)
    with serving(*answers) as services:
        monkeypatch.setattr(address, "SERVICES", services)
        with pytest.raises(Unreachable) as caught:
            await address.caller_address_range(GOOGLE)
    assert says in str(caught.value)
    assert "ssh: iap" in caught.value.diagnostics[0].hint
    assert "allow_from" in caught.value.diagnostics[0].hint


async def test_local_cloud_uses_loopback_without_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "SERVICES", ())
    local = Endpoint("local", "http://127.0.0.1:9", "token")
    assert await address.caller_address_range(local) == "127.0.0.0/8"


def test_endpoints_by_cloud() -> None:
    assert all(service.startswith("https://") for service in address.SERVICES)
    assert GOOGLE.relay == "wss://tunnel.cloudproxy.app/v4"
    local = Endpoint("local", "http://127.0.0.1:8001", "token")
    assert local.relay == "ws://127.0.0.1:8001/v4"
