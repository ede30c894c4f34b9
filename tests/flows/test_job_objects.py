"""Objects through the official client, on the local cloud."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tpuctl.api import Tpuctl
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, Denied, NotFound
from tpuctl.local_cloud import server_process


@pytest.fixture
async def store(make_stack: Callable[..., Tpuctl]) -> AsyncIterator[ObjectStore]:
    stack = make_stack()
    client = stack.cloud.client("storage")
    await stack.cloud.call("bucket", client.create_bucket, f"{stack.stack.name}-objects")
    yield ObjectStore(client, f"{stack.stack.name}-objects")


async def test_put_bytes_returns_size_and_generation(store: ObjectStore) -> None:
    generation = await store.put_bytes("a/b.json", b"{}")
    assert await store.get_bytes("a/b.json") == b"{}"
    info = await store.stat("a/b.json")
    assert info is not None
    assert (info.name, info.size, info.generation) == ("a/b.json", 2, generation)


async def test_client_sends_no_other_requests(make_stack: Callable[..., Tpuctl]) -> None:
    """Its threads would also leave connections open when the program ends."""
    stack = make_stack()
    client = stack.cloud.client("storage")
    requests: list[str] = []
    client._http.hooks["response"].append(lambda response, **_: requests.append(response.url))
    before = {*threading.enumerate()}
    with pytest.raises(NotFound):
        await ObjectStore(client, f"{stack.stack.name}-none").get_bytes("x")
    for thread in {*threading.enumerate()} - before:
        await asyncio.to_thread(thread.join)
    assert len(requests) == 1, requests


async def test_hint_names_the_project(make_stack: Callable[..., Tpuctl]) -> None:
    cloud = make_stack().cloud
    with pytest.raises(NotFound) as caught:
        await cloud.objects("no-such-bucket").put_bytes("x", b"")
    (diagnostic,) = caught.value.diagnostics
    assert "gcloud storage ls --project=local-project" in diagnostic.hint


async def test_refused_token_leaves_no_connection_open(
    local_cloud: server_process.LocalCloud,
) -> None:
    cloud = Cloud(Endpoint("local", local_cloud.url, "not-the-token"), "local-project")
    store = ObjectStore(cloud.client("storage"), "none")
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(Denied):
                await store.get_bytes("x")
    finally:
        gc.enable()
    gc.collect()  # a warning of an open socket fails the test


async def test_missing_object(store: ObjectStore) -> None:
    assert await store.stat("none") is None
    assert not await store.exists("none")
    with pytest.raises(NotFound, match=f"gs://{store.name}/none"):
        await store.get_bytes("none")
    with pytest.raises(NotFound):
        await store.read_range("none", 0)
    await store.delete("none")


async def test_write_with_generation_precondition(store: ObjectStore) -> None:
    first = await store.put_bytes("x", b"1", if_generation=0)
    with pytest.raises(Conflict):
        await store.put_bytes("x", b"2", if_generation=0)
    second = await store.put_bytes("x", b"2", if_generation=first)
    assert second != first
    with pytest.raises(Conflict):
        await store.put_bytes("x", b"3", if_generation=first)
    assert await store.get_bytes("x") == b"2"


async def test_repeated_create_with_same_bytes_succeeds(store: ObjectStore) -> None:
    first = await store.put_bytes("x", b"1", if_generation=0)
    assert await store.put_bytes("x", b"1", if_generation=0) == first


async def test_one_of_concurrent_creates_succeeds(store: ObjectStore) -> None:
    writes = (store.put_bytes("x", b"%d" % number, if_generation=0) for number in range(6))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert sorted(isinstance(outcome, Conflict) for outcome in outcomes) == [False] + [True] * 5


async def test_put_file_uploads_once_and_reports_progress(
    store: ObjectStore, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(20_000_000))  # more than one piece of a resumable upload
    progress: list[tuple[int, int]] = []
    assert await store.put_file("f", path, progress=lambda *done: progress.append(done))
    assert progress[-1] == (20_000_000, 20_000_000)
    assert await store.get_bytes("f") == path.read_bytes()
    progress.clear()
    assert not await store.put_file("f", path, progress=lambda *done: progress.append(done))
    assert progress == []
    path.write_bytes(b"other")
    assert await store.put_file("f", path, if_absent=False)
    assert await store.get_bytes("f") == b"other"


async def test_read_range_past_end(store: ObjectStore) -> None:
    await store.put_bytes("r", b"0123456789")
    assert await store.read_range("r", 0, 4) == b"0123"
    assert await store.read_range("r", 8, 4) == b"89"
    assert await store.read_range("r", 10, 4) == b""
    assert await store.read_range("r", 99) == b""
    await store.put_bytes("empty", b"")
    assert await store.read_range("empty", 0) == b""


async def test_list_and_delete(store: ObjectStore) -> None:
    for name in ("p/b", "p/a", "q"):
        await store.put_bytes(name, b"x")
    assert [info.name for info in await store.list("p/")] == ["p/a", "p/b"]
    await store.delete("p/a")
    assert [info.name for info in await store.list("")] == ["p/b", "q"]
