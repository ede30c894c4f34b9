"""Packs: which chunks are sent or reused, and that only valid ones are unpacked."""

from __future__ import annotations

import hashlib
import json
import os
import random
import stat
import subprocess
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tpuctl.jobs.shipped
from tests.support.supervised_worker import PYTHONS
from tpuctl.errors import Conflict
from tpuctl.jobs.bundle import Bundle, Source, build_bundle
from tpuctl.jobs.chunking import MAX_CHUNK_BYTES
from tpuctl.jobs.launch import SHIPPED
from tpuctl.jobs.pack_format import (
    MAX_OVERHEAD,
    MAX_PACK_BYTES,
    MAX_SMALL_PACKS,
    SMALL_PACK_BYTES,
    encode_index,
    group_chunks,
    is_pack_name,
    pack_name,
    plan,
    read_index,
    write_pack,
)
from tpuctl.jobs.shipped.unpack import CorruptPack, Failure, unpack


def sha(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def write_all(bundle: Bundle, folder: Path, group_bytes: int = MAX_PACK_BYTES) -> dict[str, Any]:
    """Write the bundle's packs into a folder, and return its root."""
    packs = []
    sizes = {sha: source.size for sha, source in bundle.chunks.items()}
    for group in group_chunks(sizes, group_bytes):
        packs.append(pack_name(encode_index(group)))
        write_pack(folder / packs[-1], group, bundle.chunks)
    return {"manifest": [digest.hex() for digest in bundle.manifest], "packs": packs}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[Bundle, dict[str, Any], Path]]:
    """Bundles the folder `source`: the bundle, its root, and the folder with its packs."""

    def bundled(group_bytes: int = MAX_PACK_BYTES) -> tuple[Bundle, dict[str, Any], Path]:
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        bundle = build_bundle(None, scratch, root=tmp_path / "source")
        return bundle, write_all(bundle, scratch, group_bytes), scratch

    (tmp_path / "source").mkdir()
    return bundled


def tree_contents(root: Path) -> dict[str, Any]:
    """The names, contents, executable bits and link targets below a folder."""
    contents: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            contents[name] = str(path.readlink())
        elif path.is_dir():
            contents[name] = None
        else:
            contents[name] = (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
    return contents


# Round trips --------------------------------------------------------------------------------

LETTERS = st.characters(exclude_characters="/\0", exclude_categories=["Cs"])
NAMES = st.text(LETTERS, max_size=40).map(lambda text: "f" + text)
CONTENTS = st.one_of(
    st.binary(max_size=100),
    st.builds(
        lambda seed, size: random.Random(seed).randbytes(size),
        st.integers(0, 3),
        st.sampled_from([1, 20_000, MAX_CHUNK_BYTES, 600_000]),
    ),
    st.builds(lambda size: b"a line of text\n" * size, st.sampled_from([1, 5_000, 100_000])),
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["", "a", "a/b", "c d"]), NAMES),
        st.tuples(CONTENTS, st.booleans()),
        max_size=6,
    ),
    st.sampled_from([1, 100_000, MAX_PACK_BYTES]),
)
def test_unpacked_files_equal_bundled_files(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[tuple[str, str], tuple[bytes, bool]],
    group_bytes: int,
) -> None:
    base = tmp_path_factory.mktemp("trip")
    source, scratch = base / "source", base / "scratch"
    source.mkdir()
    scratch.mkdir()
    for (folder, name), (content, is_executable) in files.items():
        (source / folder).mkdir(parents=True, exist_ok=True)
        (source / folder / name).write_bytes(content)
        (source / folder / name).chmod(0o755 if is_executable else 0o644)
    bundle = build_bundle(None, scratch, root=source)
    unpack(str(scratch), write_all(bundle, scratch, group_bytes), bundle.digest, str(base / "code"))
    assert tree_contents(base / "code") == tree_contents(source)


