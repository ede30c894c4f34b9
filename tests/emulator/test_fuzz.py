"""Fuzz tests: malformed requests are rejected with client errors, and none breaks the server.

Requests are generated from discovery documents by a seed (`malformed.py`). The suite sends some
of them, and `make soak` enough to call every method.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.locations import PROJECT_NAME, ZONE
from tests.support.malformed import described_methods, requests_of
from tests.support.malformed_bytes import HttpRequest
from tests.support.malformed_messages import random_message
from tests.support.transcripts import validate_lines
from tests.support.wire_validation import services

TIMEOUT = 20.0
AT_ONCE = 100  # requests of one seed, to one server
SEEDS, SOME = 80, 5  # in all, and in the suite
L = "projects/local-project/locations/europe-west4-a"
COMPUTE_ZONE = f"/compute/v1/{PROJECT_NAME}/zones/{ZONE}"
READS = (
    f"/v2/{L}/nodes",
    f"/v1/{L}/nodes",
    f"/v2alpha1/{L}/queuedResources",
    "/v3/projects:search",
    "/v1/billingAccounts",
    "/storage/v1/b?project=local-project",
    "/storage/v1/b/kept",
    "/storage/v1/b/kept/o",
    f"{COMPUTE_ZONE}/instances",
    f"{COMPUTE_ZONE}/disks",
    "/compute/v1/projects/local-project/global/firewalls",
    "/compute/v1/projects/local-project/global/networks",
)


@dataclass(frozen=True)
class Answer:
    """Status 0: the connection was closed without a response."""

    status: int
    head: str
    body: bytes


class Sender:
    """Sends raw bytes over a persistent connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: HttpRequest) -> Answer:
        """The response; raises TimeoutError after the timeout."""
        async with asyncio.timeout(TIMEOUT):
            if self._stream is None:
                self._stream = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
            reader, writer = self._stream
            with contextlib.suppress(ConnectionError):
                writer.write(request.as_bytes())
                if not request.is_framed:
                    writer.write_eof()
                await writer.drain()
            try:
                answer = await self._read(reader, request.verb)
            except (ConnectionError, asyncio.IncompleteReadError):
                answer = Answer(0, "", b"")
            if not request.is_framed or not answer.status or _ends(answer.head):
                await self.close()
            return answer

    async def _read(self, reader: asyncio.StreamReader, verb: str) -> Answer:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status = int(head.split(" ", 2)[1])
        if status == 100:
            return await self._read(reader, verb)
        length = re.search(r"(?im)^content-length:\s*(\d+)", head)
        if verb == "HEAD" or status in (204, 304):
            return Answer(status, head, b"")
        if length is not None:
            return Answer(status, head, await reader.readexactly(int(length[1])))
        assert re.search(r"(?im)^transfer-encoding:\s*chunked", head), head
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return Answer(status, head, body)

    async def close(self) -> None:
        if self._stream is not None:
            self._stream[1].close()
            with contextlib.suppress(ConnectionError):
                await self._stream[1].wait_closed()
            self._stream = None


def _ends(head: str) -> bool:
    return head.startswith("HTTP/1.0") or re.search(r"(?im)^connection:\s*close", head) is not None


MakeCloud = Callable[..., Any]


