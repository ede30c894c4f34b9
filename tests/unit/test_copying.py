"""Files copied over real SFTP on loopback: trees, unusual names, drops, no partial files."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ssh_server import FileServer, serving_files
from tpuctl.errors import NotFound, RemoteFailed, TpuctlError, Unreachable, Usage
from tpuctl.flows.machines.cp import CopyResult, copy
from tpuctl.model.events import Event, StepFinished, StepProgress, WarningIssued
from tpuctl.model.workers.copy_path import parse_copy
from tpuctl.remote.ssh import SshTransport

ODD = (b"a b.txt", "é안녕".encode(), b"new\nline", b"bad\xff", b"-r", b"*", b"'quote\"", b"x" * 255)


class NoClock:
    """A clock that advances by a second with each reading."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept = 0

    def now(self) -> float:
        self.seconds += 1
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept += 1


@dataclass
class Bench:
    here: Path
    servers: dict[int, FileServer]
    transports: dict[int, SshTransport]
    events: list[Event]
    clock: NoClock

    @property
    def server(self) -> FileServer:
        return self.servers[0]

    @property
    def home(self) -> Path:
        return self.server.home

    async def copy(self, *paths: str, recursive: bool = False) -> list[CopyResult]:
        everywhere = any(path.startswith(":") for path in paths)
        request = parse_copy(paths, all_workers=everywhere)
        return await copy(
            request,
            self.transports if everywhere else {0: self.transports[0]},
            self.events.append,
            recursive=recursive,
            clock=self.clock,
        )

    def of_kind(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    async with AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(serving_files(tmp_path, n)) for n in range(3)]
        servers = {number: pair[0] for number, pair in enumerate(pairs)}
        transports = {number: pair[1] for number, pair in enumerate(pairs)}
        yield Bench(here, servers, transports, [], NoClock())


def grow(folder: Path) -> Path:
    """Create a tree with all supported kinds of entries."""
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "script.sh").write_text("#!/bin/sh\n")
    (folder / "script.sh").chmod(0o751)
    (folder / "secret").write_bytes(b"hush")
    (folder / "secret").chmod(0o600)
    (folder / "nothing").touch()
    (folder / "big").write_bytes(os.urandom(3_000_001))
    for name in ODD:
        (folder / "deep" / os.fsdecode(name)).write_bytes(name)
    (folder / "link").symlink_to("script.sh")
    (folder / "deep" / "up").symlink_to("..")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "closed").mkdir()
    (folder / "closed" / "inside").write_text("x")
    os.utime(folder / "secret", (1_000_000_000, 1_000_000_000))
    (folder / "closed").chmod(0o555)
    return folder