def test_links_modes_and_empty_folders_are_unpacked(make: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "lib/empty").mkdir(parents=True)
    (source / "lib/run.sh").write_text("echo")
    (source / "lib/run.sh").chmod(0o700)
    (source / "run").symlink_to("lib/run.sh")
    (source / "lib/up").symlink_to("../nothing")
    (source / "nothing").write_bytes(b"")
    bundle, root, scratch = make()
    unpack(str(scratch), root, bundle.digest, str(tmp_path / "code"))
    assert tree_contents(tmp_path / "code") == tree_contents(source)
    assert stat.S_IMODE((tmp_path / "code/lib/run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "code/nothing").stat().st_mode) == 0o644


def test_incompressible_chunks_are_stored(make: Any, tmp_path: Path) -> None:
    noise = random.Random(3).randbytes(3_000_000)
    (tmp_path / "source/noise").write_bytes(noise)
    (tmp_path / "source/text").write_bytes(b"over and over again\n" * 100_000)
    bundle, root, scratch = make()
    (pack,) = root["packs"]
    assert len(noise) < (scratch / pack).stat().st_size < len(noise) + 200_000
    unpack(str(scratch), root, bundle.digest, str(tmp_path / "code"))
    assert tree_contents(tmp_path / "code") == tree_contents(tmp_path / "source")


def test_memory_is_independent_of_file_and_pack_sizes(make: Any, tmp_path: Path) -> None:
    with (tmp_path / "source/zeros").open("wb") as file:
        file.truncate(40_000_000)
    (tmp_path / "source/noise").write_bytes(random.Random(1).randbytes(8_000_000))
    tracemalloc.start()
    try:
        bundle, root, scratch = make()
        unpack(str(scratch), root, bundle.digest, str(tmp_path / "code"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 25_000_000
    assert (tmp_path / "code/zeros").stat().st_size == 40_000_000


def test_file_changed_during_packing_is_reported(make: Any, tmp_path: Path) -> None:
    (tmp_path / "source/data").write_text("one")
    bundle, _, scratch = make()
    (tmp_path / "source/data").write_text("two")
    with pytest.raises(Conflict, match="File changed"):
        write_all(bundle, scratch)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_unpack_runs_on_worker_pythons(make: Any, tmp_path: Path, python: str) -> None:
    """Only the shipped files, isolated, with packs that were uploaded over SSH."""
    (tmp_path / "source/안녕.txt").write_text("x" * 1_000_000)
    bundle, root, scratch = make()
    packs = tmp_path / ".tpuctl/packs"
    packs.mkdir(parents=True)
    (scratch / root["packs"][0]).rename(packs / root["packs"][0])
    (packs / f"{bundle.digest}.json").write_text(json.dumps(root))
    folder = tmp_path / "job"
    folder.mkdir()
    for name in SHIPPED:
        (folder / name).write_bytes((Path(tpuctl.jobs.shipped.__path__[0]) / name).read_bytes())
    (folder / "spec.json").write_text(
        json.dumps({"bucket": "b", "bundle": {"sha256": bundle.digest, "name": None}})
    )
    for _ in range(2):  # the second time there is nothing to do
        done = subprocess.run(
            [python, "-S", "-I", "-W", "error", str(folder / "fetch.py"), str(folder)],
            env={"HOME": str(tmp_path), "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert tree_contents(folder / "code") == tree_contents(tmp_path / "source")


# Invalid bundles ----------------------------------------------------------------------------


def packed(folder: Path, manifest: Iterable[Any], *contents: bytes) -> tuple[dict[str, Any], str]:
    """A root and the digest of a manifest made by hand, with everything in one pack."""
    text = b"".join(json.dumps(line).encode() + b"\n" for line in manifest)
    sources: dict[bytes, Source] = {}
    for number, chunk in enumerate((text, *contents)):
        path = folder / f"chunk-{number}"
        path.write_bytes(chunk)
        sources[hashlib.sha256(chunk).digest()] = Source(path, 0, len(chunk))
    group = {sha: source.size for sha, source in sources.items()}
    name = pack_name(encode_index(group))
    write_pack(folder / name, group, sources)
    digest = hashlib.sha256(text).hexdigest()
    return {"manifest": [digest], "packs": [name]}, digest


def chunk_line(content: bytes) -> list[Any]:
    return [hashlib.sha256(content).hexdigest(), len(content)]


@pytest.mark.parametrize(
    "name", ["../out", "/tmp/out", "a/../../out", "a//b", "a/./b", ".", "..", "", "./a", "a/"]
)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_names_outside_folder_are_rejected(tmp_path: Path, kind: str, name: str) -> None:
    entry = {"folder": name} if kind == "folder" else {kind: name, "target": "x", "executable": 0}
    root, digest = packed(tmp_path, [{"folder": "a"}, entry])
    with pytest.raises(Failure, match="is not a valid name in a bundle"):
        unpack(str(tmp_path), root, digest, str(tmp_path / "code"))
    assert not (tmp_path / "code").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "links",
    [
        {"l": "../out"},
        {"l": "/etc"},
        {"a/l": "../../out"},
        {"l": "a/up/..", "a/up": ".."},  # each seems to stay inside
    ],
)
def test_links_outside_folder_are_rejected(tmp_path: Path, links: dict[str, str]) -> None:
    lines = [{"folder": "a"}, *({"link": name, "target": to} for name, to in links.items())]
    root, digest = packed(tmp_path, lines)
    with pytest.raises(Failure, match="points outside the bundle"):
        unpack(str(tmp_path), root, digest, str(tmp_path / "code"))
    assert not (tmp_path / "code").exists()


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    lines = [
        {"link": "a", "target": "../out"},
        {"executable": False, "file": "a/b"},
        chunk_line(b"evil"),
    ]
    root, digest = packed(tmp_path, lines, b"evil")
    with pytest.raises(Failure):
        unpack(str(tmp_path), root, digest, str(tmp_path / "code"))
    assert list((tmp_path / "out").iterdir()) == []


def test_duplicate_names_are_rejected(tmp_path: Path) -> None:
    file = {"executable": False, "file": "a"}
    root, digest = packed(tmp_path, [file, file])
    with pytest.raises(Failure, match="is not a valid name in a bundle"):
        unpack(str(tmp_path), root, digest, str(tmp_path / "code"))


@pytest.mark.parametrize("where", [0, 40, 200, -1])
def test_corrupt_pack_is_named_and_nothing_is_unpacked(
    make: Any, tmp_path: Path, where: int
) -> None:
    (tmp_path / "source/noise").write_bytes(random.Random(5).randbytes(100_000))
    bundle, root, scratch = make()
    (name,) = root["packs"]
    content = bytearray((scratch / name).read_bytes())
    content[where] ^= 1
    (scratch / name).write_bytes(content)
    try:
        unpack(str(scratch), root, bundle.digest, str(tmp_path / "code"))
    except CorruptPack as error:
        assert str(error) == name
        assert not (tmp_path / "code").exists()
    else:  # the last byte belongs to the stream's checksum, not to a chunk
        assert where == -1
        assert tree_contents(tmp_path / "code") == tree_contents(tmp_path / "source")


def test_pack_with_unexpected_chunks_is_corrupt(make: Any, tmp_path: Path) -> None:
    (tmp_path / "source/a").write_text("print('good')")
    bundle, root, scratch = make()
    path = scratch / root["packs"][0]
    content = path.read_bytes()
    body = zlib.decompress(content[72:]).replace(b"good", b"evil")
    path.write_bytes(content[:72] + zlib.compress(body))
    with pytest.raises(CorruptPack):
        unpack(str(scratch), root, bundle.digest, str(tmp_path / "code"))
    assert not (tmp_path / "code").exists()


@pytest.mark.parametrize("left", [0, 10, 50_000])
def test_truncated_pack_is_corrupt(make: Any, tmp_path: Path, left: int) -> None:
    (tmp_path / "source/noise").write_bytes(random.Random(5).randbytes(100_000))
    bundle, root, scratch = make()
    (name,) = root["packs"]
    os.truncate(scratch / name, left)
    with pytest.raises(CorruptPack):
        unpack(str(scratch), root, bundle.digest, str(tmp_path / "code"))


def test_bundle_with_missing_pack_is_not_unpacked(make: Any, tmp_path: Path) -> None:
    (tmp_path / "source/noise").write_bytes(random.Random(5).randbytes(300_000))
    bundle, root, scratch = make(group_bytes=1)
    root["packs"].pop()
    with pytest.raises(Failure, match="lack 1 of its chunks"):
        unpack(str(scratch), root, bundle.digest, str(tmp_path / "code"))
    assert not (tmp_path / "code").exists()


def test_bundle_with_other_manifest_is_rejected(make: Any, tmp_path: Path) -> None:
    (tmp_path / "source/a").write_text("a")
    _, root, scratch = make()
    with pytest.raises(Failure, match="do not contain its manifest"):
        unpack(str(scratch), root, "0" * 64, str(tmp_path / "code"))


# Reuse --------------------------------------------------------------------------------------

NUMBERS = st.sets(st.integers(0, 60))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NUMBERS, st.lists(NUMBERS.filter(bool), max_size=30))
def test_every_chunk_is_reused_or_uploaded(needed: set[int], existing: list[set[int]]) -> None:
    chunks = {sha(number): 1000 + number for number in sorted(needed)}
    packs = {
        f"{position:064x}.{len(numbers)}": {sha(number): 1000 + number for number in numbers}
        for position, numbers in enumerate(existing)
    }
    use, send = plan(chunks, packs)
    reused = {chunk for name in use for chunk in packs[name]}
    assert send == {chunk: size for chunk, size in chunks.items() if chunk in send}
    assert set(chunks) <= reused | set(send)
    for name in use:
        useful = sum(size for chunk, size in packs[name].items() if chunk in chunks)
        assert useful * MAX_OVERHEAD >= sum(packs[name].values())
    assert len(use) <= MAX_SMALL_PACKS  # all of them are small


def test_existing_chunks_are_not_uploaded() -> None:
    chunks = {sha(number): SMALL_PACK_BYTES for number in range(10)}
    first = {chunk: chunks[chunk] for chunk in list(chunks)[:9]}
    use, send = plan(chunks, {"a": first})
    assert use == ("a",)
    assert send == {sha(9): SMALL_PACK_BYTES}


def test_pack_with_few_needed_chunks_is_not_reused() -> None:
    pack = {sha(number): SMALL_PACK_BYTES for number in range(MAX_OVERHEAD + 1)}
    assert plan({sha(0): SMALL_PACK_BYTES}, {"a": pack}).send == {sha(0): SMALL_PACK_BYTES}
    del pack[sha(MAX_OVERHEAD)]
    assert plan({sha(0): SMALL_PACK_BYTES}, {"a": pack}).send == {}


def test_small_packs_are_merged() -> None:
    chunks = {sha(number): 100 for number in range(MAX_SMALL_PACKS + 1)} | {sha(-1): MAX_PACK_BYTES}
    packs: dict[str, Mapping[bytes, int]] = {str(n): {chunk: 100} for n, chunk in enumerate(chunks)}
    packs["large"] = {sha(-1): MAX_PACK_BYTES}
    del packs[str(MAX_SMALL_PACKS + 1)]
    use, send = plan(chunks, packs)
    assert use == ("large",)
    assert list(send) == list(chunks)[:-1]
    del packs["0"]
    assert list(plan(chunks, packs).send) == [sha(0)], "up to the maximum they are used"


def test_packs_have_limited_size_and_keep_order() -> None:
    chunks = {sha(number): MAX_CHUNK_BYTES for number in range(150)}
    groups = list(group_chunks(chunks))
    assert [chunk for group in groups for chunk in group] == list(chunks)
    assert all(sum(group.values()) <= MAX_PACK_BYTES for group in groups)
    assert len(groups) == 3


def test_index_matches_pack_name() -> None:
    index = encode_index({sha(1): 10, sha(2): MAX_CHUNK_BYTES})
    name = pack_name(index)
    assert is_pack_name(name)
    assert read_index(name, index) == {sha(1): 10, sha(2): MAX_CHUNK_BYTES}
    assert read_index(name, index[:36]) is None
    assert read_index(name, b"\0" + index[1:]) is None
    assert (
        not is_pack_name("lock")
        and not is_pack_name(name + ".part")
        and not is_pack_name("../" + name)
    )


def test_pack_format_is_as_documented(make: Any, tmp_path: Path) -> None:
    """The format of packs and manifests, which workers of other versions rely on."""
    (tmp_path / "source/a").write_text("hello")
    _, root, scratch = make()
    manifest = b'{"executable":false,"file":"a"}\n["%s",5]\n' % (
        hashlib.sha256(b"hello").hexdigest().encode()
    )
    index = b"".join(
        hashlib.sha256(data).digest() + len(data).to_bytes(4, "big")
        for data in (manifest, b"hello")
    )
    assert root["packs"] == [hashlib.sha256(index).hexdigest() + ".2"]
    content = (scratch / root["packs"][0]).read_bytes()
    assert content[:72] == index
    assert zlib.decompress(content[72:]) == manifest + b"hello"
