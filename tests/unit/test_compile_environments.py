"""The environments of a compilation: installed once, completely or not at all."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.polling import async_until
from tpuctl.errors import OperationFailed, Refused
from tpuctl.preflight.compile import environments
from tpuctl.preflight.compile.environments import COMPILER, LOWERING, Environments, Kind

NOWHERE = "nothing-there @ file:///nowhere/nothing_there-1.0-py3-none-any.whl --hash=sha256:" + (
    "0" * 64
)


def empty(folder: Path, text: str = "# nothing\n") -> Kind:
    lock = folder / "list.lock"
    lock.write_text(text, "utf-8")
    return Kind("test", "nothing", 0, 0, lock)


def ignore_progress(_: str) -> None:
    pass


@pytest.mark.parametrize("kind", [LOWERING, COMPILER], ids=lambda kind: kind.name)
def test_packages_are_pinned_with_hashes(kind: Kind) -> None:
    text = kind.lock.read_text("utf-8")
    blocks = re.split(r"\n(?=[a-z0-9])", text)
    packages = [block for block in blocks if re.match(r"[a-z0-9][\w.-]*==", block)]
    assert len(packages) > 5
    assert all("--hash=sha256:" in block for block in packages)


@pytest.mark.soak
async def test_concurrent_processes_install_once(tmp_path: Path) -> None:
    kind, store = empty(tmp_path), Environments(tmp_path / "cache")
    assert not store.is_installed(kind)
    messages: list[str] = []
    both = await asyncio.gather(
        store.ensure(kind, messages.append), Environments(store.cache).ensure(kind, messages.append)
    )
    assert both[0] == both[1] and store.is_installed(kind)
    assert sum("on disk" in line for line in messages) == 1
    assert any("waiting" in line for line in messages)
    subprocess.run([both[0], "-c", "pass"], check=True)


@pytest.mark.soak
async def test_failed_install_is_removed_and_reported(tmp_path: Path) -> None:
    kind, store = empty(tmp_path, NOWHERE), Environments(tmp_path / "cache")
    with pytest.raises(OperationFailed, match="nowhere"):
        await store.ensure(kind, ignore_progress)
    assert not store.is_installed(kind)
    assert not store.home(kind).exists()


async def test_interrupted_install_is_removed(tmp_path: Path) -> None:
    kind, store = empty(tmp_path), Environments(tmp_path / "cache")
    making = asyncio.ensure_future(store.ensure(kind, ignore_progress))

    def has_begun() -> bool:
        assert not making.done()
        return store.home(kind).exists()

    await async_until(has_begun, "the start of the installation")
    making.cancel()
    with suppress(asyncio.CancelledError):
        await making
    assert not store.home(kind).exists()


async def test_full_disk_is_reported_before_download(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    kind = Kind("test", "nothing", 0, free, empty(tmp_path).lock)
    with pytest.raises(Refused, match="Not enough disk space"):
        await Environments(tmp_path / "cache").ensure(kind, ignore_progress)


def test_lock_change_creates_new_environment(tmp_path: Path) -> None:
    store = Environments(tmp_path)
    first = store.home(empty(tmp_path))
    assert first == store.home(empty(tmp_path))
    assert first != store.home(empty(tmp_path, "# something\n"))
    assert re.search(r"^tensorflow-tpu==2\.18\.", LOWERING.lock.read_text("utf-8"), re.MULTILINE)
    assert not re.search(r"^tensorflow==", LOWERING.lock.read_text("utf-8"), re.MULTILINE)
    assert re.search(r"^libtpu==", COMPILER.lock.read_text("utf-8"), re.MULTILINE)


def test_unsupported_platforms_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments.platform, "system", lambda: "Darwin")
    with pytest.raises(Refused, match="Darwin"):
        environments.require_machine()