def picture(folder: Path) -> dict[bytes, tuple[object, ...]]:
    """The entries of a folder: kind, mode, modification time of files, content."""
    found: dict[bytes, tuple[object, ...]] = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode & 0o777
        name = os.fsencode(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", path.readlink())
        elif path.is_dir():
            found[name] = ("folder", mode)
        else:
            found[name] = ("file", mode, int(path.stat().st_mtime), path.read_bytes())
    return found


async def test_tree_round_trip(bench: Bench) -> None:
    tree = grow(bench.here / "tree")
    files = sum(entry[0] == "file" for entry in picture(tree).values())
    (done,) = await bench.copy("tree", "0:", recursive=True)
    assert (done.worker, done.files) == (0, files)
    assert picture(bench.home / "tree") == picture(tree)
    await bench.copy("0:tree", "back", recursive=True)
    assert picture(bench.here / "back") == picture(tree)
    (bench.here / "tree" / "script.sh").write_text("changed")
    (bench.home / "tree" / "closed").chmod(0o755)  # so that its file can be overwritten
    await bench.copy("tree", "0:", recursive=True)  # over existing files and links
    assert picture(bench.home / "tree") == picture(tree)
    finished = bench.of_kind(StepFinished)
    assert [getattr(event, "address", "") for event in finished] == ["copy/worker-0"] * 3
    progress = bench.of_kind(StepProgress)
    assert progress
    assert all(0 <= getattr(event, "fraction", -1) <= 1 for event in progress)
    assert "/s" in getattr(progress[-1], "text", "")


@pytest.mark.parametrize(
    ("target", "lands"),
    [
        ("0:", "a.txt"),
        ("0:b.txt", "b.txt"),
        ("0:there", "there/a.txt"),
        ("0:there/", "there/a.txt"),
        ("0:new/folders/", "new/folders/a.txt"),
        ("0:new/b.txt", "new/b.txt"),
        ("worker-0:~/b.txt", "b.txt"),
    ],
)
async def test_target_path_of_file(bench: Bench, target: str, lands: str) -> None:
    (bench.here / "a.txt").write_text("a")
    (bench.home / "there").mkdir()
    await bench.copy("a.txt", target)
    assert (bench.home / lands).read_text() == "a"


async def test_folder_contents_and_empty_files_are_copied(bench: Bench) -> None:
    (bench.here / "a.txt").write_text("a")
    (bench.home / "there").mkdir(mode=0o700)
    await bench.copy(".", "0:there", recursive=True)
    assert [path.name for path in (bench.home / "there").iterdir()] == ["a.txt"]
    assert (bench.home / "there").stat().st_mode & 0o777 == 0o700
    (bench.here / "nothing").touch()
    (done,) = await bench.copy("nothing", "0:")
    assert (done.files, done.bytes) == (1, 0)
    assert (bench.home / "nothing").read_bytes() == b""


async def test_patterns_are_expanded_on_worker(bench: Bench) -> None:
    for name in ("1.log", "2.log", "3.txt"):
        (bench.home / name).write_text(name)
    await bench.copy("0:*.log", ".")
    assert sorted(path.name for path in bench.here.iterdir()) == ["1.log", "2.log"]


async def test_copy_to_all_workers_and_back(bench: Bench) -> None:
    (bench.here / "a.txt").write_text("a")
    done = await bench.copy("a.txt", ":b.txt")
    assert [(copy.worker, copy.files, copy.bytes) for copy in done] == [
        (0, 1, 1),
        (1, 1, 1),
        (2, 1, 1),
    ]
    for number, server in bench.servers.items():
        (server.home / "b.txt").write_text(f"of {number}")
    await bench.copy(":b.txt", "got")
    texts = [(bench.here / f"got/worker-{n}/b.txt").read_text() for n in range(3)]
    assert texts == ["of 0", "of 1", "of 2"]


async def test_failure_on_one_worker_does_not_stop_others(bench: Bench) -> None:
    (bench.here / "a.txt").write_text("a")
    (bench.servers[1].home / "b").write_text("a file")
    with pytest.raises(RemoteFailed, match="1:b"):
        await bench.copy("a.txt", ":b/a.txt")
    assert [(bench.servers[n].home / "b" / "a.txt").exists() for n in (0, 2)] == [True, True]


async def test_copy_resumes_after_dropped_connection(bench: Bench) -> None:
    (bench.here / "big").write_bytes(data := os.urandom(4_000_000))
    drops = [2_000_000, 3_000_000]

    def drop(offset: int, piece: bytes) -> bytes:
        if drops and offset >= drops[0]:
            del drops[0]
            bench.server.drop()
        return piece

    bench.server.on_write = drop
    (done,) = await bench.copy("big", "0:")
    assert not drops
    assert bench.server.logins == 3
    assert (bench.home / "big").read_bytes() == data
    assert done.bytes == len(data), "bytes sent twice count once"

    reads = [2_000_000]

    def drop_read(offset: int) -> None:
        if reads and offset >= reads[0]:
            del reads[0]
            bench.server.drop()

    bench.server.on_read = drop_read
    await bench.copy("0:big", "back")
    assert (bench.here / "back").read_bytes() == data
    for folder in (bench.here, bench.home):
        assert not [path.name for path in folder.iterdir() if "tpuctl" in path.name]


async def test_copy_fails_when_every_connection_drops(bench: Bench) -> None:
    (bench.here / "a").write_text("new")
    (bench.home / "a").write_text("old")

    def drop(offset: int, piece: bytes) -> bytes:
        bench.server.drop()
        return piece

    bench.server.on_write = drop
    with pytest.raises(Unreachable):
        await bench.copy("a", "0:")
    assert (bench.home / "a").read_text() == "old", "files are replaced atomically"
    assert bench.clock.slept > 1


async def test_incomplete_file_does_not_replace_target_nor_folder_a_file(bench: Bench) -> None:
    (bench.here / "a").write_bytes(b"x" * 100_000)
    (bench.home / "a").write_text("old")
    bench.server.on_write = lambda offset, piece: piece[: len(piece) - 1]
    with pytest.raises(RemoteFailed, match="of 100000 bytes arrived"):
        await bench.copy("a", "0:")
    assert [path.name for path in bench.home.iterdir()] == ["a"]
    assert (bench.home / "a").read_text() == "old"
    (bench.here / "tree").mkdir()
    (bench.home / "tree").write_text("a file")
    with pytest.raises(Usage, match="0:tree"):
        await bench.copy("tree", "0:tree", recursive=True)


async def test_full_disk_leaves_no_partial_file(bench: Bench) -> None:
    (bench.here / "a").write_bytes(b"x" * 100_000)

    def full(offset: int, piece: bytes) -> bytes:
        raise OSError(28, "No space left on device")

    bench.server.on_write = full
    with pytest.raises(RemoteFailed) as refused:
        await bench.copy("a", "0:")
    assert "df -h" in refused.value.diagnostics[0].hint
    assert list(bench.home.iterdir()) == []


async def test_special_files_are_skipped_with_warning(bench: Bench) -> None:
    (bench.here / "tree").mkdir()
    os.mkfifo(bench.here / "tree" / "pipe")
    (done,) = await bench.copy("tree", "0:", recursive=True)
    assert done.files == 0
    (warned,) = bench.of_kind(WarningIssued)
    assert "tree/pipe" in str(warned)


@pytest.mark.parametrize(
    ("paths", "error", "says"),
    [
        (("none", "0:"), NotFound, "none"),
        (("w:none", "0:"), Usage, "w is no worker"),
        (("0:none", "."), NotFound, "0:none"),
        (("folder", "0:"), Usage, "folder"),
        (("0:folder", "."), Usage, "0:folder"),
        (("a", "b", "0:nowhere"), Usage, "0:nowhere"),
        (("0:a", "0:b", "nowhere"), Usage, "nowhere"),
        (("0:a", "nowhere/"), None, ""),
    ],
)
async def test_error_names_path(
    bench: Bench, paths: tuple[str, ...], error: type[TpuctlError] | None, says: str
) -> None:
    for folder in (bench.here, bench.home):
        (folder / "folder").mkdir()
        (folder / "a").write_text("a")
        (folder / "b").write_text("b")
    if error is None:
        await bench.copy(*paths)
        return
    with pytest.raises(error) as refused:
        await bench.copy(*paths)
    assert says in refused.value.diagnostics[0].detail


@pytest.mark.parametrize(
    "target", ["../outside", "OUTSIDE", "deep/../../outside", "..//../outside"]
)
async def test_download_writes_nothing_outside_its_folder(bench: Bench, target: str) -> None:
    """A worker first sends a link, then a folder of the same name with files to write there."""
    outside = bench.here / "outside"
    outside.mkdir()
    tree = bench.home / "tree"
    tree.mkdir()
    (tree / "ssh").symlink_to(target.replace("OUTSIDE", str(outside)))
    await bench.copy("0:tree", ".", recursive=True)
    assert not (bench.here / "tree" / "ssh").is_symlink()
    assert "tree/ssh" in str(bench.of_kind(WarningIssued)), "what was left out is said"
    (bench.here / "tree" / "ssh").symlink_to(outside)  # however it came there
    (tree / "ssh").unlink()
    (tree / "ssh").mkdir()
    (tree / "ssh" / "authorized_keys").write_text("attacker")
    with pytest.raises(Usage, match="link"):
        await bench.copy("0:tree", ".", recursive=True)
    assert list(outside.iterdir()) == []


async def test_download_does_not_follow_link_with_its_name(bench: Bench) -> None:
    (bench.here / "elsewhere").mkdir()
    (bench.here / "tree").symlink_to("elsewhere")
    (bench.home / "tree").mkdir()
    (bench.home / "tree" / "a").write_text("a")
    with pytest.raises(Usage, match="link"):
        await bench.copy("0:tree", ".", recursive=True)
    await bench.copy("0:tree/a", "tree/", recursive=True)  # named by the user, not the worker
    assert (bench.here / "elsewhere" / "a").read_text() == "a"


async def test_download_replaces_link_by_file_without_special_bits(bench: Bench) -> None:
    (bench.here / "precious").write_text("mine")
    (bench.here / "a").symlink_to("precious")
    (bench.home / "a").write_text("theirs")
    (bench.home / "a").chmod(0o6755)
    await bench.copy("0:a", ".")
    assert (bench.here / "precious").read_text() == "mine"
    assert not (bench.here / "a").is_symlink()
    assert (bench.here / "a").stat().st_mode & 0o7777 == 0o755
