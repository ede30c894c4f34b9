"""Archives of bundles: which files they contain, and that only valid ones are unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import stat
import subprocess
import tarfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

from tests.support.properties import given, settings
from tests.support.supervised_worker import PYTHONS
from tpuctl.assets import shipped_programs
from tpuctl.errors import Conflict
from tpuctl.jobs.archives import (
    MAX_OVERHEAD,
    MAX_SHARED_ARCHIVES,
    MAX_SMALL_FILE_BYTES,
    Archive,
    choose_archives,
    encode_record,
    read_record,
    write_archive,
)
from tpuctl.jobs.bundle import Bundle, Source, build_bundle
from tpuctl.jobs.launch import SHIPPED
from tpuctl.jobs.shipped.downloads import unpack
from tpuctl.jobs.shipped.downloads.unpack import CorruptFile, Failure


def sha(data: object) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else str(data).encode()).hexdigest()


class Workspace:
    """A folder `source`, and a folder `cache` with the bundle's archives and record."""

    def __init__(self, home: Path) -> None:
        self.home, self.source, self.cache = home, home / "source", home / "cache"
        self.code = home / "code"
        self.digest = ""
        self.source.mkdir()
        self.cache.mkdir()

    def write(self, split: int = 1) -> list[Path]:
        """Bundle the folder, with its small files in up to `split` archives."""
        bundle = build_bundle(None, root=self.source)
        hashes = [*bundle.sources]
        parts = [tuple(hashes[start::split]) for start in range(split)]
        sizes = {sha: source.size for sha, source in bundle.sources.items()}
        existing = [Archive(part, sum(sizes[sha] for sha in part)) for part in parts if part]
        archives = choose_archives(bundle.sources, existing if split > 1 else ())
        for archive in archives:
            write_archive(self.cache / archive.name, archive, bundle.sources)
        self.record(bundle, archives)
        return [self.cache / archive.name for archive in archives]

    def record(self, bundle: Bundle, archives: Iterable[Archive]) -> None:
        self.digest = bundle.digest
        (self.cache / "record").write_bytes(encode_record(bundle, archives))

    def write_by_hand(self, *contents: bytes, **manifest: Any) -> None:
        """Write a bundle with this manifest, whose files have these contents."""
        manifest = {"files": {}, "folders": [], "links": {}, **manifest}
        text = json.dumps(manifest).encode()
        paths = [self.home / f"content-{number}" for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        sources = {
            sha(content): Source(path, len(content))
            for path, content in zip(paths, contents, strict=True)
        }
        archives = choose_archives(sources, ())
        for archive in archives:
            write_archive(self.cache / archive.name, archive, sources)
        self.record(Bundle(sha(text), text, sources, 0, 0, ""), archives)

    def unpack(self) -> dict[str, Any]:
        record = unpack.read_record(str(self.cache / "record"), self.digest)
        unpack.unpack(str(self.cache), record, str(self.code))
        return tree_contents(self.code)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


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
NOISE = {size: random.Random(size).randbytes(size) for size in (1, 511, 512, 20_000, 4_100_000)}
CONTENTS = st.one_of(
    st.binary(max_size=100),
    st.sampled_from([*NOISE.values()]),
    st.sampled_from([b"a line of text\n" * count for count in (1, 5_000, 300_000)]),
)


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["", "a", "a/b", "c d"]), NAMES),
        st.tuples(CONTENTS, st.booleans()),
        max_size=6,
    ),
    st.integers(1, 3),
)
def test_unpacked_files_equal_bundled_files(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[tuple[str, str], tuple[bytes, bool]],
    split: int,
) -> None:
    workspace = Workspace(tmp_path_factory.mktemp("trip"))
    for (folder, name), (content, is_executable) in files.items():
        path = workspace.source / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if is_executable else 0o644)
    workspace.write(split)
    assert workspace.unpack() == tree_contents(workspace.source)


