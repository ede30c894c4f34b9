"""Faults apply to every method of every API, over every transport."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import pytest

from tpuctl.emulator.faults.fault import Fault
from tpuctl.emulator.service_usage.quota import METHODS as QUOTA_METHODS
from tpuctl.emulator.storage.service import StorageService
from tpuctl.emulator.storage.xml_api.xml import METHODS as XML_METHODS
from tpuctl.emulator.wire.messages import Method
from tpuctl.emulator.wire.routes import Router

pytestmark = pytest.mark.malformed  # most requests only identify their method

TEAPOT = 418
NOTHING = -1  # a status: the connection was closed without a response
Answer = tuple[int, str]
Ask = Callable[[], Awaitable[Answer]]


@dataclass
class FaultProbe:
    """A cloud, its methods, and ways to call them that return the raw response."""

    cloud: Any
    router: Router
    channel: grpc.aio.Channel

    @property
    def registry(self) -> Any:
        return self.cloud.server.registry

    def methods(self) -> list[Method]:
        return [method for method, is_emulated in self.router.tables() if is_emulated]

    async def rest(self, verb: str, path: str, body: bytes = b"{}", **headers: str) -> Answer:
        """Without a library, since libraries retry requests that were cut off."""
        payload = b"" if verb in ("GET", "DELETE") else body
        header_values = {
            "Host": "localhost",
            "Connection": "close",
            "Content-Length": len(payload),
            **headers,
        }
        lines = [f"{verb} /t/{self.cloud.token}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in header_values.items()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.cloud.server.port)
        writer.write("\r\n".join([*lines, "", ""]).encode() + payload)
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        return (int(head.split()[1]), content.decode()) if head else (NOTHING, "")

    async def rpc(self, method: str) -> Answer:
        call = self.channel.unary_unary(f"/{method}")
        metadata = (("authorization", f"Bearer {self.cloud.token}"),)
        try:
            await call(b"", metadata=metadata, timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code().value[0], error.details() or ""
        return 0, ""

    def add(self, kind: str, method: str, **fields: Any) -> Fault:
        self.cloud.server._control._require_method(method)
        fault: Fault = self.registry.faults.add({"kind": kind, "method": method, **fields})
        return fault

    async def check_faults(self, method: str, send: Ask, refused: int, lost: int) -> str:
        """Apply a status, a lost response and a delay to it; returns the text of the error."""
        fault = self.add("error", method, http=TEAPOT, text="probe")
        status, text = await send()
        assert (status, fault.fields["applied"]) == (refused, 1), f"{method}: {text}"
        fault = self.add("drop-response", method)
        status, _ = await send()
        assert (status, fault.fields["applied"]) == (lost, 1), method
        await self._check_delay(method, send)
        return text

    async def _check_delay(self, method: str, send: Ask) -> None:
        """It is delayed by an hour, unless it started an operation, which is delayed instead."""
        fault = self.add("slow", method, seconds=3600)
        task = asyncio.ensure_future(send())
        async with asyncio.timeout(20):
            while not (waiting := self.registry.traffic.held_calls(fault.id)) and not task.done():
                await asyncio.sleep(0.001)
        assert fault.fields["applied"] == 1, method
        if waiting:
            assert [call["method"] for call in waiting] == [method]
            assert self.registry.traffic.release(fault.id) == 1
        else:
            begun = "SELECT count(*) FROM operations WHERE ended IS NULL AND due > started + 3000"
            assert self.registry.store.row(begun)[0] > 0, method
        assert (await asyncio.wait_for(task, 20))[0] != TEAPOT, method
        self.registry.faults.remove(fault.id)


@pytest.fixture
async def probe(cloud: Any) -> AsyncIterator[FaultProbe]:
    cloud.enable("tpu", "compute", "iam", "serviceusage")
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cloud.server.port}", options) as channel:
        yield FaultProbe(cloud, Router(cloud.server.registry), channel)


def example_of(pattern: re.Pattern[str], name: str) -> str:
    """A path that matches a rule's pattern, with that name for every variable."""
    plain = pattern.pattern.replace("\\", "")
    for segment in ("[^/:]+", ".+"):
        plain = plain.replace(segment, name)
    path = plain.replace("(", "").replace(")", "")
    assert pattern.fullmatch(path), pattern
    return path


def word_of(method: str) -> str:
    """A name that selects the method among those with the same path."""
    if ".v1.Operations/" in method:  # Resource Manager v1
        return "cp.1"
    return "projects" if ".orgpolicy." in method else "something"


async def test_every_method_over_rest(probe: FaultProbe) -> None:
    count = 0
    for method in probe.methods():
        if not method.rules or ".storage.control." in method.service:  # served by gRPC alone
            continue
        rule, name = method.rules[0], method.full_name
        path = example_of(rule.pattern, word_of(name))
        send = partial(probe.rest, rule.verb, path)
        error = json.loads(await probe.check_faults(name, send, TEAPOT, NOTHING))["error"]
        assert (error["code"], error["message"]) == (TEAPOT, "probe"), name
        is_older = ".compute." in name
        assert error.get("status") == (None if is_older else "INVALID_ARGUMENT"), name
        assert ("errors" in error) == is_older, name
        count += 1
    assert count > 150


