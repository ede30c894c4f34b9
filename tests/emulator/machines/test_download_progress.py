"""The progress of pip's downloads for an image."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tpuctl.local_cloud.download_progress import DownloadProgress
from tpuctl.local_cloud.machine_images import _run

# Like pip, it prints what it downloads, and writes it to a folder in TMPDIR.
LIKE_PIP = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["TMPDIR"]) / "pip-unpack-x"
folder.mkdir()
print("Collecting x==1 (from -r lock)", flush=True)
print("  Downloading x-1-py3-none-any.whl.metadata (10 bytes)", flush=True)
print("  Downloading x-1-py3-none-any.whl (2.0 MB)", flush=True)
(folder / "x-1-py3-none-any.whl").write_bytes(b"x" * 500_000)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("Installing collected packages: x", flush=True)
"""


def test_reports_bytes_of_current_download(tmp_path: Path) -> None:
    moved: list[tuple[int, int]] = []
    messages: list[str] = []
    output_file = tmp_path / "seen"

    def note(done: int, total: int, text: str) -> None:
        moved.append((done, total))
        assert text == "x-1-py3-none-any.whl: 0.5 of 2.0 MB"
        output_file.touch()

    with (tmp_path / "lock").open("w") as lock:
        command = [sys.executable, "-c", LIKE_PIP, str(output_file)]
        status, _ = asyncio.run(_run(command, messages.append, lock.fileno(), note))
    assert status == 0
    assert set(moved) == {(500_000, 2_000_000)}
    assert messages[-1] == "Installing collected packages: x"


def test_reports_nothing_without_download(tmp_path: Path) -> None:
    moved: list[int] = []
    download = DownloadProgress(tmp_path, lambda done, total, text: moved.append(done))
    download.report()
    download.on_line("Downloading https://example.com/a/x.whl (1.5 kB)")
    download.report()  # not started
    (tmp_path / "unpack").mkdir()
    (tmp_path / "unpack" / "x.whl").write_bytes(b"x" * 2000)  # more than announced
    download.report()
    download.on_line("Installing collected packages: x")
    download.report()
    assert moved == [1500]
