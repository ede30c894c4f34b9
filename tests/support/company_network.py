"""A company's network on loopback: an index that its own authority signs, behind its proxy."""

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
from tpuctl.emulator.machines.network.certificate_authority import Authority
from tpuctl.local_cloud import certificate_authority

HOST = "packages.corp.invalid"  # which only the proxy knows


@dataclass(frozen=True)
class CompanyNetwork:
    """What a stack file of the company names."""

    proxy: str  # its URL
    certificates: str  # of the authority
    index: PackageIndex
    targets: list[str]  # HOST:PORT of all that was asked of the proxy

    @property
    def index_url(self) -> str:
        return f"https://{HOST}/simple/"


@contextmanager
def company_network(folder: Path) -> Iterator[CompanyNetwork]:
    """Serve the packages in a folder until the end of the block."""
    with patch.object(certificate_authority, "_NAME", "Example Corp."):
        authority = Authority(folder / "company")
    targets: list[str] = []
    with (
        package_index(folder, tls=authority.context_for(HOST)) as index,
        serving_http(partial(_Tunnel, index.address, targets)) as server,
    ):
        proxy = f"http://127.0.0.1:{server.server_port}"
        yield CompanyNetwork(proxy, authority.certificate_pem.decode(), index, targets)


class _Tunnel(QuietHandler):
    """A proxy that only connects, and only to the index."""

    def __init__(self, index: str, targets: list[str], *arguments: object) -> None:
        self.index = index
        self.targets = targets
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_CONNECT(self) -> None:
        self.targets.append(self.path)
        if self.path != f"{HOST}:443":
            self.send_error(403)
            return
        host, _, port = self.index.partition(":")
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
