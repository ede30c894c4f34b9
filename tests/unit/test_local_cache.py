"""`local prune`: what is deleted of the cache, what is kept, and how much it says it freed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tpuctl.cli.main import run
from tpuctl.environments import shared
from tpuctl.files import archives_lock, disk_usage
from tpuctl.local_cloud.machine_images import ImageStore

IMAGE, OTHER_IMAGE = "tensorflow-2.18.0-py3.11-08320c580f084b67", "python-py3.11-16733ea88e40e61e"
COMPILER, PACKAGES = "compile/compiler-f8d0ec337fa52ea1", "afe2cb3ad3222525160e2422"
TOOL = "cpython-3.12.1-linux-x86_64-gnu-20261110"
SIZE = 1 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one item of each kind, and what is not tpuctl's."""
    monkeypatch.setenv("TPUCTL_IMAGE_CACHE", str(tmp_path / "images"))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / "local"))
    rehearsals = tmp_path / "config/cache/rehearsals"
    for folder in (
        *(tmp_path / "images" / name for name in (IMAGE, OTHER_IMAGE, COMPILER, "pip", "mine")),
        *(rehearsals / f"home/.tpuctl/envs/{PACKAGES}", rehearsals / "runs/one"),
        tmp_path / "config/cache/tools" / TOOL,
    ):
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(os.urandom(SIZE))
        if folder.name not in ("pip", "mine", "one", TOOL):
            (folder / "complete").touch()
    (tmp_path / "images" / IMAGE / "link").symlink_to(tmp_path)
    return tmp_path / "images"


def prune(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    code = run(["local", "prune", "--yes", "--json", *options])
    envelope = json.loads(capsys.readouterr().out)
    assert code == 0, envelope
    data: dict[str, Any] = envelope["data"]
    return data


def names(items: list[dict[str, Any]]) -> set[str]:
    return {Path(item["path"]).name for item in items}


def test_unused_items_are_deleted(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = disk_usage(cache.parent)
    data = prune(capsys)
    kinds = sorted(item["kind"] for item in data["deleted_items"])
    assert kinds == ["compiler", "downloads", "image", "image", "packages", "tool"]
    assert data["kept_items"] == []
    assert data["freed_bytes"] == before - disk_usage(cache.parent) >= 6 * SIZE
    assert (cache / "mine/data").exists(), "not tpuctl's"
    assert (cache.parent / "config/cache/rehearsals/runs/one/data").exists(), "results"
    assert (cache / "pip").is_dir(), "machines have it open"
    assert prune(capsys) == {"freed_bytes": 0, "deleted_items": [], "kept_items": []}


def test_images_in_use_are_kept(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a machine of one's own local cloud, also while it is stopped, and by a running cloud."""
    machine = tmp_path / "local/machines/bert"
    machine.mkdir(parents=True)
    (machine / "image").symlink_to(cache / IMAGE)
    with shared(ImageStore().locks_of(cache / OTHER_IMAGE)[1]):
        data = prune(capsys)
    assert names(data["kept_items"]) == {IMAGE, OTHER_IMAGE}
    assert {item["keep_reason"] for item in data["kept_items"]} == {"in use"}
    assert (cache / IMAGE / "data").exists()
    assert (cache / OTHER_IMAGE / "data").exists()
    with shared(ImageStore().locks_of(cache / OTHER_IMAGE)[0]):  # being built
        assert names(prune(capsys)["kept_items"]) == {IMAGE, OTHER_IMAGE}


def test_everything_is_kept_during_rehearsal(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Except for downloads, without which pip downloads again, and the Pythons of jobs."""
    with ImageStore().rehearsing():
        data = prune(capsys)
    assert names(data["deleted_items"]) == {"pip", TOOL}
    assert {item["keep_reason"] for item in data["kept_items"]} == {"rehearsal running"}


def test_recently_used_items_are_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_ago = time.time() - 31 * 24 * 3600
    os.utime(cache / IMAGE / "complete", (long_ago, long_ago))
    data = prune(capsys, "--older-than", "30d")
    assert names(data["deleted_items"]) == {IMAGE}
    assert {item["keep_reason"] for item in data["kept_items"]} == {"used recently"}


def test_archives_in_use_are_kept(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "config/cache/tools" / TOOL
    with shared(archives_lock(folder)):
        data = prune(capsys)
    assert names(data["kept_items"]) == {TOOL}
    assert (folder / "data").exists()
    assert names(prune(capsys)["deleted_items"]) == {TOOL}


def test_items_are_listed_before_question(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["local", "prune"]) == 2
    output = capsys.readouterr()
    assert "tensorflow-2.18.0-py3.11  " in output.out
    assert "Delete 6 items, 6.3 MB?" in output.err
    assert (cache / IMAGE / "data").exists()
    assert max(map(len, output.out.splitlines())) <= 80


def test_status_has_sizes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["local", "status"]) == 1
    assert "6.3 MB; to free it: tpuctl local prune" in capsys.readouterr().out
    assert run(["local", "status", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)["data"]
    size = data.pop("cache_bytes")
    assert data == {"running": False, "folder_bytes": 0}
    assert size == prune(capsys)["freed_bytes"]


def test_downloads_are_kept_while_uv_installs(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """uv shares a lock of its cache with others that read it, and links files from there."""
    (cache / "pip/uv").mkdir()
    with shared(cache / "pip/uv/.lock"):
        data = prune(capsys)
    assert names(data["kept_items"]) == {"pip"}
    assert names(prune(capsys)["deleted_items"]) == {"pip"}
