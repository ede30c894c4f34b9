"""Buckets with very many objects: the cost of each request does not grow with their number.

Cost is counted, not timed: instructions of SQLite's virtual machine, which executes some for each
row it reads.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "very-many"
IN_FOLDER = 50
STEP = 10  # instructions between progress callbacks


class Work:
    """Counts the database's instructions."""

    def __init__(self, store: Any) -> None:
        self._count = 0
        store._connection.set_progress_handler(self._on_step, STEP)

    def _on_step(self) -> int:
        self._count += STEP
        return 0

    @contextmanager
    def counted(self, into: dict[str, int], name: str) -> Iterator[None]:
        before = self._count
        yield
        into[name] = self._count - before


def name_of(number: int) -> str:
    return f"folder-{number // IN_FOLDER:04}/object-{number:06}"


def each(cloud: Any, count: int, verb: str, path: Callable[[int], str], body: bytes = b"") -> None:
    """One request per number, over a few persistent connections."""

    def some(part: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", cloud.server.port, timeout=60)
        headers = {"Authorization": f"Bearer {cloud.token}"}
        for number in range(part, count, 4):
            connection.request(verb, path(number), body, headers)
            answer = connection.getresponse()
            assert answer.status in (200, 204), answer.read()
            answer.read()
        connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))


def quoted(number: int) -> str:
    return name_of(number).replace("/", "%2F")


def fill_and_empty(cloud: Any, work: Work, count: int) -> dict[str, int]:
    """The cost of filling a bucket, listing it and emptying it, by step."""
    costs: dict[str, int] = {}
    client = cloud.storage()
    bucket = client.create_bucket(BUCKET)
    upload = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name="
    with work.counted(costs, "uploads"):
        each(cloud, count, "POST", lambda number: upload + quoted(number), b"data")
    with work.counted(costs, "list"):
        names = [blob.name for blob in client.list_blobs(BUCKET, page_size=100)]
    assert names == [name_of(number) for number in range(count)]
    with work.counted(costs, "folders"):
        folders = client.list_blobs(BUCKET, delimiter="/", page_size=7)
        assert list(folders) == []
    assert len(folders.prefixes) == count // IN_FOLDER
    with work.counted(costs, "prefix"):
        inside = [blob.name for blob in client.list_blobs(BUCKET, prefix="folder-0001/")]
    assert inside == [name_of(IN_FOLDER + number) for number in range(IN_FOLDER)]
    with work.counted(costs, "last"):
        last = client.list_blobs(BUCKET, start_offset=name_of(count - 3))
        assert [blob.name for blob in last] == [name_of(count - 3 + offset) for offset in range(3)]
    with work.counted(costs, "get"):
        assert bucket.get_blob(name_of(count // 2)).size == 4
    objects = f"/storage/v1/b/{BUCKET}/o/"
    with work.counted(costs, "deletions"):
        each(cloud, count, "DELETE", lambda number: objects + quoted(number))
    with work.counted(costs, "bucket"):
        bucket.delete()
    assert list(client.list_buckets()) == []
    return costs


async def compare(make_cloud: Any, few: int, many: int) -> None:
    work: dict[int, dict[str, int]] = {}
    for count in (few, many):
        cloud = await make_cloud(str(count))
        counter = Work(cloud.server.store)
        work[count] = await asyncio.to_thread(fill_and_empty, cloud, counter, count)
    factor = many / few
    details = json.dumps(work)
    for name in (
        "uploads",
        "list",
        "folders",
        "deletions",
        "bucket",
    ):  # as many times as there are more
        assert work[many][name] < 1.3 * factor * work[few][name], (name, details)
    for name in ("prefix", "last", "get"):  # however many there are
        assert work[many][name] < 1.3 * work[few][name] + 500, (name, details)


async def test_work_per_object_is_constant(make_cloud: Any) -> None:
    await compare(make_cloud, 100, 500)


@pytest.mark.soak
async def test_two_thousand_objects(make_cloud: Any) -> None:
    await compare(make_cloud, 200, 2000)