@pytest.fixture
def transcript_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate transcript: invalid requests are not validated with the others, but here."""
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv("TPUCTL_LOCAL_TRANSCRIPT", str(path))
    return path


@pytest.fixture
async def cloud(transcript_file: Path, make_cloud: MakeCloud) -> Any:
    """With one of each requested resource, and a bucket that no request names."""
    new_cloud = await make_cloud()
    new_cloud.enable("tpu", "compute", "iam")
    node = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    disk = {"name": "d", "sizeGb": "10"}
    image = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
    instance = {
        "name": "i",
        "machineType": "zones/europe-west4-a/machineTypes/n1-standard-1",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }

    def prepare() -> None:
        for verb, path, body in (
            ("POST", "/storage/v1/b?project=local-project", {"name": "there"}),
            ("POST", "/storage/v1/b?project=local-project", {"name": "kept"}),
            ("POST", f"/v2/{L}/nodes?nodeId=n", node),
            ("POST", "/v1/projects/local-project/serviceAccounts", {"accountId": "robot-1"}),
            ("POST", f"{COMPUTE_ZONE}/disks", disk),
            ("POST", f"{COMPUTE_ZONE}/instances", instance),
        ):
            answer = new_cloud.request(verb, path, json=body)
            assert answer.status_code == 200, answer.text
        for bucket in ("there", "kept"):
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=o"
            assert new_cloud.request("POST", path, data=b"data").status_code == 200

    await asyncio.to_thread(prepare)
    return new_cloud


@pytest.fixture
async def sender(cloud: Any) -> AsyncIterator[Sender]:
    new_sender = Sender(cloud.server.port)
    yield new_sender
    await new_sender.close()


async def fuzz(cloud: Any, sender: Sender, transcript: Path, seed: int) -> None:
    """Send the requests of a seed; reports any with an unacceptable response."""
    begin = transcript.stat().st_size
    for request in requests_of(seed, AT_ONCE, cloud.token):
        answer = await sender.send(request)
        details = (request.method, request.as_bytes()[:3000], answer)
        assert answer.status < 500 or answer.status == 501, details
        if request.is_framed:
            assert answer.status, details
        assert not (request.is_found and b"<!DOCTYPE" in answer.body), details
    with transcript.open("rb") as file:
        file.seek(begin)
        complaints = validate_lines(file.read(), sides=("answer",))
    # Unknown paths are answered with an HTML page, even if they look like a method's.
    assert [complaint for complaint in complaints if "<!DOCTYPE" not in complaint] == []


async def still_answers(cloud: Any) -> None:
    def read_all() -> None:
        for path in READS:
            answer = cloud.request("GET", path)
            # The project itself, or one of its APIs, may have been deleted or disabled.
            assert answer.status_code in (200, 400, 403, 404), (path, answer.text)
        assert cloud.request("GET", "/storage/v1/b/kept/o/o?alt=media").content == b"data"
        assert cloud.request("GET", "/_local/status").json()["requests"] > 0

    await asyncio.to_thread(read_all)


@pytest.mark.parametrize("seed", range(SOME))
async def test_malformed_requests_are_rejected(
    cloud: Any, sender: Sender, transcript_file: Path, seed: int
) -> None:
    await fuzz(cloud, sender, transcript_file, seed)
    await still_answers(cloud)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SOME, SEEDS))
async def test_malformed_requests_to_every_method_are_rejected(
    cloud: Any, sender: Sender, transcript_file: Path, seed: int
) -> None:
    await fuzz(cloud, sender, transcript_file, seed)
    await still_answers(cloud)


def test_fuzzer_covers_every_method() -> None:
    methods = {
        request.method for seed in range(SEEDS) for request in requests_of(seed, AT_ONCE, "x")
    }
    assert methods == {method.id for method in described_methods()}


def test_seed_is_deterministic() -> None:
    assert list(requests_of(3, 50, "x")) == list(requests_of(3, 50, "x"))
    assert list(requests_of(3, 50, "x")) != list(requests_of(4, 50, "x"))


# gRPC.

_WRONG = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED)


async def fuzz_rpc(cloud: Any, seed: int) -> None:
    """Messages with random content, truncated, corrupted, or no message at all."""
    chance = random.Random(seed)
    methods = [
        (service, name, method.request)
        for service, methods_by_name in services()
        for name, method in methods_by_name.items()
    ]
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cloud.server.port}", options) as channel:
        for _ in range(AT_ONCE):
            service, name, message = chance.choice(methods)
            data = random_message(chance, message()).SerializeToString()
            way = chance.random()
            if way < 0.2:
                data = chance.randbytes(chance.choice((1, 5, 100, 5000)))
            elif way < 0.4:
                data = data[: chance.randint(0, len(data))]
            elif way < 0.5 and data:
                at = chance.randrange(len(data))
                data = data[:at] + chance.randbytes(1) + data[at + 1 :]
            path = chance.choice((*[f"/{service}/{name}"] * 20, f"/{service}/None", "/a.b/C", "/x"))
            bearer = f"Bearer {cloud.token}" if chance.random() < 0.95 else "Bearer x"
            call = channel.unary_unary(path)
            try:
                await call(data, metadata=(("authorization", bearer),), timeout=TIMEOUT)
            except grpc.aio.AioRpcError as error:
                details = (path, base64.b64encode(data), error.details())
                assert error.code() not in _WRONG, details


@pytest.mark.parametrize("seed", range(3))
async def test_malformed_messages_are_rejected(cloud: Any, seed: int) -> None:
    await fuzz_rpc(cloud, seed)
    await still_answers(cloud)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 12))
async def test_thousand_malformed_messages(cloud: Any, seed: int) -> None:
    await fuzz_rpc(cloud, seed)
    await still_answers(cloud)


async def test_invalid_http2_closes_only_connection(cloud: Any) -> None:
    """Noise after an HTTP/2 preface closes the connection, not the server."""
    chance = random.Random(1)
    for size in (0, 1, 9, 100, 100_000):
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection("127.0.0.1", cloud.server.port)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(size))
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
    await still_answers(cloud)
