"""A package index on loopback (PEP 503 and 658), with hashes and, if wanted, a password."""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from tests.support.http_server import QuietHandler, serving_http

PASSWORD = "open-sesame"  # of the user "reader"


@dataclass
class PackageIndex:
    """An index of the wheels and archives in a folder, which may change meanwhile."""

    folder: Path
    password: str = ""
    address: str = ""  # host and port
    status: int = 200  # of all answers, if it is an error's
    hashes: Mapping[str, str] = field(default_factory=dict)  # wrong ones, by file name
    downloads: list[str] = field(default_factory=list)  # names of files, in order
    bytes_sent: int = 0

    @property
    def url(self) -> str:
        """The index's address, without a password."""
        return f"http://{self.address}/simple/"

    @property
    def url_with_password(self) -> str:
        """The same with the password."""
        return f"http://reader:{self.password}@{self.address}/simple/"


@contextmanager
def package_index(
    folder: Path, password: str = "", tls: ssl.SSLContext | None = None
) -> Iterator[PackageIndex]:
    """Serve the packages in a folder until the end of the block."""
    index = PackageIndex(folder, password)
    with serving_http(partial(_Handler, index), tls) as server:
        index.address = f"127.0.0.1:{server.server_port}"
        yield index


def sha256(path: Path) -> str:
    """The checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, index: PackageIndex, *arguments: object) -> None:
        self.index = index
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0]).strip("/").split("/")
        match path:
            case _ if self.index.status != 200:
                self._answer(self.index.status)
            case _ if not self._is_allowed():
                self._answer(401)
            case ["simple", name]:
                self._page(name)
            case ["files", name] if (self.index.folder / name).is_file():
                content = (self.index.folder / name).read_bytes()
                if self.command == "GET":
                    self.index.downloads.append(name)
                self._answer(200, content, "application/octet-stream")
            case ["files", name] if name.endswith(".whl.metadata"):
                self._answer(200, _metadata(self.index.folder / name.removesuffix(".metadata")))
            case _:
                self._answer(404)

    do_HEAD = do_GET

    def _is_allowed(self) -> bool:
        pair = base64.b64encode(f"reader:{self.index.password}".encode()).decode()
        return not self.index.password or self.headers["Authorization"] == f"Basic {pair}"

    def _page(self, name: str) -> None:
        files = [file for file in sorted(self.index.folder.iterdir()) if _package(file) == name]
        if not files:
            self._answer(404)
            return
        links = (
            f'<a href="/files/{file.name}#sha256={self._hash(file)}"{_attribute(file)}>'
            f"{file.name}</a><br>"
            for file in files
        )
        text = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
        self._answer(200, text.encode(), "text/html")

    def _hash(self, file: Path) -> str:
        return self.index.hashes.get(file.name) or sha256(file)

    def _answer(self, status: int, content: bytes = b"", content_type: str = "text/plain") -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="packages"')
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
            self.index.bytes_sent += len(content)


def _package(file: Path) -> str:
    """The normalized name of the package that a file contains."""
    stem = file.name.removesuffix(".tar.gz").rsplit("-", 1)[0]
    name = file.name.split("-", 1)[0] if file.suffix == ".whl" else stem
    return re.sub(r"[-_.]+", "-", name).lower()


def _attribute(file: Path) -> str:
    """That the metadata of a wheel can be downloaded alone (PEP 658)."""
    return ' data-core-metadata="true"' if file.suffix == ".whl" else ""


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)