def test_links_modes_and_empty_folders_are_unpacked(workspace: Workspace) -> None:
    source = workspace.source
    (source / "lib/empty").mkdir(parents=True)
    (source / "lib/run.sh").write_text("echo")
    (source / "lib/run.sh").chmod(0o700)
    (source / "lib/run.txt").write_text("echo")
    (source / "run").symlink_to("lib/run.sh")
    (source / "lib/up").symlink_to("../nothing")
    (source / "nothing").write_bytes(b"")
    workspace.write()
    assert workspace.unpack() == tree_contents(source)
    for name, mode in (("lib/run.sh", 0o755), ("lib/run.txt", 0o644), ("nothing", 0o644)):
        assert stat.S_IMODE((workspace.code / name).stat().st_mode) == mode


def test_archives_are_tar_files_of_hashes(workspace: Workspace) -> None:
    """The format, which workers and other versions of tpuctl rely on."""
    (workspace.source / "a").write_text("hello")
    (path,) = workspace.write()
    assert path.name == sha(sha("hello")) + ".tar.gz"
    with tarfile.open(path) as archive:
        assert [(member.name, member.size) for member in archive] == [(sha("hello"), 5)]
    manifest = (
        b'{"files":{"a":{"executable":false,"sha256":"%s","size":5}},"folders":[],"links":{}}'
    )
    record = gzip.decompress((workspace.cache / "record").read_bytes()).split(b"\n")
    assert record[0] == manifest % sha("hello").encode()
    assert json.loads(record[1]) == [{"files": [sha("hello")], "size": 5}]
    assert workspace.digest == sha(record[0])


def test_equal_files_are_stored_once_and_incompressible_ones_as_they_are(
    workspace: Workspace,
) -> None:
    noise = random.Random(3).randbytes(3_000_000)
    for name in ("noise", "same"):
        (workspace.source / name).write_bytes(noise)
    (workspace.source / "text").write_bytes(b"over and over again\n" * 100_000)
    (path,) = workspace.write()
    assert len(noise) < path.stat().st_size < len(noise) + 200_000
    assert workspace.unpack() == tree_contents(workspace.source)


def test_memory_is_independent_of_file_sizes(workspace: Workspace) -> None:
    with (workspace.source / "zeros").open("wb") as file:
        file.truncate(40_000_000)
    for number in range(4):
        noise = random.Random(number).randbytes(3_900_000)
        (workspace.source / f"noise-{number}").write_bytes(noise)
    tracemalloc.start()
    try:
        workspace.write()
        record = unpack.read_record(str(workspace.cache / "record"), workspace.digest)
        unpack.unpack(str(workspace.cache), record, str(workspace.code))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 15_000_000
    assert (workspace.code / "zeros").stat().st_size == 40_000_000


