"""Bundle uploads to a bucket: only missing packs are uploaded."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.objects import ObjectStore
from tpuctl.emulator.client.server_process import LocalCloud
from tpuctl.jobs import pack_store
from tpuctl.jobs.bundle import build_bundle
from tpuctl.jobs.bundle_upload import BundleUpload, extend_bundle_lifetime, upload_bundle
from tpuctl.jobs.chunking import MAX_CHUNK_BYTES
from tpuctl.jobs.shipped.unpack import Failure, unpack

BUNDLES = "tpuctl/bundles/"
PACKS = BUNDLES + "packs/"
KILOBYTES = 200_000  # maximum upload for a small change: a chunk, a part of the manifest, the root
_numbers = itertools.count(1)


class Shipper:
    """A user with a folder to upload, and a cache of what was uploaded."""

    def __init__(self, store: ObjectStore, home: Path) -> None:
        self.store = store
        self.folder = home / "source"
        self.folder.mkdir(parents=True)
        self.home = home
        self.digest = ""

    def place(self, name: str) -> Path:
        path = self.home / f"{name}-{next(_numbers)}"
        path.mkdir()
        return path

    async def ship(self) -> BundleUpload:
        scratch = self.place("scratch")
        bundle = build_bundle(None, scratch, root=self.folder)
        self.digest = bundle.digest
        return await upload_bundle(bundle, self.store, {}, scratch, self.home / "indexes")

    async def unpacked(self) -> dict[str, bytes]:
        """The last bundle as a worker unpacks it, only from the bucket."""
        folder = self.place("worker")
        root = await self.root()
        for pack in root["packs"]:
            (folder / pack).write_bytes(await self.store.get_bytes(PACKS + pack))
        unpack(str(folder), root, self.digest, str(folder / "code"))
        return read_tree(folder / "code")

    async def root(self) -> dict[str, list[str]]:
        text = await self.store.get_bytes(f"{BUNDLES}{self.digest}.json")
        root: dict[str, list[str]] = json.loads(text)
        return root

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


async def test_second_run_uploads_only_changes(shipper: Shipper) -> None:
    for number in range(200):
        (shipper.folder / f"module-{number}.py").write_bytes(random_lines(number, 300))
    big = random_lines(-1, 100_000)
    (shipper.folder / "big.txt").write_bytes(big)
    first = await shipper.ship()
    before = await shipper.written()
    assert first.is_new
    assert first.sent_bytes == sum(size for size, _ in before.values())
    assert first.sent_bytes > 3_000_000
    assert len(before) == 2, "the files fit into one pack, plus the root"

    middle = big.index(b"\n", len(big) // 2) + 1
    (shipper.folder / "big.txt").write_bytes(big[:middle] + b"one more line\n" + big[middle:])
    (shipper.folder / "module-7.py").write_bytes(random_lines(7, 300) + b"changed\n")
    second = await shipper.ship()
    after = await shipper.written()
    new = sum(size for name, (size, _) in after.items() if name not in before)
    assert second.sent_bytes == new < KILOBYTES
    assert {name: after[name] for name in before} == before, "nothing was written again"
    assert await shipper.unpacked() == read_tree(shipper.folder)

    third = await shipper.ship()
    assert not third.is_new
    assert third.sent_bytes < 1000, "only the root"


async def test_another_computer_uploads_only_missing_packs(
    make_shipper: Callable[[], Shipper],
) -> None:
    alice, yours = make_shipper(), make_shipper()
    for shipper in (alice, yours):
        (shipper.folder / "data.txt").write_bytes(random_lines(1, 50_000))
    (yours.folder / "more.txt").write_bytes(random_lines(2, 100))
    assert (await alice.ship()).sent_bytes > 1_000_000
    assert (await yours.ship()).sent_bytes < KILOBYTES
    assert await yours.unpacked() == read_tree(yours.folder)
    assert await alice.unpacked() == read_tree(alice.folder)


async def test_concurrent_uploads(make_shipper: Callable[[], Shipper]) -> None:
    people = [make_shipper() for _ in range(4)]
    for number, shipper in enumerate(people):
        (shipper.folder / "same.txt").write_bytes(random_lines(1, 20_000))
        (shipper.folder / "own.txt").write_bytes(random_lines(number // 2, 1000))  # two pairs
    await asyncio.gather(*(shipper.ship() for shipper in people))
    assert people[0].digest == people[1].digest != people[2].digest == people[3].digest
    for shipper in people:
        assert await shipper.unpacked() == read_tree(shipper.folder)


async def test_packs_missing_in_bucket_are_uploaded_again(shipper: Shipper) -> None:
    (shipper.folder / "data.txt").write_bytes(random_lines(1, 50_000))
    first = await shipper.ship()
    (pack,) = (await shipper.root())["packs"]
    await shipper.store.delete(PACKS + pack)
    again = await shipper.ship()
    assert again.sent_bytes == first.sent_bytes
    assert await shipper.unpacked() == read_tree(shipper.folder)


@pytest.mark.parametrize("remembers", [True, False])
async def test_corrupt_pack_is_rewritten(
    make_shipper: Callable[[], Shipper], remembers: bool
) -> None:
    """The uploader has its index cached, and detects the damage when a worker removes it."""
    alice, yours = make_shipper(), make_shipper()
    for shipper in (alice, yours):
        (shipper.folder / "data.txt").write_bytes(random_lines(1, 1000))
    first = await alice.ship()
    (pack,) = (await alice.root())["packs"]
    await alice.store.put_bytes(PACKS + pack, b"\0" * 10_000)
    if remembers:
        with pytest.raises(Exception, match=pack):
            await alice.unpacked()
        await alice.store.delete(PACKS + pack)
    someone = alice if remembers else yours
    assert (await someone.ship()).sent_bytes == first.sent_bytes
    assert await someone.unpacked() == read_tree(someone.folder)


async def test_expiring_packs_are_renewed_without_upload(
    shipper: Shipper, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shipper.folder / "data.txt").write_bytes(random_lines(1, 50_000))
    await shipper.ship()
    before = await shipper.written()
    (pack,) = (await shipper.root())["packs"]
    monkeypatch.setattr(pack_store, "RENEWAL_AGE", timedelta())
    again = await shipper.ship()
    assert not again.is_new and again.sent_bytes < 1000
    after = await shipper.written()
    assert after[PACKS + pack][0] == before[PACKS + pack][0]
    assert after[PACKS + pack][1] > before[PACKS + pack][1], "the pack's age was not reset"
    assert await shipper.unpacked() == read_tree(shipper.folder)


async def test_bundle_is_kept_for_retries(
    shipper: Shipper, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shipper.folder / "data.bin").write_bytes(random.Random(1).randbytes(18_000_000))
    await shipper.ship()
    before = await shipper.written()
    name = f"{BUNDLES}{shipper.digest}.json"
    monkeypatch.setattr(pack_store, "RENEWAL_AGE", timedelta())
    await extend_bundle_lifetime(shipper.store, name)
    after = await shipper.written()
    assert len(before) == 3
    for key, (size, generation) in before.items():
        assert after[key][0] == size
        assert after[key][1] > generation, "the bucket counts its age from this run on"
    assert await shipper.unpacked() == read_tree(shipper.folder)


async def test_packs_are_merged_over_many_runs(shipper: Shipper) -> None:
    (shipper.folder / "data.txt").write_bytes(random_lines(1, 20_000))
    await shipper.ship()
    for number in range(24):
        (shipper.folder / f"new-{number}.txt").write_bytes(random_lines(number, 3))
        assert (await shipper.ship()).sent_bytes < KILOBYTES
    assert len((await shipper.root())["packs"]) <= 17
    assert await shipper.unpacked() == read_tree(shipper.folder)


async def test_bundle_with_missing_pack_is_not_unpacked(shipper: Shipper) -> None:
    (shipper.folder / "data.bin").write_bytes(random.Random(1).randbytes(20_000_000))
    await shipper.ship()
    root = await shipper.root()
    assert len(root["packs"]) == 2
    folder = shipper.place("worker")
    for pack in root["packs"]:
        (folder / pack).write_bytes(await shipper.store.get_bytes(PACKS + pack))
    for pack in root["packs"]:
        less = {**root, "packs": [other for other in root["packs"] if other != pack]}
        with pytest.raises(Failure):
            unpack(str(folder), less, shipper.digest, str(folder / "code"))
        assert not (folder / "code").exists()


@pytest.mark.soak
@pytest.mark.release("a measurement; smaller bundles go the same way")
async def test_half_gigabyte_line(shipper: Shipper) -> None:
    """Thousands of files, some large; a line changes, and kilobytes are uploaded."""
    for number in range(4000):
        path = shipper.folder / f"package-{number % 40}/module-{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random_lines(number, 400))
    data = random_lines(-1, 5_000_000)
    (shipper.folder / "table.csv").write_bytes(data)
    (shipper.folder / "weights.bin").write_bytes(random.Random(2).randbytes(250_000_000))
    assert sum(map(len, read_tree(shipper.folder).values())) > 500_000_000
    first = await shipper.ship()
    assert first.sent_bytes < 450_000_000
    module = shipper.folder / "package-7/module-7.py"
    module.write_bytes(b"import os\n" + module.read_bytes())
    assert (await shipper.ship()).sent_bytes < KILOBYTES
    middle = data.index(b"\n", len(data) // 2) + 1
    (shipper.folder / "table.csv").write_bytes(data[:middle] + b"a line\n" + data[middle:])
    last = await shipper.ship()
    assert last.sent_bytes < KILOBYTES + MAX_CHUNK_BYTES
    assert await shipper.unpacked() == read_tree(shipper.folder)
