"""A company's network on loopback: an index and a receiver of webhooks that its own authority
signs, behind its proxy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

from tests.support.http_server import QuietHandler, serving_http
from tests.support.package_index import PackageIndex, package_index
from tests.support.webhook_receiver import Receiver, receiving
from tpuctl.emulator.machines.network.certificate_authority import Authority
from tpuctl.local_cloud import certificate_authority

HOST, HOOKS = "packages.corp.invalid", "hooks.corp.invalid"  # which only the proxy knows


@dataclass(frozen=True)
class CompanyNetwork:
    """What a stack file of the company names."""

    proxy: str  # its URL
    certificates: str  # of the authority
    index: PackageIndex
    receiver: Receiver
    targets: list[str]  # HOST:PORT of all that was asked of the proxy

    @property
    def index_url(self) -> str:
        return f"https://{HOST}/simple/"

    @property
    def webhook_url(self) -> str:
        return f"https://{HOOKS}/hook/secret-token"


@contextmanager
def company_network(folder: Path) -> Iterator[CompanyNetwork]:
    """Serve the packages in a folder until the end of the block."""
    with patch.object(certificate_authority, "_NAME", "Example Corp."):
        authority = Authority(folder / "company")
    targets: list[str] = []
    with (
        package_index(folder, tls=authority.context_for(HOST)) as index,
        receiving(authority.context_for(HOOKS)) as receiver,
    ):
        hosts = {f"{HOST}:443": index.address, f"{HOOKS}:443": receiver.address}
        with serving_http(partial(_Tunnel, hosts, targets)) as server:
            proxy = f"http://127.0.0.1:{server.server_port}"
            certificates = authority.certificate_pem.decode()
            yield CompanyNetwork(proxy, certificates, index, receiver, targets)


class _Tunnel(QuietHandler):
    """A proxy that only connects, and only to these hosts."""

    def __init__(self, hosts: dict[str, str], targets: list[str], *arguments: object) -> None:
        self.hosts = hosts
        self.targets = targets
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_CONNECT(self) -> None:
        self.targets.append(self.path)
        if self.path not in self.hosts:
            self.send_error(403)
            return
        host, _, port = self.hosts[self.path].partition(":")
        with socket.create_connection((host, int(port))) as far:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_copy, args=(far, self.connection))
            back.start()
            _copy(self.connection, far)
            back.join()
        self.close_connection = True


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        target.close()