@pytest.mark.parametrize("text", ["two", "longer", ""])
def test_file_changed_after_bundling_is_reported(workspace: Workspace, text: str) -> None:
    (workspace.source / "data").write_text("one")
    bundle = build_bundle(None, root=workspace.source)
    (workspace.source / "data").write_text(text)
    (archive,) = choose_archives(bundle.sources, ())
    with pytest.raises(Conflict, match="File changed"):
        write_archive(workspace.cache / archive.name, archive, bundle.sources)
    assert not (workspace.cache / archive.name).exists()


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_fetch_runs_on_worker_pythons(workspace: Workspace, python: str) -> None:
    """Only the shipped files, isolated, with a bundle that was uploaded over SSH."""
    (workspace.source / "안녕.txt").write_text("x" * 1_000_000)
    (workspace.source / "noise").write_bytes(NOISE[20_000])
    workspace.write()
    (workspace.cache / "record").rename(workspace.cache / f"{workspace.digest}.json.gz")
    (workspace.home / ".tpuctl").mkdir()
    workspace.cache.rename(workspace.home / ".tpuctl/bundles")
    folder = workspace.home / "job"
    folder.mkdir()
    for name in SHIPPED:
        (folder / name).write_bytes(shipped_programs()[name].read_bytes())
    (folder / "spec.json").write_text(
        json.dumps({"bucket": "b", "bundle": {"sha256": workspace.digest, "name": None}})
    )
    for _ in range(2):  # the second time there is nothing to do
        done = subprocess.run(
            [python, "-S", "-I", "-W", "error", str(folder / "fetch.py"), str(folder)],
            env={"HOME": str(workspace.home), "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert tree_contents(folder / "code") == tree_contents(workspace.source)


# Invalid bundles ----------------------------------------------------------------------------


def file_entry(content: bytes) -> dict[str, Any]:
    return {"executable": False, "sha256": sha(content), "size": len(content)}


@pytest.mark.parametrize(
    "name", ["../out", "/tmp/out", "a/../../out", "a//b", "a/./b", ".", "..", "", "./a", "a/"]
)
@pytest.mark.parametrize("kind", ["files", "folders", "links"])
def test_names_outside_folder_are_rejected(workspace: Workspace, kind: str, name: str) -> None:
    values = {"files": {name: file_entry(b"")}, "folders": ["a", name], "links": {name: "x"}}
    workspace.write_by_hand(b"", **{"folders": ["a"], kind: values[kind]})
    with pytest.raises(Failure, match="is not a valid name in a bundle"):
        workspace.unpack()
    assert not workspace.code.exists()
    assert not (workspace.home / "out").exists()


@pytest.mark.parametrize(
    "links",
    [
        {"l": "../out"},
        {"l": "/etc"},
        {"a/l": "../../out"},
        {"l": "a/up/..", "a/up": ".."},  # each seems to stay inside
    ],
)
def test_links_outside_folder_are_rejected(workspace: Workspace, links: dict[str, str]) -> None:
    workspace.write_by_hand(folders=["a"], links=links)
    with pytest.raises(Failure, match="points outside the bundle"):
        workspace.unpack()
    assert not workspace.code.exists()


def test_nothing_is_written_through_links(workspace: Workspace) -> None:
    (workspace.home / "out").mkdir()
    workspace.write_by_hand(b"evil", links={"a": "../out"}, files={"a/b": file_entry(b"evil")})
    with pytest.raises(Failure, match="cannot unpack"):
        workspace.unpack()
    assert list((workspace.home / "out").iterdir()) == []


def test_duplicate_names_are_rejected(workspace: Workspace) -> None:
    workspace.write_by_hand(b"a", files={"a": file_entry(b"a")}, links={"a": "b"})
    with pytest.raises(Failure, match="is not a valid name in a bundle"):
        workspace.unpack()


def require_corrupt(workspace: Workspace, name: str) -> None:
    """Unpacking must fail because of the file with this name, and write nothing."""
    with pytest.raises(CorruptFile, match=f"^{name}$"):
        workspace.unpack()
    assert not workspace.code.exists()


@pytest.mark.parametrize("damage", ["flip", "truncate"])
@pytest.mark.parametrize("where", [0, 20, 700, 50_000])
def test_corrupt_archive_is_named_and_nothing_is_unpacked(
    workspace: Workspace, damage: str, where: int
) -> None:
    (workspace.source / "noise").write_bytes(random.Random(5).randbytes(100_000))
    (path,) = workspace.write()
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[where] ^= 1
    else:
        del content[where:]
    path.write_bytes(content)
    require_corrupt(workspace, path.name)


def tar(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


GOOD = sha("good")


@pytest.mark.parametrize(
    "content",
    [
        tar((GOOD, b"evil")),
        tar(),
        tar((GOOD, b"good"), ("../out", b"evil")),
        tar((GOOD, b""), kind=tarfile.DIRTYPE),
        tar((GOOD, b""), kind=tarfile.SYMTYPE),
        gzip.compress(b"not a tar file" * 100),
    ],
    ids=["content", "missing", "additional", "folder", "link", "gzip"],
)
def test_archive_with_other_members_is_corrupt(workspace: Workspace, content: bytes) -> None:
    (workspace.source / "a").write_text("good")
    (path,) = workspace.write()
    path.write_bytes(content)
    require_corrupt(workspace, path.name)
    assert not (workspace.home / "out").exists()


def test_record_of_other_bundle_is_rejected(workspace: Workspace) -> None:
    (workspace.source / "a").write_text("a")
    workspace.write()
    workspace.digest = "0" * 64
    require_corrupt(workspace, "record")


@pytest.mark.parametrize("archives", ["[]", '[{"files": ["' + sha("b") + '"]}]', "[1]", "{", ""])
def test_record_without_a_files_archive_is_corrupt(workspace: Workspace, archives: str) -> None:
    (workspace.source / "a").write_text("a")
    workspace.write()
    path = workspace.cache / "record"
    manifest = gzip.decompress(path.read_bytes()).split(b"\n")[0]
    path.write_bytes(gzip.compress(manifest + b"\n" + archives.encode()))
    require_corrupt(workspace, "record")
    path.write_bytes(path.read_bytes()[:-10])
    require_corrupt(workspace, "record")
    assert read_record(path.read_bytes()) == []


# Choice -------------------------------------------------------------------------------------


def sources_of(sizes: dict[int, int]) -> dict[str, Source]:
    """Files by the SHA-256 of their number."""
    return {sha(number): Source(Path(), size) for number, size in sizes.items()}


def archive_of(sizes: dict[int, int]) -> Archive:
    return Archive(tuple(sha(number) for number in sizes), sum(sizes.values()))


NUMBERS = st.sets(st.integers(0, 60))


@given(NUMBERS, st.lists(NUMBERS.filter(bool), max_size=30), st.sets(st.integers(61, 63)))
def test_every_file_is_in_an_archive(
    numbers: set[int], existing_numbers: list[set[int]], large: set[int]
) -> None:
    sizes = {number: number + 1000 for number in sorted(numbers)}
    sources = sources_of({**sizes, **dict.fromkeys(large, MAX_SMALL_FILE_BYTES + 1)})
    existing = [archive_of({n: n + 1000 for n in numbers}) for numbers in existing_numbers]
    archives = choose_archives(sources, existing)
    shared = [archive for archive in archives if archive.size <= 60 * 1060]
    assert {file for archive in archives for file in archive.files} >= set(sources)
    assert {archive.files for archive in archives if archive not in shared} == {
        (sha(number),) for number in large
    }
    assert len(shared) <= MAX_SHARED_ARCHIVES
    for archive in shared:
        needed = sum(sources[file].size for file in archive.files if file in sources)
        assert needed * MAX_OVERHEAD >= archive.size
    again = choose_archives(sources, reversed(archives))
    assert set(again) == set(archives), "the second run needs nothing else"


def test_only_changed_files_are_added_unless_few_are_needed() -> None:
    old = archive_of(dict.fromkeys(range(10), 1000))
    archives = choose_archives(sources_of(dict.fromkeys(range(1, 12), 1000)), [old])
    assert archives == [old, archive_of({10: 1000, 11: 1000})]
    old = archive_of(dict.fromkeys(range(MAX_OVERHEAD + 1), 1000))
    assert choose_archives(sources_of({0: 1000}), [old]) == [archive_of({0: 1000})]
    old = archive_of(dict.fromkeys(range(MAX_OVERHEAD), 1000))
    assert choose_archives(sources_of({0: 1000}), [old]) == [old]


def test_small_archives_are_merged() -> None:
    sizes = {0: 5000, **dict.fromkeys(range(1, MAX_SHARED_ARCHIVES + 1), 1000)}
    existing = [archive_of({number: size}) for number, size in sizes.items()]
    assert set(choose_archives(sources_of(sizes), existing[:-1])) == {
        existing[0],
        archive_of({number: size for number, size in sizes.items() if number}),
    }
    del sizes[MAX_SHARED_ARCHIVES]
    assert set(choose_archives(sources_of(sizes), existing[:-1])) == set(existing[:-1])
