"""Bundle uploads to a bucket: only missing files are uploaded."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.objects import ObjectStore
from tpuctl.jobs import bundle_upload
from tpuctl.jobs.archives import MAX_SHARED_ARCHIVES, MAX_SMALL_FILE_BYTES, Archive, read_record
from tpuctl.jobs.bundle import build_bundle
from tpuctl.jobs.bundle_upload import BundleUpload, extend_bundle_lifetime, upload_bundle
from tpuctl.jobs.shipped.downloads import unpack
from tpuctl.local_cloud.server_process import LocalCloud

BUNDLES = "tpuctl/bundles/"
_numbers = itertools.count(1)


class Shipper:
    """A user with a folder to upload."""

    def __init__(self, store: ObjectStore, home: Path) -> None:
        self.store = store
        self.folder = home / "source"
        self.folder.mkdir(parents=True)
        self.home = home
        self.digest = ""
        self.progress: list[tuple[int, int]] = []

    def place(self, name: str) -> Path:
        path = self.home / f"{name}-{next(_numbers)}"
        path.mkdir()
        return path

    def write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    async def ship(self) -> BundleUpload:
        bundle = build_bundle(None, root=self.folder)
        self.digest = bundle.digest
        self.progress.clear()

        def report(done: int, size: int) -> None:
            self.progress.append((done, size))

        return await upload_bundle(bundle, self.store, {}, self.place("scratch"), progress=report)

    @property
    def record_name(self) -> str:
        return f"{BUNDLES}{self.digest}.json.gz"

    async def archives(self) -> list[Archive]:
        return read_record(await self.store.get_bytes(self.record_name))

    async def check_unpacked(self) -> None:
        """What a worker unpacks, only from the bucket, must equal the folder."""
        folder = self.place("worker")
        path = folder / "record"
        path.write_bytes(await self.store.get_bytes(self.record_name))
        for archive in await self.archives():
            content = await self.store.get_bytes(BUNDLES + archive.name)
            (folder / archive.name).write_bytes(content)
        record = unpack.read_record(str(path), self.digest)
        unpack.unpack(str(folder), record, str(folder / "code"))
        assert read_tree(folder / "code") == read_tree(self.folder)

    async def written(self) -> dict[str, tuple[int, int]]:
        """Size and generation of all objects in the bucket."""
        return {item.name: (item.size, item.generation) for item in await self.store.list(BUNDLES)}


def read_tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def random_lines(seed: int, count: int) -> bytes:
    """Lines of 41 bytes that compress to half their size."""
    noise = random.Random(seed)
    return b"".join(noise.randbytes(20).hex().encode() + b"\n" for _ in range(count))


@pytest.fixture
async def make_shipper(null_cloud: LocalCloud, tmp_path: Path) -> Callable[[], Shipper]:
    """Users on separate computers, with a shared bucket."""
    endpoint = Endpoint("local", null_cloud.url, null_cloud.token)
    client = Cloud(endpoint, "local-project").client("storage")
    name = f"bundles-{tmp_path.parent.name}-{next(_numbers)}".replace("_", "-")
    await asyncio.to_thread(client.create_bucket, name)

    def make() -> Shipper:
        return Shipper(ObjectStore(client, name), tmp_path / f"person-{next(_numbers)}")

    return make


@pytest.fixture
def shipper(make_shipper: Callable[[], Shipper]) -> Shipper:
    return make_shipper()


async def test_second_run_uploads_only_changed_files(shipper: Shipper) -> None:
    """From any computer: nothing about the first run is remembered locally."""
    for number in range(200):
        shipper.write(f"module-{number}.py", random_lines(number, 300))
    shipper.write("large.txt", random_lines(-1, 100_000))
    assert (shipper.folder / "large.txt").stat().st_size > MAX_SMALL_FILE_BYTES
    first = await shipper.ship()
    before = await shipper.written()
    assert first.sent_bytes == sum(size for size, _ in before.values()) > 3_000_000
    assert len(before) == 3, "the small files, the large one, and the record"
    total = sum(map(len, read_tree(shipper.folder).values()))
    assert max(shipper.progress) == (total, total)

    shipper.write("module-7.py", random_lines(7, 300) + b"changed\n")
    second = await shipper.ship()
    after = await shipper.written()
    new = sum(size for name, (size, _) in after.items() if name not in before)
    assert second.sent_bytes == new < 30_000, "a file of 12 kB, and a record of 200 files"
    assert {name: after[name] for name in before} == before, "nothing was written again"
    await shipper.check_unpacked()

    assert (await shipper.ship()).sent_bytes == 0
    (shipper.folder / "module-7.py").rename(shipper.folder / "renamed.py")
    (shipper.folder / "module-8.py").unlink()
    assert (await shipper.ship()).sent_bytes < 15_000, "only the record"
    await shipper.check_unpacked()

    shipper.write("large.txt", random_lines(-2, 100_000))
    before = await shipper.written()
    await shipper.ship()
    assert len(await shipper.written()) == len(before) + 2, "that file, and the record"
    await shipper.check_unpacked()


async def test_concurrent_uploads(make_shipper: Callable[[], Shipper]) -> None:
    people = [make_shipper() for _ in range(4)]
    for number, shipper in enumerate(people):
        shipper.write("same.txt", random_lines(1, 20_000))
        shipper.write("own.txt", random_lines(number // 2, 1000))  # two pairs
    await asyncio.gather(*(shipper.ship() for shipper in people))
    assert people[0].digest == people[1].digest != people[2].digest == people[3].digest
    for shipper in people:
        await shipper.check_unpacked()


async def test_lost_objects_are_uploaded_again(shipper: Shipper) -> None:
    shipper.write("data.txt", random_lines(1, 50_000))
    shipper.write("large.txt", random_lines(-1, 100_000))
    first = await shipper.ship()
    before = await shipper.written()
    for name, (size, _) in before.items():
        await shipper.store.delete(name)
        assert (await shipper.ship()).sent_bytes == size
        await shipper.check_unpacked()
    for name in before:
        await shipper.store.delete(name)
    assert (await shipper.ship()).sent_bytes == first.sent_bytes
    await shipper.check_unpacked()


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"\x1f\x8b\x08"])
async def test_corrupt_record_is_replaced(shipper: Shipper, damage: bytes) -> None:
    shipper.write("data.txt", random_lines(1, 1000))
    await shipper.ship()
    await shipper.store.put_bytes(shipper.record_name, damage)
    await shipper.ship()
    await shipper.check_unpacked()


async def test_expiring_objects_are_renewed_without_upload(
    shipper: Shipper, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper.write("data.txt", random_lines(1, 50_000))
    shipper.write("large.txt", random_lines(-1, 100_000))
    await shipper.ship()
    before = await shipper.written()
    monkeypatch.setattr(bundle_upload, "RENEWAL_AGE", timedelta())
    assert (await shipper.ship()).sent_bytes == 0
    await check_renewed(shipper, before)


async def test_bundle_is_kept_for_retries(
    shipper: Shipper, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper.write("data.bin", random.Random(1).randbytes(5_000_000))
    shipper.write("data.txt", random_lines(1, 10))
    shipped = await shipper.ship()
    before = await shipper.written()
    monkeypatch.setattr(bundle_upload, "RENEWAL_AGE", timedelta())
    assert shipped.name == shipper.record_name
    await extend_bundle_lifetime(shipper.store, shipper.record_name)
    await check_renewed(shipper, before)


async def check_renewed(shipper: Shipper, before: dict[str, tuple[int, int]]) -> None:
    after = await shipper.written()
    assert len(before) == 3
    for name, (size, generation) in before.items():
        assert after[name][0] == size
        assert after[name][1] > generation, "the bucket counts its age from now on"
    await shipper.check_unpacked()


async def test_archives_are_merged_over_many_runs(shipper: Shipper) -> None:
    shipper.write("data.txt", random_lines(1, 20_000))
    await shipper.ship()
    for number in range(24):
        shipper.write(f"new-{number}.txt", random_lines(number, 3))
        assert (await shipper.ship()).sent_bytes < 10_000
    assert len(await shipper.archives()) <= MAX_SHARED_ARCHIVES
    await shipper.check_unpacked()


@pytest.mark.soak
async def test_changed_line_of_hundred_megabytes(shipper: Shipper) -> None:
    """Thousands of files, some large; a line changes, and kilobytes are uploaded."""
    for number in range(1000):
        shipper.write(f"package-{number % 40}/module-{number}.py", random_lines(number, 400))
    shipper.write("table.csv", random_lines(-1, 1_000_000))
    shipper.write("weights.bin", random.Random(2).randbytes(50_000_000))
    assert sum(map(len, read_tree(shipper.folder).values())) > 100_000_000
    first = await shipper.ship()
    assert first.sent_bytes < 90_000_000
    module = shipper.folder / "package-7/module-7.py"
    module.write_bytes(b"import os\n" + module.read_bytes())
    assert (await shipper.ship()).sent_bytes < 200_000, "the file, and a record of 1000 files"
    await shipper.check_unpacked()
