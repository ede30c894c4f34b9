"""Large objects stream through the server without growing its memory."""

from __future__ import annotations

import hashlib
import http.client
import io
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.cloud import storage
from google.oauth2.credentials import Credentials

from tests.support.killable_server import KillableServer

MB = 1 << 20
BUCKET = "large-ones"
CHUNK = 8 * MB


class Source(io.RawIOBase):
    """A virtual file of `size` bytes, and the digest of its content."""

    def __init__(self, size: int) -> None:
        self._block = random.Random(size).randbytes(MB)
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, count: int = -1) -> bytes:
        remaining = self._size - self._at
        count = remaining if count < 0 else min(count, remaining)
        data = bytearray()
        while len(data) < count:
            inside = (self._at + len(data)) % MB
            data += self._block[inside : inside + count - len(data)]
        self._at += count
        return bytes(data)

    def digest(self) -> str:
        self.seek(0)
        digest = hashlib.sha256()
        while data := self.read(MB):
            digest.update(data)
        return digest.hexdigest()


class Large:
    """A dedicated server whose memory is measured."""

    def __init__(self, server: KillableServer) -> None:
        self.server = server
        self.client = storage.Client(
            "local-project",
            credentials=Credentials(token=server.token),
            client_options={"api_endpoint": server.url},
        )

    def peak_memory(self) -> int:
        """The peak memory of the server, in bytes."""
        text = Path(f"/proc/{self.server.pid}/status").read_text("ascii")
        match = re.search(r"VmHWM:\s+(\d+) kB", text)
        assert match is not None
        return int(match[1]) * 1024

    def connection(self) -> http.client.HTTPConnection:
        host, port = self.server.url.removeprefix("http://").split(":")
        return http.client.HTTPConnection(host, int(port), timeout=120)

    def request(
        self, verb: str, path: str, body: Source | None = None, **headers: str
    ) -> http.client.HTTPConnection:
        connection = self.connection()
        headers = {"Authorization": f"Bearer {self.server.token}", **headers}
        connection.request(verb, path, body, headers)  # type: ignore[arg-type]
        return connection


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Large]:
    server = KillableServer(tmp_path / "home")
    assert server.start()
    new_server = Large(server)
    new_server.client.create_bucket(BUCKET)
    yield new_server
    new_server.client._http.close()
    server.close()


def by_media(large: Large, source: Source, size: int) -> None:
    path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=object"
    connection = large.request("POST", path, source, **{"Content-Length": str(size)})
    assert connection.getresponse().status == 200
    connection.close()


def by_xml(large: Large, source: Source, size: int) -> None:
    connection = large.request("PUT", f"/{BUCKET}/object", source, **{"Content-Length": str(size)})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


def by_client(large: Large, source: Source, size: int) -> None:
    """Resumable, in chunks."""
    blob = large.client.bucket(BUCKET).blob("object", chunk_size=CHUNK)
    blob.upload_from_file(source, size=size)


def by_composition(large: Large, source: Source, size: int) -> None:
    bucket = large.client.bucket(BUCKET)
    by_media(large, source, size)
    half = bucket.blob("half")
    half.upload_from_string(b"")
    bucket.blob("object").compose([bucket.blob("object"), half])


WAYS = (by_media, by_xml, by_client, by_composition)


def downloaded(large: Large, size: int) -> str:
    """The digest of the object, while another client requested it but does not read."""
    path = f"/download/storage/v1/b/{BUCKET}/o/object?alt=media"
    idle = large.request("GET", path)
    reading = large.request("GET", path)
    answer = reading.getresponse()
    assert answer.headers["Content-Length"] == str(size)
    digest = hashlib.sha256()
    while data := answer.read(MB):
        digest.update(data)
    reading.close()
    idle.close()
    return digest.hexdigest()


def through(
    large: Large, way: Callable[[Large, Source, int], None], size: int, max_growth: int
) -> None:
    source = Source(size)
    before = large.peak_memory()
    way(large, source, size)
    assert downloaded(large, size) == source.digest()
    grown = large.peak_memory() - before
    assert grown < max_growth, f"{grown / MB:.0f} MB more memory for {size / MB:.0f} MB"


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_independent_of_object_size(
    large: Large, way: Callable[[Large, Source, int], None]
) -> None:
    through(large, way, 64 * MB, 24 * MB)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_memory_is_independent_of_larger_size(
    large: Large, way: Callable[[Large, Source, int], None]
) -> None:
    through(large, way, 256 * MB, 32 * MB)