async def test_every_method_over_grpc(probe: FaultProbe) -> None:
    refused, lost = grpc.StatusCode.INVALID_ARGUMENT.value[0], grpc.StatusCode.UNAVAILABLE.value[0]
    names = {
        method.full_name
        for method in probe.methods()
        if ".compute." not in method.service and "cloudresourcemanager" not in method.service
    }
    for name in sorted(names):
        await probe.check_faults(name, partial(probe.rpc, name), refused, lost)
    assert len(names) > 100


async def test_service_usage_methods_without_client(probe: FaultProbe) -> None:
    service = "/v1beta1/projects/local-project/services/tpu.googleapis.com"
    metrics = f"{service}/consumerQuotaMetrics"
    paths = {
        "ListConsumerQuotaMetrics": ("GET", metrics),
        "GetConsumerQuotaMetric": ("GET", f"{metrics}/m"),
        "GetConsumerQuotaLimit": ("GET", f"{metrics}/m/limits/l"),
        "GenerateServiceIdentity": ("POST", f"{service}:generateServiceIdentity"),
    }
    assert {name.rpartition("/")[2] for name in QUOTA_METHODS} == set(paths)
    for name in QUOTA_METHODS:
        verb, path = paths[name.rpartition("/")[2]]
        await probe.check_faults(name, partial(probe.rest, verb, path), TEAPOT, NOTHING)


async def test_every_method_of_storage(probe: FaultProbe) -> None:
    storage = StorageService(probe.registry)
    objects = "/upload/storage/v1/b/x/o"
    ways = [
        (method, verb, f"/storage/v1/{shape.replace('*', 'x')}")
        for (verb, shape), (method, _) in storage._table.items()
    ]
    ways += [
        ("objects.insert", "POST", f"{objects}?uploadType=media&name=x"),
        ("objects.insert", "POST", f"{objects}?uploadType=multipart"),
        ("objects.insert", "POST", f"{objects}?uploadType=resumable&name=x"),
        ("objects.insert", "PUT", f"{objects}?uploadType=resumable&upload_id=x"),
        ("objects.cancelUpload", "DELETE", f"{objects}?uploadType=resumable&upload_id=x"),
        ("objects.get", "GET", "/storage/v1/b/x/o/x?alt=media"),
        ("objects.get", "GET", "/download/storage/v1/b/x/o/x?alt=media"),
        ("buckets.list", "GET", "/b?project=local-project"),
    ]
    by_xml = {f"storage.{method}" for method in XML_METHODS}
    assert {f"storage.{method}" for method, _, _ in ways} == storage.names() - by_xml
    for method, verb, path in ways:
        text = await probe.check_faults(
            f"storage.{method}", partial(probe.rest, verb, path), TEAPOT, NOTHING
        )
        error = json.loads(text)["error"]
        assert error["code"] == TEAPOT
        assert error["errors"][0]["message"] == "probe", (method, verb)


async def test_storage_xml_api(probe: FaultProbe) -> None:
    ways = [
        ("GET", "/x/y", "objects.get"),
        ("PUT", "/x/y", "objects.insert"),
        ("DELETE", "/x/y", "objects.delete"),
        ("GET", "/", "buckets.list"),
        ("PUT", "/x", "buckets.insert"),
        ("GET", "/x", "objects.list"),
        ("DELETE", "/x", "buckets.delete"),
        ("POST", "/x/y?uploads", "multipartUploads.create"),
        ("PUT", "/x/y?uploadId=z&partNumber=1", "multipartUploads.create"),
        ("POST", "/x/y?uploadId=z", "multipartUploads.create"),
        ("GET", "/x/y?uploadId=z", "multipartUploads.listParts"),
        ("DELETE", "/x/y?uploadId=z", "multipartUploads.abort"),
        ("GET", "/x?uploads", "multipartUploads.list"),
    ]
    assert {method for _, _, method in ways} >= XML_METHODS
    for verb, path, method in ways:
        send = partial(probe.rest, verb, path, b"data", Host="storage.googleapis.com")
        text = await probe.check_faults(f"storage.{method}", send, TEAPOT, NOTHING)
        assert "<Message>probe</Message>" in text


BATCHES = {
    "/batch/storage/v1": ("storage.objects.delete", "DELETE /storage/v1/b/x/o/x"),
    "/batch/compute/v1": (
        "google.cloud.compute.v1.Networks/Get",
        "GET /compute/v1/projects/local-project/global/networks/default",
    ),
}


@pytest.mark.parametrize("path", list(BATCHES))
async def test_call_in_batch(probe: FaultProbe, path: str) -> None:
    """The batch is answered; a lost response or a delay of one part applies to the whole."""
    method, line = BATCHES[path]
    body = (
        f"--it\r\nContent-Type: application/http\r\n\r\n{line} HTTP/1.1\r\n\r\n\r\n--it--\r\n"
    ).encode()
    kind = {"Content-Type": "multipart/mixed; boundary=it"}
    text = await probe.check_faults(
        method, partial(probe.rest, "POST", path, body, **kind), 200, NOTHING
    )
    assert f"HTTP/1.1 {TEAPOT} " in text
    assert '"probe"' in text


async def test_names_match_method_tables(probe: FaultProbe) -> None:
    names = {name for name in probe.router.names if probe.router.emulates(name)}
    assert names == {method.full_name for method in probe.methods()}
